//! Going on with a guess while the truth is on its way.
//!
//! Where a page's bytes are, is computed from what its folio's entry says; so both lines, of the entry and
//! of the bytes, would be waited for one after the other. But most often one knows what the entry will
//! say. A processor predicts branches, and never data: asked by a branch whether the guess is right, it
//! fetches the bytes while the entry is on its way. Called by the doors that hold nothing.

use std::arch::asm;

/// `from + at`, by way of `from + guess` where that is the same.
#[inline(always)]
pub(crate) fn guessed(from: *mut u8, at: usize, guess: usize) -> *mut u8 {
    let mut address = hidden(from.wrapping_add(guess));
    if at != guess {
        address = hidden(from.wrapping_add(at));
    }
    address
}

/// The same address, of which the compiler does not know what it was computed from. Where `at` and
/// `guess` are the same it would take either for the other, and make one way of the two.
#[inline(always)]
fn hidden(mut address: *mut u8) -> *mut u8 {
    // SAFETY: it is empty.
    unsafe { asm!("/* {0} */", inout(reg) address, options(readonly, nostack, preserves_flags)) };
    address
}

#[cfg(all(test, not(loom)))]
mod tests {
    use super::*;

    #[test]
    fn the_guess_changes_nothing() {
        let mut bytes = [0_u8; 64];
        let from = bytes.as_mut_ptr();
        for (at, guess) in [(0, 0), (5, 0), (5, 5), (0, 5)] {
            assert_eq!(guessed(from, at, guess), from.wrapping_add(at));
        }
    }
}
