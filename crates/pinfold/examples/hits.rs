//! One thread makes a given number of hits by one of the ways in, and nothing else: for counting
//! instructions. `write` overwrites 64 bytes of a page that is cached, and dirty from the first on.
//!
//! ```sh
//! cargo build --release -p pinfold --example hits
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/hits read 1000000
//! ```
//!
//! The difference between two runs, over the difference between their numbers of hits, is what one
//! hit takes; that of `empty` is the loop's. The ways whose names end with `-many` make batches of
//! 16 hits of the same page: what they show over `empty-many` (and `read-many` over
//! `empty-read-many`) is of a batch, and a 16th of it of a hit.

use std::hint::black_box;
use std::pin::pin;
use std::rc::Rc;
use std::sync::Arc;
use std::task::{Context, Poll, Waker};

use pinfold::source::Memory;
use pinfold::{Cache, File, FolioOf, Hint, Options, ReadAt, Reader};

const PAGES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
const BLOCK_BYTES: usize = 64;
const BATCH: usize = 16;

type Block = [u8; BLOCK_BYTES];

/// Something of two pages to choose from, each in a folio of its own.
struct Ways {
    file: File,
    of_thread: Rc<File>,
    of_threads: Arc<File>,
    reader: Reader,
}

impl Ways {
    #[inline(always)]
    fn hit(&self, way: Way, page: u64, block: &mut Block) -> pinfold::Result<()> {
        match way {
            Way::Empty => {}
            Way::Read => {
                let got = self.file.read_at(block, page * PAGE_BYTES)?;
                assert_eq!(got, BLOCK_BYTES);
            }
            Way::Get => block.copy_from_slice(&self.file.get(page)?[..BLOCK_BYTES]),
            Way::GetRc => {
                block.copy_from_slice(
                    &FolioOf::new(self.of_thread.get(page)?, self.of_thread.clone())[..BLOCK_BYTES],
                );
            }
            Way::GetArc => {
                block.copy_from_slice(
                    &FolioOf::new(self.of_threads.get(page)?, self.of_threads.clone())
                        [..BLOCK_BYTES],
                );
            }
            Way::GetOwned => {
                block.copy_from_slice(&self.file.get(page)?.into_owned()[..BLOCK_BYTES]);
            }
            Way::Borrow => {
                block.copy_from_slice(&self.file.borrow(page, &self.reader)?[..BLOCK_BYTES]);
            }
            Way::TryRead => {
                let got = self.file.try_read_at(block, page * PAGE_BYTES)?;
                assert!(matches!(got, Some(BLOCK_BYTES)));
            }
            Way::TryGet => {
                let page = self.file.try_get(page)?.expect("it is cached");
                block.copy_from_slice(&page[..BLOCK_BYTES]);
            }
            Way::TryBorrow => {
                let page = self.file.try_borrow(page, &self.reader)?.expect("it is cached");
                block.copy_from_slice(&page[..BLOCK_BYTES]);
            }
            Way::ReadAsync => {
                let got = at_once(self.file.read_at_async(block, page * PAGE_BYTES))?;
                assert_eq!(got, BLOCK_BYTES);
            }
            Way::GetAsync => {
                block.copy_from_slice(&at_once(self.file.get_async(page))?[..BLOCK_BYTES]);
            }
            Way::EmptyMany => {
                black_box(black_box([page; BATCH]));
            }
            Way::EmptyReadMany | Way::ReadMany => {
                let pages = black_box([page; BATCH]);
                let mut blocks = [[0; BLOCK_BYTES]; BATCH];
                let mut next = pages.iter();
                let mut reads = blocks
                    .each_mut()
                    .map(|block| ReadAt::new(next.next().expect("as many") * PAGE_BYTES, block));
                if matches!(way, Way::ReadMany) {
                    self.file.read_many(&mut reads)?;
                } else {
                    black_box(&mut reads);
                }
                black_box(&mut blocks);
            }
            Way::GetMany => {
                black_box(self.file.get_many(&black_box([page; BATCH]))?);
            }
            Way::BorrowMany => {
                black_box(self.file.borrow_many(&black_box([page; BATCH]), &self.reader)?);
            }
            Way::Optimistic => {
                let page = self.file.optimistic(page)?;
                page.read(0, block);
                assert!(page.validate());
            }
            Way::Pin => {
                let at = page * PAGE_BYTES;
                drop(self.file.pin(at..at + PAGE_BYTES)?);
            }
            Way::Write => self.file.write_at(block, page * PAGE_BYTES)?,
        }
        Ok(())
    }
}

