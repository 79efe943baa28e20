//! The kernels: two source trees, and the configurations that they are built with.

use clap::ValueEnum;

/// A source tree: Debian's, or the same with patches. `Series` has all that is to be sent. The
/// others compare what page faults may do while they wait, without the other series: `Counted` only
/// counts it, `Drop` has `kernel/faults`, and `Hold` has `kernel/faults-hold`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tree {
    Plain,
    Series,
    Counted,
    Drop,
    Hold,
}

impl Tree {
    pub(crate) const ALL: [Tree; 5] =
        [Tree::Plain, Tree::Series, Tree::Counted, Tree::Drop, Tree::Hold];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Tree::Plain => "plain",
            Tree::Series => "series",
            Tree::Counted => "counted",
            Tree::Drop => "drop",
            Tree::Hold => "hold",
        }
    }
}

/// A configuration. `Tiny` builds in a minute or two and has no disk. `TinyFaults` also compiles
/// what counts and traces faults that wait. `Fast` has no debugging. `Faults` counts and traces faults
/// that wait. `Debug` does that, too, and has KASAN and lockdep. `Kcsan` is separate, because KASAN
/// and KCSAN exclude each other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Config {
    Tiny,
    TinyFaults,
    Fast,
    Debug,
    Kcsan,
    Faults,
}

impl Config {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Config::Tiny => "tiny",
            Config::TinyFaults => "tiny-faults",
            Config::Fast => "fast",
            Config::Debug => "debug",
            Config::Kcsan => "kcsan",
            Config::Faults => "faults",
        }
    }
}
