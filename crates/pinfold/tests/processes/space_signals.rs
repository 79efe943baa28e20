//! Signals and forks: accesses that fail, the handlers of others, children.

use std::ffi::{c_int, c_void};
use std::os::fd::AsFd;
use std::os::unix::fs::FileExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use pinfold::source::Memory;
use pinfold::{Cache, ErrorKind, File, Hint, Map, Options, Space, SpaceOptions};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;

use crate::alone::alone;
use crate::child::in_a_child;
use crate::forbid::forbid;

const PAGE: usize = 4096;
const PAGES: usize = 1024;

struct Subject {
    cache: Cache,
    source: Arc<Faulty>,
    file: File,
    pattern: Pattern,
}

impl Subject {
    fn new() -> Self {
        let pattern = Pattern::new(13, 0);
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let source = Arc::new(Faulty::new(Arc::new(Memory::new(pattern.to_vec(PAGES * PAGE)))));
        let file = cache.attach("file", source.clone()).unwrap();
        Subject { cache, source, file, pattern }
    }

    fn map(&self, handlers: usize) -> Map {
        let space = Space::new(&self.cache, handlers).unwrap();
        let map = space.map_file(&self.file, 0..(PAGES * PAGE) as u64).unwrap();
        map.advise(0..0, Hint::Random).unwrap(); // each page is read when it is accessed
        map
    }

    /// Reads of that page fail.
    fn fail(&self, page: usize) {
        let when = When::Range((page * PAGE) as u64..((page + 1) * PAGE) as u64);
        let operation = Operation::Read;
        self.file.advise(0..0, Hint::Random).unwrap();
        self.source.add(Rule { operation, when, fault: Fault::Error(libc::EIO) });
    }

    fn check(&self, map: &Map, page: usize) {
        // SAFETY: nobody changes the file.
        let bytes = unsafe { map.as_slice() };
        let bytes = &bytes[page * PAGE..(page + 1) * PAGE];
        self.pattern.check((page * PAGE) as u64, bytes).unwrap();
    }
}

fn touch(map: &Map, page: usize) -> u8 {
    touch_at(map.as_ptr().wrapping_add(page * PAGE))
}

fn touch_at(at: *const u8) -> u8 {
    // SAFETY: a page of a map, or one that ends the process.
    unsafe { at.read_volatile() }
}

