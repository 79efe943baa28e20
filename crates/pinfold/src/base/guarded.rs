//! Calls that may panic: a panic of a source is an error of it, and one of a completion or of a
//! function of `Request::on_stop` concerns no other request.

use std::io;
use std::panic::{AssertUnwindSafe, catch_unwind};

/// Turns a panic into an error: other threads may wait for the result.
pub(crate) fn guarded<T>(what: &str, call: impl FnOnce() -> io::Result<T>) -> io::Result<T> {
    if cfg!(loom) {
        return call(); // the checker's own panics end the model
    }
    // The panic hook has printed it. The source must cope with its own state after a panic.
    catch_unwind(AssertUnwindSafe(call)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<&str>().copied();
        let text = text.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
        let text = text.unwrap_or("it did not say why");
        let error = io::Error::other(format!("the source panicked in {what}: {text}"));
        // A value that is thrown may itself panic when it is dropped; the next one is kept.
        if let Err(next) = catch_unwind(AssertUnwindSafe(|| drop(panic))) {
            std::mem::forget(next);
        }
        Err(error)
    })
}

pub(crate) fn quietly(what: &str, call: impl FnOnce()) {
    let _ = guarded(what, || {
        call();
        Ok(())
    });
}
