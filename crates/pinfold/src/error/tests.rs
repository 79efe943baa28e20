//! Each error has a kind, and names what it is about.

use std::io;
use std::path::PathBuf;

use super::*;
use crate::source::Truncated;

/// What an error is about, and so what its message has to name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum About {
    /// The cache, or the process.
    Cache,
    /// A file as a whole.
    File,
    /// A page, a byte or a range of a file.
    Place,
}

/// Each cause with an error of it, its kind, and what it is about. A cause that has no line does
/// not compile.
macro_rules! errors {
    ($($variant:pat = $error:expr => $kind:ident, $about:ident;)*) => {
        fn listed(error: &Error) -> ErrorKind {
            match error.cause() {
                $($variant => ErrorKind::$kind,)*
            }
        }

        fn of_each() -> Vec<(Error, ErrorKind, About)> {
            vec![$(($error.into(), ErrorKind::$kind, About::$about),)*]
        }
    };
}

const PATH: &str = "a/file of that name";
/// The page or the offset in each error that has one.
const PLACE: u64 = 7_654_321;

fn path() -> PathBuf {
    PathBuf::from(PATH)
}

fn cause() -> Arc<io::Error> {
    Arc::new(io::Error::other("cause"))
}

errors! {
    Cause::Budget { .. } =
        Cause::Budget { asked_bytes: 1, least_bytes: 2, most_bytes: 3 } => Invalid, Cache;
    Cause::FolioSize { .. } =
        Cause::FolioSize { asked_bytes: 3, least_bytes: 1, most_bytes: 2 }
        => Invalid, Cache;
    Cause::System { .. } =
        Cause::System { what: "make an eventfd".into(), cause: cause() } => System, Cache;
    Cause::Mirror { .. } =
        Cause::Mirror { path: path(), what: "put pages there", cause: cause() } => System, File;
    Cause::Thread(_) =
        Cause::Thread(NotStarted { name: "thread", cause: cause() }) => System, Cache;
    Cause::Open(_) =
        Cause::Open(Arc::new(OpenError::NotAFile { path: path(), what: "a pipe" }))
        => Open, File;
    Cause::TooManyFiles { .. } =
        Cause::TooManyFiles { path: path(), most: 1 } => TooMany, File;
    Cause::Range { .. } =
        Cause::Range { path: path(), offset: PLACE, bytes: 2 } => Invalid, Place;
    Cause::RangeReversed { .. } =
        Cause::RangeReversed { path: path(), start: PLACE, end: 1 }
        => Invalid, Place;
    Cause::RangeBeyondEnd { .. } =
        Cause::RangeBeyondEnd { path: path(), start: PLACE, end: 2, len_bytes: 1 }
        => BeyondEnd, Place;
    Cause::BeyondEnd { .. } =
        Cause::BeyondEnd { path: path(), page: PLACE, len_bytes: 2 } => BeyondEnd, Place;
    Cause::TooManyReferences { .. } =
        Cause::TooManyReferences { path: path(), page: PLACE }
        => TooMany, Place;
    Cause::TooManyReaders { .. } =
        Cause::TooManyReaders { most: 1 } => TooMany, Cache;
    // It fails at any page.
    Cause::Foreign { .. } =
        Cause::Foreign { what: "borrow from", whose: "reader", path: path() } => Invalid, File;
    // It fails for any file; and a forked child allocates nothing, not even a name.
    Cause::Forked { .. } = Cause::Forked { owner: 1 } => Forked, Cache;
    Cause::Read { .. } =
        Cause::Read { path: path(), offset: PLACE, asked_bytes: 2, cause: cause() }
        => Read, Place;
    Cause::Write { .. } =
        Cause::Write { path: path(), offset: PLACE, bytes: 2, cause: cause() } => Write, Place;
    Cause::Sync { .. } =
        Cause::Sync { path: path(), cause: cause() } => Write, File;
    Cause::SyncOfMany { .. } =
        Cause::SyncOfMany {
            first: Arc::new(Cause::Sync { path: path(), cause: cause() }),
            others: 2,
        } => Write, File;
    Cause::SyncHangs { .. } =
        Cause::SyncHangs { path: path(), seconds: 30 } => Write, File;
    Cause::SetLength { .. } =
        Cause::SetLength { path: path(), len_bytes: 1, cause: cause() } => Write, File;
    Cause::NotWritable { .. } =
        Cause::NotWritable { path: path(), why: "it was opened for reading" } => Invalid, File;
    Cause::WriteHeld { .. } =
        Cause::WriteHeld { path: path(), offset: PLACE } => Busy, Place;
    Cause::MappedOrWritten { .. } =
        Cause::MappedOrWritten { path: path(), what: "map" } => Busy, File;
    Cause::Length { .. } =
        Cause::Length { path: path(), cause: cause() } => Read, File;
    Cause::BadSource { .. } =
        Cause::BadSource { path: path(), cause: cause() } => Unsupported, File;
    Cause::TooLong { .. } =
        Cause::TooLong { path: path(), len_bytes: 1, most_bytes: 2 } => Unsupported, File;
    Cause::SourceChanged { .. } = Cause::SourceChanged {
        path: path(),
        key: "key".into(),
        open: "1".into(),
        attached: "2".into(),
    } => Changed, File;
    Cause::Truncated { .. } = Cause::Truncated {
        path: path(),
        cause: Truncated { offset: PLACE, asked_bytes: 2, end: 3, recorded_bytes: 4 },
    } => Truncated, Place;
    Cause::NoMemory { .. } = Cause::NoMemory {
        path: path(),
        offset: PLACE,
        wanted_bytes: 1,
        budget_bytes: 2,
        pinned_bytes: 3,
        held_bytes: 4,
        filling_bytes: 5,
        dirty_bytes: 6,
        reclaimable_bytes: 7,
        metadata_bytes: 8,
        futures_bytes: 9,
        futures_most_bytes: 10,
    } => NoMemory, Place;
    Cause::PinTooLarge { .. } = Cause::PinTooLarge {
        path: path(),
        start: PLACE,
        end: 2,
        asked_bytes: 3,
        most_bytes: 4,
        budget_bytes: 5,
    } => TooLarge, Place;
    Cause::PinHeld { .. } = Cause::PinHeld {
        path: path(),
        offset: PLACE,
        bytes: 2,
        referenced: 3,
        pinned: 4,
        borrowed: false,
        waited_ms: 5,
    } => Busy, Place;
    Cause::TooManyPins { .. } =
        Cause::TooManyPins { path: Some(path()), offset: PLACE, most_pages: 2 }
        => TooMany, Place;
    Cause::OutsidePin { .. } =
        Cause::OutsidePin { path: Some(path()), at: PLACE, start: 2, end: 3 }
        => Invalid, Place;
    Cause::SpaceBudget { .. } =
        Cause::SpaceBudget { budget_bytes: 1, least_bytes: 2 } => Invalid, Cache;
    // It fails for any range.
    Cause::MappedOrServed { .. } =
        Cause::MappedOrServed { path: path(), what: "map" } => Busy, File;
    Cause::WrongRange { .. } =
        Cause::WrongRange {
            what: "map",
            path: path(),
            start: PLACE,
            end: 1,
            cause: RangeCause::Empty,
        } => Invalid, Place;
    Cause::Map { .. } =
        Cause::Map { what: "map", path: path(), start: PLACE, end: 2, cause: cause() }
        => System, Place;
    Cause::SwapRead { .. } =
        Cause::SwapRead { name: path(), offset: PLACE, cause: cause() }
        => Read, Place;
    Cause::OwnMemory { .. } =
        Cause::OwnMemory {
            name: path(),
            offset: PLACE,
            swap: "there is no swap".to_owned(),
            cause: Arc::new(Cause::System { what: "reserve".into(), cause: cause() }),
        } => System, Place;
    Cause::HoldTooLarge { .. } = Cause::HoldTooLarge {
        name: path(),
        start: PLACE,
        end: 2,
        asked_bytes: 3,
        held_bytes: 3,
        most_bytes: 4,
    } => TooLarge, Place;
}

