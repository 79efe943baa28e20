//! Copying bytes out of a frame that another thread may be changing at the same time. A reader that
//! holds nothing copies first, and checks afterwards (`Frame::read_retry`). In Rust a racing plain
//! load is undefined even if its value is discarded, and relaxed atomics would have to be of the
//! size of the stores (`Extent::store`). So the loads are inline assembly.

#![allow(clippy::multiple_unsafe_ops_per_block, reason = "copies side by side, for one reason")]

/// From this size on the system's memcpy is worth its call.
const MANY: usize = 192;

macro_rules! moves {
    ($($(#[$doc:meta])* $name:ident($lane:ident: $class:ident) = $load:literal, $store:literal;)*) => {$(
        $(#[$doc])*
        ///
        /// # Safety
        /// So many bytes can be accessed at both addresses; no other thread accesses those at `to`.
        #[inline(always)]
        pub(super) unsafe fn $name<const AT: usize>(to: *mut u8, from: *const u8) {
            // SAFETY: one load and one store, which the caller allows.
            unsafe {
                asm!(
                    $load, $store,
                    lane = out($class) _, from = in(reg) from, to = in(reg) to, at = const AT,
                    options(nostack, preserves_flags),
                );
            }
        }
    )*};
}

#[cfg(target_arch = "x86_64")]
mod machine {
    use std::arch::asm;

    moves! {
        /// 16 bytes, `AT` bytes past both addresses: an offset costs no instruction.
        copy16(lane: xmm_reg) = "movups {lane}, [{from} + {at}]", "movups [{to} + {at}], {lane}";
        copy8(lane: reg) = "mov {lane}, [{from} + {at}]", "mov [{to} + {at}], {lane}";
        copy4(lane: reg) = "mov {lane:e}, [{from} + {at}]", "mov [{to} + {at}], {lane:e}";
        copy1(lane: reg) =
            "movzx {lane:e}, byte ptr [{from} + {at}]", "mov byte ptr [{to} + {at}], {lane:l}";
    }

    /// By the system's memcpy.
    ///
    /// # Safety
    /// As for the others; the two do not overlap.
    #[inline]
    pub(super) unsafe fn many(to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: a call as the C ABI has it; without `nostack`, the stack is aligned for calls.
        unsafe {
            asm!(
                "call {memcpy}",
                memcpy = in(reg) libc::memcpy as *const (),
                in("rdi") to, in("rsi") from, in("rdx") bytes,
                clobber_abi("C"),
            );
        }
    }
}

#[cfg(target_arch = "aarch64")]
mod machine {
    use std::arch::asm;

    // The offset of a plain `ldr` is a multiple of its size: so are all that are asked for.
    moves! {
        copy16(lane: vreg) = "ldr {lane:q}, [{from}, #{at}]", "str {lane:q}, [{to}, #{at}]";
        copy8(lane: reg) = "ldr {lane:x}, [{from}, #{at}]", "str {lane:x}, [{to}, #{at}]";
        copy4(lane: reg) = "ldr {lane:w}, [{from}, #{at}]", "str {lane:w}, [{to}, #{at}]";
        copy1(lane: reg) = "ldrb {lane:w}, [{from}, #{at}]", "strb {lane:w}, [{to}, #{at}]";
    }

    /// # Safety
    /// As on x86-64.
    #[inline]
    pub(super) unsafe fn many(to: *mut u8, from: *const u8, bytes: usize) {
        // SAFETY: a call as the C ABI has it.
        unsafe {
            asm!(
                "blr {memcpy}",
                memcpy = in(reg) libc::memcpy as *const (),
                in("x0") to, in("x1") from, in("x2") bytes,
                clobber_abi("C"),
            );
        }
    }
}

/// Copies `bytes` bytes that may be changing; what arrives may be any mixture of old and new.
///
/// # Safety
/// `from` can be read for `bytes`, by racing loads; `to` is the caller's; they do not overlap.
#[inline(always)]
pub(crate) unsafe fn copy_racing(to: *mut u8, from: *const u8, bytes: usize) {
    // What is read most: first, for callers whose length the compiler does not know.
    if bytes == 64 {
        // SAFETY: `bytes` is 64.
        unsafe {
            machine::copy16::<0>(to, from);
            machine::copy16::<16>(to, from);
            machine::copy16::<32>(to, from);
            machine::copy16::<48>(to, from);
        }
        return;
    }
    // In each case the pieces stay within `bytes`, the last one by overlapping the one before.
    match bytes {
        // SAFETY: `bytes` is at least 16.
        16..=32 => unsafe {
            machine::copy16::<0>(to, from);
            machine::copy16::<0>(to.add(bytes - 16), from.add(bytes - 16));
        },
        // SAFETY: `bytes` is at least 32.
        33..=64 => unsafe {
            machine::copy16::<0>(to, from);
            machine::copy16::<16>(to, from);
            machine::copy16::<0>(to.add(bytes - 32), from.add(bytes - 32));
            machine::copy16::<16>(to.add(bytes - 32), from.add(bytes - 32));
        },
        // SAFETY: `at + 32` is below `bytes`, and `bytes` is at least 32.
        65..MANY => unsafe {
            let mut at = 0;
            // Ends: `at` grows to `bytes - 32`.
            while at < bytes - 32 {
                machine::copy16::<0>(to.add(at), from.add(at));
                machine::copy16::<16>(to.add(at), from.add(at));
                at += 32;
            }
            machine::copy16::<0>(to.add(bytes - 32), from.add(bytes - 32));
            machine::copy16::<16>(to.add(bytes - 32), from.add(bytes - 32));
        },
        // SAFETY: the caller's promise, whole.
        MANY.. => unsafe { machine::many(to, from, bytes) },
        // SAFETY: `bytes` is at least 8.
        8..16 => unsafe {
            machine::copy8::<0>(to, from);
            machine::copy8::<0>(to.add(bytes - 8), from.add(bytes - 8));
        },
        // SAFETY: `bytes` is at least 4.
        4..8 => unsafe {
            machine::copy4::<0>(to, from);
            machine::copy4::<0>(to.add(bytes - 4), from.add(bytes - 4));
        },
        0..4 => {
            for at in 0..bytes {
                // SAFETY: `at` is below `bytes`.
                unsafe { machine::copy1::<0>(to.add(at), from.add(at)) };
            }
        }
    }
}

/// Copies `bytes` bytes that do not change meanwhile.
///
/// # Safety
/// As for [`copy_racing`], and no thread stores to the bytes at `from`.
#[inline(always)]
pub(crate) unsafe fn copy_still(to: *mut u8, from: *const u8, bytes: usize) {
    // SAFETY: the caller's promise, whole.
    unsafe { std::ptr::copy_nonoverlapping(from, to, bytes) };
}

#[cfg(test)]
mod tests {
    use super::copy_racing;

    #[test]
    fn every_length_and_alignment() {
        let from: Vec<u8> = (0..5000_u32).map(|n| (n % 251) as u8).collect();
        for bytes in (0..200).chain([255, 256, 1000, 1023, 1024, 1025, 4096, 4900]) {
            for offset in [0, 1, 7, 8, 63] {
                let mut to = vec![0xEE; bytes + 2];
                // SAFETY: both vectors are long enough, and not shared.
                unsafe { copy_racing(to.as_mut_ptr().add(1), from.as_ptr().add(offset), bytes) };
                assert_eq!(&to[1..=bytes], &from[offset..offset + bytes], "{bytes} at {offset}");
                assert_eq!((to[0], to[bytes + 1]), (0xEE, 0xEE), "{bytes} at {offset}: outside");
            }
        }
    }
}
