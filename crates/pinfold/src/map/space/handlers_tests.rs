//! Tasks of a handler thread: what they wait for does not hold the thread up.

use std::borrow::Cow;
use std::io;
use std::rc::Rc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Condvar, Mutex};
use std::task::Poll;
use std::time::{Duration, Instant};

use super::anon_tests::replace;
use super::fault::Fault;
use super::handlers::{self, ServedFault};
use super::target::serve_message;
use super::vma::FaultAccess;
use crate::access::futures::{Ready, Set};
use crate::base::heap::HAS_NO_ROOM;
use crate::base::mutant::{self, Mutant};
use crate::mapped::task::Rests;
use crate::pages::outside::Outside;
use crate::source::{Memory, Source};
use crate::{AnonMap, Cache, Options, Space};

const PAGE: usize = 4096;
const MIB: usize = 1 << 20;

/// Longer than anything here takes on a busy machine.
const LONG: Duration = Duration::from_secs(60);

/// How often a task without memory rests, and evicts before, until it is taken to get none.
const RESTS: u64 = 10;

/// Calls of sources that hang until they are let go on.
#[derive(Debug, Default)]
struct Gate {
    /// Whether it is closed, and how many have come to it while it was.
    state: Mutex<(bool, u64)>,
    changed: Condvar,
}

impl Gate {
    fn pass(&self) {
        let mut state = self.state.lock().unwrap();
        state.1 += u64::from(state.0);
        self.changed.notify_all();
        let open = |state: &mut (bool, u64)| state.0;
        drop(self.changed.wait_while(state, open).unwrap());
    }

    fn set_closed(&self, closed: bool) {
        self.state.lock().unwrap().0 = closed;
        self.changed.notify_all();
    }

    fn wait_for_one(&self) {
        let none = |state: &mut (bool, u64)| state.1 == 0;
        let waited = self.changed.wait_timeout_while(self.state.lock().unwrap(), LONG, none);
        assert!(!waited.unwrap().1.timed_out(), "nobody calls the source");
    }
}

/// Memory whose reads of one page, and whose writes, pass gates.
#[derive(Debug)]
struct Gated {
    memory: Memory,
    /// Where the page begins.
    page: AtomicU64,
    read: Gate,
    write: Gate,
}

impl Gated {
    fn new(bytes: Vec<u8>) -> Arc<Self> {
        let (read, write) = Default::default();
        Arc::new(Gated { memory: Memory::new(bytes), page: AtomicU64::new(0), read, write })
    }
}

impl Source for Gated {
    fn len_bytes(&self) -> io::Result<u64> {
        self.memory.len_bytes()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let page = self.page.load(Ordering::Relaxed);
        if offset < page + PAGE as u64 && page < offset + buf.len() as u64 {
            self.read.pass();
        }
        self.memory.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.write.pass();
        self.memory.write_at(offset, buf)
    }

    fn kind(&self) -> Cow<'static, str> {
        "gated".into()
    }
}

/// The tasks of a handler thread, which the test is.
struct Tasks {
    set: Set<usize, ServedFault>,
    rests: Rc<Rests>,
}

impl Tasks {
    fn new() -> Self {
        Tasks { set: Set::of(Ready::new().unwrap()), rests: Rc::default() }
    }

    /// A fault; its end, if that comes at once.
    fn begin(&mut self, address: *const u8, access: FaultAccess) -> Option<Fault> {
        let address = address.addr();
        let task = serve_message(address, access, self.rests.clone());
        self.set.begin(address, Box::pin(task)).map(|(_, fault)| fault)
    }

    /// Waits for the end of a task.
    fn end(&mut self, address: *const u8) -> Fault {
        self.end_within(address, u64::MAX).expect("no number of rests is too many")
    }

    /// Waits for the end of a task, as long as it rests at most so often.
    fn end_within(&mut self, address: *const u8, times: u64) -> Option<Fault> {
        let (since, before) = (Instant::now(), self.rests.times());
        while self.rests.times() - before < times {
            assert!(since.elapsed() < LONG, "the task does not end");
            if let Some((of, fault)) = self.set.next() {
                assert_eq!(of, address.addr(), "another one has ended");
                return Some(fault);
            }
            self.rests.wake();
            std::thread::yield_now();
        }
        None
    }
}

