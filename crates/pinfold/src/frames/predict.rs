//! Predicts the address of a page's bytes, which depends on its folio's entry. If a branch compares
//! a prediction with the entry, the processor fetches the bytes while it waits for the entry.

use std::arch::asm;

/// `from + at`, computed as `from + prediction` if both are the same.
#[inline(always)]
pub(crate) fn predicted(from: *mut u8, at: usize, prediction: usize) -> *mut u8 {
    let mut address = hidden(from.wrapping_add(prediction));
    if at != prediction {
        address = hidden(from.wrapping_add(at));
    }
    address
}

/// The same, with its origin hidden from the compiler, which would merge the two branches.
#[inline(always)]
fn hidden(mut address: *mut u8) -> *mut u8 {
    // SAFETY: the assembly is empty.
    unsafe { asm!("/* {0} */", inout(reg) address, options(readonly, nostack, preserves_flags)) };
    address
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn a_prediction_changes_nothing() {
        let mut bytes = [0_u8; 64];
        let from = bytes.as_mut_ptr();
        for (at, prediction) in [(0, 0), (5, 0), (5, 5), (0, 5)] {
            assert_eq!(predicted(from, at, prediction), from.wrapping_add(at));
        }
    }
}
