//! Touching pages: the loop of `pinfold bench fault` that is timed, and memory whose pages know
//! their numbers.

use std::sync::Barrier;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use rand::SeedableRng;
use rand::seq::SliceRandom;
use rand_pcg::Pcg64Mcg;
use serde::{Deserialize, Serialize};

use super::workers::{cpus, pin_to_cpu};

/// Bytes of a page.
pub const PAGE_BYTES: usize = 4096;

/// In which order pages are touched.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Order {
    /// Front to back; each thread in its own part.
    Sequential,
    /// At random: each page once, by one thread.
    Random,
}

impl Order {
    /// All of them.
    pub const ALL: [Order; 2] = [Order::Sequential, Order::Random];

    /// Its name.
    pub fn name(self) -> &'static str {
        match self {
            Order::Sequential => "sequential",
            Order::Random => "random",
        }
    }

    /// The numbers of so many pages in this order.
    pub fn of(self, pages: u32) -> Vec<u32> {
        let mut numbers: Vec<u32> = (0..pages).collect();
        if self == Order::Random {
            numbers.shuffle(&mut Pcg64Mcg::seed_from_u64(3));
        }
        numbers
    }
}

/// Writes its number into each page of `part`, which begins at `offset`. The rest of a page is not
/// zero, either.
pub fn number_pages(offset: u64, part: &mut [u8]) {
    for (n, page) in part.chunks_mut(PAGE_BYTES).enumerate() {
        page.fill(1);
        page[..8].copy_from_slice(&(offset / PAGE_BYTES as u64 + n as u64).to_le_bytes());
    }
}

/// Mapped memory that [`number_pages`] has written.
#[derive(Debug, Clone, Copy)]
pub struct Numbered(usize);

impl Numbered {
    /// Memory that begins here.
    ///
    /// # Safety
    /// While it is used, it can be read as far as the pages that it is asked for, and does not
    /// change.
    pub unsafe fn new(begin: *const u8) -> Self {
        Numbered(begin.expose_provenance())
    }

    /// Touches these pages; returns the bits in which any of their numbers is wrong.
    #[inline(never)]
    #[expect(clippy::cast_ptr_alignment, reason = "a mapping begins at a page")]
    fn touch(self, pages: &[u32]) -> u64 {
        let begin = std::ptr::with_exposed_provenance::<u8>(self.0);
        let mut wrong = 0;
        for &page in pages {
            let at = begin.wrapping_add(page as usize * PAGE_BYTES).cast::<u64>();
            // SAFETY: it is readable, as `new` demands, and aligned, as a mapping begins at a page.
            let number = u64::from_le(unsafe { at.read_volatile() });
            wrong |= number ^ u64::from(page);
        }
        wrong
    }

    /// Has `threads` threads touch all `pages` at once, each its part; returns the nanoseconds a
    /// page of the thread that took longest.
    pub fn touch_all(self, pages: &[u32], threads: usize) -> Result<f64> {
        let count = pages.len();
        ensure!(count >= threads, "{count} pages are too few for {threads} threads");
        let (barrier, cpus) = (&Barrier::new(threads), &cpus());
        let touched = std::thread::scope(|scope| {
            let threads: Vec<_> = (0..threads)
                .map(|worker| {
                    let part = &pages[worker * count / threads..(worker + 1) * count / threads];
                    scope.spawn(move || -> Result<(f64, u64)> {
                        let pinned = pin_to_cpu(worker, cpus);
                        barrier.wait();
                        pinned?;
                        let begun = Instant::now();
                        let wrong = self.touch(part);
                        Ok((begun.elapsed().as_nanos() as f64 / part.len() as f64, wrong))
                    })
                })
                .collect();
            threads
                .into_iter()
                .map(|thread| thread.join().ok().context("a thread that touches pages panicked")?)
                .collect::<Result<Vec<_>>>()
        })?;
        ensure!(touched.iter().all(|(_, wrong)| *wrong == 0), "a page was read as another");
        Ok(touched.iter().map(|(ns, _)| *ns).fold(0.0, f64::max))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_page_is_touched_once_in_either_order() {
        for order in Order::ALL {
            let mut pages = order.of(1000);
            assert_eq!(pages.is_sorted(), order == Order::Sequential);
            pages.sort_unstable();
            assert_eq!(pages, (0..1000).collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_page_that_is_read_as_another_is_seen() {
        let mut memory = memmap2::MmapMut::map_anon(8 * PAGE_BYTES).unwrap();
        number_pages(0, &mut memory);
        let touch = |memory: &memmap2::MmapMut, threads| {
            // SAFETY: it has as many pages.
            unsafe { Numbered::new(memory.as_ptr()) }.touch_all(&Order::Random.of(8), threads)
        };
        for threads in [1, 3, 8] {
            assert!(touch(&memory, threads).unwrap() > 0.0);
        }
        assert!(touch(&memory, 9).unwrap_err().to_string().contains("too few for 9 threads"));
        // Page 3 and page 5 change places.
        number_pages(5 * PAGE_BYTES as u64, &mut memory[3 * PAGE_BYTES..][..PAGE_BYTES]);
        number_pages(3 * PAGE_BYTES as u64, &mut memory[5 * PAGE_BYTES..][..PAGE_BYTES]);
        for threads in [1, 3, 8] {
            let error = touch(&memory, threads).unwrap_err().to_string();
            assert_eq!(error, "a page was read as another");
        }
    }
}
