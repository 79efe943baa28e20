//! What can fail, with what each message says: the file if there is one, the page or the range.
//! What a program tells apart is an [`ErrorKind`](super::ErrorKind).

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::threads::NotStarted;
use crate::source::{OpenError, Truncated};

/// What an [`Error`](super::Error) says. A `cause` is what the system or the source answered.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Cause {
    #[error("a budget of {asked_bytes} bytes: it must be from {least_bytes} to {most_bytes}")]
    Budget { asked_bytes: u64, least_bytes: u64, most_bytes: u64 },
    #[error(
        "folios of at most {asked_bytes} bytes: it must be a power of two from {least_bytes} to \
         {most_bytes}"
    )]
    FolioSize { asked_bytes: usize, least_bytes: usize, most_bytes: usize },
    /// The system refused what concerns no file.
    #[error("cannot {what}: {cause}")]
    System { what: String, cause: Arc<io::Error> },
    #[error(transparent)]
    Thread(NotStarted),
    /// The system refused what the mapped pages of a file need. By
    /// [`TimedOut`](io::ErrorKind::TimedOut), an older version of the page was in use for too long.
    #[error(
        "mapped pages of {}: cannot {what}: {cause}{}",
        path.display(),
        if *what == "reserve addresses" { vmas(cause) } else { "" }
    )]
    Mirror { path: PathBuf, what: &'static str, cause: Arc<io::Error> },
    #[error(transparent)]
    Open(Arc<OpenError>),
    #[error("cannot open {}: {most} files are cached, and can be no more", path.display())]
    TooManyFiles { path: PathBuf, most: u32 },
    #[error(
        "{bytes} bytes at {offset} of {} end beyond the largest file offset, 2^63 - 1",
        path.display()
    )]
    Range { path: PathBuf, offset: u64, bytes: u64 },
    #[error("the range {start}..{end} of {} ends before it begins", path.display())]
    RangeReversed { path: PathBuf, start: u64, end: u64 },
    #[error("cannot read bytes {start}..{end} of {}: it has {len_bytes} bytes", path.display())]
    RangeBeyondEnd { path: PathBuf, start: u64, end: u64, len_bytes: u64 },
    /// Of a file, or of a map.
    #[error("cannot {what} bytes {start}..{end} of {}: {cause}", path.display())]
    WrongRange { what: &'static str, path: PathBuf, start: u64, end: u64, cause: RangeCause },
    #[error("no page {page} in {}: it has {len_bytes} bytes", path.display())]
    BeyondEnd { path: PathBuf, page: u64, len_bytes: u64 },
    #[error("too many references to the folio of page {page} of {}", path.display())]
    TooManyReferences { path: PathBuf, page: u64 },
    #[error("all {most} records for readers of this cache are in use")]
    TooManyReaders { most: usize },
    #[error("cannot {what} {}: the {whose} belongs to another cache", path.display())]
    Foreign { what: &'static str, whose: &'static str, path: PathBuf },
    #[error(
        "the cache belongs to process {owner}, which this one was forked from: this process has \
         neither the cache's threads nor its locks, and can only read what was cached at the fork"
    )]
    Forked { owner: u32 },
    /// The source failed or panicked. By [`TimedOut`](io::ErrorKind::TimedOut), its deadline
    /// passed, or no thread of the cache was free for a future. The bytes asked are whole pages.
    #[error("cannot read {} at {offset} ({asked_bytes} bytes wanted): {cause}", path.display())]
    Read { path: PathBuf, offset: u64, asked_bytes: u64, cause: Arc<io::Error> },
    /// The source failed or panicked, or took only a part. The bytes stay in the cache.
    #[error("cannot write {bytes} bytes at {offset} of {}: {cause}", path.display())]
    Write { path: PathBuf, offset: u64, bytes: u64, cause: Arc<io::Error> },
    #[error("cannot sync {}: {cause}", path.display())]
    Sync { path: PathBuf, cause: Arc<io::Error> },
    #[error("{first}; nor can {others} more of the cache's files be synced")]
    SyncOfMany { first: Arc<Cause>, others: usize },
    #[error(
        "too much waits to be synced, and of the sync of {} nothing has ended for {seconds} s: its \
         source hangs, or is very slow", path.display()
    )]
    SyncHangs { path: PathBuf, seconds: u64 },
    #[error("cannot set the length of {} to {len_bytes} bytes: {cause}", path.display())]
    SetLength { path: PathBuf, len_bytes: u64, cause: Arc<io::Error> },
    #[error("cannot write to {}: {why}", path.display())]
    NotWritable { path: PathBuf, why: &'static str },
    #[error(
        "cannot write to {} at {offset}: for too long, the folio there is in use, and pinned or \
         without memory for a copy", path.display()
    )]
    WriteHeld { path: PathBuf, offset: u64 },
    #[error(
        "cannot {what} {}: a file that is open for writing cannot be mapped, nor served to other \
         processes", path.display()
    )]
    MappedOrWritten { path: PathBuf, what: &'static str },
    #[error("cannot tell the length of {}: {cause}", path.display())]
    Length { path: PathBuf, cause: Arc<io::Error> },
    #[error("cannot use the source of {}: {cause}", path.display())]
    BadSource { path: PathBuf, cause: Arc<io::Error> },
    #[error(
        "{} has {len_bytes} bytes: a file can have {most_bytes} at most, the largest file offset \
         rounded down to a page", path.display()
    )]
    TooLong { path: PathBuf, len_bytes: u64, most_bytes: u64 },
    #[error(
        "cannot attach {}: {key} is open in version {open:?}, and this source has version \
         {attached:?}",
        path.display()
    )]
    SourceChanged { path: PathBuf, key: String, open: String, attached: String },
    #[error("cannot read {}: {cause}", path.display())]
    Truncated { path: PathBuf, cause: Truncated },
    #[error(
        "no memory for {wanted_bytes} bytes of {} at {offset} in a budget of {budget_bytes}: \
         {pinned_bytes} are pinned, {held_bytes} held by readers, {filling_bytes} \
         being read, {dirty_bytes} dirty, {reclaimable_bytes} reclaimable, {metadata_bytes} \
         metadata{}",
        path.display(), share(*futures_bytes, *futures_most_bytes)
    )]
    NoMemory {
        /// The file, or the own memory.
        path: PathBuf,
        offset: u64,
        wanted_bytes: u64,
        budget_bytes: u64,
        pinned_bytes: u64,
        held_bytes: u64,
        filling_bytes: u64,
        /// Folios newer than the source, and own memory that was stored to and is not in the swap.
        dirty_bytes: u64,
        /// Folios that have become evictable since.
        reclaimable_bytes: u64,
        /// The frame table and the indexes.
        metadata_bytes: u64,
        /// What futures of the file were bringing, and may, if they had used up its share; else 0.
        futures_bytes: u64,
        futures_most_bytes: u64,
    },
    #[error(
        "cannot pin bytes {start}..{end} of {} at once: their pages have {asked_bytes} bytes, and \
         in a budget of {budget_bytes} bytes, at most {most_bytes} can be pinned",
        path.display()
    )]
    PinTooLarge {
        path: PathBuf,
        start: u64,
        end: u64,
        asked_bytes: u64,
        most_bytes: u64,
        budget_bytes: u64,
    },
    #[error(
        "cannot pin {} at {offset}: the folio of {bytes} bytes there has to move first, and was \
         held for {waited_ms} ms, by {}",
        path.display(), held_by(*referenced, *pinned, *borrowed)
    )]
    PinHeld {
        path: PathBuf,
        /// Where in the file the folio begins.
        offset: u64,
        bytes: u64,
        /// References other than the cache's own.
        referenced: u32,
        pinned: u32,
        /// Whether a borrow held it at the end. Not known while there are references or pins.
        borrowed: bool,
        waited_ms: u64,
    },
    #[error(
        "cannot pin the page at {offset} of {}: {most_pages} pages of its folio are pinned, the \
         most that can be counted",
        named(path.as_deref())
    )]
    TooManyPins {
        /// `None` as in [`Cause::OutsidePin`].
        path: Option<PathBuf>,
        offset: u64,
        most_pages: u32,
    },
    #[error(
        "byte {at} of {} is outside the pinned range {start}..{end}",
        named(path.as_deref())
    )]
    OutsidePin {
        /// `None`: the pages were invalidated or given back, or this is a forked child.
        path: Option<PathBuf>,
        at: u64,
        start: u64,
        end: u64,
    },
    #[error(
        "cannot make a space for mapped files: the cache has a budget of {budget_bytes} bytes, and \
         needs {least_bytes}"
    )]
    SpaceBudget { budget_bytes: u64, least_bytes: u64 },
    #[error(
        "cannot {what} {}: in one cache, a file is either mapped by the program (Space::map_file) \
         or served to other processes (Clients), which could put pages of zeros into its maps; \
         open it in another cache", path.display()
    )]
    MappedOrServed { path: PathBuf, what: &'static str },
    /// The system refused what a map of a file or own memory needs.
    #[error("cannot {what} bytes {start}..{end} of {}: {cause}{}", path.display(), vmas(cause))]
    Map { what: &'static str, path: PathBuf, start: u64, end: u64, cause: Arc<io::Error> },
    #[error("cannot read byte {offset} of {} from the swap: {cause}", name.display())]
    SwapRead { name: PathBuf, offset: u64, cause: Arc<io::Error> },
    /// There is no room in the budget for a page of own memory, and no other page can leave it.
    #[error("no memory for byte {offset} of {}: {swap}; {cause}", name.display())]
    OwnMemory {
        name: PathBuf,
        offset: u64,
        /// What the swap has to do with it: there is none, it is full, or it cannot be written.
        swap: String,
        /// What the budget is full of ([`Cause::NoMemory`]), or what the system refused.
        cause: Arc<Cause>,
    },
    #[error(
        "cannot hold bytes {start}..{end} of {}: their pages have {asked_bytes} bytes, and of all \
         maps and own memory {held_bytes} bytes are held, and {most_bytes} can be",
        name.display()
    )]
    HoldTooLarge {
        name: PathBuf,
        start: u64,
        end: u64,
        asked_bytes: u64,
        /// Of a file whole folios are held.
        held_bytes: u64,
        most_bytes: u64,
    },
}

