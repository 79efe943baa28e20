//! A share in a source.

use std::borrow::Cow;
use std::ops::Deref;
use std::sync::Arc;

use super::Source;
use crate::base::guarded::{guarded, quietly};

/// Of something of `bytes` bytes on the heap: an `Arc` adds its two counts.
pub(crate) const fn shared_bytes(bytes: usize) -> usize {
    bytes + 2 * size_of::<usize>()
}

/// A panic in the source's own `Drop` is caught, wherever the last share goes.
#[derive(Clone, Debug)]
pub(crate) struct SharedSource(Option<Arc<dyn Source>>);

impl SharedSource {
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
