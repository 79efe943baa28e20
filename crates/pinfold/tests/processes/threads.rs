//! The cache's own threads: which signals they get, and what happens where none can be started.

use std::borrow::Cow;
use std::collections::HashSet;
use std::ffi::c_int;
use std::future::Future;
use std::io;
use std::ptr;
use std::sync::Arc;
use std::sync::atomic::{AtomicI32, AtomicPtr, AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;

use pinfold::source::{Memory, Source};
use pinfold::{Cache, ErrorKind, Hint, Options, Space};

use crate::alone::alone;
use crate::child::in_a_child;
use crate::forbid::forbid;

const PAGE: usize = 4096;
const PAGES: usize = 512;

/// Wakes the thread that waits for a future.
struct Unpark(std::thread::Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn wait_for<T>(future: impl Future<Output = T>) -> T {
    let mut future = std::pin::pin!(future);
    let waker = Waker::from(Arc::new(Unpark(std::thread::current())));
    // Ends: with the future.
    loop {
        match future.as_mut().poll(&mut Context::from_waker(&waker)) {
            Poll::Ready(value) => return value,
            Poll::Pending => std::thread::park(),
        }
    }
}

/// Bytes in memory, with a deadline.
#[derive(Debug)]
struct WithDeadline;

impl Source for WithDeadline {
    fn read_at(&self, _: u64, buf: &mut [u8]) -> io::Result<usize> {
        buf.fill(7);
        Ok(buf.len())
    }
    fn len_bytes(&self) -> io::Result<u64> {
        Ok((PAGES * PAGE) as u64)
    }
    fn deadline(&self) -> Option<Duration> {
        Some(Duration::from_secs(1000))
    }
    fn kind(&self) -> Cow<'static, str> {
        "with a deadline".into()
    }
}

/// The cache's threads: their names, and the signals that they block.
fn threads_of_caches() -> Vec<(String, u64)> {
    let mut threads = Vec::new();
    for task in std::fs::read_dir("/proc/self/task").unwrap() {
        // One that ends meanwhile has none.
        let status = std::fs::read_to_string(task.unwrap().path().join("status"));
        let Ok(status) = status else { continue };
        let field = |name| {
            let line = status.lines().find_map(|line| line.strip_prefix(name));
            line.unwrap().trim().to_owned()
        };
        let name = field("Name:");
        if name.starts_with("pinfold-") {
            threads.push((name, u64::from_str_radix(&field("SigBlk:"), 16).unwrap()));
        }
    }
    threads
}

#[test]
fn all_threads_of_a_cache_block_all_signals_that_are_sent() {
    let name = "all_threads_of_a_cache_block_all_signals_that_are_sent";
    let signal = alone(module_path!(), name, || {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        std::fs::write(dir.path().join("file"), vec![7; PAGES * PAGE]).unwrap();
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.open(dir.path().join("file")).unwrap();
        let slow = cache.attach("slow", Arc::new(WithDeadline)).unwrap();
        let _space = Space::new(&cache, 2).unwrap();
        for file in [&file, &slow] {
            file.advise(0..0, Hint::Random).unwrap();
            assert_eq!(wait_for(file.get_async(3)).unwrap()[0], 7);
        }
        let threads = threads_of_caches();
        let names: HashSet<_> = threads.iter().map(|(name, _)| name.as_str()).collect();
        for name in ["pinfold-clock", "pinfold-fault", "pinfold-read", "pinfold-reclai"] {
            assert!(names.iter().any(|other| other.starts_with(name)), "{name}: {names:?}");
        }
        // Those that an instruction causes; and those that nobody can block, of the kernel and
        // libc.
        let caused = [libc::SIGBUS, libc::SIGFPE, libc::SIGILL, libc::SIGSEGV, libc::SIGSYS];
        let never = [libc::SIGTRAP, libc::SIGKILL, libc::SIGSTOP, 32, 33];
        let may = caused.iter().chain(&never).fold(0, |all, signal| all | 1_u64 << (signal - 1));
        for (name, blocked) in &threads {
            assert_eq!(!blocked & !may, 0, "{name} gets signals: {blocked:x}");
            assert_eq!(blocked >> (libc::SIGBUS - 1) & 1, 0, "{name} blocks SIGBUS");
        }
    });
    assert_eq!(signal, None);
}

static NEXT: AtomicPtr<u8> = AtomicPtr::new(ptr::null_mut());
static SUM: AtomicUsize = AtomicUsize::new(0);
static RAN_ON: AtomicI32 = AtomicI32::new(0);

/// Touches the next page of a map.
extern "C" fn touches_a_map(_: c_int) {
    let at = NEXT.load(Ordering::Relaxed);
    NEXT.store(at.wrapping_add(PAGE), Ordering::Relaxed);
    // SAFETY: a page of a map that is there, and whose bytes nobody changes.
    let byte = unsafe { at.read_volatile() };
    SUM.fetch_add(byte.into(), Ordering::Relaxed);
    RAN_ON.store(gettid(), Ordering::Relaxed);
}

fn gettid() -> libc::pid_t {
    // SAFETY: a number.
    unsafe { libc::gettid() }
}

/// Whether this thread gets SIGUSR1.
fn let_in(is_let_in: bool) {
    let how = if is_let_in { libc::SIG_UNBLOCK } else { libc::SIG_BLOCK };
    // SAFETY: an empty set is one.
    let mut set: libc::sigset_t = unsafe { std::mem::zeroed() };
    // SAFETY: the set is this function's.
    unsafe { libc::sigaddset(&raw mut set, libc::SIGUSR1) };
    // SAFETY: as above.
    assert_eq!(unsafe { libc::pthread_sigmask(how, &raw const set, ptr::null_mut()) }, 0);
}

/// The only threads that do not block the signal could be the cache's. One of them would wait for
/// the page that it alone brings.
#[test]
fn a_signal_handler_may_touch_a_map_and_does_not_run_on_the_threads_that_serve_it() {
    in_a_child(|| {
        let cache = Cache::new(Options::new(8 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; PAGES * PAGE]))).unwrap();
        let space = Space::new(&cache, 1).unwrap();
        let map = space.map_file(&file, 0..file.len()).unwrap();
        map.advise(0..0, Hint::Random).unwrap();
        NEXT.store(map.as_ptr().cast_mut(), Ordering::Relaxed);
        let handler = touches_a_map as extern "C" fn(c_int) as libc::sighandler_t;
        // SAFETY: the handler touches a map, whose faults other threads serve.
        assert_ne!(unsafe { libc::signal(libc::SIGUSR1, handler) }, libc::SIG_ERR);
        let_in(false);
        let own = gettid();
        for n in 1..=PAGES {
            let own_process = rustix::process::getpid();
            rustix::process::kill_process(own_process, rustix::process::Signal::USR1).unwrap();
            let_in(true); // it has run when this returns
            let_in(false);
            assert_eq!(RAN_ON.load(Ordering::Relaxed), own);
            assert_eq!(SUM.load(Ordering::Relaxed), 7 * n);
        }
    });
}

