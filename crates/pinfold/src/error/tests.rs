//! Each error has a code, and names what it is about.

use super::*;

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

/// Each variant with an error of it, its code, and what it is about. A variant that has no line
/// does not compile.
macro_rules! errors {
    ($($variant:pat = $error:expr => $code:literal, $about:ident;)*) => {
        fn listed(error: &Error) -> &'static str {
            match error.kind() {
                $($variant => $code,)*
            }
        }

        fn of_each() -> Vec<(Error, &'static str, About)> {
            vec![$(($error.into(), $code, About::$about),)*]
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
    ErrorKind::Budget { .. } =
        ErrorKind::Budget { asked_bytes: 1, least_bytes: 2, most_bytes: 3 } => "budget", Cache;
    ErrorKind::FolioSize { .. } =
        ErrorKind::FolioSize { asked_bytes: 3, least_bytes: 1, most_bytes: 2 }
        => "folio-size", Cache;
    ErrorKind::Reserve { .. } =
        ErrorKind::Reserve { bytes: 1, cause: cause() } => "reserve", Cache;
    ErrorKind::ForkHandler { .. } =
        ErrorKind::ForkHandler { cause: cause() } => "fork-handler", Cache;
    ErrorKind::Mirror { .. } =
        ErrorKind::Mirror { path: path(), what: "put pages there", cause: cause() } => "mirror", File;
    ErrorKind::Eventfd { .. } =
        ErrorKind::Eventfd { cause: cause() } => "eventfd", Cache;
    ErrorKind::Thread { .. } =
        ErrorKind::Thread { name: "thread", cause: cause() } => "thread", Cache;
    ErrorKind::Open(_) =
        ErrorKind::Open(Arc::new(OpenError::NotAFile { path: path(), what: "a pipe" }))
        => "open", File;
    ErrorKind::TooManyFiles { .. } =
        ErrorKind::TooManyFiles { path: path(), most: 1 } => "too-many-files", File;
    ErrorKind::Range { .. } =
        ErrorKind::Range { path: path(), offset: PLACE, bytes: 2 } => "range", Place;
    ErrorKind::RangeReversed { .. } =
        ErrorKind::RangeReversed { path: path(), start: PLACE, end: 1 }
        => "range-reversed", Place;
    ErrorKind::RangeBeyondEnd { .. } =
        ErrorKind::RangeBeyondEnd { path: path(), start: PLACE, end: 2, len_bytes: 1 }
        => "range-beyond-end", Place;
    ErrorKind::BeyondEnd { .. } =
        ErrorKind::BeyondEnd { path: path(), page: PLACE, len_bytes: 2 } => "beyond-end", Place;
    ErrorKind::TooManyReferences { .. } =
        ErrorKind::TooManyReferences { path: path(), page: PLACE }
        => "too-many-references", Place;
    ErrorKind::TooManyReaders { .. } =
        ErrorKind::TooManyReaders { most: 1 } => "too-many-readers", Cache;
    // It fails at any page.
    ErrorKind::ForeignReader { .. } =
        ErrorKind::ForeignReader { path: path() } => "foreign-reader", File;
    // It fails for any file; and a forked child allocates nothing, not even a name.
    ErrorKind::Forked { .. } = ErrorKind::Forked { owner: 1 } => "forked", Cache;
    ErrorKind::Read { .. } =
        ErrorKind::Read { path: path(), offset: PLACE, asked_bytes: 2, cause: cause() }
        => "read", Place;
    ErrorKind::Length { .. } =
        ErrorKind::Length { path: path(), cause: cause() } => "length", File;
    ErrorKind::BadSource { .. } =
        ErrorKind::BadSource { path: path(), cause: cause() } => "bad-source", File;
    ErrorKind::TooLong { .. } =
        ErrorKind::TooLong { path: path(), len_bytes: 1, most_bytes: 2 } => "too-long", File;
    ErrorKind::SourceChanged { .. } = ErrorKind::SourceChanged {
        path: path(),
        key: "key".into(),
        open: "1".into(),
        attached: "2".into(),
    } => "source-changed", File;
    ErrorKind::Truncated { .. } = ErrorKind::Truncated {
        path: path(),
        cause: Truncated { offset: PLACE, asked_bytes: 2, end: 3, recorded_bytes: 4 },
    } => "truncated", Place;
    ErrorKind::NoMemory { .. } = ErrorKind::NoMemory {
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
    } => "no-memory", Place;
    ErrorKind::PinRange { .. } =
        ErrorKind::PinRange { path: path(), start: PLACE, end: 1, cause: PinRangeCause::Empty }
        => "pin-range", Place;
    ErrorKind::PinTooLarge { .. } = ErrorKind::PinTooLarge {
        path: path(),
        start: PLACE,
        end: 2,
        asked_bytes: 3,
        most_bytes: 4,
        budget_bytes: 5,
    } => "pin-too-large", Place;
    ErrorKind::PinHeld { .. } = ErrorKind::PinHeld {
        path: path(),
        offset: PLACE,
        bytes: 2,
        referenced: 3,
        pinned: 4,
        borrowed: false,
        waited_ms: 5,
    } => "pin-held", Place;
    ErrorKind::TooManyPins { .. } =
        ErrorKind::TooManyPins { path: Some(path()), offset: PLACE, most_pages: 2 }
        => "too-many-pins", Place;
    ErrorKind::OutsidePin { .. } =
        ErrorKind::OutsidePin { path: Some(path()), at: PLACE, start: 2, end: 3 }
        => "outside-pin", Place;
    // Its holders name their files.
    ErrorKind::Userfaultfd { .. } =
        ErrorKind::Userfaultfd { what: "open one".into(), cause: cause() }
        => "userfaultfd", Cache;
    ErrorKind::SpaceBudget { .. } =
        ErrorKind::SpaceBudget { budget_bytes: 1, least_bytes: 2 } => "space-budget", Cache;
    ErrorKind::SignalHandler { .. } =
        ErrorKind::SignalHandler { cause: cause() } => "signal-handler", Cache;
    ErrorKind::ForeignSpace { .. } =
        ErrorKind::ForeignSpace { path: path() } => "foreign-space", File;
    // It fails for any range.
    ErrorKind::MappedOrServed { .. } =
        ErrorKind::MappedOrServed { path: path(), what: "map" } => "mapped-or-served", File;
    ErrorKind::MapRange { .. } =
        ErrorKind::MapRange {
            what: "map",
            path: path(),
            start: PLACE,
            end: 1,
            cause: MapRangeCause::Empty,
        } => "map-range", Place;
    ErrorKind::Map { .. } =
        ErrorKind::Map { path: path(), start: PLACE, end: 2, cause: cause() } => "map", Place;
    ErrorKind::SwapFile { .. } =
        ErrorKind::SwapFile { dir: None, bytes: 1, cause: cause() } => "swap-file", Cache;
    ErrorKind::SwapRead { .. } =
        ErrorKind::SwapRead { name: path(), offset: PLACE, cause: cause() }
        => "swap-read", Place;
    ErrorKind::OwnMemory { .. } =
        ErrorKind::OwnMemory {
            name: path(),
            offset: PLACE,
            swap: "there is no swap".to_owned(),
            cause: Box::new(ErrorKind::Reserve { bytes: 1, cause: cause() }.into()),
        } => "own-memory", Place;
    ErrorKind::HoldTooLarge { .. } = ErrorKind::HoldTooLarge {
        name: path(),
        start: PLACE,
        end: 2,
        asked_bytes: 3,
        held_bytes: 3,
        most_bytes: 4,
    } => "hold-too-large", Place;
    ErrorKind::Own { .. } =
        ErrorKind::Own { what: "map", name: path(), start: PLACE, end: 1, cause: cause() }
        => "own", Place;
    ErrorKind::StillPinned { .. } =
        ErrorKind::StillPinned { pinned_bytes: 1, holders: Vec::new() }
        => "still-pinned", Cache;
}

/// The variant's name in lower case with hyphens.
fn hyphened(error: &Error) -> String {
    let debug = format!("{error:?}");
    let name = debug.split(|c: char| !c.is_alphanumeric()).next().unwrap();
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
fn each_error_has_a_code_that_stays() {
    for (error, code, _) in of_each() {
        assert_eq!(error.code(), code, "{error:?}");
        assert_eq!(listed(&error), code, "the line of {code} has an error of another variant");
        assert_eq!(hyphened(&error), code);
    }
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
    for (error, code, about) in of_each() {
        let (message, debug) = (error.to_string(), format!("{error:?}"));
        assert_eq!(lacks(about, &message, &debug), None, "{code}: {message}");
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
    let error = Error::from(ErrorKind::OutsidePin { path: None, at: 9, start: 2, end: 3 });
    let text = "byte 9 of a file that is no longer known is outside the pinned range 2..3";
    assert_eq!(error.to_string(), text);
}

#[test]
fn a_map_that_has_no_memory_may_be_one_too_many() {
    let of = |errno| Arc::new(io::Error::from_raw_os_error(errno));
    let map = |errno| ErrorKind::Map { path: path(), start: 0, end: 1, cause: of(errno) };
    let own = |errno| {
        let (what, name) = ("map", path());
        ErrorKind::Own { what, name, start: 0, end: 1, cause: of(errno) }
    };
    for error in [map(libc::ENOMEM), own(libc::ENOMEM)] {
        assert!(error.to_string().contains("vm.max_map_count"), "{error}");
    }
    for error in [map(libc::EINVAL), own(libc::EINVAL)] {
        assert!(!error.to_string().contains("vm.max_map_count"), "{error}");
    }
}

#[test]
fn what_has_a_cause_gives_it_as_itself() {
    for (error, code, _) in of_each() {
        let debug = format!("{error:?}");
        let source = std::error::Error::source(&error);
        // An `OpenError` is the error, and not its cause.
        assert_eq!(source.is_some(), debug.contains("cause: "), "{code}: {debug}");
        let Some(source) = source else { continue };
        assert!(error.to_string().contains(&source.to_string()), "{code}: {error}: {source}");
        let of_system = debug.contains("cause: Custom") && code != "own-memory";
        assert_eq!(source.is::<io::Error>(), of_system, "{code}: {debug}");
    }
}

#[test]
fn a_file_that_cannot_be_opened_says_why_to_programs() {
    let not_opened = |errno| {
        let cause = io::Error::from_raw_os_error(errno);
        Error::from(Arc::new(OpenError::System { path: path(), cause }))
    };
    for (errno, kind, code) in [
        (libc::ENOENT, io::ErrorKind::NotFound, "not-found"),
        (libc::EACCES, io::ErrorKind::PermissionDenied, "permission-denied"),
        (libc::EPERM, io::ErrorKind::PermissionDenied, "permission-denied"),
        (libc::EMFILE, io::Error::from_raw_os_error(libc::EMFILE).kind(), "open"),
    ] {
        let error = not_opened(errno);
        assert_eq!((error.io_kind(), error.code()), (kind, code));
        let source = std::error::Error::source(&error).unwrap();
        assert_eq!(source.downcast_ref::<io::Error>().unwrap().raw_os_error(), Some(errno));
    }
}

#[test]
fn an_error_goes_into_an_io_error_and_comes_out() {
    for (error, code, _) in of_each() {
        let kind = error.io_kind();
        let message = error.to_string();
        let io = io::Error::from(error);
        assert_eq!((io.kind(), io.to_string()), (kind, message));
        assert_eq!(io.downcast::<Error>().unwrap().code(), code);
    }
}

#[test]
fn no_error_tells_the_standard_library_to_call_again() {
    let cause = Arc::new(io::Error::from(io::ErrorKind::Interrupted));
    let error = Error::from(ErrorKind::Read { path: path(), offset: 0, asked_bytes: 1, cause });
    assert_eq!(error.io_kind(), io::ErrorKind::Other);
}
