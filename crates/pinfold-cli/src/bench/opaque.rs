//! Hides from the compiler what a measured loop reads and how it is used, at no cost.
//!
//! `std::hint::black_box` sends its value through memory: a store and a load, which is a good part
//! of a copy of 64 bytes. Here the value stays in its register, and no instruction is made. Called
//! by the loops that are timed.

use std::arch::asm;

/// The same value, with its origin hidden from the compiler.
#[inline(always)]
pub fn unknown(mut value: u64) -> u64 {
    // SAFETY: it is empty.
    unsafe { asm!("/* {0} */", inout(reg) value, options(nomem, nostack, preserves_flags)) };
    value
}

/// Makes the compiler assume that `bytes` are read now.
#[inline(always)]
pub fn looked_at(bytes: &[u8]) {
    // SAFETY: it is empty.
    unsafe {
        asm!("/* {0} */", in(reg) bytes.as_ptr(), options(readonly, nostack, preserves_flags));
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_what_it_is() {
        assert_eq!(unknown(7), 7);
        looked_at(&[1, 2, 3]);
        assert_eq!(unknown(u64::MAX), u64::MAX);
    }
}
