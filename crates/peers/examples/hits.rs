//! One thread makes a given number of hits in one peer, and nothing else: for counting
//! instructions.
//!
//! ```sh
//! cargo build --release -p pinfold-peers --features all --example hits
//! valgrind --tool=callgrind target/release/examples/hits moka 1000000
//! ```
//!
//! The difference between two runs, over the difference between their numbers of hits, is what one
//! hit takes.

use std::hint::black_box;

use pinfold_peers::{Foyer, HyperClock, Moka, Peer, QuickCache};

const VALUES: u64 = 1000;
const VALUE_BYTES: usize = 4096;

fn hits<P: Peer>(hits: u64) {
    let peer = P::new(VALUES as usize, VALUE_BYTES);
    for key in 0..VALUES {
        peer.insert(key, &[key as u8; VALUE_BYTES]);
    }
    let mut block = [0; 64];
    for _ in 0..hits {
        let found = peer.get(black_box(7), |bytes| block.copy_from_slice(&bytes[64..128]));
        assert_eq!(found, Some(()), "it was put in");
        black_box(&mut block);
    }
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [peer, number] = arguments.as_slice() else {
        panic!("two arguments are needed: a peer, and a number of hits")
    };
    let number = number.parse().expect("the second argument is a number of hits");
    match peer.as_str() {
        "foyer" => hits::<Foyer>(number),
        "hyperclock" => hits::<HyperClock>(number),
        "moka" => hits::<Moka>(number),
        "quick_cache" => hits::<QuickCache>(number),
        other => panic!("no peer {other}; there are foyer, hyperclock, moka and quick_cache"),
    }
}
