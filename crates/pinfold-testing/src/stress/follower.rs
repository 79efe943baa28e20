//! Readers of files that another process writes.
//!
//! Belongs here: how they open, refresh and read. Does not: what they must have read then
//! (`foreign.rs`).

use std::time::Duration;

use fastrand::Rng;
use pinfold::{Changed, File, Result};

use super::files::open;
use super::foreign::{BYTES_MAX, FILES, Foreign, SLOW};
use super::report::Failure;
use super::shared::Shared;
use super::watch::{Desk, Doing};

/// A reader's life.
pub(super) fn run(shared: &Shared, desk: &Desk, seed: u64) {
    let foreign = shared.foreign.as_ref().expect("this schedule has one");
    let mut rng = Rng::with_seed(seed);
    let mut kept: [Option<File>; FILES] = Default::default();
    let mut buf = vec![0; BYTES_MAX + 100];
    while shared.goes_on() {
        let n = rng.usize(0..FILES);
        desk.begin(Doing::Foreign, usize::MAX, n as u64, 0);
        let ended = foreign.ended(n);
        if ended == 0 {
            std::thread::sleep(Duration::from_millis(1));
            continue; // it is not there yet
        }
        let read = one(shared, foreign, n, &mut kept[n], &mut buf, &mut rng);
        let Some(read) = read.transpose().filter(|_| foreign.begun(n) == ended) else {
            desk.excuse();
            continue;
        };
        let right = match read {
            Ok(got) => foreign.check(n, ended, &buf[..got]).map(|()| got),
            Err(error) => Err(error.to_string()),
        };
        match right {
            Ok(got) => {
                desk.read(got);
                shared.watch.count(Doing::Foreign, 1);
            }
            Err(error) => shared.fail(Failure::Unexpected {
                thread: desk.name.clone(),
                doing: format!("reading what another process wrote, version {ended}"),
                error,
            }),
        }
    }
}

/// Opens the file or refreshes it, and reads all of it; `None`: not the latter.
fn one(
    shared: &Shared,
    foreign: &Foreign,
    n: usize,
    kept: &mut Option<File>,
    buf: &mut [u8],
    rng: &mut Rng,
) -> Result<Option<usize>> {
    if n == SLOW {
        return foreign.read_slow(&shared.cache, buf);
    }
    let direct = if n.is_multiple_of(2) { None } else { Some(false) };
    let anew = || open(&shared.cache, foreign.path(n), direct);
    let file = match kept.take() {
        Some(file) if rng.u32(0..3) > 0 => match file.refresh()? {
            Changed::Replaced => anew()?,
            _ => file,
        },
        _ => anew()?,
    };
    let mut got = 0;
    if rng.bool() {
        got = file.read_at(buf, 0)?;
    } else {
        // Ends: each turn has more of a buffer that is longer than any file.
        while got < buf.len() {
            let end = buf.len().min(got + rng.usize(1..20_000));
            let more = file.read_at(&mut buf[got..end], got as u64)?;
            got += more;
            if more == 0 {
                break;
            }
        }
    }
    if rng.bool() {
        *kept = Some(file);
    }
    Ok(Some(got))
}
