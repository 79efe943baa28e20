//! Traces: page numbers in the order they were asked for, from a file.
//!
//! Page numbers of a file are any 64-bit numbers; in a [`Trace`] they are renumbered from zero in
//! the order of their first request, so that every policy can keep its pages in plain arrays.

use std::collections::HashMap;
use std::path::Path;

use super::error::SimError;

/// Positions in a trace are 32 bits, one value of which means "never".
pub(super) const REQUESTS_MAX: usize = u32::MAX as usize - 1;

/// Near enough to a file's start to tell text from words.
const SNIFFED_BYTES: usize = 64 * 1024;

/// How a trace file is written.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum Format {
    /// Look at the file.
    Auto,
    /// One decimal page number a line.
    Text,
    /// 64-bit little-endian words.
    Binary,
}

/// A trace, its pages numbered from zero.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Trace {
    /// A generator's name, or the file as it was given.
    pub(super) name: String,
    /// Page by page.
    pub(super) requests: Vec<u32>,
    /// Every page is below this, and every number below this is a page.
    pub(super) distinct: u32,
}

impl Trace {
    /// Renumbers pages.
    pub(super) fn new(
        name: String,
        pages: impl ExactSizeIterator<Item = u64>,
    ) -> Result<Self, SimError> {
        if pages.len() > REQUESTS_MAX {
            return Err(SimError::TooLong { name, requests: pages.len(), most: REQUESTS_MAX });
        }
        let mut numbers = HashMap::new();
        let requests: Vec<u32> = pages
            .map(|page| {
                let fresh = numbers.len() as u32;
                *numbers.entry(page).or_insert(fresh)
            })
            .collect();
        if requests.is_empty() {
            return Err(SimError::Empty { name, why: "it holds no page number" });
        }
        Ok(Self { name, requests, distinct: numbers.len() as u32 })
    }
}

/// Reads a trace file whole.
pub(super) fn read(path: &Path, format: Format) -> Result<Trace, SimError> {
    let bytes =
        std::fs::read(path).map_err(|cause| SimError::Read { path: path.to_owned(), cause })?;
    let sniffed = &bytes[..bytes.len().min(SNIFFED_BYTES)];
    let is_binary = match format {
        Format::Auto => sniffed.contains(&0),
        Format::Text => false,
        Format::Binary => true,
    };
    let pages = if is_binary { binary(path, &bytes)? } else { text(path, &bytes)? };
    Trace::new(path.display().to_string(), pages.into_iter())
}

fn binary(path: &Path, bytes: &[u8]) -> Result<Vec<u64>, SimError> {
    let (words, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() {
        let bytes = bytes.len() as u64;
        return Err(SimError::TornWord { path: path.to_owned(), bytes });
    }
    Ok(words.iter().map(|&word| u64::from_le_bytes(word)).collect())
}

fn text(path: &Path, bytes: &[u8]) -> Result<Vec<u64>, SimError> {
    let mut pages = Vec::new();
    for (at, line) in bytes.split(|&byte| byte == b'\n').enumerate() {
        let line = line.trim_ascii();
        if line.is_empty() || line[0] == b'#' {
            continue;
        }
        let number = str::from_utf8(line).ok().and_then(|line| line.parse::<u64>().ok());
        pages.push(number.ok_or_else(|| {
            // Enough to recognise it; a line of another kind of file may be long.
            let text = String::from_utf8_lossy(&line[..line.len().min(40)]).into_owned();
            SimError::BadLine { path: path.to_owned(), line: at as u64 + 1, text }
        })?);
    }
    Ok(pages)
}