impl Cause {
    pub(crate) fn system(what: &str, cause: io::Error) -> Self {
        Cause::System { what: what.to_owned(), cause: Arc::new(cause) }
    }

    pub(crate) fn reserve(bytes: u64, cause: io::Error) -> Self {
        Cause::system(&format!("reserve {bytes} bytes of memory"), cause)
    }

    pub(crate) fn eventfd(cause: io::Error) -> Self {
        Cause::system("make an eventfd", cause)
    }

    pub(crate) fn fork_handler(cause: io::Error) -> Self {
        Cause::system("register the cache's fork handler", cause)
    }
}

/// What is wrong with a range.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum RangeCause {
    #[error("the range is empty")]
    Empty,
    #[error("the range ends before it begins")]
    Reversed,
    #[error("the range must begin at a multiple of 4096")]
    Unaligned,
    #[error("the range must end at a multiple of 4096, or with the map")]
    UnalignedEnd,
    #[error("the file ends at {len_bytes}")]
    BeyondEnd { len_bytes: u64 },
    #[error("the map has {len_bytes} bytes")]
    BeyondMap { len_bytes: u64 },
}

/// A folio that is borrowed has no references or pins, unless they came a moment later.
fn held_by(referenced: u32, pinned: u32, borrowed: bool) -> String {
    match (referenced, pinned, borrowed) {
        (0, 0, true) => "a borrow at the end".to_owned(),
        (0, 0, false) => "other threads, each for a moment only".to_owned(),
        (_, _, true) => format!("a borrow, {referenced} references and {pinned} pins at the end"),
        (_, _, false) => format!("{referenced} references and {pinned} pins at the end"),
    }
}

fn named(path: Option<&Path>) -> impl fmt::Display {
    path.map_or_else(|| "a file that is no longer known".into(), Path::to_string_lossy)
}

/// Whose share was used up, if that is why.
fn share(bytes: u64, most: u64) -> String {
    if bytes == 0 {
        return String::new();
    }
    format!("; futures of this file are bringing {bytes}, and may bring {most} at a time")
}

/// The system says the same of the memory and of the number of mappings; madvise(2) says EAGAIN.
fn vmas(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            ": the process has as many mappings as vm.max_map_count allows, or it may have no more \
             memory (RLIMIT_AS, RLIMIT_DATA), or the system has no addresses or memory"
        }
        _ => "",
    }
}
