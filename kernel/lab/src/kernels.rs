//! The kernels: two source trees, and the configurations that they are built with.

use clap::ValueEnum;

/// A source tree: Debian's, or the same with the series.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Tree {
    Plain,
    Series,
}

impl Tree {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Tree::Plain => "plain",
            Tree::Series => "series",
        }
    }
}

/// A configuration. `Tiny` builds in a minute or two and has no disk. `Fast` has no debugging.
/// `Debug` has KASAN and lockdep. `Kcsan` is separate, because KASAN and KCSAN exclude each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Config {
    Tiny,
    Fast,
    Debug,
    Kcsan,
}

impl Config {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Config::Tiny => "tiny",
            Config::Fast => "fast",
            Config::Debug => "debug",
            Config::Kcsan => "kcsan",
        }
    }
}
