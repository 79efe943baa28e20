//! Maps that threads share.
//!
//! Belongs here: the spaces of a run, one of each kind, and the slots in which maps are.

use std::sync::RwLock;

use pinfold::{Cache, Error, FaultIo, FaultLock, Map, Space, SpaceOptions};

use super::access;

/// Maps that are there at a time.
const SLOTS: usize = 10;

/// Handler threads of the spaces that have any.
const HANDLERS: usize = 2;

/// A map, and what it is of.
#[derive(Debug)]
pub(super) struct Mapped {
    pub(super) map: Map,
    pub(super) subject: usize,
    /// Index in [`Maps::spaces`].
    pub(super) space: usize,
}

impl Mapped {
    /// Runs `body` while no access to the map is allowed. Accesses are allowed again afterwards,
    /// whatever came of `body`: a thread that made one after a failure would end the process, and
    /// nobody would learn of the failure.
    pub(super) fn while_unreadable<T>(&self, body: impl FnOnce() -> T) -> Result<T, Error> {
        self.map.protect(false)?;
        let done = body();
        self.map.protect(true)?;
        Ok(done)
    }
}

/// All spaces and slots. Whoever accesses a map has its slot's lock for reading; whoever changes
/// the map, or what may be done with it, has that for writing.
#[derive(Debug, Default)]
pub(super) struct Maps {
    pub(super) spaces: Vec<Space>,
    pub(super) slots: Vec<RwLock<Option<Mapped>>>,
}

impl Maps {
    /// A space of each kind, and empty slots.
    pub(super) fn new(cache: &Cache) -> Result<Self, Error> {
        access::install();
        let mut maps = Maps::default();
        for lock in [FaultLock::Vma, FaultLock::Space] {
            for io in [FaultIo::Drop, FaultIo::Hold] {
                for handlers in [0, HANDLERS] {
                    let options = SpaceOptions { lock, io, handlers };
                    maps.spaces.push(Space::with(cache, options)?);
                }
            }
        }
        maps.slots = (0..SLOTS).map(|_| RwLock::default()).collect();
        Ok(maps)
    }

    /// Whether system calls that touch absent pages of this space wait for them.
    pub(super) fn serves_system_calls(&self, space: usize) -> bool {
        self.spaces[space].stats().serves_system_calls
    }

    /// How many faults all spaces have had, and how many of them failed.
    pub(super) fn faults(&self) -> (u64, u64) {
        let stats = self.spaces.iter().map(Space::stats);
        stats.fold((0, 0), |(all, failed), stats| (all + stats.faults, failed + stats.failed))
    }
}

#[cfg(test)]
mod tests {
    use pinfold::Options;

    use super::*;

    #[test]
    fn after_a_failure_a_map_is_readable() {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        let file = cache.open(std::env::current_exe().unwrap()).unwrap();
        let map = space.map_file(&file, 0..4096).unwrap();
        let mapped = Mapped { map, subject: 0, space: 0 };
        let failed = mapped.while_unreadable(|| Err::<(), _>("no page"));
        assert_eq!(failed.unwrap(), Err("no page"));
        let lines = std::fs::read_to_string("/proc/self/maps").unwrap();
        let start = format!("{:x}-", mapped.map.as_ptr().addr());
        let line = lines.lines().find(|line| line.starts_with(&start)).expect("it is mapped");
        assert_eq!(line.split_whitespace().nth(1), Some("r--s"), "{line}");
    }
}
