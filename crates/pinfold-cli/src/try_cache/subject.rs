//! The file that `pinfold try` reads, and the bar that shows how far it is.

use std::path::{Path, PathBuf};

use indicatif::{ProgressBar, ProgressStyle};

use crate::bench::scratch;

/// The file that is tried: its path, its length, and its name for people.
#[derive(Debug)]
pub(super) struct Subject {
    pub(super) path: PathBuf,
    pub(super) bytes: u64,
    pub(super) name: String,
}

/// A bar on a terminal, nothing in a pipe.
pub(super) fn bytes_bar(what: &'static str, bytes: u64) -> ProgressBar {
    let template = "{msg:28} {bar:40} {binary_bytes}/{binary_total_bytes}, {eta} left";
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::new(bytes).with_style(style).with_message(what)
}

/// The same for reads: of `most` at most, as time may run out first.
pub(super) fn reads_bar(what: &'static str, most: u64) -> ProgressBar {
    let template = "{msg:28} {bar:40} {human_pos}/{human_len} reads";
    let style = ProgressStyle::with_template(template).expect("the template is well formed");
    ProgressBar::new(most).with_style(style).with_message(what)
}

pub(super) fn file_system(path: &Path) -> String {
    scratch::file_system(path).unwrap_or_else(|_| "unknown".to_owned())
}
