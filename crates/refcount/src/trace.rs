//! Tracepoints, named as the kernel names its own (`page_ref_*`, without the prefix).
//!
//! Each is a static probe (`SystemTap` format, as `bpftrace`, `perf` and `gdb` find them) of the
//! provider `pinfold_refcount`, present only with the feature `usdt`: one `nop` where it stands.
//! Arguments: the address of the count, its word, then as named below.

use crate::{Protocol, Word};

macro_rules! tracepoints {
    ($($(#[$doc:meta])* $function:ident = $probe:ident ($($name:ident: $type:ty),*);)*) => {$(
        $(#[$doc])*
        #[inline(always)]
        #[allow(clippy::used_underscore_binding, reason = "unused without the feature")]
        pub(crate) fn $function<P: Protocol, C>(
            _at: &C,
            _word: Word<P>,
            $($name: $type),*
        ) {
            #[cfg(feature = "usdt")]
            probe::probe!(
                pinfold_refcount, $probe,
                core::ptr::from_ref(_at) as usize, _word.raw() $(, i64::from($name))*
            );
            #[cfg(not(feature = "usdt"))]
            {
                $(let _ = $name;)*
            }
        }
    )*};
}

tracepoints! {
    /// The count was set by the party alone.
    set = set();
    /// `v` references were added by a holder.
    modify = modify(v: i64);
    /// `v` references or pins were given back; `ret`: they were the last.
    mod_and_test = mod_and_test(v: i64, ret: bool);
    /// `v` references or pins were asked for; `ret`: and taken.
    mod_unless = mod_unless(v: i64, ret: bool);
    /// A freeze that expected `v` references; `ret`: it happened.
    freeze = freeze(v: u32, ret: bool);
    /// The end of a freeze, with `v` references.
    unfreeze = unfreeze(v: i64);
}
