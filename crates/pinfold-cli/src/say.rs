//! What the program prints. No write here panics: a reader that has gone, or a full disk, is no
//! mistake of the program.
//!
//! The server's lines, which must not make it wait either, are in `serve/log.rs`.

use std::fmt::Display;
use std::io::{self, Write};

use anyhow::{Context, Result};

/// Writes a line to standard output. If its reader has gone, nobody wants the line: that is no
/// error.
///
/// # Errors
/// It cannot be written: the disk is full, for example.
pub fn print(line: impl Display) -> Result<()> {
    try_print(line).context("cannot write to standard output")
}

/// [`print`], with the system's error.
///
/// # Errors
/// As for [`print`].
pub fn try_print(line: impl Display) -> io::Result<()> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

/// Writes a line to standard error, if that is possible.
pub fn tell(line: impl Display) {
    // One write, so that lines of several processes do not mix. There is nobody to tell of an
    // error.
    let _ = io::stderr().write_all(format!("{line}\n").as_bytes());
}

/// An error and its causes in one line. Errors of the cache say their cause themselves: what the
/// line ends with already is not said again.
pub fn chain(error: &anyhow::Error) -> String {
    error.chain().map(ToString::to_string).fold(String::new(), |line, cause| match line.as_str() {
        "" => cause,
        said if said.ends_with(&cause) => line,
        said => format!("{said}: {cause}"),
    })
}