/// The kind's name in lower case with hyphens.
fn hyphened(kind: ErrorKind) -> String {
    let name = format!("{kind:?}");
    let words = name.char_indices().map(|(at, letter)| {
        let hyphen = if at > 0 && letter.is_uppercase() { "-" } else { "" };
        format!("{hyphen}{}", letter.to_lowercase())
    });
    words.collect()
}

#[test]
fn a_result_is_hardly_larger_than_what_it_is_for() {
    assert_eq!(size_of::<Error>(), size_of::<usize>());
    assert_eq!(size_of::<Result<usize>>(), 2 * size_of::<usize>());
    assert_eq!(size_of::<Result<crate::FolioRef<'_>>>(), size_of::<crate::FolioRef<'_>>());
}

#[test]
fn each_error_has_a_kind_with_a_word_that_stays() {
    for (error, kind, _) in of_each() {
        assert_eq!((error.kind(), listed(&error)), (kind, kind), "{error:?}");
        assert_eq!(kind.to_string(), hyphened(kind));
    }
}

#[test]
fn an_older_version_that_is_in_use_is_waited_for_later() {
    let mirror = |kind: io::ErrorKind| {
        let cause = Arc::new(kind.into());
        Error::from(Cause::Mirror { path: path(), what: "put pages there", cause }).kind()
    };
    assert_eq!(mirror(io::ErrorKind::TimedOut), ErrorKind::Busy);
    assert_eq!(mirror(io::ErrorKind::OutOfMemory), ErrorKind::System);
}