/// Whether a thread, with this mutant, gets to where `body` calls its argument while `gate` is
/// closed; it is opened then.
fn passes(mutant: Option<Mutant>, gate: &Gate, body: impl FnOnce(&dyn Fn()) + Send) -> bool {
    let (sender, passed) = channel();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            let reached = || sender.send(()).unwrap();
            mutant::with(mutant, || body(&reached));
        });
        // A mutant never gets there, however long it takes.
        let time = if mutant.is_none() { LONG } else { Duration::from_millis(300) };
        let passed = passed.recv_timeout(time).is_ok();
        gate.set_closed(false);
        passed
    })
}

/// Makes a page of a map that is there one that has to be written: zeros are not.
fn store(address: *const u8) {
    let word = std::ptr::with_exposed_provenance_mut::<u64>(address.addr());
    // SAFETY: the page is in a map of the test's, which nobody else uses.
    unsafe { word.write_volatile(1) };
}

fn space(cache: &Cache) -> Space {
    Space::new(cache, 1).unwrap()
}

/// Own memory whose page 9 is in the first slot of the swap, which hangs when it is read.
fn paged_out() -> (Arc<Gated>, Cache, Space, AnonMap) {
    let swap = Gated::new(Vec::new());
    let options = Options {
        swap_source: Some(swap.clone()),
        swap_bytes: 4 * MIB as u64,
        ..Options::new(16 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let space = space(&cache);
    let map = space.map_anon(4 * MIB).unwrap();
    map.write_at(&[7; PAGE], 9 * PAGE).unwrap();
    assert_eq!(map.page_out(0..4 * MIB).unwrap(), PAGE);
    swap.read.set_closed(true);
    (swap, cache, space, map)
}

/// Whether faults of other pages are served while the read of a file's page hangs.
fn others_are_served_beside_a_read(mutant: Option<Mutant>) -> bool {
    let source = Gated::new((0..4 * MIB).map(|at| (at / PAGE) as u8).collect());
    let cache = Cache::new(Options::new(16 * MIB as u64)).unwrap();
    let file = cache.attach("file", source.clone()).unwrap();
    let map = space(&cache).map_file(&file, 0..4 * MIB as u64).unwrap();
    let at = |page: usize| map.as_ptr().wrapping_add(page * PAGE).addr();
    source.page.store(300 * PAGE as u64, Ordering::Relaxed);
    source.read.set_closed(true);
    let (hangs, other) = (at(300), at(700));
    let passed = passes(mutant, &source.read, |reached| {
        let mut tasks = Tasks::new();
        let begun = tasks.begin(std::ptr::without_provenance(hangs), FaultAccess::Load);
        if begun.is_none() {
            source.read.wait_for_one();
        }
        let ended = tasks.begin(std::ptr::without_provenance(other), FaultAccess::Load);
        let other = std::ptr::without_provenance(other);
        assert_eq!(ended.unwrap_or_else(|| tasks.end(other)), Fault::Served);
        reached();
        if begun.is_none() {
            assert_eq!(tasks.end(std::ptr::without_provenance(hangs)), Fault::Served);
        }
    });
    for page in [300, 700] {
        let mut byte = [0];
        assert_eq!(map.read_at(&mut byte, (page * PAGE) as u64).unwrap(), 1);
        assert_eq!(byte[0], page as u8);
    }
    passed
}

/// Whether other pages are served while a read of the swap hangs.
fn others_are_served_beside_a_swap_in(mutant: Option<Mutant>) -> bool {
    let (swap, _cache, _space, map) = paged_out();
    let [hangs, other] = [9, 500].map(|page| map.as_mut_ptr().wrapping_add(page * PAGE).addr());
    let passed = passes(mutant, &swap.read, |reached| {
        let hangs = std::ptr::without_provenance(hangs);
        let mut tasks = Tasks::new();
        let begun = tasks.begin(hangs, FaultAccess::Load);
        if begun.is_none() {
            swap.read.wait_for_one();
        }
        let other = tasks.begin(std::ptr::without_provenance(other), FaultAccess::Store);
        assert_eq!(other, Some(Fault::Served));
        // One more that waits for the same page.
        if begun.is_none() {
            assert_eq!(tasks.begin(hangs.wrapping_add(8), FaultAccess::Load), None);
        }
        reached();
        while begun.is_none() && tasks.set.len() > 0 {
            tasks.rests.wake();
            assert!(tasks.set.next().is_none_or(|(_, fault)| fault == Fault::Served));
            std::thread::yield_now();
        }
    });
    let mut back = [0; PAGE];
    map.read_at(&mut back, 9 * PAGE).unwrap();
    assert_eq!(back, [7; PAGE]);
    passed
}

/// Whether a fault for which there is no memory leaves the thread alone while what could be evicted
/// has to be written, and the swap hangs.
fn nothing_is_written_for_a_task(mutant: Option<Mutant>) -> bool {
    let swap = Gated::new(Vec::new());
    let options = Options {
        swap_source: Some(swap.clone()),
        swap_bytes: 64 * MIB as u64,
        ..Options::new(8 * MIB as u64)
    };
    let cache = Cache::new(options).unwrap();
    let map = space(&cache).map_anon(16 * MIB).unwrap();
    let start = map.as_mut_ptr().expose_provenance();
    swap.page.store(u64::MAX / 2, Ordering::Relaxed); // no page
    swap.write.set_closed(true);
    passes(mutant, &swap.write, |reached| {
        let mut tasks = Tasks::new();
        let address = |page: usize| std::ptr::without_provenance(start + page * PAGE);
        let mut is_served = |page: &usize| {
            let begun = tasks.begin(address(*page), FaultAccess::Store);
            let served = begun.or_else(|| tasks.end_within(address(*page), RESTS)).is_some();
            if served {
                store(address(*page));
            }
            served
        };
        let full = (0..16 * MIB / PAGE).find(|page| !is_served(page));
        // All of it has had memory only if it was written.
        let Some(full) = full else { return };
        assert!(full > MIB / PAGE, "most of it was free");
        reached();
        assert_eq!(tasks.end(address(full)), Fault::Served);
    })
}

/// Whether a fault that comes when the heap has no room for a task leaves the thread alone while
/// its page, of own memory or of a file, is on its way by another task of the thread.
fn nobody_waits_without_room(mutant: Option<Mutant>, own: bool) -> bool {
    let (sender, passed) = channel();
    // With a mutant it sleeps for good: nobody else lands the page.
    std::thread::spawn(move || {
        let source = Gated::new(vec![7; 4 * MIB]);
        source.page.store(9 * PAGE as u64, Ordering::Relaxed);
        source.read.set_closed(true);
        let (swap, cache, space, own_map) = paged_out();
        let file = cache.attach("file", source.clone()).unwrap();
        let file_map = space.map_file(&file, 0..4 * MIB as u64).unwrap();
        let (gate, start) = if own {
            (&swap.read, own_map.as_mut_ptr().cast_const())
        } else {
            (&source.read, file_map.as_ptr())
        };
        let [page, absent] = [9, 700].map(|page| start.wrapping_add(page * PAGE));
        let mut tasks = Tasks::new();
        assert_eq!(tasks.begin(page, FaultAccess::Load), None);
        gate.wait_for_one();
        sender.send(()).unwrap();
        HAS_NO_ROOM.set(true);
        let again = mutant::with(mutant, || tasks.begin(page, FaultAccess::Load));
        assert_eq!(again, Some(Fault::Served));
        // Zeros need none.
        let ends = if own { Fault::Served } else { Fault::Failed };
        assert_eq!(tasks.begin(absent, FaultAccess::Load), Some(ends));
        HAS_NO_ROOM.set(false);
        gate.set_closed(false);
        assert_eq!(tasks.end(page), Fault::Served);
        sender.send(()).unwrap();
    });
    passed.recv_timeout(LONG).expect("a task begins");
    // A mutant never gets there, however long it takes.
    let time = if mutant.is_none() { LONG } else { Duration::from_millis(300) };
    passed.recv_timeout(time).is_ok()
}

#[test]
fn a_fault_that_the_heap_has_no_room_for_waits_for_no_task_of_its_thread() {
    assert!(nobody_waits_without_room(None, true) && nobody_waits_without_room(None, false));
    assert!(!nobody_waits_without_room(Some(Mutant::HandlerBlocks), true));
}

#[test]
fn other_faults_are_served_while_a_file_is_read() {
    assert!(others_are_served_beside_a_read(None));
    assert!(!others_are_served_beside_a_read(Some(Mutant::HandlerBlocks)));
}

#[test]
fn other_faults_are_served_while_a_page_comes_from_the_swap() {
    assert!(others_are_served_beside_a_swap_in(None));
    assert!(!others_are_served_beside_a_swap_in(Some(Mutant::HandlerBlocks)));
}

#[test]
fn who_serves_others_does_not_wait_for_a_page_out() {
    assert!(nothing_is_written_for_a_task(None));
    assert!(!nothing_is_written_for_a_task(Some(Mutant::EvictorsWrite)));
}

/// A map that goes while faults of it wait: another may be at its addresses, so they do not fail.
#[test]
fn a_fault_of_a_map_that_has_gone_is_not_anothers_failure() {
    let (swap, _cache, space, map) = paged_out();
    let address = map.as_mut_ptr().wrapping_add(9 * PAGE);
    let mut tasks = Tasks::new();
    assert_eq!(tasks.begin(address, FaultAccess::Load), None);
    swap.read.wait_for_one();
    // It waits for the page of the other.
    assert_eq!(tasks.begin(address, FaultAccess::Load), None);
    drop(map);
    swap.read.set_closed(false);
    assert_eq!([tasks.end(address), tasks.end(address)], [Fault::Served, Fault::Served]);
    assert_eq!((space.stats().failed, space.stats().changed), (0, 2));
}

/// The page table may have something where a page is on its way. Its slot is being read.
#[test]
fn a_page_on_its_way_was_not_stored_to() {
    let (swap, cache, space, map) = paged_out();
    let address = map.as_mut_ptr().wrapping_add(9 * PAGE);
    let mut tasks = Tasks::new();
    assert_eq!(tasks.begin(address, FaultAccess::Load), None);
    swap.read.wait_for_one();
    replace(&map, 9..10);
    let mapping = cache.core().mappings.all().pop().unwrap();
    let before = map.state(9);
    cache.core().notice_stores(&mut mapping.change(), &[9]);
    let after = map.state(9);
    swap.read.set_closed(false);
    assert_eq!(after, before);
    assert_eq!((tasks.end(address), space.stats().failed), (Fault::Failed, 1));
}

/// Two pages of sevens, the second of which cannot be read.
#[derive(Debug)]
struct Unreadable;

impl Source for Unreadable {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(2 * PAGE as u64)
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if offset + buf.len() as u64 > PAGE as u64 {
            return Err(io::Error::other("a bad block"));
        }
        buf.fill(7);
        Ok(buf.len())
    }

    fn kind(&self) -> Cow<'static, str> {
        "unreadable".into()
    }
}

