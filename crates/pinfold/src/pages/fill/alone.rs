//! Whether what a failed read was to bring is read once more, without what others want: nobody
//! knows for which page the read failed. A source that hangs is not asked again: the read ended by
//! its deadline, or took as long as a reader waits for memory while others are under way.
use std::io;
use std::ops::Range;
use std::time::Instant;

use crate::base::mutant::{self, Mutant};
use crate::error::{Cause, Error};
use crate::frames::{PAGE_BYTES, PAGE_SHIFT};
use crate::pages::handle::Handle;
use crate::pages::reclaim;
use crate::pages::stream::Plan;

#[derive(Debug)]
pub(crate) struct WantedPages {
    pages: Range<u64>,
    since: Instant,
}

impl WantedPages {
    /// From the start of `page` on, from now on.
    pub(crate) fn new(page: u64, bytes: usize) -> Self {
        let end = page.saturating_add(bytes.div_ceil(PAGE_BYTES) as u64);
        WantedPages::since(page..end, Instant::now())
    }

    pub(crate) fn since(pages: Range<u64>, since: Instant) -> Self {
        WantedPages { pages, since }
    }

    /// `None`: the error is the reader's.
    pub(crate) fn alone(&self, reader: &Handle, error: &Error) -> Option<Plan> {
        let (offset, bytes, hangs) = match error.cause() {
            Cause::Read { offset, asked_bytes, cause, .. } => {
                (*offset, *asked_bytes, cause.kind() == io::ErrorKind::TimedOut)
            }
            Cause::Truncated { cause, .. } => (cause.offset, cause.asked_bytes, false),
            _ => return None,
        };
        let past = |bytes: u64| bytes.div_ceil(PAGE_BYTES as u64);
        let of = offset >> PAGE_SHIFT..past(offset.saturating_add(bytes));
        let hangs = hangs || self.since.elapsed() > reclaim::reads_take(&reader.core);
        let in_vain = (hangs && !mutant::on(Mutant::AloneThoughItHangs))
            || mutant::on(Mutant::NeverAlone)
            || self.pages.start <= of.start && of.end <= self.pages.end;
        let end = self.pages.end.min(past(reader.mapping.len_bytes())).max(self.pages.start + 1);
        (!in_vain).then(|| Plan::of(end))
    }
}
