//! A share in a source, as the cache and its workers have it.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use super::Source;
use crate::base::guarded::{guarded, quietly};

/// Bytes on the heap of something of `bytes` bytes that is shared: an `Arc` adds its two counts.
pub(crate) const fn shared_bytes(bytes: usize) -> usize {
    bytes + 2 * size_of::<usize>()
}

/// A share in a source. A panic in the source's own `Drop` is caught, wherever the last share goes:
/// that may be on a worker, on the daemon, or with the cache.
#[derive(Clone, Debug)]
pub(crate) struct SharedSource(Option<Arc<dyn Source>>);

impl SharedSource {
    /// Its kind, or that it panicked when it was asked.
    pub(super) fn name(&self) -> Cow<'static, str> {
        let kind = guarded("kind", || Ok(self.kind()));
        kind.unwrap_or("unknown (it panicked when it was asked)".into())
    }
}

impl From<Arc<dyn Source>> for SharedSource {
    fn from(source: Arc<dyn Source>) -> Self {
        SharedSource(Some(source))
    }
}

impl Deref for SharedSource {
    type Target = dyn Source;

    fn deref(&self) -> &(dyn Source + 'static) {
        self.0.as_deref().expect("only dropping takes it")
    }
}

impl Drop for SharedSource {
    fn drop(&mut self) {
        let source = self.0.take();
        quietly("a drop", || drop(source));
    }
}
