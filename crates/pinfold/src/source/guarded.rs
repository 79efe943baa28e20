//! Calls of a source that may panic: a panic of a source is an error of the source.
//!
//! Called by whatever calls a source: `backing.rs`, `pool.rs`, and the cache when one is attached.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Calls the source and turns a panic into an error: other threads may wait for the result.
pub(crate) fn guarded<T>(what: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if cfg!(loom) {
        return call(); // the checker's own panics end the model
    }
    // The panic hook has printed it. The source must cope with its own state after a panic.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("it did not say why");
        Err(io::Error::other(format!("the source panicked in {what}: {text}")))
    })
}
