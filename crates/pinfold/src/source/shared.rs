//! A share in a source, as the cache has it.
//!
//! Belongs here: dropping one, and what a share takes. Made by `backing.rs`; the workers have
//! others meanwhile.

use std::ops::Deref;
use std::sync::Arc;

use super::Source;
use crate::base::guarded::quietly;

/// Bytes on the heap of something of `bytes` bytes that is shared: an `Arc` adds its two counts.
pub(crate) const fn shared_bytes(bytes: usize) -> usize {
    bytes + 2 * size_of::<usize>()
}

/// A share in a source. A panic in the source's own `Drop` is caught, wherever the last share goes:
/// that may be on a worker, on the daemon, or with the cache.
#[derive(Clone, Debug)]
pub(crate) struct SharedSource(Option<Arc<dyn Source>>);

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
