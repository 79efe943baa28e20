//! The stacks of faults: how much a fault takes of its thread's, and that the frames on an
//! alternate stack stay whole while a fault is served.

use std::borrow::Cow;
use std::ffi::{c_int, c_void};
use std::hint::black_box;
use std::io;
use std::os::unix::thread::JoinHandleExt;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use pinfold::source::{Memory, Source};
use pinfold::{Cache, Hint, Map, Options, Space};

use crate::alone::alone;

const PAGE: usize = 4096;
const PAGES: usize = 1024;

/// A map of a source of the program's, of which each page is read when it is accessed.
fn map_of(cache: &Cache, source: impl Source + 'static) -> Map {
    let file = cache.attach("file", Arc::new(source)).unwrap();
    let space = Space::new(cache, 0).unwrap();
    let map = space.map_file(&file, 0..(PAGES * PAGE) as u64).unwrap();
    map.advise(0..0, Hint::Random).unwrap();
    map
}

fn touch(at: *const u8) -> u8 {
    // SAFETY: a page of a map.
    unsafe { at.read_volatile() }
}

/// The handler of maps, to which those of this file pass on.
static MAPS_HANDLER: AtomicUsize = AtomicUsize::new(0);

/// What a handler is.
type Handler = extern "C" fn(c_int, *mut libc::siginfo_t, *mut c_void);

/// Has `handler` handle a signal on the thread's alternate stack, as a runtime does that has all
/// signals handled there, and returns what was there before.
fn handle_on_alternate_stack(signal: c_int, handler: Handler) -> usize {
    // SAFETY: all zeros are an action.
    let mut before: libc::sigaction = unsafe { std::mem::zeroed() };
    // SAFETY: as above.
    let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
    action.sa_sigaction = (handler as *const ()).expose_provenance();
    action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK | libc::SA_NODEFER | libc::SA_RESTART;
    // SAFETY: a handler of this file.
    assert_eq!(unsafe { libc::sigaction(signal, &raw const action, &raw mut before) }, 0);
    before.sa_sigaction
}

/// Has `handler` handle the faults of maps. It passes them on.
fn handle_faults(handler: Handler) {
    let before = handle_on_alternate_stack(libc::SIGBUS, handler);
    MAPS_HANDLER.store(before, Ordering::Relaxed);
}

fn pass_on(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let handler: *const () = ptr::with_exposed_provenance(MAPS_HANDLER.load(Ordering::Relaxed));
    // SAFETY: the handler that was there before, which takes what the kernel gives.
    let handler = unsafe { std::mem::transmute::<*const (), Handler>(handler) };
    handler(signal, info, context);
}

/// What this thread's alternate stack is.
fn alternate_stack() -> libc::stack_t {
    // SAFETY: all zeros are a stack's description.
    let mut now: libc::stack_t = unsafe { std::mem::zeroed() };
    // SAFETY: it only asks.
    unsafe { libc::sigaltstack(ptr::null(), &raw mut now) };
    now
}

/// Calls `body` with `stack` as the alternate stack for signals, which is there afterwards, too.
fn with_alternate_stack(stack: &mut [u8], body: impl FnOnce()) {
    let (ss_sp, ss_size) = (stack.as_mut_ptr().cast(), stack.len());
    let alternate = libc::stack_t { ss_sp, ss_flags: 0, ss_size };
    let before = alternate_stack();
    // SAFETY: the stack is there until the other one is set again.
    assert_eq!(unsafe { libc::sigaltstack(&raw const alternate, ptr::null_mut()) }, 0);
    body();
    let now = alternate_stack();
    assert_eq!((now.ss_sp, now.ss_flags, now.ss_size), (ss_sp, 0, ss_size));
    // SAFETY: what was there.
    assert_eq!(unsafe { libc::sigaltstack(&raw const before, ptr::null_mut()) }, 0);
}

/// The lowest address of what the kernel has put on the stack for the last signal.
static FRAME: AtomicUsize = AtomicUsize::new(0);

extern "C" fn notes_frame(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    FRAME.store(context.addr(), Ordering::Relaxed);
    pass_on(signal, info, context);
}

/// Calls `body` with an alternate stack for signals. Returns how many bytes of it were used below
/// what the kernel had put there.
fn used_of_alternate_stack(body: impl FnOnce()) -> usize {
    const UNTOUCHED: u8 = 0xa5;
    let mut stack = vec![UNTOUCHED; 128 << 10];
    with_alternate_stack(&mut stack, body);
    let untouched = stack.iter().take_while(|&&byte| byte == UNTOUCHED).count();
    assert!(untouched < stack.len(), "no signal came");
    FRAME.load(Ordering::Relaxed) - (stack.as_ptr().addr() + untouched)
}

