//! A thread that forks, while others have maps, and faults under way.
//!
//! Belongs here: what a child may do with its parent's maps.

use std::time::Duration;

use fastrand::Rng;
use pinfold::{ErrorKind, Result};

use super::maps::Mapped;
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

/// How a child ends that finds something else than it should: the number says what.
const WRONG: [&str; 4] = [
    "a map can be changed",
    "a file can be mapped",
    "statistics are not zero",
    "a map can be read",
];

/// Forks until the run is over.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let mut rng = Rng::with_seed(seed);
    while shared.goes_on() {
        shared.pause(Duration::from_millis(rng.u64(1..200)));
        desk.wait_for_map();
        let slot = shared.maps.slots[rng.usize(0..shared.maps.slots.len())].read().unwrap();
        let Some(mapped) = &*slot else { continue };
        desk.begin(Doing::Fork, mapped.subject, mapped.map.range().start, 0);
        let accesses = rng.u32(0..4) == 0;
        if let Err(what) = fork(shared, mapped, accesses) {
            shared.fail(Failure::Unexpected {
                thread: desk.name.clone(),
                doing: desk.describe(&shared.subjects),
                error: what,
            });
        }
        shared.watch.count(Doing::Fork, 1);
    }
}

/// Forks a child, and waits for it. One that accesses the map ends by SIGSEGV.
fn fork(shared: &Shared, mapped: &Mapped, accesses: bool) -> std::result::Result<(), String> {
    // Made before the fork: a child of a program with threads takes no lock and allocates nothing.
    let subject = &shared.subjects.all[mapped.subject];
    let file = subject.file(&shared.cache).map_err(|error| error.to_string())?;
    // SAFETY: the child calls what `child` does, and ends.
    let pid = unsafe { libc::fork() };
    if pid < 0 {
        return Err(format!("fork: {}", std::io::Error::last_os_error()));
    }
    if pid == 0 {
        let wrong = child(shared, mapped, &file, accesses);
        // SAFETY: ends the child at once.
        unsafe { libc::_exit(wrong) };
    }
    let status = wait(shared, pid)?;
    match (libc::WIFSIGNALED(status), accesses) {
        (true, true) if libc::WTERMSIG(status) == libc::SIGSEGV => Ok(()),
        (false, false) if libc::WEXITSTATUS(status) == 0 => Ok(()),
        (false, _) => {
            let number = usize::try_from(libc::WEXITSTATUS(status) - 1).ok();
            let what = number.and_then(|number| WRONG.get(number));
            Err(format!("in a forked child, {}", what.unwrap_or(&"something is wrong")))
        }
        _ => Err(format!("a forked child ended by the signal {}", libc::WTERMSIG(status))),
    }
}

/// What a child does: 0, or what was wrong, counted from 1.
fn child(shared: &Shared, mapped: &Mapped, file: &pinfold::File, accesses: bool) -> i32 {
    let space = &shared.maps.spaces[mapped.space];
    if !is_forked(mapped.map.protect(true))
        || !is_forked(mapped.map.advise(0..1, pinfold::Hint::Random))
    {
        return 1;
    }
    if !is_forked(space.map_file(file, 0..1)) {
        return 2;
    }
    if space.stats().faults != 0 || space.last_failure().is_some() {
        return 3;
    }
    if accesses {
        let none = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
        // SAFETY: a struct of this function's; the child shall leave no core behind.
        unsafe { libc::setrlimit(libc::RLIMIT_CORE, &raw const none) };
        // SAFETY: all zeros are the default action.
        let default: libc::sigaction = unsafe { std::mem::zeroed() };
        // SAFETY: a struct of this function's.
        unsafe { libc::sigaction(libc::SIGSEGV, &raw const default, std::ptr::null_mut()) };
        // SAFETY: an address of the map, which a child does not have: it ends here.
        unsafe { mapped.map.as_ptr().read_volatile() };
        return 4;
    }
    0
}

fn is_forked<T>(result: Result<T>) -> bool {
    let forked = matches!(&result, Err(error) if error.kind() == ErrorKind::Forked);
    // The parent's: nothing of it is dropped here.
    std::mem::forget(result);
    forked
}

/// How the child ended; one that hangs is ended.
fn wait(shared: &Shared, pid: libc::pid_t) -> std::result::Result<i32, String> {
    let latest = shared.clock.now() + shared.options.hang / 2;
    let (mut status, mut hung) = (0, false);
    // Ends: the child does, or is ended.
    // SAFETY: a child of this process, waited for once; `status` is this function's.
    while unsafe { libc::waitpid(pid, &raw mut status, libc::WNOHANG) } == 0 {
        if shared.clock.now() > latest && !hung {
            hung = true;
            // SAFETY: the child was not waited for yet, so the number is still its own.
            unsafe { libc::kill(pid, libc::SIGKILL) };
        }
        std::thread::sleep(Duration::from_micros(200));
    }
    if hung { Err("a forked child hangs".to_owned()) } else { Ok(status) }
}
