//! Why `pinfold sim` fails.

use std::path::PathBuf;

/// Why a simulation cannot run.
#[derive(Debug, thiserror::Error)]
pub(crate) enum SimError {
    /// The file cannot be read.
    #[error("cannot read trace {}: {cause}", .path.display())]
    Read { path: PathBuf, cause: std::io::Error },
    /// The same, and the name is no generator's either.
    #[error("cannot read trace {}: {cause} (the generators are {generators})", .path.display())]
    Unknown { path: PathBuf, cause: std::io::Error, generators: String },
    /// A line is no page number.
    #[error("{}, line {line}: {text:?} is not a page number (a whole number below 2^64)", .path.display())]
    BadLine { path: PathBuf, line: u64, text: String },
    /// A binary trace ends inside a word.
    #[error("{}: {bytes} bytes are not a whole number of 64-bit page numbers", .path.display())]
    TornWord { path: PathBuf, bytes: u64 },
    /// There is nothing to replay.
    #[error("trace {name} is empty: {why}")]
    Empty { name: String, why: &'static str },
    /// Positions in a trace are kept in 32 bits.
    #[error("trace {name} has {requests} requests; at most {most} can be replayed")]
    TooLong { name: String, requests: usize, most: usize },
    /// No generator can work like this.
    #[error("generator {name}: {why}")]
    BadGenerator { name: String, why: String },
    /// The figures cannot be written.
    #[error("cannot write {}: {cause}", .path.display())]
    Write { path: PathBuf, cause: std::io::Error },
}
