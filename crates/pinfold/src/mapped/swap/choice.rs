//! Where the options say that the swap is to be.

use std::path::PathBuf;
use std::sync::Arc;

use crate::options::Options;
use crate::source::Source;

/// Where memory of the program's own goes that leaves the budget.
#[derive(Debug, Clone)]
pub(crate) enum PagedOutTo {
    /// To a file without a name in this directory.
    Dir(PathBuf),
    /// To a source of the program's own.
    Source(Arc<dyn Source>),
}

impl Options {
    /// Where the swap is to be, if there is to be one.
    pub(super) fn paged_out_to(&self) -> Option<PagedOutTo> {
        let place = match &self.swap_source {
            Some(source) => PagedOutTo::Source(source.clone()),
            None => PagedOutTo::Dir(self.swap_dir.clone()),
        };
        (self.swap_bytes > 0).then_some(place)
    }
}
