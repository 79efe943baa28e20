//! What is behind the maps of a model: files that are words, and the spaces that map them.
//!
//! The records, their locks and generations, a leaf of the index and the steps of a fault are the
//! shipped ones. A file is a word that says whether its page is in the mirror; it knows whether it
//! is mapped, and whether anybody has a share of it.

use std::sync::Arc;

use crate::base::mutant::{self, Mutant};
use crate::base::sync::{AtomicU32, Mutex, Ordering};
use crate::error::{Error, Result};
use crate::map::space::compared::{Compared, FaultIo, FaultLock};
use crate::map::space::fault::{Fault, SpaceShared, Target, serve};
use crate::map::space::index::{GRANULE_BYTES, Leaf};
use crate::map::space::vma::{Mapped, Vma, Wanted, begin, end};
use crate::mapped::task::Waiter;
use crate::mapped::uffd::Ask;

const PAGE: u64 = 3;

/// A file with one page, number [`PAGE`].
struct Behind {
    /// Whether the page is in the mirror.
    there: AtomicU32,
    is_mapped: AtomicU32,
    shares: AtomicU32,
}

/// A share of a file.
struct Share {
    shared: Arc<SpaceShared>,
    file: Arc<Behind>,
    counted: bool,
}

impl Clone for Share {
    /// As a fault does before it lets go of the lock.
    fn clone(&self) -> Self {
        let counted = !mutant::on(Mutant::FaultSharesNothing);
        Share::new(&self.shared, &self.file, counted)
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        if self.counted {
            self.file.shares.fetch_sub(1, Ordering::SeqCst);
        }
    }
}

impl Share {
    fn new(shared: &Arc<SpaceShared>, file: &Arc<Behind>, counted: bool) -> Self {
        file.shares.fetch_add(u32::from(counted), Ordering::SeqCst);
        Share { shared: shared.clone(), file: file.clone(), counted }
    }

    fn is_open(&self) {
        assert_ne!(self.file.shares.load(Ordering::SeqCst), 0, "the file was closed");
    }
}

impl Target for Share {
    type Brought<'a> = ();

    fn shared(&self) -> &SpaceShared {
        self.is_open();
        &self.shared
    }

    fn look(&self, wanted: &Wanted, _: Option<()>, _: Option<Waiter<'_>>) -> Result<bool> {
        self.is_open();
        assert_eq!(wanted.page, PAGE, "a page that the map does not have");
        let is_mapped = self.file.is_mapped.load(Ordering::SeqCst) == 1;
        assert!(is_mapped, "the file is not mapped any more");
        Ok(self.file.there.load(Ordering::SeqCst) == 1)
    }

    async fn bring(&self, wanted: &Wanted, _: Option<Waiter<'_>>) -> Result<()> {
        self.is_open();
        assert_eq!(wanted.page, PAGE, "a page that the map does not have");
        self.file.there.store(1, Ordering::SeqCst);
        self.is_open();
        Ok(())
    }

    fn fail(&self, _: usize, _: Error) {
        unreachable!("all pages can be read");
    }
}

/// Spaces that share records. Each file has a granule of its own, and is mapped there at most once.
pub(super) struct Spaces {
    pub(super) shared: Vec<Arc<SpaceShared>>,
    leaf: Leaf,
    records: Vec<Vma<Share>>,
    /// The numbers of the records that can be claimed.
    free: Mutex<Vec<u32>>,
    files: Vec<Arc<Behind>>,
}

impl Spaces {
    /// `files` files, each in a space of its own; none is mapped.
    pub(super) fn new(files: usize, records: u32, (lock, io): (FaultLock, FaultIo)) -> Self {
        let file = |_| {
            let word = || AtomicU32::new(0);
            Arc::new(Behind { there: word(), is_mapped: word(), shares: word() })
        };
        Spaces {
            shared: (0..files)
                .map(|_| Arc::new(SpaceShared::new(Compared::new(lock, io), Ask::Signal)))
                .collect(),
            leaf: Leaf::new(),
            records: (0..records).map(|_| Vma::new()).collect(),
            free: Mutex::new((0..records).collect()),
            files: (0..files).map(file).collect(),
        }
    }

    /// Maps a file. False if there is no record.
    pub(super) fn map(&self, file: usize) -> bool {
        let Some(number) = self.free.lock().pop() else { return false };
        let target = Share::new(&self.shared[file], &self.files[file], true);
        let start = file * GRANULE_BYTES;
        let mapped = Mapped { addresses: start..start + 4096, first_page: PAGE, target };
        let compared = &self.shared[file].compared;
        let publish = || {
            self.files[file].is_mapped.store(1, Ordering::SeqCst);
            self.leaf.set(file, Some(number));
        };
        let record = &self.records[number as usize];
        compared.change_layout(|| begin(record, compared, mapped, publish));
        true
    }

    /// Unmaps a file that is mapped, and that no other thread maps or unmaps.
    pub(super) fn unmap(&self, file: usize) {
        let compared = &self.shared[file].compared;
        let number = self.leaf.get(file).expect("the file is mapped");
        let clear = |mapped: &Mapped<Share>| {
            self.leaf.set(mapped.addresses.start / GRANULE_BYTES, None);
            mapped.target.file.is_mapped.store(0, Ordering::SeqCst);
        };
        let release = || self.free.lock().push(number);
        let record = &self.records[number as usize];
        let ended = compared.change_layout(|| end(record, compared, clear, release));
        assert!(ended.is_some(), "the map was another one's");
    }

    /// An access to a file's page.
    pub(super) fn fault(&self, file: usize) -> Fault {
        let find = |address: usize| {
            self.leaf.get(address / GRANULE_BYTES).map(|number| &self.records[number as usize])
        };
        serve(file * GRANULE_BYTES + 17, Ask::Signal, find)
    }

    /// The file's page is evicted.
    pub(super) fn evict(&self, file: usize) {
        self.files[file].there.store(0, Ordering::SeqCst);
    }

    /// All threads have ended: what is mapped can be accessed, and nothing else is shared.
    pub(super) fn ends(&self) {
        for (number, file) in self.files.iter().enumerate() {
            let is_mapped = file.is_mapped.load(Ordering::SeqCst) == 1;
            let expected = if is_mapped { Fault::Served } else { Fault::Elsewhere };
            assert_eq!(self.fault(number), expected, "file {number}");
            let shares = file.shares.load(Ordering::SeqCst);
            assert_eq!(shares, u32::from(is_mapped), "shares of file {number}");
        }
    }
}
