//! What is read for clients, and installed before they ask for it.

use std::borrow::Cow;
use std::sync::atomic::{AtomicUsize, Ordering};

use super::tests::{Guest, MIB, P, byte_of, bytes, serving, snapshot};
use super::*;
use crate::source::Source;
use crate::{Cache, Options};

#[test]
fn touched_pages_are_told_in_their_order_and_installed_ahead() {
    let (_cache, file) = snapshot(16 * MIB, bytes(8 * MIB));
    let mut clients = Clients::new(&file).unwrap();
    clients.record(true);
    clients.add_zeros(1000 * P..1010 * P);
    let order = [5, 1200, 6, 1001, 7, 700, 3, 5];
    let mut touched = Vec::new();
    for _ in 0..2 {
        let guest = Guest::new(&clients, ClientMemory::Shared, 0);
        let id = guest.add_to(&mut clients);
        let at = guest.mapping().address + 700 * P;
        let client = clients.clients.get_mut(&id.0).unwrap();
        client.hear(Message::Removed(at..at + P)).unwrap();
        let (read, _) = serving(&mut clients, || order.map(|page| guest.read(page)));
        assert_eq!((read[3], read[5]), (0, 0));
        clients.remove(id);
        touched = clients.take_touched();
        touched.dedup(); // one that rests, is tried again
        let none = clients.take_touched().len();
        assert_eq!((&touched[..], none), (&[5, 1200, 6, 7, 3][..], 0), "no zeros");
    }
    // Ahead: no fault is left.
    let mut clients = Clients::new(&file).unwrap();
    let pages: Arc<[u64]> = touched.into_iter().chain([u64::MAX, 2048]).collect();
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let guest = Guest::new(&clients, memory, 0);
        let id = guest.add_to(&mut clients);
        clients.install_ahead(id, &pages);
        // A read ends that an earlier call with the same pages began.
        let plan = clients.clients[&id.0].ahead.as_ref().unwrap().plan.clone();
        clients.pieces_came(id.0, &plan, 0..0).unwrap();
        // Ends: once all are installed.
        while clients.stats().ahead > 0 {
            assert!(clients.work().is_empty());
        }
        for page in [5, 1200, 6, 7, 3] {
            assert_eq!(guest.read(page), byte_of(page));
        }
        assert_eq!(clients.stats().faults, 0, "{:?}", clients.stats());
    }
}

/// A snapshot whose reads are counted.
#[derive(Debug)]
struct Counted {
    len: usize,
    reads: AtomicUsize,
    read_bytes: AtomicUsize,
}

impl Source for Counted {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        let got = buf.len().min(self.len - offset as usize);
        for (page, bytes) in (offset / P..).zip(buf[..got].chunks_mut(P as usize)) {
            bytes.fill(byte_of(page));
        }
        self.reads.fetch_add(1, Ordering::Relaxed);
        self.read_bytes.fetch_add(got, Ordering::Relaxed);
        Ok(got)
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        Ok(self.len as u64)
    }
    fn kind(&self) -> Cow<'static, str> {
        "counted".into()
    }
}

/// A snapshot of `len` bytes whose reads are counted.
fn counted(budget: usize, len: usize) -> (Cache, File, Arc<Counted>) {
    let cache = Cache::new(Options::new(budget as u64)).unwrap();
    let (reads, read_bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let source = Arc::new(Counted { len, reads, read_bytes });
    let file = cache.attach("snapshot", source.clone()).unwrap();
    (cache, file, source)
}

#[test]
fn a_page_is_read_and_installed_with_those_around_it() {
    for memory in [ClientMemory::Shared, ClientMemory::Private] {
        let (_cache, file, source) = counted(32 * MIB, 8 * MIB);
        let mut clients = Clients::new(&file).unwrap();
        let guests = [(); 2].map(|()| Guest::new(&clients, memory, 0));
        for guest in &guests {
            guest.add_to(&mut clients);
        }
        let mut order: Vec<u64> = (0..2048).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut order);
        let ((), told) = serving(&mut clients, || {
            for &page in &order {
                for guest in &guests {
                    assert_eq!(guest.read(page), byte_of(page));
                }
            }
        });
        assert!(told.is_empty(), "{told:?}");
        let (reads, blocks) = (source.reads.load(Ordering::Relaxed), 2048 / 32);
        assert_eq!(source.read_bytes.load(Ordering::Relaxed), 8 * MIB, "each byte once");
        assert!(reads <= 2 * blocks, "{reads} reads of {blocks} blocks");
        let faults = clients.stats().faults as usize;
        assert!(faults <= 2 * 2 * blocks, "{faults} faults of 2 clients on {blocks} blocks");
    }
}

/// What is read for a thousand pages at random of a file 16 times the budget, in pages.
fn read_for_a_thousand() -> usize {
    let (_cache, file, source) = counted(32 * MIB, 512 * MIB);
    let mut clients = Clients::new(&file).unwrap();
    let guest = Guest::new(&clients, ClientMemory::Shared, 0);
    guest.add_to(&mut clients);
    let mut random = fastrand::Rng::with_seed(7);
    let pages: Vec<u64> = (0..1000).map(|_| random.u64(0..131_072)).collect();
    serving(&mut clients, || pages.iter().map(|&page| u64::from(guest.read(page))).sum::<u64>());
    source.read_bytes.load(Ordering::Relaxed) / P as usize
}

#[test]
fn nothing_is_read_around_a_page_of_a_file_that_does_not_fit() {
    let read = read_for_a_thousand();
    assert!(read <= 1050, "{read} pages for 1000");
    let blindly = mutant::with(Some(Mutant::AroundBlindly), read_for_a_thousand);
    assert!(blindly > 4000, "the mutant does nothing: {blindly} pages");
}

#[test]
fn a_working_set_is_installed_ahead_by_few_reads() {
    // Every fourth page in any order; and few that lie far from each other.
    for (step, reads_max, read_bytes) in [(4, 64, 8 * MIB), (64, 32, 32 * P as usize)] {
        let (_cache, file, source) = counted(32 * MIB, 8 * MIB);
        let mut clients = Clients::new(&file).unwrap();
        let mut pages: Vec<u64> = (0..2048).step_by(step).collect();
        fastrand::Rng::with_seed(7).shuffle(&mut pages);
        let pages: Arc<[u64]> = pages.into();
        let guests = [(); 2].map(|()| Guest::new(&clients, ClientMemory::Shared, 0));
        for guest in &guests {
            let id = guest.add_to(&mut clients);
            clients.install_ahead(id, &pages);
        }
        serving(&mut clients, || ());
        // Ends: once all are installed.
        while clients.stats().ahead > 0 {
            assert!(clients.work().is_empty());
        }
        let reads = source.reads.load(Ordering::Relaxed);
        assert!(reads <= reads_max, "{reads} reads of {} pages", pages.len());
        // Behind the last page of a MiB nothing is read.
        let read = source.read_bytes.load(Ordering::Relaxed);
        assert!(read <= read_bytes && read >= read_bytes * 9 / 10, "{read} of {read_bytes}");
        for guest in &guests {
            pages.iter().for_each(|&page| assert_eq!(guest.read(page), byte_of(page)));
        }
        assert_eq!(clients.stats().faults, 0, "{:?}", clients.stats());
    }
}
