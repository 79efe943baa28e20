//! Installs fsx in the cache. It does random operations to a file, and checks what it reads. This
//! is the version in Rust; it runs in the guest, so it is linked statically.

use crate::paths::Paths;
use crate::proc;
use anyhow::Result;
use std::path::PathBuf;
use std::process::Command;

const VERSION: &str = "0.3.2";

/// The file of `kernel/guest` that says which operations it does, and how often.
const WEIGHTS: &str = "fsx.toml";

/// The program and its configuration.
///
/// # Errors
/// If Cargo cannot install it.
pub(crate) fn files(paths: &Paths) -> Result<[PathBuf; 2]> {
    let root = paths.guest(&format!("fsx-{VERSION}"));
    let program = root.join("bin/fsx");
    if !program.is_file() {
        proc::run(
            &format!("installing fsx {VERSION}"),
            Command::new("cargo")
                .args(["install", "--quiet", "--locked", "fsx", "--version", VERSION])
                // The flags that follow are for the program, not for what runs while it compiles.
                .args(["--target", "x86_64-unknown-linux-gnu", "--root"])
                .arg(&root)
                .env("CARGO_TARGET_DIR", paths.guest("fsx-build"))
                .env("RUSTFLAGS", "-C target-feature=+crt-static")
                .env_remove("CARGO_ENCODED_RUSTFLAGS"),
            &paths.log("install-fsx"),
        )?;
    }
    Ok([program, paths.kernel.join("guest").join(WEIGHTS)])
}
