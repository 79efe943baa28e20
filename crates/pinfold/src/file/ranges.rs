//! Ranges of bytes, as programs give them.

use std::ops::{Bound, Range, RangeBounds};

#[cfg(doc)]
use crate::error::ErrorKind;
use crate::error::{Cause, Result};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::mapping::Mapping;

/// The largest end of a range.
pub(crate) const END_MAX: u64 = i64::MAX as u64;

/// The bytes of a range, where an open end is `end`. What overflows is refused by each check.
pub(crate) fn bytes_of(range: &impl RangeBounds<u64>, end: u64) -> Range<u64> {
    let start = match range.start_bound() {
        Bound::Included(&at) => at,
        Bound::Excluded(&at) => at.saturating_add(1),
        Bound::Unbounded => 0,
    };
    let end = match range.end_bound() {
        Bound::Included(&at) => at.saturating_add(1),
        Bound::Excluded(&at) => at,
        Bound::Unbounded => end,
    };
    start..end
}

/// Error: [`ErrorKind::Invalid`] if it ends before it begins, or above the largest offset.
pub(crate) fn check(mapping: &Mapping, range: &Range<u64>) -> Result<()> {
    let &Range { start, end } = range;
    let path = || mapping.path.clone();
    if start > end {
        return Err(Cause::RangeReversed { path: path(), start, end }.into());
    }
    if end > END_MAX {
        return Err(Cause::Range { path: path(), offset: start, bytes: end - start }.into());
    }
    Ok(())
}

/// The pages that have a byte of `range`, also past the end of the file. Error: as [`check`].
pub(crate) fn pages_of(mapping: &Mapping, range: &Range<u64>) -> Result<Range<u64>> {
    check(mapping, range)?;
    if range.is_empty() {
        return Ok(0..0);
    }
    Ok(range.start >> PAGE_SHIFT..range.end.div_ceil(PAGE_BYTES as u64))
}
