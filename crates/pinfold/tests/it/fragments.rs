//! What random reads leave of memory, and what a scan makes of it.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use pinfold::source::Source;
use pinfold::{Cache, File, Hint, Options, Reader};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const BUDGET: u64 = 64 * MIB;
const FILE: u64 = 1 << 30;

/// A file whose bytes say in which page they are.
#[derive(Debug)]
struct Numbered;

impl Source for Numbered {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        let bytes = buf.len().min(FILE.saturating_sub(offset) as usize);
        for (n, page) in buf[..bytes].chunks_mut(PAGE as usize).enumerate() {
            page.fill((offset / PAGE + n as u64) as u8);
        }
        Ok(bytes)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(FILE)
    }

    fn kind(&self) -> Cow<'static, str> {
        "numbered".into()
    }
}

/// Numbers as if drawn, the same each time.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1);
        (self.0 >> 33) % end
    }
}

/// Reads single pages, every other one from a few that all fit: so of what is read in a row, some
/// stays when the rest is evicted.
fn read_some(file: &File, draw: &mut Draw, reads: u64) {
    for n in 0..reads {
        let page = draw.below(if n % 2 == 0 { BUDGET / 2 / PAGE } else { FILE / PAGE });
        let mut byte = [0];
        assert_eq!(file.read_at(&mut byte, page * PAGE).unwrap(), 1);
        assert_eq!(byte[0], page as u8);
    }
}

/// Reads `bytes` of the file in order; the mean size of the folio of a page, in bytes. `None` if
/// the pages have gone before they could be looked at.
fn scan(file: &File, reader: &Reader, bytes: std::ops::Range<u64>) -> Option<u64> {
    let mut buf = vec![0; MIB as usize];
    let (mut pages, mut sum) = (0, 0);
    for at in bytes.step_by(buf.len()) {
        assert_eq!(file.read_at(&mut buf, at).unwrap(), buf.len());
        assert_eq!(buf[0], (at / PAGE) as u8);
        for page in (at / PAGE..(at + MIB) / PAGE).step_by(8) {
            // Some may have been evicted already.
            if let Some(page) = file.try_borrow(page, reader).unwrap() {
                pages += 1;
                sum += page.folio().len() as u64;
            }
        }
    }
    sum.checked_div(pages)
}

struct Used {
    cache: Cache,
    random: File,
    scanned: File,
    draw: Draw,
}

/// A cache that is full of single pages, somewhere.
fn used() -> Used {
    let cache = Cache::new(Options::new(BUDGET)).unwrap();
    let random = cache.attach("random", Arc::new(Numbered)).unwrap();
    random.advise(0..FILE, Hint::Random).unwrap();
    let scanned = cache.attach("scanned", Arc::new(Numbered)).unwrap();
    let mut draw = Draw(7);
    read_some(&random, &mut draw, 16 * BUDGET / PAGE);
    assert!(cache.stats().free_bytes < BUDGET / 16);
    Used { cache, random, scanned, draw }
}

#[test]
fn a_scan_after_random_reads_gets_large_folios() {
    let Used { cache, scanned, random: _keeps_its_pages, .. } = used();
    let reader = cache.reader().unwrap();
    let mean = scan(&scanned, &reader, 0..256 * MIB).expect("nobody else reads");
    assert!(mean > 256 << 10, "folios of {mean} bytes");
}

#[test]
fn a_scan_after_random_reads_leaves_no_memory_unused() {
    let Used { cache, scanned, random: _keeps_its_pages, .. } = used();
    let reader = cache.reader().unwrap();
    for at in (0..64 * MIB).step_by(4 << 20) {
        scan(&scanned, &reader, at..at + (4 << 20));
        let free = cache.stats().free_bytes;
        assert!(free < BUDGET / 8, "{free} bytes are free after {at} bytes");
    }
}

/// Sets the flag when it is dropped, also by a test that fails.
struct Sets<'a>(&'a AtomicBool);

impl Drop for Sets<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
    }
}

/// The same while others read single pages.
#[test]
fn a_scan_beside_random_reads_gets_large_folios_and_leaves_no_memory_unused() {
    let Used { cache, random, scanned, mut draw } = used();
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                read_some(&random, &mut draw, 100);
            }
        });
        let _at_the_end = Sets(&over);
        let reader = cache.reader().unwrap();
        let (mut sizes, mut most) = (Vec::new(), 0);
        for at in (0..256 * MIB).step_by(4 << 20) {
            sizes.extend(scan(&scanned, &reader, at..at + (4 << 20)));
            most = most.max(cache.stats().free_bytes);
        }
        sizes.sort_unstable();
        assert!(sizes[sizes.len() / 2] > 256 << 10, "folios of {sizes:?} bytes");
        assert!(most < BUDGET / 8, "{most} bytes are free");
    });
}