#[test]
fn a_page_that_cannot_be_read_is_sigbus() {
    let name = "a_page_that_cannot_be_read_is_sigbus";
    let signal = alone(module_path!(), name, || {
        let subject = Subject::new();
        let map = subject.map(0);
        subject.fail(7);
        subject.check(&map, 6);
        touch(&map, 7);
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[test]
fn a_page_that_handler_threads_cannot_read_is_sigbus() {
    let name = "a_page_that_handler_threads_cannot_read_is_sigbus";
    let signal = alone(module_path!(), name, || {
        let subject = Subject::new();
        let map = subject.map(1);
        subject.fail(7);
        subject.check(&map, 6);
        touch(&map, 7);
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[test]
fn a_file_that_became_shorter_is_sigbus_past_its_end() {
    let name = "a_file_that_became_shorter_is_sigbus_past_its_end";
    let signal = alone(module_path!(), name, || {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let path = dir.path().join("file");
        std::fs::write(&path, vec![3; 4 * PAGE]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.open(&path).unwrap();
        let space = Space::new(&cache, 0).unwrap();
        let map = space.map_file(&file, 0..4 * PAGE as u64).unwrap();
        assert_eq!((touch(&map, 0), touch(&map, 3)), (3, 3));
        std::fs::OpenOptions::new().write(true).open(&path).unwrap().set_len(PAGE as u64).unwrap();
        file.invalidate(0..4 * PAGE as u64).unwrap();
        assert_eq!(map.read_at(&mut [0; 8], 0).unwrap(), 8);
        assert_eq!(map.read_at(&mut [0; 8], 2 * PAGE as u64).unwrap(), 0);
        map.advise(0..4 * PAGE, Hint::WillNeed).unwrap();
        map.advise(2 * PAGE..3 * PAGE, Hint::WillNeed).unwrap();
        assert_eq!(touch(&map, 0), 3);
        touch(&map, 2);
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[test]
fn what_is_reserved_behind_a_map_is_sigsegv() {
    let signal = alone(module_path!(), "what_is_reserved_behind_a_map_is_sigsegv", || {
        let map = Subject::new();
        let map = Space::new(&map.cache, 0).unwrap().map_file(&map.file, 0..PAGE as u64).unwrap();
        touch(&map, 0);
        touch(&map, 1);
    });
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn a_map_that_may_not_be_read_is_sigsegv() {
    let signal = alone(module_path!(), "a_map_that_may_not_be_read_is_sigsegv", || {
        let subject = Subject::new();
        let map = subject.map(0);
        touch(&map, 0);
        map.protect(false).unwrap();
        assert_eq!(map.read_at(&mut [0; 8], 0).unwrap(), 8);
        map.protect(true).unwrap();
        (0..10).for_each(|page| subject.check(&map, page));
        map.protect(false).unwrap();
        touch(&map, 0);
    });
    assert_eq!(signal, Some(libc::SIGSEGV));
}

#[test]
fn an_access_to_what_is_just_unmapped_ends_by_a_signal_and_does_not_hang() {
    let name = "an_access_to_what_is_just_unmapped_ends_by_a_signal_and_does_not_hang";
    let signal = alone(module_path!(), name, || {
        let subject = Subject::new();
        for handlers in [0, 1, 2] {
            let map = subject.map(handlers);
            let at = map.as_ptr().addr();
            let touched = Arc::new(AtomicUsize::new(0));
            for thread in 0..3 {
                let touched = touched.clone();
                std::thread::spawn(move || {
                    let mut random = fastrand::Rng::with_seed(thread);
                    loop {
                        let page: *const u8 = ptr::with_exposed_provenance(at);
                        touch_at(page.wrapping_add(random.usize(..PAGES) * PAGE));
                        touched.fetch_add(1, Ordering::Relaxed);
                    }
                });
            }
            // Ends: they run.
            while touched.load(Ordering::Relaxed) < 300 {
                std::thread::yield_now();
            }
            drop(map);
            // The first turn ends the process.
            std::thread::sleep(std::time::Duration::from_secs(60));
        }
    });
    assert!([libc::SIGSEGV, libc::SIGBUS].map(Some).contains(&signal), "{signal:?}");
}

/// A mapping of the program's own that ends before its memory does: an access is SIGBUS.
fn foreign_page() -> *const u8 {
    let empty = rustix::fs::memfd_create("empty", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
    let (access, flags) = (rustix::mm::ProtFlags::READ, rustix::mm::MapFlags::SHARED);
    // SAFETY: new addresses.
    let at = unsafe { rustix::mm::mmap(ptr::null_mut(), PAGE, access, flags, empty.as_fd(), 0) };
    at.unwrap().cast()
}

#[test]
fn an_access_outside_of_all_maps_is_sigbus_as_before() {
    let signal = alone(module_path!(), "an_access_outside_of_all_maps_is_sigbus_as_before", || {
        let subject = Subject::new();
        let map = subject.map(0);
        touch(&map, 0);
        touch_at(foreign_page());
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[test]
fn a_sigbus_that_a_process_sent_ends_this_one_as_before() {
    let signal =
        alone(module_path!(), "a_sigbus_that_a_process_sent_ends_this_one_as_before", || {
            // Rust's own handler, which looks for the end of the stack, would lose the first.
            handle_by(libc::SIG_DFL, 0);
            let _map = Subject::new().map(0);
            // SAFETY: ends this process.
            unsafe { libc::kill(std::process::id().cast_signed(), libc::SIGBUS) };
            std::thread::sleep(std::time::Duration::from_secs(60));
        });
    assert_eq!(signal, Some(libc::SIGBUS));
}

/// Makes `handler` the process's, with flags.
fn handle_by(handler: libc::sighandler_t, flags: c_int) {
    // SAFETY: all zeros are an action.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = handler;
    action.sa_flags = flags;
    // SAFETY: a handler of this test.
    let done = unsafe { libc::sigaction(libc::SIGBUS, &raw const action, ptr::null_mut()) };
    assert_eq!(done, 0);
}

#[test]
fn a_sigbus_that_was_ignored_is_ignored_if_a_process_sent_it() {
    let signal =
        alone(module_path!(), "a_sigbus_that_was_ignored_is_ignored_if_a_process_sent_it", || {
            handle_by(libc::SIG_IGN, 0);
            let subject = Subject::new();
            let map = subject.map(0);
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
            subject.check(&map, 3);
            subject.fail(7);
            touch(&map, 7); // which cannot be ignored
        });
    assert_eq!(signal, Some(libc::SIGBUS));
}

/// How often the program's own handler was called, and for which address last.
static CALLS: AtomicUsize = AtomicUsize::new(0);
static LAST: AtomicUsize = AtomicUsize::new(0);
static BLOCKED: AtomicBool = AtomicBool::new(false);
/// What makes the page readable that it is called for.
static HEALS: AtomicBool = AtomicBool::new(false);

fn is_blocked() -> bool {
    // SAFETY: an empty set is one.
    let mut own: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: a set of this function's.
    unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut own) };
    // SAFETY: as above.
    unsafe { libc::sigismember(&raw const own, libc::SIGBUS) == 1 }
}

/// The program's own handler. It replaces what is at a foreign page by memory, so that the access
/// succeeds.
extern "C" fn with_info(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    assert!(signal == libc::SIGBUS && !context.is_null());
    BLOCKED.store(is_blocked(), Ordering::Relaxed);
    // SAFETY: the kernel's.
    let info = unsafe { &*info };
    // SAFETY: a SIGBUS has an address; otherwise it is not used.
    let address = unsafe { info.si_addr() };
    CALLS.fetch_add(1, Ordering::Relaxed);
    HEALS.store(true, Ordering::Relaxed);
    if info.si_code <= 0 {
        return;
    }
    LAST.store(address.addr(), Ordering::Relaxed);
    let page = address.wrapping_byte_sub(address.addr() % PAGE);
    let access = libc::PROT_READ | libc::PROT_WRITE;
    let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED;
    // SAFETY: a page that this test made for it, or one of a map that is not used any more.
    unsafe { libc::mmap(page, PAGE, access, flags, -1, 0) };
}

extern "C" fn without_info(signal: c_int) {
    assert_eq!(signal, libc::SIGBUS);
    CALLS.fetch_add(1, Ordering::Relaxed);
}

fn calls() -> usize {
    CALLS.load(Ordering::Relaxed)
}

#[test]
fn the_handler_that_was_there_before_gets_what_is_not_a_maps() {
    let signal =
        alone(module_path!(), "the_handler_that_was_there_before_gets_what_is_not_a_maps", || {
            handle_by((with_info as *const ()).expose_provenance(), libc::SA_SIGINFO);
            let subject = Subject::new();
            subject.fail(300); // before it can be read ahead
            let map = subject.map(0);
            for page in 0..100 {
                subject.check(&map, page);
            }
            assert_eq!(calls(), 0);
            let foreign = foreign_page();
            assert_eq!(touch_at(foreign.wrapping_add(17)), 0);
            assert_eq!((calls(), LAST.load(Ordering::Relaxed)), (1, foreign.addr() + 17));
            assert!(BLOCKED.load(Ordering::Relaxed) && !is_blocked());
            // SAFETY: a signal to this thread.
            unsafe { libc::raise(libc::SIGBUS) };
            assert_eq!(calls(), 2);
            // A page that cannot be read; others go on meanwhile.
            std::thread::scope(|scope| {
                scope.spawn(|| (400..600).for_each(|page| subject.check(&map, page)));
                assert_eq!(touch(&map, 300), 0);
            });
            assert_eq!(calls(), 3);
            assert_eq!(LAST.load(Ordering::Relaxed), map.as_ptr().addr() + 300 * PAGE);
            // A second space does not install anything again.
            let again = subject.map(0);
            subject.check(&again, 700);
            assert_eq!(touch_at(foreign_page()), 0);
            assert_eq!(calls(), 4);
        });
    assert_eq!(signal, None);
}

#[test]
fn a_signal_that_a_process_sent_takes_no_map_its_handler() {
    let name = "a_signal_that_a_process_sent_takes_no_map_its_handler";
    let signal = alone(module_path!(), name, || {
        // Rust's own handler is there, which goes back to the default action.
        let subject = Subject::new();
        let map = subject.map(0);
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        (0..10).for_each(|page| subject.check(&map, page));
        let again = subject.map(0);
        (20..30).for_each(|page| subject.check(&again, page));
    });
    assert_eq!(signal, None);
}

#[test]
fn a_second_signal_that_a_process_sent_ends_it_as_without_maps() {
    let signal = alone(
        module_path!(),
        "a_second_signal_that_a_process_sent_ends_it_as_without_maps",
        || {
            let subject = Subject::new();
            let _map = subject.map(0);
            for _ in 0..2 {
                // SAFETY: a signal to this thread.
                unsafe { libc::raise(libc::SIGBUS) };
            }
        },
    );
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[test]
fn a_space_installs_the_handler_that_is_gone() {
    let signal = alone(module_path!(), "a_space_installs_the_handler_that_is_gone", || {
        let with_info = (with_info as *const ()).expose_provenance();
        handle_by(with_info, libc::SA_SIGINFO);
        let subject = Subject::new();
        subject.check(&subject.map(0), 1);
        handle_by(with_info, libc::SA_SIGINFO);
        subject.check(&subject.map(0), 100);
        assert_eq!(calls(), 0);
        assert_eq!(touch_at(foreign_page()), 0);
        assert_eq!(calls(), 1);
        handle_by(libc::SIG_DFL, 0);
        subject.check(&subject.map(0), 200);
        touch_at(foreign_page());
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

/// What a handler is.
type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// What was there when `passes_on` was installed.
static NEXT: AtomicUsize = AtomicUsize::new(0);

/// A later handler of the program's, which passes everything on.
extern "C" fn passes_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let next: *const () = ptr::with_exposed_provenance(NEXT.load(Ordering::Relaxed));
    // SAFETY: the handler that was there, which has information.
    let next = unsafe { std::mem::transmute::<*const (), Handler>(next) };
    next(signal, info, context);
}

#[test]
fn a_later_handler_that_passes_on_stays_before_that_of_maps() {
    let signal =
        alone(module_path!(), "a_later_handler_that_passes_on_stays_before_that_of_maps", || {
            handle_by((with_info as *const ()).expose_provenance(), libc::SA_SIGINFO);
            let subject = Subject::new();
            let map = subject.map(0);
            // SAFETY: all zeros are an action.
            let mut ours: libc::sigaction = unsafe { std::mem::zeroed() };
            // SAFETY: it only asks.
            unsafe { libc::sigaction(libc::SIGBUS, ptr::null(), &raw mut ours) };
            NEXT.store(ours.sa_sigaction, Ordering::Relaxed);
            let later = (passes_on as *const ()).expose_provenance();
            handle_by(later, libc::SA_SIGINFO | libc::SA_NODEFER);
            let again = subject.map(0);
            subject.check(&map, 1);
            subject.check(&again, 100);
            assert_eq!(touch_at(foreign_page()), 0);
            assert_eq!(calls(), 1, "once, and not for ever");
        });
    assert_eq!(signal, None);
}

#[test]
fn a_handler_without_information_gets_its_signals() {
    let signal = alone(module_path!(), "a_handler_without_information_gets_its_signals", || {
        handle_by((without_info as *const ()).expose_provenance(), libc::SA_NODEFER);
        let subject = Subject::new();
        let map = subject.map(0);
        subject.check(&map, 5);
        // SAFETY: a signal to this thread.
        unsafe { libc::raise(libc::SIGBUS) };
        assert_eq!(calls(), 1);
    });
    assert_eq!(signal, None);
}

/// A source that cannot be read until the program's handler was called.
#[derive(Debug)]
struct Healed(Memory, AtomicU64);

impl pinfold::source::Source for Healed {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::io::Result<usize> {
        if !HEALS.load(Ordering::Relaxed) {
            self.1.fetch_add(1, Ordering::Relaxed);
            return Err(std::io::Error::from_raw_os_error(libc::EIO));
        }
        self.0.read_at(offset, buf)
    }
    fn len_bytes(&self) -> std::io::Result<u64> {
        self.0.len_bytes()
    }
    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "healed".into()
    }
}

extern "C" fn heals(_: c_int) {
    CALLS.fetch_add(1, Ordering::Relaxed);
    HEALS.store(true, Ordering::Relaxed);
}

#[test]
fn an_access_that_failed_is_tried_again_if_a_handler_returns() {
    let signal =
        alone(module_path!(), "an_access_that_failed_is_tried_again_if_a_handler_returns", || {
            handle_by((heals as *const ()).expose_provenance(), 0);
            let cache = Cache::new(Options::new(8 << 20)).unwrap();
            let source = Arc::new(Healed(Memory::new(vec![9; PAGE]), AtomicU64::new(0)));
            let file = cache.attach("healed", source.clone()).unwrap();
            let space = Space::new(&cache, 0).unwrap();
            let map = space.map_file(&file, 0..PAGE as u64).unwrap();
            assert_eq!(touch(&map, 0), 9);
            assert_eq!(
                (calls(), source.1.load(Ordering::Relaxed), space.stats().failed),
                (1, 1, 1)
            );
            for why in [space.last_failure(), map.last_failure()] {
                let why = why.unwrap();
                assert_eq!(why.kind(), ErrorKind::Read, "{why:?}");
            }
            let other = space.map_file(&file, 0..PAGE as u64).unwrap();
            assert!(other.last_failure().is_none(), "the failure was another map's");
        });
    assert_eq!(signal, None);
}

extern "C" fn heals_and_then_ends(_: c_int) {
    if CALLS.fetch_add(1, Ordering::Relaxed) == 0 {
        HEALS.store(true, Ordering::Relaxed);
    } else {
        handle_by(libc::SIG_DFL, 0);
    }
}

/// Where there is a space without handler threads, too, and so the cache's own handler.
#[test]
fn a_poisoned_page_stays_sigbus_though_it_could_be_read_again() {
    let name = "a_poisoned_page_stays_sigbus_though_it_could_be_read_again";
    let signal = alone(module_path!(), name, || {
        handle_by((heals_and_then_ends as *const ()).expose_provenance(), 0);
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let source = Arc::new(Healed(Memory::new(vec![9; PAGE]), AtomicU64::new(0)));
        let file = cache.attach("healed", source).unwrap();
        let _other = Space::new(&cache, 0).unwrap();
        let space = Space::new(&cache, 1).unwrap();
        let map = space.map_file(&file, 0..PAGE as u64).unwrap();
        touch(&map, 0);
    });
    assert_eq!(signal, Some(libc::SIGBUS));
}

#[track_caller]
fn is_forked<T>(result: pinfold::Result<T>) {
    let error = result.err().expect("a forked child cannot do that");
    assert_eq!(error.kind(), ErrorKind::Forked, "{error:?}");
}

/// In a child: takes what the parent has, and the child's own copy of the test does not use again.
fn taken<T>(from: &T) -> T {
    // SAFETY: the child ends without dropping `from`.
    unsafe { ptr::read(from) }
}

#[test]
fn a_child_has_no_maps_and_may_have_its_own() {
    // Alone: threads of other tests may start or end at the fork, and std's locks with them.
    let signal = alone(module_path!(), "a_child_has_no_maps_and_may_have_its_own", || {
        let subject = Subject::new();
        let space = Space::new(&subject.cache, 0).unwrap();
        let served = Space::new(&subject.cache, 1).unwrap();
        let len = (PAGES * PAGE) as u64;
        let map = space.map_file(&subject.file, 0..len).unwrap();
        let by_handlers = served.map_file(&subject.file, 0..len).unwrap();
        subject.check(&map, 1);
        subject.check(&by_handlers, 2);
        let held = map.hold(PAGE..2 * PAGE).unwrap();
        let unheld = subject.file.optimistic(1).unwrap();
        assert!(unheld.validate());
        let end = AtomicBool::new(false);
        std::thread::scope(|scope| {
            // The locks of the space and of its maps are taken all the time.
            let busy = || {
                while !end.load(Ordering::Relaxed) {
                    let map = space.map_file(&subject.file, 0..len).unwrap();
                    subject.check(&map, fastrand::usize(..PAGES));
                }
            };
            scope.spawn(busy);
            scope.spawn(busy);
            for _ in 0..20 {
                in_a_child(|| {
                    assert!(!unheld.validate());
                    is_forked(subject.file.optimistic(1));
                    is_forked(space.map_file(&subject.file, 0..len));
                    is_forked(map.advise(0..PAGE, Hint::DontNeed));
                    is_forked(map.protect(false));
                    is_forked(Space::new(&subject.cache, 0));
                    assert_eq!(space.stats().faults, 0);
                    assert!(space.last_failure().is_none());
                    // The addresses are free here.
                    let at = map.as_ptr().cast_mut().cast();
                    let access = rustix::mm::ProtFlags::READ;
                    let flags = rustix::mm::MapFlags::PRIVATE
                        | rustix::mm::MapFlags::from_bits_retain(
                            libc::MAP_FIXED_NOREPLACE.cast_unsigned(),
                        );
                    // SAFETY: the system refuses if something is there.
                    let mine = unsafe { rustix::mm::mmap_anonymous(at, PAGE, access, flags) };
                    assert!(mine.is_ok(), "{mine:?}");
                    drop(taken(&map));
                    assert_eq!(touch_at(at.cast()), 0, "what is there now is the child's");
                    drop((taken(&space), taken(&served)));

                    let subject = Subject::new();
                    let own = subject.map(0);
                    (0..PAGES).for_each(|page| subject.check(&own, page));
                    drop(own);
                });
            }
            end.store(true, Ordering::Relaxed);
        });
        assert!(unheld.validate());
        drop(held);
        // The children have stopped and unmapped nothing of the parent's.
        (0..PAGES).for_each(|page| subject.check(&by_handlers, page));
        (0..PAGES / 2).for_each(|page| subject.check(&map, page));
    });
    assert_eq!(signal, None);
}

/// From now on this process may not what root may. False if it never might.
fn become_nobody() -> bool {
    // SAFETY: asks for a number.
    let is_root = unsafe { libc::getuid() } == 0;
    // SAFETY: a number.
    is_root && unsafe { libc::setuid(65_534) } == 0
}

#[test]
fn where_the_system_call_is_forbidden_the_device_serves_or_the_error_says_what_to_do() {
    let name = "where_the_system_call_is_forbidden_the_device_serves_or_the_error_says_what_to_do";
    let signal = alone(module_path!(), name, || {
        forbid(&[libc::SYS_userfaultfd], libc::EPERM);
        let subject = Subject::new();
        let device = std::fs::OpenOptions::new().read(true).write(true).open("/dev/userfaultfd");
        if device.is_ok() {
            for handlers in [0, 1] {
                let map = subject.map(handlers);
                (0..50).for_each(|page| subject.check(&map, page));
            }
            if !become_nobody() {
                return;
            }
        }
        for handlers in [0, 1] {
            let options = SpaceOptions { handlers, ..SpaceOptions::default() };
            let error = Space::with(&subject.cache, options).unwrap_err();
            assert_eq!(error.kind(), ErrorKind::System);
            let text = error.to_string();
            assert!(text.contains("a seccomp filter"), "{text}");
            assert!(text.contains("/dev/userfaultfd "), "{text}");
        }
    });
    assert_eq!(signal, None);
}

#[test]
fn without_privileges_there_are_maps_but_not_for_system_calls() {
    let signal =
        alone(module_path!(), "without_privileges_there_are_maps_but_not_for_system_calls", || {
            let sysctl = std::fs::read_to_string("/proc/sys/vm/unprivileged_userfaultfd");
            become_nobody();
            let subject = Subject::new();
            for handlers in [0, 2] {
                let space = Space::new(&subject.cache, handlers).unwrap();
                let map = space.map_file(&subject.file, 0..(PAGES * PAGE) as u64).unwrap();
                map.advise(0..0, Hint::Random).unwrap();
                (0..50).for_each(|page| subject.check(&map, page));
                if sysctl.as_ref().is_ok_and(|it| it.trim() == "0")
                    && std::fs::File::open("/dev/userfaultfd").is_err()
                {
                    assert!(!space.stats().serves_system_calls);
                }
                if !space.stats().serves_system_calls {
                    let page = 900 + handlers;
                    let into =
                        rustix::fs::memfd_create("into", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
                    // SAFETY: nobody changes the file.
                    let bytes = unsafe { &map.as_slice()[page * PAGE..(page + 1) * PAGE] };
                    assert_eq!(rustix::io::write(into, bytes), Err(rustix::io::Errno::FAULT));
                    subject.check(&map, page);
                }
            }
        });
    assert_eq!(signal, None);
}

/// Pages are evicted all the while, and neither a handler thread nor the signal of this thread is
/// asked by the system call.
#[test]
fn without_privileges_what_is_held_can_be_written() {
    const BYTES: usize = 128 << 20;
    const PIECE: usize = 1 << 20;
    let signal = alone(module_path!(), "without_privileges_what_is_held_can_be_written", || {
        become_nobody();
        let pattern = Pattern::new(14, 0);
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let source = Arc::new(Memory::new(pattern.to_vec(BYTES)));
        let file = cache.attach("file", source).unwrap();
        for handlers in [0, 2] {
            let space = Space::new(&cache, handlers).unwrap();
            let map = space.map_file(&file, 0..BYTES as u64).unwrap();
            let end = AtomicBool::new(false);
            std::thread::scope(|scope| {
                scope.spawn(|| {
                    let mut rng = fastrand::Rng::with_seed(1);
                    while !end.load(Ordering::Relaxed) {
                        touch(&map, rng.usize(0..BYTES / PAGE));
                    }
                });
                let flags = rustix::fs::MemfdFlags::CLOEXEC;
                let into = std::fs::File::from(rustix::fs::memfd_create("into", flags).unwrap());
                let mut back = vec![0; PIECE];
                for start in (0..BYTES).step_by(PIECE) {
                    let held = map.hold(start..start + PIECE).unwrap();
                    into.write_all_at(&held, 0).unwrap();
                    drop(held);
                    into.read_exact_at(&mut back, 0).unwrap();
                    pattern.check(start as u64, &back).unwrap();
                }
                end.store(true, Ordering::Relaxed);
            });
        }
    });
    assert_eq!(signal, None);
}
