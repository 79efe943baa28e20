//! Files whose reads are late, never end, or fail in odd ways: what becomes of their readers, and
//! of the readers of other files.

#![cfg(not(any(loom, shuttle)))]

#[path = "support/odd_files.rs"]
mod odd_files;

use std::ffi::CString;
use std::future::Future;
use std::path::{Path, PathBuf};
use std::pin::{Pin, pin};
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use odd_files::{Answer, OddFiles, byte_of};
use pinfold::{Cache, File, Hint, Options};

/// Only there to end a test that hangs.
const LONG: Duration = Duration::from_secs(60);
const MIB: u64 = 1 << 20;

fn cache() -> Cache {
    Cache::new(Options::new(32 * MIB)).unwrap()
}

/// Answers what `Cache::open` asks, and nothing else.
fn open_and_hang(asked: &odd_files::Asked) -> Answer {
    if asked.offset == 0 { Answer::Bytes } else { Answer::Hold }
}

/// Polls the future until it is ready. `None` if that takes too long.
fn ends<F: Future>(future: F) -> Option<F::Output> {
    let (mut future, since) = (pin!(future), Instant::now());
    let mut context = Context::from_waker(Waker::noop());
    // Ends: the future does, or there is no time left.
    while since.elapsed() < LONG {
        if let Poll::Ready(end) = future.as_mut().poll(&mut context) {
            return Some(end);
        }
        std::thread::sleep(Duration::from_micros(100));
    }
    None
}

type Waits<'f> = Pin<Box<dyn Future<Output = ()> + 'f>>;

/// Futures of so many pages of the file, which have asked for them.
fn futures(file: &File, pages: u64) -> Vec<Waits<'_>> {
    let mut context = Context::from_waker(Waker::noop());
    let begin = |n| {
        let page = 1 + n * 20;
        let mut waits: Waits<'_> = Box::pin(async move {
            file.get_async(page).await.unwrap();
        });
        assert!(waits.as_mut().poll(&mut context).is_pending());
        waits
    };
    (0..pages).map(begin).collect()
}

/// While all of `hanging` hang, with so many reads at `least`, futures of `local`, whose bytes are 7, end; so do the drops of the
/// file, and of the cache.
fn hangs_alone(odd: &OddFiles, hanging: &[PathBuf], local: &Path, least: usize) {
    let cache = cache();
    let files: Vec<_> = hanging.iter().map(|path| cache.open(path).unwrap()).collect();
    let expected = odd.asked().len() + least;
    let local = cache.open(local).unwrap();
    for file in &files {
        file.advise(0..1, Hint::Random).unwrap();
    }
    let mut waiting: Vec<_> = files.iter().map(|file| futures(file, 200)).collect();
    let since = Instant::now();
    // Ends: so many reads have come, or there is no time left.
    while odd.asked().len() < expected && since.elapsed() < LONG {
        std::thread::sleep(Duration::from_millis(1));
    }
    let read = |page: u64| ends(local.get_async(page)).map(|got| got.unwrap()[0]);
    let read: Vec<_> = (0..10).map(|n| read(n * 25)).collect();
    let hung = read.contains(&None);
    if !hung {
        waiting.clear();
    }
    drop(local);
    if hung {
        odd.answer(|_| Answer::Bytes);
        odd.let_go();
    }
    drop(waiting);
    drop((files, cache)); // waits for none that hangs
    assert_eq!(read, [Some(7); 10]);
}

fn file_of_sevens(directory: &Path) -> PathBuf {
    let path = directory.join("local");
    std::fs::write(&path, vec![7; MIB as usize]).unwrap();
    path
}

#[test]
fn a_file_of_a_program_is_read() {
    let Some(odd) = OddFiles::mount(&[MIB], |_| Answer::Bytes) else { return };
    let cache = cache();
    let file = cache.open(odd.path(0)).unwrap();
    let mut buf = vec![0; 100_000];
    file.read_at(&mut buf, 5000).unwrap();
    for (n, byte) in buf.iter().enumerate() {
        assert_eq!(*byte, byte_of(0, 5000 + n as u64));
    }
    odd.answer(|_| Answer::Error(libc::EIO));
    let error = file.read_at(&mut buf, 500_000).unwrap_err();
    assert!(error.to_string().contains("Input/output error"), "{error}");
    drop((file, cache));
}

#[test]
fn files_that_hang_keep_no_future_of_another_waiting() {
    for hanging in [1, 4] {
        let Some(odd) = OddFiles::mount(&vec![64 * MIB; hanging], open_and_hang) else { return };
        let directory = tempfile::tempdir().unwrap();
        let local = file_of_sevens(directory.path());
        let hanging: Vec<_> = (0..hanging).map(|n| odd.path(n)).collect();
        hangs_alone(&odd, &hanging, &local, hanging.len());
    }
}

/// An overlay, with folders for what it needs.
struct Overlay {
    merged: PathBuf,
    directory: tempfile::TempDir,
}

impl Overlay {
    /// Of `lower`, and a folder of its own. `None`, said aloud, where that is not possible.
    fn of(lower: &Path) -> Option<Self> {
        let directory = tempfile::tempdir().unwrap();
        let at = |name| directory.path().join(name);
        let [upper, work, merged] = ["upper", "work", "merged"].map(at);
        for folder in [&upper, &work, &merged] {
            std::fs::create_dir(folder).unwrap();
        }
        let told = |path: &Path| path.to_str().unwrap().to_owned();
        let options = [&told(lower), &told(&upper), &told(&work)];
        let options =
            format!("lowerdir={},upperdir={},workdir={}", options[0], options[1], options[2]);
        let text = |text: &str| CString::new(text).unwrap();
        let (kind, target, options) = (text("overlay"), text(&told(&merged)), text(&options));
        // SAFETY: the texts outlive the call.
        let done = unsafe {
            libc::mount(kind.as_ptr(), target.as_ptr(), kind.as_ptr(), 0, options.as_ptr().cast())
        };
        if done != 0 {
            eprintln!("not tested: no overlay: {}", std::io::Error::last_os_error());
            return None;
        }
        Some(Overlay { merged, directory })
    }
}

impl Drop for Overlay {
    fn drop(&mut self) {
        let merged = CString::new(self.merged.to_str().unwrap()).unwrap();
        // SAFETY: the text outlives the call.
        let done = unsafe { libc::umount2(merged.as_ptr(), libc::MNT_DETACH) };
        assert_eq!(done, 0, "{} of {:?}", std::io::Error::last_os_error(), self.directory);
    }
}

/// An overlay's reads may wait as they begin. So do those of a file that does not hang.
#[test]
fn a_file_that_hangs_under_an_overlay_keeps_no_future_of_another_waiting() {
    let Some(odd) = OddFiles::mount(&[64 * MIB], open_and_hang) else { return };
    let Some(overlay) = Overlay::of(odd.path(0).parent().unwrap()) else { return };
    let local = file_of_sevens(&overlay.merged);
    hangs_alone(&odd, &[overlay.merged.join("0")], &local, 64);
}
