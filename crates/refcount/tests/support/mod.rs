//! The broken twins, and the words that models put under a count.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its own part")]

pub mod replay;
pub mod twins;

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

/// Runs a model that must fail, and gives the message it failed with.
///
/// # Panics
/// If the model holds: then it cannot tell the protocol from its broken twin.
pub fn caught(model: impl FnOnce()) -> String {
    quiet_panics();
    let outcome = catch_unwind(AssertUnwindSafe(model));
    let Err(payload) = outcome else { panic!("the model holds for the broken twin too") };
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("(a panic without a text)").to_owned()
}

/// Expected panics are the result here: they need no backtrace on the terminal.
fn quiet_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        if std::env::var_os("RUST_BACKTRACE").is_none() {
            std::panic::set_hook(Box::new(|_| {}));
        }
    });
}
