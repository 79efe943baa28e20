#![no_std]
#![doc = "TBD"]

#[doc(hidden)]
pub mod atomic;
mod count;
#[doc(hidden)]
pub mod protocol;
#[doc(hidden)]
pub mod rivals;
mod trace;
mod word;

pub use count::{GetError, RefCount};
pub use word::Word;

use atomic::AtomicWord;
use protocol::Protocol;