#[test]
#[cfg(feature = "serve")]
fn a_file_that_is_served_has_its_threads_from_the_start_on() {
    let name = "a_file_that_is_served_has_its_threads_from_the_start_on";
    let signal = alone(module_path!(), name, || {
        let options = Options { io_uring: false, ..Options::new(8 << 20) };
        let cache = Cache::new(options.clone()).unwrap();
        let attach = |cache: &Cache| {
            cache.attach("file", Arc::new(Memory::new(vec![7; PAGES * PAGE]))).unwrap()
        };
        let (file, late) = (attach(&cache), Cache::new(options).unwrap());
        let _clients = pinfold::Clients::new(&file).unwrap();
        forbid(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        let mut future = std::pin::pin!(file.get_async(3));
        // Ends: a thread reads it, or it is told that there is none.
        let read = loop {
            match future.as_mut().poll(&mut Context::from_waker(Waker::noop())) {
                Poll::Ready(read) => break read,
                Poll::Pending => std::thread::yield_now(),
            }
        };
        assert_eq!(read.unwrap()[0], 7);
        let error = pinfold::Clients::new(&attach(&late)).err().unwrap();
        assert_eq!(error.kind(), ErrorKind::System);
        let text = error.to_string();
        assert!(text.contains("cannot start the thread pinfold-read: Resource temp"), "{text}");
    });
    assert_eq!(signal, None);
}

#[test]
fn futures_say_at_once_that_no_thread_can_be_started() {
    let signal = alone(module_path!(), "futures_say_at_once_that_no_thread_can_be_started", || {
        let mut options = Options::new(8 << 20);
        options = Options { io_uring: false, ..options };
        let cache = Cache::new(options).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; PAGES * PAGE]))).unwrap();
        forbid(&[libc::SYS_clone, libc::SYS_clone3], libc::EAGAIN);
        let mut future = std::pin::pin!(file.get_async(3));
        // At the first poll.
        let polled = future.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        let Poll::Ready(Err(error)) = polled else { panic!("{polled:?}") };
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
        let text = error.to_string();
        assert!(text.contains("cannot start the thread pinfold-read: Resource temp"), "{text}");
        assert!(text.contains("ulimit -u"), "{text}");
        // What needs no thread goes on.
        assert_eq!(file.read_at(&mut [0; 8], 100).unwrap(), 8);
        assert_eq!(file.get_many(&[7, 9, 11]).unwrap().len(), 3);
        // Others say it, too.
        for error in
            [Cache::new(Options::new(8 << 20)).err().unwrap(), Space::new(&cache, 1).err().unwrap()]
        {
            assert_eq!(error.kind(), ErrorKind::System);
            assert!(error.to_string().contains("ulimit -u"), "{error}");
        }
        let space = Space::new(&cache, 0).unwrap();
        let map = space.map_file(&file, 0..file.len()).unwrap();
        // SAFETY: in the map, whose bytes nobody changes.
        assert_eq!(unsafe { map.as_ptr().wrapping_add(300 * PAGE).read_volatile() }, 7);
    });
    assert_eq!(signal, None);
}