/// What a future comes to that is ready at its first poll.
#[inline(always)]
fn at_once<F: Future>(future: F) -> F::Output {
    match pin!(future).poll(&mut Context::from_waker(Waker::noop())) {
        Poll::Ready(output) => output,
        Poll::Pending => panic!("it is cached"),
    }
}

#[derive(Clone, Copy)]
enum Way {
    Empty,
    Read,
    Get,
    /// A guard with a share of the file, for one thread or for several.
    GetRc,
    GetArc,
    /// A guard that keeps the cache.
    GetOwned,
    Borrow,
    Optimistic,
    Pin,
    Write,
    TryRead,
    TryGet,
    TryBorrow,
    /// Futures that are ready at once.
    ReadAsync,
    GetAsync,
    EmptyMany,
    /// The array of the reads, and no reads.
    EmptyReadMany,
    ReadMany,
    GetMany,
    BorrowMany,
}

/// A loop for each way, with the choice made by the compiler. Every other hit is of another page
/// if they are `two`.
macro_rules! loops {
    ($ways:expr, $name:expr, $number:expr, $two:expr, $($text:literal => $way:expr),*) => {
        match $name {
            $($text => run($number, $two, |page, block| $ways.hit($way, page, block)),)*
            other => panic!("no way {other}; there are {}", [$($text),*].join(", ")),
        }
    };
}

/// In a function of its own for each: how a loop is compiled does not hang on the others.
#[inline(never)]
fn run(number: u64, two: u64, hit: impl Fn(u64, &mut Block) -> pinfold::Result<()>) {
    let mut block = [0; BLOCK_BYTES];
    for n in 0..number {
        hit(black_box(n & two), &mut block).expect("it is a hit");
        black_box(&mut block);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [way, number] = arguments.as_slice() else {
        panic!(
            "two arguments are needed: a way in (with -2: two pages in turns), and a number of hits"
        )
    };
    make(way, number.parse().expect("the second argument is a number of hits"));
}

/// Makes so many hits by the way of that name.
pub(crate) fn make(way: &str, number: u64) {
    let (way, two) = way.strip_suffix("-2").map_or((way, 0), |way| (way, 1));
    let options = Options { io_uring: false, pin_in_place: true, ..Options::new(32 << 20) };
    let cache = Cache::new(options).expect("there is memory");
    let bytes = vec![7; (PAGES * PAGE_BYTES) as usize];
    let file = cache.attach("bytes", Arc::new(Memory::new(bytes))).expect("it can be attached");
    file.advise(0..1, Hint::Random).expect("a legal range");
    let reader = cache.reader().expect("the first of its readers");
    let (of_thread, of_threads) = (Rc::new(file.clone()), Arc::new(file.clone()));
    let ways = Ways { file, of_thread, of_threads, reader };
    // Until they count as used a lot.
    for n in 0..10 * PAGES {
        drop(ways.file.get(n % PAGES).expect("the source does not fail"));
    }
    loops!(ways, way, number, two,
        "empty" => Way::Empty,
        "read" => Way::Read,
        "get" => Way::Get,
        "get-rc" => Way::GetRc,
        "get-arc" => Way::GetArc,
        "get-owned" => Way::GetOwned,
        "borrow" => Way::Borrow,
        "optimistic" => Way::Optimistic,
        "pin" => Way::Pin,
        "write" => Way::Write,
        "try-read" => Way::TryRead,
        "try-get" => Way::TryGet,
        "try-borrow" => Way::TryBorrow,
        "read-async" => Way::ReadAsync,
        "get-async" => Way::GetAsync,
        "empty-many" => Way::EmptyMany,
        "empty-read-many" => Way::EmptyReadMany,
        "read-many" => Way::ReadMany,
        "get-many" => Way::GetMany,
        "borrow-many" => Way::BorrowMany);
}
