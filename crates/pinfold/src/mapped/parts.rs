//! What mapped memory needs of its own: in a cache, in a file, and under a file's `change` mutex.
//! `pages/` keeps these values, and knows nothing of what is in them.

use std::sync::atomic::AtomicU64;
use std::sync::{Arc, OnceLock};

use crate::base::limits::{Added, Level};
use crate::base::mutant::{self, Mutant};
use crate::base::sync::Mutex;
use crate::error::Result;
use crate::mapped::closed::ClosedFiles;
use crate::mapped::load::Load;
use crate::mapped::mirror::{Leftovers, Mirror};
use crate::mapped::pieces::Pieces;
use crate::mapped::recent::Recent;
use crate::mapped::swap::pages::{OwnMemory, PageStates};
use crate::mapped::swap::{self, Swap};
use crate::mapped::to_write::ToWrite;
use crate::mapped::uffd::{Ask, Uffd};
use crate::options::Options;
use crate::source::Engine;
use crate::stats::Stats;

/// Threads that wait with a folio may have so large a part of a cache's frames. A model has few.
const WAITING_SHARE: u32 = if cfg!(shuttle) { 8 } else { 16 };

/// So large a part may all threads have that install pages in other processes: with runs of pages,
/// and with the folio of a page alone.
#[cfg(feature = "serve")]
const INSTALLED_SHARE: u32 = 8;
#[cfg(feature = "serve")]
const INSTALLED_ALONE_SHARE: u32 = 4;

/// Of a cache.
#[derive(Debug)]
pub(crate) struct MappedOfCache {
    pub(crate) leftovers: Leftovers,
    pub(crate) pieces: Mutex<Pieces>,
    pub(crate) closed: ClosedFiles,
    pub(crate) recent: Recent,
    pub(crate) load: Load,
    /// First of what has threads: it joins those that write.
    pub(crate) to_write: ToWrite,
    /// Pages of maps and own memory, by the program.
    pub(crate) held: Level,
    /// Pages of folios, by threads that wait for hollow frames.
    waiting_with: Level,
    /// Pages of folios, by threads that install them in other processes.
    #[cfg(feature = "serve")]
    installed: Level,
    frames: u32,
    /// How many folios were lent so far: where that goes on, hollow frames are not lacking.
    pub(crate) lent: AtomicU64,
    uffd: OnceLock<Arc<Uffd>>,
    pub(crate) swap: Option<Swap>,
}

/// Of a file.
#[derive(Debug, Default)]
pub(crate) struct MappedOfFile {
    /// Where its mapped pages are, once it has been mapped.
    pub(crate) mirror: OnceLock<Arc<Mirror>>,
    /// What its pages are in if they are the program's own; then it has no mirror.
    pub(crate) own: OnceLock<Arc<dyn OwnMemory>>,
}

/// What the `change` mutex of a file guards.
#[derive(Debug, Default)]
pub(crate) struct MappedStates {
    /// Where the bytes of its pages are, if they are the program's own.
    pub(crate) own: Option<PageStates>,
}

impl MappedOfCache {
    pub(crate) fn new(frames: u32) -> Self {
        MappedOfCache {
            leftovers: Leftovers::default(),
            pieces: Mutex::default(),
            closed: ClosedFiles::default(),
            recent: Recent::new(frames),
            load: Load::new(frames),
            to_write: ToWrite::default(),
            held: Level::default(),
            waiting_with: Level::default(),
            #[cfg(feature = "serve")]
            installed: Level::default(),
            frames,
            lent: AtomicU64::new(0),
            uffd: OnceLock::new(),
            swap: None,
        }
    }

    /// Makes the swap, if there is to be one. Before the cache is shared.
    pub(crate) fn open(&mut self, options: &Options, engine: &Arc<Engine>) -> Result<()> {
        self.swap = swap::open(options, engine)?;
        Ok(())
    }

    pub(crate) fn count(&self, stats: &mut Stats) {
        if let Some(swap) = &self.swap {
            swap.count(stats);
        }
    }

    /// What the cache's own views of mirrors are registered with, made by the first call.
    pub(crate) fn uffd(&self) -> Result<&Arc<Uffd>> {
        if let Some(uffd) = self.uffd.get() {
            return Ok(uffd);
        }
        let uffd = Arc::new(Uffd::open(Ask::Signal)?);
        Ok(self.uffd.get_or_init(|| uffd)) // one that another thread made meanwhile is as good
    }

    /// Whether a thread may wait for hollow frames with a folio of so many pages, which nothing
    /// evicts meanwhile, until what this returns is dropped. All of them together may have a 16th
    /// of the cache, or one folio: otherwise they could have all of it, and wait for each other.
    pub(crate) fn may_wait_with(&self, pages: u32) -> Option<Added<'_>> {
        let most = (self.frames / WAITING_SHARE).max(pages);
        let all = mutant::on(Mutant::AllWaitWithFolios);
        self.waiting_with.hold(pages, if all { u32::MAX } else { most })
    }

    /// Whether a thread may keep folios of so many pages while the kernel installs them in another
    /// process, until what this returns is dropped. That process can make the call wait for as long
    /// as it likes. So all of them together may have an eighth of the cache; a quarter, if what is
    /// kept is the folio of one page, `alone`.
    #[cfg(feature = "serve")]
    pub(crate) fn may_install(&self, pages: u32, alone: bool) -> Option<Added<'_>> {
        let share = if alone { INSTALLED_ALONE_SHARE } else { INSTALLED_SHARE };
        let all = mutant::on(Mutant::CallsKeepAll);
        self.installed.hold(pages, if all { u32::MAX } else { self.frames / share })
    }
}
