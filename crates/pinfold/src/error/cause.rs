//! What can fail, with what each message says.
//!
//! What a program tells apart is an [`ErrorKind`](super::ErrorKind), which has fewer: `classes.rs`
//! says which. A cause about a file names it; one about a page or a range of a file says which.

use std::fmt;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use crate::base::threads::limits;
use crate::source::{OpenError, Truncated};

/// What an [`Error`] says.
#[derive(Debug, Clone, thiserror::Error)]
pub(crate) enum Cause {
    /// The budget is smaller or larger than the cache supports.
    #[error("a budget of {asked_bytes} bytes: it must be from {least_bytes} to {most_bytes}")]
    Budget {
        /// The budget asked for.
        asked_bytes: u64,
        /// The smallest budget.
        least_bytes: u64,
        /// The largest budget.
        most_bytes: u64,
    },
    /// The size of the largest folios is none that folios can have.
    #[error(
        "folios of at most {asked_bytes} bytes: it must be a power of two from {least_bytes} to \
         {most_bytes}"
    )]
    FolioSize {
        /// The size asked for.
        asked_bytes: usize,
        /// The smallest size.
        least_bytes: usize,
        /// The largest size.
        most_bytes: usize,
    },
    /// The system did not give the memory.
    #[error("cannot reserve {bytes} bytes of memory: {cause}")]
    Reserve {
        /// The bytes to be reserved.
        bytes: u64,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The system did not register the function that tells a forked child that it is one; see
    /// [`Cache`](crate::Cache), "Forking".
    #[error("cannot register the cache's fork handler: {cause}")]
    ForkHandler {
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The system refused what the mapped pages of a file need: a memory file, addresses, memory.
    /// Or, if the cause's kind is [`TimedOut`](io::Cause::TimedOut), somebody uses an older
    /// version of the page for longer than threads wait.
    #[error(
        "mapped pages of {}: cannot {what}: {cause}{}",
        path.display(),
        if *what == "reserve addresses" { vmas(cause) } else { "" }
    )]
    Mirror {
        /// The file.
        path: PathBuf,
        /// What was tried.
        what: &'static str,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The system did not make the eventfd of [`Completions`](crate::Completions).
    #[error("cannot make an eventfd: {cause}")]
    Eventfd {
        /// Why.
        cause: Arc<io::Error>,
    },
    /// The system did not start a thread.
    #[error("cannot start the thread {name}: {cause}{}", limits(cause))]
    Thread {
        /// The thread's name.
        name: &'static str,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// A file could not be opened.
    #[error(transparent)]
    Open(Arc<OpenError>),
    /// The cache has as many files as it can number.
    #[error("cannot open {}: {most} files are cached, and can be no more", path.display())]
    TooManyFiles {
        /// The file to be opened.
        path: PathBuf,
        /// The most files at once.
        most: u32,
    },
    /// A range ends beyond the largest file offset, 2^63 - 1.
    #[error(
        "{bytes} bytes at {offset} of {} end beyond the largest file offset, 2^63 - 1",
        path.display()
    )]
    Range {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        offset: u64,
        /// The range's length.
        bytes: u64,
    },
    /// A range ends before it begins.
    #[error("the range {start}..{end} of {} ends before it begins", path.display())]
    RangeReversed {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte after it, were it one.
        end: u64,
    },
    /// A range of bytes ends beyond the end of the file.
    #[error("cannot read bytes {start}..{end} of {}: it has {len_bytes} bytes", path.display())]
    RangeBeyondEnd {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte after it.
        end: u64,
        /// The file's length.
        len_bytes: u64,
    },
    /// The page begins at or beyond the end of the file.
    #[error("no page {page} in {}: it has {len_bytes} bytes", path.display())]
    BeyondEnd {
        /// The file.
        path: PathBuf,
        /// The page asked for.
        page: u64,
        /// The file's length.
        len_bytes: u64,
    },
    /// A folio has as many references as its count can hold: references are being leaked.
    #[error("too many references to the folio of page {page} of {}", path.display())]
    TooManyReferences {
        /// The file.
        path: PathBuf,
        /// The page asked for.
        page: u64,
    },
    /// The cache has as many [`Reader`](crate::Reader)s as it can.
    #[error("all {most} records for readers of this cache are in use")]
    TooManyReaders {
        /// The most readers at once.
        most: usize,
    },
    /// The [`Reader`](crate::Reader) belongs to another cache than the file.
    #[error("cannot borrow from {}: the reader belongs to another cache", path.display())]
    ForeignReader {
        /// The file.
        path: PathBuf,
    },
    /// The cache belongs to the parent of this forked process. Here it serves hits only; see
    /// [`Cache`](crate::Cache), "Forking".
    #[error(
        "the cache belongs to process {owner}, which this one was forked from: this process has \
         neither the cache's threads nor its locks, and can only read what was cached at the fork"
    )]
    Forked {
        /// The process ID of the process that made the cache.
        owner: u32,
    },
    /// The source failed or panicked, its deadline passed, or no thread of the cache was free for a
    /// future. In the last two cases `cause` is of kind [`TimedOut`](io::Cause::TimedOut).
    #[error("cannot read {} at {offset} ({asked_bytes} bytes wanted): {cause}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the read of the source began.
        offset: u64,
        /// The bytes asked of the source: whole pages, so possibly more than the caller wanted.
        asked_bytes: u64,
        /// The source's error, with its errno if it had one.
        cause: Arc<io::Error>,
    },
    /// The source cannot report its length.
    #[error("cannot tell the length of {}: {cause}", path.display())]
    Length {
        /// The file.
        path: PathBuf,
        /// The source's error.
        cause: Arc<io::Error>,
    },
    /// The cache cannot work with this source.
    #[error("cannot use the source of {}: {cause}", path.display())]
    BadSource {
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        cause: Arc<io::Error>,
    },
    /// The file is longer than the cache supports.
    #[error(
        "{} has {len_bytes} bytes: a file can have {most_bytes} at most, the largest file offset \
         rounded down to a page", path.display()
    )]
    TooLong {
        /// The file.
        path: PathBuf,
        /// The length that the source reported.
        len_bytes: u64,
        /// The longest length supported: 2^63 - 4096.
        most_bytes: u64,
    },
    /// The object is open in another version than the source's.
    #[error(
        "cannot attach {}: {key} is open in version {open:?}, and this source has version \
         {attached:?}",
        path.display()
    )]
    SourceChanged {
        /// The name to be attached.
        path: PathBuf,
        /// The object's key.
        key: String,
        /// The version that is open.
        open: String,
        /// The version to be attached.
        attached: String,
    },
    /// The file was cut short while it was cached.
    #[error("cannot read {}: {cause}", path.display())]
    Truncated {
        /// The file.
        path: PathBuf,
        /// Where the file ended.
        cause: Truncated,
    },
    /// The budget is full of memory that cannot be evicted, and nothing changed that: no read of
    /// the cache ended for two seconds, or for thirty while reads were under way. Or a future
    /// waited as long for its file's share of what futures may bring
    /// ([`File::get_many_async`](crate::File::get_many_async)), whatever else is free. Or a
    /// copy ([`File::bytes`](crate::File::bytes)) was waited for as long, whatever reads ended. Or the
    /// file had its share of the budget on its way (a quarter, if no other file has any), and no read
    /// of it ended for as long.
    #[error(
        "no memory for {wanted_bytes} bytes of {} at {offset} in a budget of {budget_bytes}: \
         {pinned_bytes} are pinned, {held_bytes} held by readers, {filling_bytes} \
         being read, {dirty_bytes} dirty, {reclaimable_bytes} reclaimable, {metadata_bytes} \
         metadata{}",
        path.display(), share(*futures_bytes, *futures_most_bytes)
    )]
    NoMemory {
        /// The file that was to be read, or the own memory of which a page was wanted.
        path: PathBuf,
        /// Where in it.
        offset: u64,
        /// The bytes needed.
        wanted_bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
        /// Folios with pinned pages; [`Cache::pins`](crate::Cache::pins) lists the pins.
        pinned_bytes: u64,
        /// Folios with a reference besides the cache's own, or borrowed.
        held_bytes: u64,
        /// Folios that are being read from a source.
        filling_bytes: u64,
        /// Folios newer than the source, and own memory that was stored to and is not in the swap.
        dirty_bytes: u64,
        /// Folios that have become evictable since.
        reclaimable_bytes: u64,
        /// The frame table and the indexes.
        metadata_bytes: u64,
        /// What futures of the file were bringing, if that is why: then they had used up the
        /// file's share. Otherwise 0.
        futures_bytes: u64,
        /// That share. Otherwise 0.
        futures_most_bytes: u64,
    },
    /// The range cannot be pinned.
    #[error("cannot pin bytes {start}..{end} of {}: {cause}", path.display())]
    PinRange {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// What is wrong with the range.
        cause: PinRangeCause,
    },
    /// The range is larger than the cache can ever pin.
    #[error(
        "cannot pin bytes {start}..{end} of {} at once: their pages have {asked_bytes} bytes, and \
         in a budget of {budget_bytes} bytes, at most {most_bytes} can be pinned",
        path.display()
    )]
    PinTooLarge {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// The bytes of all pages that the range touches.
        asked_bytes: u64,
        /// The most bytes that can be pinned if nothing else is.
        most_bytes: u64,
        /// The cache's budget.
        budget_bytes: u64,
    },
    /// A folio must move before it can be pinned, and its holders did not release it.
    #[error(
        "cannot pin {} at {offset}: the folio of {bytes} bytes there has to move first, and was \
         held for {waited_ms} ms, by {}",
        path.display(), held_by(*referenced, *pinned, *borrowed)
    )]
    PinHeld {
        /// The file.
        path: PathBuf,
        /// Where in the file the folio begins.
        offset: u64,
        /// The folio's size.
        bytes: u64,
        /// References other than the cache's own.
        referenced: u32,
        /// Pins of its pages.
        pinned: u32,
        /// Whether a [`Borrowed`](crate::Borrowed) page without a reference held it at the end. Not
        /// known while there are references or pins.
        borrowed: bool,
        /// How long the call waited.
        waited_ms: u64,
    },
    /// A folio has as many pins as its count can hold.
    #[error(
        "cannot pin the page at {offset} of {}: {most_pages} pages of its folio are pinned, the \
         most that can be counted",
        named(path.as_deref())
    )]
    TooManyPins {
        /// The file. `None` as in [`Cause::OutsidePin`].
        path: Option<PathBuf>,
        /// Where in the file the page is.
        offset: u64,
        /// The most pins of one folio, one per pinned page.
        most_pages: u32,
    },
    /// The byte is not in the pinned range.
    #[error(
        "byte {at} of {} is outside the pinned range {start}..{end}",
        named(path.as_deref())
    )]
    OutsidePin {
        /// The file. `None` where the cache cannot tell, as a range does not keep the name: after
        /// its pages were invalidated or given back, and in a forked child.
        path: Option<PathBuf>,
        /// Where in the file.
        at: u64,
        /// Where the pinned range begins.
        start: u64,
        /// The first byte after the pinned range.
        end: u64,
    },
    /// The system gave no userfaultfd for a [`Space`](crate::Space), or an old one.
    #[error("cannot make a space for mapped files: userfaultfd: cannot {what}: {cause}")]
    Userfaultfd {
        /// What was tried, why it may have been refused, and what to do about it.
        what: String,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The cache is too small for a [`Space`](crate::Space).
    #[error(
        "cannot make a space for mapped files: the cache has a budget of {budget_bytes} bytes, and \
         needs {least_bytes}"
    )]
    SpaceBudget {
        /// The cache's budget.
        budget_bytes: u64,
        /// The smallest budget of a cache with spaces.
        least_bytes: u64,
    },
    /// The system did not install the handler of SIGBUS.
    #[error("cannot install a handler of SIGBUS: {cause}")]
    SignalHandler {
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The file belongs to another cache than the space.
    #[error("cannot map {}: the space belongs to another cache", path.display())]
    ForeignSpace {
        /// The file.
        path: PathBuf,
    },
    /// The program maps the file, and would serve it to other processes; or the other way round.
    #[error(
        "cannot {what} {}: in one cache, a file is either mapped by the program (Space::map_file) \
         or served to other processes (Clients), which could put pages of zeros into its maps; \
         open it in another cache", path.display()
    )]
    MappedOrServed {
        /// The file.
        path: PathBuf,
        /// What was tried: `map` or `serve`.
        what: &'static str,
    },
    /// The range cannot be mapped, or is not in the map.
    #[error("cannot {what} bytes {start}..{end} of {}: {cause}", path.display())]
    MapRange {
        /// What was to be done with the range.
        what: &'static str,
        /// The file.
        path: PathBuf,
        /// Where the range begins: in the file, or in the map where it is a range of that.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// What is wrong with the range.
        cause: MapRangeCause,
    },
    /// The system refused to map the range, or to change the map.
    #[error("cannot map bytes {start}..{end} of {}: {cause}{}", path.display(), vmas(cause))]
    Map {
        /// The file.
        path: PathBuf,
        /// Where the range begins.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// The swap of a cache could not be made.
    #[error("cannot make a swap of {bytes} bytes{}: {cause}", in_directory(dir.as_deref()))]
    SwapFile {
        /// The directory of its file. `None` if it is a source of the program's own.
        dir: Option<PathBuf>,
        /// Its size.
        bytes: u64,
        /// The system's error.
        cause: Arc<io::Error>,
    },
    /// Bytes of own memory that were paged out could not be read again.
    #[error("cannot read byte {offset} of {} from the swap: {cause}", name.display())]
    SwapRead {
        /// The memory's name.
        name: PathBuf,
        /// Where in it the page begins.
        offset: u64,
        /// The source's error.
        cause: Arc<io::Error>,
    },
    /// There is no room in the budget for a page of own memory, and no other page can leave it.
    #[error("no memory for byte {offset} of {}: {swap}; {cause}", name.display())]
    OwnMemory {
        /// The memory's name.
        name: PathBuf,
        /// Where in it the page begins.
        offset: u64,
        /// What the swap has to do with it: there is none, it is full, or it cannot be written.
        swap: String,
        /// What the budget is full of ([`Cause::NoMemory`]), or what the system refused.
        cause: Arc<Cause>,
    },
    /// More of maps and own memory was to be held than may be.
    #[error(
        "cannot hold bytes {start}..{end} of {}: their pages have {asked_bytes} bytes, and of all \
         maps and own memory {held_bytes} bytes are held, and {most_bytes} can be",
        name.display()
    )]
    HoldTooLarge {
        /// The file, or the memory's name.
        name: PathBuf,
        /// Where the range begins: in the file, or in the memory.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// The bytes of all pages that the range touches.
        asked_bytes: u64,
        /// The bytes that are held, of all maps and own memory of the cache. Of a file whole folios
        /// are held.
        held_bytes: u64,
        /// The most bytes that can be held.
        most_bytes: u64,
    },
    /// The system refused something that own memory needs.
    #[error(
        "cannot {what} bytes {start}..{end} of {}: {cause}{}",
        name.display(), vmas(cause)
    )]
    Own {
        /// What was tried.
        what: &'static str,
        /// The memory's name.
        name: PathBuf,
        /// Where in it the range begins.
        start: u64,
        /// The first byte after the range.
        end: u64,
        /// The system's error.
        cause: Arc<io::Error>,
    },
}