/// Whether a healthy page can be read after a fault of the map that had its address before has
/// failed, and is answered late. `None`: no map has got the address.
fn is_read_after_a_late_answer(mutant: Option<Mutant>) -> Option<bool> {
    let cache = Cache::new(Options::new(8 * MIB as u64)).unwrap();
    let bad = cache.attach("bad", Arc::new(Unreadable)).unwrap();
    let good = cache.attach("good", Arc::new(Memory::new(vec![7; 2 * PAGE]))).unwrap();
    let space = space(&cache);
    let whole = 0..2 * PAGE as u64;
    let map = space.map_file(&bad, whole.clone()).unwrap();
    let address = map.as_ptr().wrapping_add(PAGE);
    let fault = mutant::with(mutant, || {
        let mut tasks = Tasks::new();
        let begun = tasks.begin(address, FaultAccess::Load);
        begun.unwrap_or_else(|| tasks.end(address))
    });
    assert_eq!(fault, Fault::Failed);
    assert!(space.last_failure().unwrap().to_string().contains("a bad block"));
    drop(map);
    // The addresses that are free are given out again; perhaps to another test first.
    let maps: Vec<_> = (0..1000).map(|_| space.map_file(&good, whole.clone()).unwrap()).collect();
    maps.iter().find(|map| map.as_ptr().wrapping_add(PAGE) == address)?;
    mutant::with(mutant, || handlers::answer(space.uffd(), address.addr(), &fault));
    // A load would end the process.
    let (_reader, writer) = io::pipe().unwrap();
    // SAFETY: the page is in a map, and its bytes do not change.
    let page = unsafe { std::slice::from_raw_parts(address, PAGE) };
    Some(rustix::io::write(&writer, page).is_ok())
}