/// What the message lacks of that which it has to name. `debug` tells what the error has: one
/// that has a file's fields is about a file, whatever its line says.
fn lacks(about: About, message: &str, debug: &str) -> Option<&'static str> {
    const FIELDS: [(&str, About); 6] = [
        (" path: ", About::File),
        (" len_bytes: ", About::File),
        (" page: ", About::Place),
        (" offset: ", About::Place),
        (" start: ", About::Place),
        (" at: ", About::Place),
    ];
    let has = |least: About| FIELDS.iter().any(|(field, of)| *of == least && debug.contains(field));
    let place = about == About::Place || has(About::Place);
    let file = place || about == About::File || has(About::File);
    match () {
        () if file && !message.contains(PATH) => Some("the file"),
        () if place && !message.contains(&PLACE.to_string()) => Some("the page or the offset"),
        () => None,
    }
}

#[test]
fn each_error_about_a_file_names_it_and_the_place_in_it() {
    for (error, kind, about) in of_each() {
        let (message, debug) = (error.to_string(), format!("{error:?}"));
        assert_eq!(lacks(about, &message, &debug), None, "{kind}: {message}");
    }
}

#[test]
fn an_error_that_does_not_name_its_file_or_place_is_found() {
    let file = Some("the file");
    let place = Some("the page or the offset");
    for about in [About::File, About::Place] {
        assert_eq!(lacks(about, "9 bytes at 7654321 end too late", "Range {}"), file);
    }
    assert_eq!(lacks(About::Place, "no page of a/file of that name", "Range {}"), place);
    // Whatever its line says.
    assert_eq!(lacks(About::Cache, "too late", "Range { offset: 7654321 }"), file);
    assert_eq!(lacks(About::Cache, "too long", "TooLong { len_bytes: 9 }"), file);
    assert_eq!(lacks(About::File, PATH, "Range { offset: 7654321 }"), place);
    assert_eq!(lacks(About::Cache, "no budget", "Budget { asked_bytes: 1 }"), None);
}

#[test]
fn a_pinned_range_without_a_name_says_why() {
    let error = Error::from(Cause::OutsidePin { path: None, at: 9, start: 2, end: 3 });
    let text = "byte 9 of a file that is no longer known is outside the pinned range 2..3";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_map_that_has_no_memory_may_be_one_too_many() {
    let of = |errno| Arc::new(io::Error::from_raw_os_error(errno));
    let map = |errno| {
        let (what, path) = ("map", path());
        Cause::Map { what, path, start: 0, end: 1, cause: of(errno) }
    };
    for error in [map(libc::ENOMEM), map(libc::EAGAIN)] {
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    }
    let error = map(libc::EINVAL);
    assert!(!error.to_string().contains("vm.max_map_count"), "{error}");
}

#[test]
fn what_has_a_cause_gives_it_as_itself() {
    for (error, kind, _) in of_each() {
        let debug = format!("{error:?}");
        let source = std::error::Error::source(&error);
        // An `OpenError` is the error, and not its cause.
        assert_eq!(source.is_some(), debug.contains("cause: "), "{kind}: {debug}");
        let Some(source) = source else { continue };
        assert!(error.to_string().contains(&source.to_string()), "{kind}: {error}: {source}");
        let of_system = debug.contains("cause: Custom") && !debug.starts_with("OwnMemory");
        assert_eq!(source.is::<io::Error>(), of_system, "{kind}: {debug}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_says_why_to_programs() {
    let not_opened = |errno| {
        let cause = io::Error::from_raw_os_error(errno);
        Error::from(Arc::new(OpenError::System { path: path(), cause }))
    };
    for (errno, kind) in [
        (libc::ENOENT, io::ErrorKind::NotFound),
        (libc::EACCES, io::ErrorKind::PermissionDenied),
        (libc::EPERM, io::ErrorKind::PermissionDenied),
        (libc::EMFILE, io::Error::from_raw_os_error(libc::EMFILE).kind()),
    ] {
        let error = not_opened(errno);
        assert_eq!((error.io_kind(), error.kind()), (kind, ErrorKind::Open));
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.downcast_ref::<io::Error>().unwrap().raw_os_error(), Some(errno));
    }
}

#[test]
fn an_error_goes_into_an_io_error_and_comes_out() {
    for (error, kind, _) in of_each() {
        let io_kind = error.io_kind();
        let message = error.to_string();
        let io = io::Error::from(error);
        assert_eq!((io.kind(), io.to_string()), (io_kind, message));
        assert_eq!(io.downcast::<Error>().unwrap().kind(), kind);
    }
}

#[test]
fn no_error_tells_the_standard_library_to_call_again() {
    let cause = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
    let error = Error::from(Cause::Read { path: path(), offset: 0, asked_bytes: 1, cause });
    assert_eq!(error.io_kind(), io::ErrorKind::Other);
}