#[test]
fn a_fault_takes_little_of_the_stack_of_its_thread() {
    let signal = alone(module_path!(), "a_fault_takes_little_of_the_stack_of_its_thread", || {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(dir.path().join("file"), vec![7; 16 << 20]).unwrap();
        let cache = Cache::new(Options {
            swap_dir: dir.path().into(),
            swap_bytes: 32 << 20,
            ..Options::new(8 << 20)
        })
        .unwrap();
        let of_system = cache.open(dir.path().join("file")).unwrap();
        let of_program = Cache::new(Options::new(8 << 20)).unwrap();
        let attached = map_of(&of_program, Memory::new(vec![7; PAGES * PAGE]));
        let space = Space::new(&cache, 0).unwrap();
        let file = space.map_file(&of_system, 0..16 << 20).unwrap();
        let own = space.map_anon(16 << 20).unwrap();
        handle_faults(notes_frame);
        let used = used_of_alternate_stack(|| {
            for _ in 0..2 {
                for page in 0..(16 << 20) / PAGE {
                    touch(file.as_ptr().wrapping_add(page * PAGE));
                    // SAFETY: memory of this test alone.
                    unsafe { own.as_mut_ptr().wrapping_add(page * PAGE).write_volatile(1) };
                }
            }
            for page in 0..PAGES {
                touch(attached.as_ptr().wrapping_add(page * PAGE));
            }
        });
        assert!(cache.stats().swap_pages_read > 0);
        println!("a fault takes {used} bytes of its thread's stack beside the kernel's frame");
        assert!(used <= 4096, "{used}");
    });
    assert_eq!(signal, None);
}

/// How often a read has come to a gate, and how many of these times it may go on.
static REACHED: AtomicUsize = AtomicUsize::new(0);
static LET_GO: AtomicUsize = AtomicUsize::new(0);

fn wait_at_gate() {
    let mine = REACHED.fetch_add(1, Ordering::AcqRel) + 1;
    while LET_GO.load(Ordering::Acquire) < mine {
        std::thread::yield_now();
    }
}

/// A source whose first read waits at a gate; then it reads another map, if there is one, and waits
/// again.
#[derive(Debug)]
struct Gated {
    bytes: Memory,
    other: Option<Map>,
    was_read: AtomicBool,
}

impl Gated {
    fn new(byte: u8, other: Option<Map>) -> Self {
        let bytes = Memory::new(vec![byte; PAGES * PAGE]);
        Gated { bytes, other, was_read: AtomicBool::new(false) }
    }
}

impl Source for Gated {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        if !self.was_read.swap(true, Ordering::Relaxed) {
            wait_at_gate();
            if let Some(other) = &self.other {
                assert_eq!(touch(other.as_ptr()), 1);
                wait_at_gate();
            }
        }
        self.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "gated".into()
    }
}

/// How many faults have found what their handler had on its stack as it was.
static WHOLE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn guards_its_frame(signal: c_int, info: *mut libc::siginfo_t, context: *mut c_void) {
    let painted = black_box([0x5a_u8; 2048]);
    pass_on(signal, info, context);
    if black_box(&painted).iter().all(|&byte| byte == 0x5a) {
        WHOLE.fetch_add(1, Ordering::Relaxed);
    }
}

/// How often the other signal was handled, and how often on the alternate stack.
static FILLED: AtomicUsize = AtomicUsize::new(0);
static FILLED_ALTERNATE: AtomicUsize = AtomicUsize::new(0);

extern "C" fn fills_its_stack(_: c_int, _: *mut libc::siginfo_t, _: *mut c_void) {
    black_box(&mut [0xc3_u8; 16 << 10]);
    let is_on_it = alternate_stack().ss_flags & libc::SS_ONSTACK != 0;
    FILLED_ALTERNATE.fetch_add(usize::from(is_on_it), Ordering::Relaxed);
    FILLED.fetch_add(1, Ordering::Release);
}

/// The read of a fault waits, and so does that of the fault in it. Meanwhile, and between their
/// ends, other signals come.
#[test]
fn a_signal_during_a_fault_leaves_the_frames_on_the_alternate_stack() {
    let name = "a_signal_during_a_fault_leaves_the_frames_on_the_alternate_stack";
    let signal = alone(module_path!(), name, || {
        let caches = [(); 2].map(|()| Cache::new(Options::new(8 << 20)).unwrap());
        let inner = map_of(&caches[0], Gated::new(1, None));
        let outer = map_of(&caches[1], Gated::new(2, Some(inner)));
        handle_faults(guards_its_frame);
        handle_on_alternate_stack(libc::SIGPROF, fills_its_stack);
        let thread = std::thread::spawn(move || {
            let mut stack = vec![0; 128 << 10];
            with_alternate_stack(&mut stack, || assert_eq!(touch(outer.as_ptr()), 2));
            // SAFETY: an empty set is one.
            let mut blocked: libc::sigset_t = unsafe { std::mem::zeroed() };
            // SAFETY: a set of this function's.
            unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, ptr::null(), &raw mut blocked) };
            // SAFETY: as above.
            let is_blocked = |signal| unsafe { libc::sigismember(&raw const blocked, signal) } == 1;
            assert!((1..32).all(|signal| !is_blocked(signal)));
        });
        for gate in 1..=3 {
            while REACHED.load(Ordering::Acquire) < gate {
                std::thread::yield_now();
            }
            // SAFETY: the thread waits at the gate.
            assert_eq!(unsafe { libc::pthread_kill(thread.as_pthread_t(), libc::SIGPROF) }, 0);
            while FILLED.load(Ordering::Acquire) < gate {
                std::thread::yield_now();
            }
            LET_GO.store(gate, Ordering::Release);
        }
        thread.join().unwrap();
        assert_eq!(WHOLE.load(Ordering::Relaxed), 2);
        assert_eq!(FILLED_ALTERNATE.load(Ordering::Relaxed), 3);
    });
    assert_eq!(signal, None);
}