#[test]
fn a_late_answer_poisons_no_page_of_another_map() {
    let cache = Cache::new(Options::new(8 * MIB as u64)).unwrap();
    if !space(&cache).stats().serves_system_calls {
        println!("not tried: the system serves no faults of system calls");
        return;
    }
    for (mutant, is_read) in [(None, true), (Some(Mutant::PoisonUnlocked), false)] {
        let tries = (0..100).find_map(|_| is_read_after_a_late_answer(mutant));
        assert_eq!(tries, Some(is_read), "{mutant:?}");
    }
}

/// A file that can be cut.
#[derive(Debug, Default)]
struct Cut(AtomicU64);

impl Source for Cut {
    fn len_bytes(&self) -> io::Result<u64> {
        Ok(self.0.load(Ordering::Relaxed))
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let left = self.0.load(Ordering::Relaxed).saturating_sub(offset);
        let bytes = buf.len().min(left as usize);
        buf[..bytes].fill(7);
        Ok(bytes)
    }

    fn kind(&self) -> Cow<'static, str> {
        "cut".into()
    }
}

/// Whether what is held can be read after a fault whose message came before it was held, and which
/// is served when the file has been cut.
fn is_held_after_a_late_fault(mutant: Option<Mutant>) -> bool {
    let cache = Cache::new(Options::new(16 * MIB as u64)).unwrap();
    let source = Arc::new(Cut(AtomicU64::new(64 * PAGE as u64)));
    let file = cache.attach("cut", source.clone()).unwrap();
    let space = space(&cache);
    let map = space.map_file(&file, 0..64 * PAGE as u64).unwrap();
    let page = |map: &crate::Map, n: usize| map.as_ptr().wrapping_add(n * PAGE);
    let late_fault = |n: usize| {
        let mut tasks = Tasks::new();
        let begun = tasks.begin(page(&map, n), FaultAccess::Load);
        begun.unwrap_or_else(|| tasks.end(page(&map, n)))
    };
    // A page that was poisoned before it is held, and one that would be after that.
    let refresh_with = |pages: usize| {
        source.0.store((pages * PAGE) as u64, Ordering::Relaxed);
        file.refresh().unwrap();
    };
    refresh_with(30);
    assert_eq!(late_fault(40), Fault::Failed);
    refresh_with(64);
    let held =
        [map.hold(40 * PAGE..41 * PAGE).unwrap(), map.hold(35 * PAGE + 7..36 * PAGE).unwrap()];
    refresh_with(30);
    assert_eq!(mutant::with(mutant, || late_fault(35)), Fault::Failed);
    // A load would end the process.
    let (_reader, writer) = io::pipe().unwrap();
    held.iter().all(|bytes| rustix::io::write(&writer, bytes) == Ok(bytes.len()))
}

