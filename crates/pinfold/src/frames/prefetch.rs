//! Asks the processor for a line of memory that will soon be read: a hint, of any address.
#[inline(always)]
pub(crate) fn prefetch<T>(address: *const T) {
    #[cfg(target_arch = "x86_64")]
    {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: a hint, wherever it points.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(address.cast()) };
    }
    #[cfg(target_arch = "aarch64")]
    // SAFETY: as above.
    unsafe {
        std::arch::asm!(
            "prfm pldl1keep, [{address}]", address = in(reg) address,
            options(readonly, nostack, preserves_flags),
        );
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::prefetch;

    #[test]
    fn any_address_will_do() {
        let bytes = [7_u8; 64];
        prefetch(bytes.as_ptr());
        prefetch(bytes.as_ptr().wrapping_add(1 << 40));
        prefetch(std::ptr::null::<u8>());
        assert_eq!(bytes, [7; 64]);
    }
}
