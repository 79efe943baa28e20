//! One thread makes a given number of hits through one of the doors, and nothing else: for counting
//! instructions.
//!
//! ```sh
//! cargo build --release -p pinfold --example hits
//! valgrind --tool=callgrind --callgrind-out-file=/dev/null target/release/examples/hits read 1000000
//! ```
//!
//! The difference between two runs, over the difference between their numbers of hits, is what one
//! hit takes; that of `empty` is the loop's.

use std::hint::black_box;
use std::sync::Arc;

use pinfold::source::Memory;
use pinfold::{Cache, File, Hint, Options, Reader};

const PAGES: u64 = 256;
const PAGE_BYTES: u64 = 4096;
const BLOCK_BYTES: usize = 64;

type Block = [u8; BLOCK_BYTES];

/// Something of two pages to choose from, each in a folio of its own.
struct Doors {
    file: File,
    reader: Reader,
}

impl Doors {
    #[inline(always)]
    fn hit(&self, door: Door, page: u64, block: &mut Block) -> pinfold::Result<()> {
        match door {
            Door::Empty => {}
            Door::Read => {
                let got = self.file.read_at(block, page * PAGE_BYTES)?;
                assert_eq!(got, BLOCK_BYTES);
            }
            Door::Get => block.copy_from_slice(&self.file.get(page)?[..BLOCK_BYTES]),
            Door::Borrow => {
                block.copy_from_slice(&self.file.borrow(page, &self.reader)?[..BLOCK_BYTES]);
            }
            Door::Optimistic => {
                let page = self.file.optimistic(page)?;
                page.read(0, block);
                assert!(page.validate());
            }
            Door::Pin => {
                let at = page * PAGE_BYTES;
                drop(self.file.pin(at..at + PAGE_BYTES)?);
            }
        }
        Ok(())
    }
}

#[derive(Clone, Copy)]
enum Door {
    Empty,
    Read,
    Get,
    Borrow,
    Optimistic,
    Pin,
}

/// A loop for each door, with the choice made by the compiler. Every other hit is of another page
/// if they are `two`.
macro_rules! loops {
    ($doors:expr, $name:expr, $number:expr, $two:expr, $($text:literal => $door:expr),*) => {
        match $name {
            $($text => run($number, $two, |page, block| $doors.hit($door, page, block)),)*
            other => panic!("no door {other}; there are {}", [$($text),*].join(", ")),
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
    let [door, number] = arguments.as_slice() else {
        panic!(
            "two arguments are needed: a door (with -2: two pages in turns), and a number of hits"
        )
    };
    let number = number.parse().expect("the second argument is a number of hits");
    let (door, two) = door.strip_suffix("-2").map_or((door.as_str(), 0), |door| (door, 1));
    let options = Options::new(32 << 20).io_uring(false).pin_in_place(true);
    let cache = Cache::new(options).expect("there is memory");
    let bytes = vec![7; (PAGES * PAGE_BYTES) as usize];
    let file = cache.attach("bytes", Arc::new(Memory::new(bytes))).expect("it can be attached");
    file.advise(0..1, Hint::Random).expect("a legal range");
    let doors = Doors { file, reader: cache.reader().expect("the first of its readers") };
    // Until they count as used a lot.
    for n in 0..10 * PAGES {
        drop(doors.file.get(n % PAGES).expect("the source does not fail"));
    }
    loops!(doors, door, number, two,
        "empty" => Door::Empty,
        "read" => Door::Read,
        "get" => Door::Get,
        "borrow" => Door::Borrow,
        "optimistic" => Door::Optimistic,
        "pin" => Door::Pin);
}
