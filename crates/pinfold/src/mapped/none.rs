//! In place of `mapped/` where the feature `map` is off: a cache has nothing for maps.

use std::convert::Infallible;
use std::marker::PhantomData;
use std::sync::Arc;

use crate::error::Result;
use crate::options::Options;
use crate::source::Engine;
use crate::stats::Stats;

/// Of a cache.
#[derive(Debug)]
pub(crate) struct MappedOfCache {}

/// Of a file.
#[derive(Debug, Default)]
pub(crate) struct MappedOfFile {}

/// What the `change` mutex of a file guards.
#[derive(Debug, Default)]
pub(crate) struct MappedStates {}

/// What eviction takes by turns.
#[derive(Debug, Default)]
pub(crate) struct PieceTurns {}

/// What is left to do for folios that have left their file.
#[derive(Debug)]
pub(crate) struct Leaving<'a> {
    never: Infallible,
    _of: PhantomData<&'a ()>,
}

impl MappedOfCache {
    pub(crate) fn new(_: u32) -> Self {
        MappedOfCache {}
    }

    #[expect(clippy::unnecessary_wraps, clippy::unused_self, reason = "as with maps")]
    pub(crate) fn open(&mut self, _: &Options, _: &Arc<Engine>) -> Result<()> {
        Ok(())
    }
}

impl MappedOfCache {
    #[expect(clippy::unused_self, reason = "as with maps")]
    pub(crate) fn count(&self, _: &mut Stats) {}
}

impl PieceTurns {
    #[expect(clippy::unused_self, reason = "as with maps")]
    pub(crate) fn has_piece(&self) -> bool {
        false
    }
}

impl Leaving<'_> {
    pub(crate) fn take_out_of_maps(self) {
        match self.never {}
    }
}
