//! Hides from the compiler what a measured loop reads and how it is used, at no cost.
//!
//! `std::hint::black_box` sends its value through memory: a store and a load, which is a good part
//! of a copy of 64 bytes. Here the value stays in its register, and no instruction is made. Beside
//! it, the one instruction that begins to fetch a line.

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

/// Has the processor fetch the line that `bytes` begin in, and does not wait for it.
#[cfg(feature = "bench")]
#[inline(always)]
pub fn fetch(bytes: &[u8]) {
    let line = bytes.as_ptr();
    // SAFETY: a prefetch changes no memory and no register, and faults at no address.
    #[cfg(target_arch = "x86_64")]
    unsafe {
        asm!("prefetcht0 [{0}]", in(reg) line, options(readonly, nostack, preserves_flags));
    }
    // SAFETY: as above.
    #[cfg(target_arch = "aarch64")]
    unsafe {
        asm!("prfm pldl1keep, [{0}]", in(reg) line, options(readonly, nostack, preserves_flags));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_stays_what_it_is() {
        assert_eq!(unknown(7), 7);
        looked_at(&[1, 2, 3]);
        fetch(&[4, 5, 6]);
        fetch(&[]);
        assert_eq!(unknown(u64::MAX), u64::MAX);
    }
}
