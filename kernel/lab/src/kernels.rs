//! Which kernels there are: two source trees, and the configurations they are built in.

use clap::ValueEnum;

/// Which of the two source trees.
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

/// Which configuration; `Tiny` builds in a minute or two and has no disk, `Debug` is
/// KASAN with lockdep, `Kcsan` stands alone because the two sanitizers exclude
/// each other.
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
