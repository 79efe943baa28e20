//! The system has no memory for the function that it calls in a forked child. That is so for the
//! whole process, hence a file of its own.

#![cfg(not(loom))] // the model checker builds without the public types

use std::ffi::{c_int, c_void};

use pinfold::{Cache, ErrorKind, Options};

/// What `pthread_atfork` of glibc calls; here, in the place of glibc's.
// SAFETY: it has glibc's signature, and registers nothing, as glibc's does when it fails.
#[unsafe(no_mangle)]
extern "C" fn __register_atfork(
    _prepare: *const c_void,
    _parent: *const c_void,
    _child: *const c_void,
    _of: *const c_void,
) -> c_int {
    libc::ENOMEM
}

#[test]
#[cfg(target_env = "gnu")]
fn a_cache_whose_fork_handler_cannot_be_registered_says_so() {
    let error = Cache::new(Options::new(8 << 20)).unwrap_err();
    assert_eq!(
        error.to_string(),
        "cannot register the cache's fork handler: Cannot allocate memory (os error 12)"
    );
    assert_eq!(error.kind(), ErrorKind::System, "{error:?}");
}