#[test]
fn a_late_fault_poisons_nothing_that_is_held() {
    assert!(is_held_after_a_late_fault(None));
    assert!(!is_held_after_a_late_fault(Some(Mutant::HeldIsPoisoned)));
}

/// A message that is served when its map has gone, and one of a space that serves itself is there.
#[test]
fn a_message_is_not_about_a_map_of_a_space_without_handlers() {
    let cache = Cache::new(Options::new(8 * MIB as u64)).unwrap();
    let file = cache.attach("file", Arc::new(Memory::new(vec![7; PAGE]))).unwrap();
    let space = Space::new(&cache, 0).unwrap();
    let map = space.map_file(&file, 0..PAGE as u64).unwrap();
    assert_eq!(Tasks::new().begin(map.as_ptr(), FaultAccess::Load), Some(Fault::Elsewhere));
}

#[test]
fn a_task_without_memory_fails_when_its_patience_is_over() {
    let mut options = Options::new(8 * MIB as u64); // without a swap
    options.patience = Duration::from_millis(50);
    let cache = Cache::new(options).unwrap();
    let map = space(&cache).map_anon(16 * MIB).unwrap();
    map.as_mut_ptr().expose_provenance();
    let address = |page: usize| map.as_mut_ptr().wrapping_add(page * PAGE);
    let mut tasks = Tasks::new();
    let mut all = 0..16 * MIB / PAGE;
    let mut fails = |page: usize| {
        let begun = tasks.begin(address(page), FaultAccess::Store);
        let fails = begun.unwrap_or_else(|| tasks.end(address(page))) == Fault::Failed;
        if !fails {
            store(address(page));
        }
        fails
    };
    assert!(all.any(&mut fails), "there is no memory for all of it");
}

