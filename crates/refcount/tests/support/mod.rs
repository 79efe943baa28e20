//! The mutants, and the words that models put under a count.

#![allow(dead_code, unreachable_pub, missing_docs, reason = "each test uses its own part")]

pub mod mutants;
pub mod replay;

use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

thread_local! {
    /// This thread expects a panic: it is the result, and needs no backtrace on the terminal.
    static EXPECTING: Cell<bool> = const { Cell::new(false) };
}

/// Runs a model that must fail, and gives the message it failed with.
///
/// # Panics
/// If the model holds: then it cannot tell the protocol from its mutant.
pub fn caught(model: impl FnOnce()) -> String {
    static HOOK: Once = Once::new();
    HOOK.call_once(|| {
        let loud = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |panic| {
            if !EXPECTING.get() {
                loud(panic);
            }
        }));
    });
    EXPECTING.set(true);
    let outcome = catch_unwind(AssertUnwindSafe(model));
    EXPECTING.set(false);
    let Err(payload) = outcome else { panic!("the model holds for the mutant too") };
    let text = payload
        .downcast_ref::<String>()
        .map(String::as_str)
        .or_else(|| payload.downcast_ref::<&str>().copied());
    text.unwrap_or("(a panic without a text)").to_owned()
}