/// What is wrong with a range to be pinned.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum PinRangeCause {
    /// It is empty.
    #[error("the range is empty")]
    Empty,
    /// It ends before it begins.
    #[error("the range ends before it begins")]
    Reversed,
    /// It ends beyond the end of the file.
    #[error("the file ends at {len_bytes}")]
    BeyondEnd {
        /// The file's length.
        len_bytes: u64,
    },
}

/// What is wrong with a range to be mapped, or with a range of a map.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum MapRangeCause {
    /// It is empty.
    #[error("the range is empty")]
    Empty,
    /// It ends before it begins.
    #[error("the range ends before it begins")]
    Reversed,
    /// It does not begin with a page.
    #[error("the range must begin at a multiple of 4096")]
    Unaligned,
    /// It ends within a page, and not with the map.
    #[error("the range must end at a multiple of 4096, or with the map")]
    UnalignedEnd,
    /// It ends beyond the end of the file.
    #[error("the file ends at {len_bytes}")]
    BeyondEnd {
        /// The file's length.
        len_bytes: u64,
    },
    /// It ends beyond the end of the map.
    #[error("the map has {len_bytes} bytes")]
    BeyondMap {
        /// The map's length.
        len_bytes: u64,
    },
}

/// What held a folio at the end of the wait. A folio that is borrowed has neither references nor
/// pins, unless they came a moment later.
fn held_by(referenced: u32, pinned: u32, borrowed: bool) -> String {
    match (referenced, pinned, borrowed) {
        (0, 0, true) => "a borrow at the end".to_owned(),
        (0, 0, false) => "other threads, each for a moment only".to_owned(),
        (_, _, true) => format!("a borrow, {referenced} references and {pinned} pins at the end"),
        (_, _, false) => format!("{referenced} references and {pinned} pins at the end"),
    }
}

/// The name of a pinned range's file.
fn named(path: Option<&Path>) -> impl fmt::Display {
    path.map_or_else(|| "a file that is no longer known".into(), Path::to_string_lossy)
}

/// Whose share of what futures may bring was used up, if that is why.
fn share(bytes: u64, most: u64) -> String {
    if bytes == 0 {
        return String::new();
    }
    format!("; futures of this file are bringing {bytes}, and may bring {most} at a time")
}

/// Where a swap's file was to be.
fn in_directory(dir: Option<&Path>) -> String {
    dir.map_or_else(String::new, |dir| format!(" in {}", dir.display()))
}

/// Why the system may have no memory for a map: it says the same of the memory and of the number of
/// mappings; madvise(2) says that it is to be asked again.
fn vmas(cause: &io::Error) -> &'static str {
    match cause.raw_os_error() {
        Some(libc::ENOMEM | libc::EAGAIN) => {
            ": the process has as many mappings as vm.max_map_count allows, or it may have no more \
             memory (RLIMIT_AS, RLIMIT_DATA), or the system has no addresses or memory"
        }
        _ => "",
    }
}