/// A handler thread has many tasks: each of these threads waits for a page that hangs.
#[test]
fn one_handler_thread_has_many_faults_at_once() {
    let source = Gated::new(vec![1; 4 * MIB]);
    let cache = Cache::new(Options::new(16 * MIB as u64)).unwrap();
    let file = cache.attach("file", source.clone()).unwrap();
    let map = space(&cache).map_file(&file, 0..4 * MIB as u64).unwrap();
    map.advise(0..0, crate::Hint::Random).unwrap();
    source.page.store(300 * PAGE as u64, Ordering::Relaxed);
    source.read.set_closed(true);
    let load = |page: usize| {
        // SAFETY: in the map, whose bytes nobody changes.
        unsafe { map.as_ptr().wrapping_add(page * PAGE).read_volatile() }
    };
    std::thread::scope(|scope| {
        let hanging: Vec<_> = (0..8).map(|_| scope.spawn(|| load(300))).collect();
        source.read.wait_for_one();
        assert_eq!((load(10), load(20)), (1, 1));
        assert!(hanging.iter().all(|thread| !thread.is_finished()));
        source.read.set_closed(false);
        assert!(hanging.into_iter().all(|thread| thread.join().unwrap() == 1));
    });
}

/// An access to own memory while another one's swap-in hangs, with one handler thread.
#[test]
fn one_handler_thread_serves_own_memory_while_the_swap_hangs() {
    let (swap, _cache, _space, map) = paged_out();
    let load = |map: &AnonMap, page: usize| {
        // SAFETY: in the map, and nobody stores there.
        unsafe { map.as_mut_ptr().wrapping_add(page * PAGE).read_volatile() }
    };
    std::thread::scope(|scope| {
        let hangs = scope.spawn(|| load(&map, 9));
        swap.read.wait_for_one();
        assert_eq!(load(&map, 500), 0);
        assert!(!hangs.is_finished());
        swap.read.set_closed(false);
        assert_eq!(hangs.join().unwrap(), 7);
    });
}

#[test]
fn a_fault_whose_serving_panics_fails_and_the_others_are_served() {
    let mut set = Set::of(Ready::new().unwrap());
    // A mistake that is made in one of its polls.
    let panics = |mut polls: u32| {
        Box::pin(ServedFault::by(std::future::poll_fn(move |context| {
            polls -= 1;
            assert!(polls > 0, "a mistake");
            context.waker().wake_by_ref();
            Poll::Pending
        })))
    };
    assert!(set.begin(1, panics(2)).is_none());
    assert!(set.begin(2, panics(1)) == Some((2, Fault::Broken)));
    let served = ServedFault::by(async { Fault::Served });
    assert!(set.begin(3, Box::pin(served)) == Some((3, Fault::Served)));
    assert!(set.next() == Some((1, Fault::Broken)));
    assert!(set.next().is_none() && set.len() == 0);
}

/// What docs/design.md ("Limits") says of faults that wait.
#[test]
fn a_fault_that_waits_takes_little_memory() {
    let bytes = super::target::serve_message(0, FaultAccess::Load, std::rc::Rc::default()).bytes();
    println!("a fault that waits for a handler thread takes {bytes} bytes");
    assert!(bytes <= 4096, "{bytes}");
}
