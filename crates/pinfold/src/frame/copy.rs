//! Copying bytes out of a frame that somebody may be changing at the same time.
//!
//! A reader that holds nothing copies first and asks afterwards (`Frame::read_retry`) whether what
//! it copied was one thing. Its loads race with stores: of the kernel that fills the frame, and of
//! writers. In Rust's memory model a racing plain load is undefined even if its value is thrown
//! away, so the loads here are either machine instructions in inline assembly, of which the
//! compiler knows nothing but that memory is read, or relaxed atomics. Called by `read` alone.

#[cfg(target_arch = "x86_64")]
mod bulk {
    use std::arch::asm;

    /// The bytes that one step moves.
    pub(super) const STEP: usize = 16;

    /// Copies [`STEP`] bytes.
    ///
    /// # Safety
    /// Both can be accessed for that long; nobody else accesses what is at `to`.
    #[inline(always)]
    pub(super) unsafe fn step(to: *mut u8, from: *const u8) {
        // SAFETY: one load and one store, of which the caller says that they may be made.
        unsafe {
            asm!(
                "movups {lane}, xmmword ptr [{from}]",
                "movups xmmword ptr [{to}], {lane}",
                lane = out(xmm_reg) _, from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies four times [`STEP`] bytes.
    ///
    /// # Safety
    /// As of [`step`].
    #[inline(always)]
    pub(super) unsafe fn four_steps(to: *mut u8, from: *const u8) {
        // SAFETY: as in `step`.
        unsafe {
            asm!(
                "movups {a}, xmmword ptr [{from}]",
                "movups {b}, xmmword ptr [{from} + 16]",
                "movups {c}, xmmword ptr [{from} + 32]",
                "movups {d}, xmmword ptr [{from} + 48]",
                "movups xmmword ptr [{to}], {a}",
                "movups xmmword ptr [{to} + 16], {b}",
                "movups xmmword ptr [{to} + 32], {c}",
                "movups xmmword ptr [{to} + 48], {d}",
                a = out(xmm_reg) _, b = out(xmm_reg) _, c = out(xmm_reg) _, d = out(xmm_reg) _,
                from = in(reg) from, to = in(reg) to,
                options(nostack, preserves_flags),
            );
        }
    }

    /// Copies many bytes, by what the processor has for that.
    ///
    /// # Safety
    /// As of [`step`], for `bytes`.
    #[inline]
    pub(super) unsafe fn many(to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: as in `step`; the direction flag is clear wherever Rust code runs.
        unsafe {
            asm!(
                "rep movsb",
                inout("rcx") bytes => _, inout("rdi") to => _, inout("rsi") from => _,
                options(nostack, preserves_flags),
            );
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
mod bulk {
    use std::sync::atomic::{AtomicU64, Ordering};

    pub(super) const STEP: usize = 8;

    /// Copies [`STEP`] bytes, the source aligned or not.
    ///
    /// # Safety
    /// Both can be accessed for that long; nobody else accesses what is at `to`.
    #[inline(always)]
    pub(super) unsafe fn step(to: *mut u8, from: *const u8) {
        let offset = from as usize % STEP;
        if offset == 0 {
            // SAFETY: aligned, and the caller says that it can be read; relaxed, because whoever
            // stores there meanwhile makes the version say so.
            let word = unsafe { (*from.cast::<AtomicU64>()).load(Ordering::Relaxed) };
            // SAFETY: the caller has `to` alone.
            unsafe { to.cast::<u64>().write_unaligned(word) };
        } else {
            for i in 0..STEP {
                // SAFETY: as above, byte by byte.
                unsafe { super::byte(to.add(i), from.add(i)) };
            }
        }
    }

    /// # Safety
    /// As of [`step`].
    #[inline(always)]
    pub(super) unsafe fn four_steps(to: *mut u8, from: *const u8) {
        for i in 0..4 {
            // SAFETY: as in `step`.
            unsafe { step(to.add(i * STEP), from.add(i * STEP)) };
        }
    }

    /// # Safety
    /// As of [`step`], for `bytes`.
    pub(super) unsafe fn many(to: *mut u8, from: *const u8, bytes: usize) {
        for i in (0..bytes - STEP).step_by(STEP) {
            // SAFETY: as in `step`.
            unsafe { step(to.add(i), from.add(i)) };
        }
        // SAFETY: as in `step`; `bytes` is at least one step.
        unsafe { step(to.add(bytes - STEP), from.add(bytes - STEP)) };
    }
}

use std::sync::atomic::{AtomicU8, Ordering};

/// From here on the processor's own copy instruction is as fast as a loop of steps.
const MANY: usize = 1024;

/// Copies one byte.
///
/// # Safety
/// As of [`copy_racing`].
#[inline(always)]
unsafe fn byte(to: *mut u8, from: *const u8) {
    // SAFETY: the caller says that it can be read; relaxed, see the head of the file.
    let value = unsafe { (*from.cast::<AtomicU8>()).load(Ordering::Relaxed) };
    // SAFETY: the caller has `to` alone.
    unsafe { to.write(value) };
}

/// Copies `bytes` bytes that may be changing. What arrives may be any mixture of old and new.
///
/// # Safety
/// `from` can be read for `bytes`, by racing loads; `to` can be written, and nobody else accesses
/// it meanwhile; they do not overlap.
#[inline]
pub(crate) unsafe fn copy_racing(to: *mut u8, from: *const u8, bytes: usize) {
    const STEP: usize = bulk::STEP;
    if bytes < STEP {
        for i in 0..bytes {
            // SAFETY: below `bytes`.
            unsafe { byte(to.add(i), from.add(i)) };
        }
        return;
    }
    if bytes >= MANY {
        // SAFETY: the caller's promise, whole.
        unsafe { bulk::many(to, from, bytes) };
        return;
    }
    let mut at = 0;
    // Ends: `at` grows to below `bytes`.
    while bytes - at >= 4 * STEP {
        // SAFETY: `at + 4 * STEP` is within `bytes`.
        unsafe { bulk::four_steps(to.add(at), from.add(at)) };
        at += 4 * STEP;
    }
    while bytes - at >= STEP {
        // SAFETY: `at + STEP` is within `bytes`.
        unsafe { bulk::step(to.add(at), from.add(at)) };
        at += STEP;
    }
    if at < bytes {
        // The last step overlaps the one before.
        // SAFETY: `bytes` is at least one step.
        unsafe { bulk::step(to.add(bytes - STEP), from.add(bytes - STEP)) };
    }
}

#[cfg(test)]
mod tests {
    use super::copy_racing;

    #[test]
    fn every_length_and_alignment() {
        let from: Vec<u8> = (0..5000).map(|n| (n % 251) as u8).collect();
        for bytes in (0..200).chain([255, 256, 1000, 1023, 1024, 1025, 4096, 4900]) {
            for offset in [0, 1, 7, 8, 63] {
                let mut to = vec![0xEE; bytes + 2];
                // SAFETY: both vectors are long enough, and nobody else has them.
                unsafe { copy_racing(to.as_mut_ptr().add(1), from.as_ptr().add(offset), bytes) };
                assert_eq!(&to[1..=bytes], &from[offset..offset + bytes], "{bytes} at {offset}");
                assert_eq!((to[0], to[bytes + 1]), (0xEE, 0xEE), "{bytes} at {offset}: outside");
            }
        }
    }
}
