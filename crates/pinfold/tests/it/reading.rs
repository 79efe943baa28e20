//! Reads for code that has a form of its own, beside the same on bytes in memory.

use std::borrow::Cow;
use std::io::{self, BufRead, Cursor, Read, Seek, SeekFrom};
use std::sync::Arc;

use pinfold::source::{Memory, Source};
use pinfold::{Cache, ErrorKind, File, FileReader, Hint, Options, ReadAt};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};
use pinfold_testing::pattern::Pattern;

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;
const LENGTH: u64 = 3 * MIB + 777;

/// A file that is longer than the budget, and its bytes.
fn file() -> (Cache, File, Vec<u8>) {
    let cache = Cache::new(Options::new(MIB)).unwrap();
    let bytes = Pattern::new(3, 0).to_vec(LENGTH as usize);
    let file = cache.attach("file", Arc::new(Memory::new(bytes.clone()))).unwrap();
    (cache, file, bytes)
}

/// A file whose reads of byte 50,000 fail.
fn broken(cache: &Cache) -> File {
    let faulty = Faulty::new(Arc::new(Memory::new(vec![7; 100_000])));
    let (operation, when) = (Operation::Read, When::Range(50_000..50_001));
    faulty.add(Rule { operation, when, fault: Fault::Error(libc::EIO) });
    cache.attach("broken", Arc::new(faulty)).unwrap()
}

fn is_sent<T: Send + 'static>(it: T) -> T {
    it
}

#[test]
fn a_reader_does_what_a_cursor_does() {
    let (cache, file, bytes) = file();
    let (mut cursor, mut reader) = (Cursor::new(bytes), is_sent(file.reader(0)));
    drop((file, cache)); // it is a handle of its own
    let mut rng = fastrand::Rng::with_seed(11);
    for turn in 0..3000 {
        match turn % 4 {
            0 => {
                let to = match rng.u8(0..5) {
                    0 => SeekFrom::End(rng.i64(-LENGTH.cast_signed() - 9..9)),
                    1 => SeekFrom::Start(rng.u64(0..LENGTH + 9)),
                    2 => SeekFrom::Start(rng.u64(0..LENGTH / PAGE) * PAGE),
                    3 => SeekFrom::Start(LENGTH - rng.u64(0..9000)),
                    _ => SeekFrom::Current(rng.i64(-90_000..90_000)),
                };
                let (one, other) = (cursor.seek(to), reader.seek(to));
                assert_eq!(one.as_ref().ok(), other.as_ref().ok(), "{to:?}");
                if let (Err(one), Err(other)) = (one, other) {
                    assert_eq!(one.kind(), other.kind());
                }
            }
            1 => {
                let mut bufs = [(); 2].map(|()| vec![0; rng.usize(0..70_000)]);
                let len = bufs[0].len();
                bufs[1].resize(len, 0);
                let got = (cursor.read(&mut bufs[0]).unwrap(), reader.read(&mut bufs[1]).unwrap());
                assert_eq!(got.0, got.1);
                assert!(bufs[0] == bufs[1]);
            }
            _ => {
                let len = reader.fill_buf().unwrap().len();
                let rest = cursor.fill_buf().unwrap();
                assert_eq!(len == 0, rest.is_empty());
                assert!(*reader.fill_buf().unwrap() == rest[..len]);
                let some = rng.usize(0..=len);
                cursor.consume(some);
                reader.consume(some);
            }
        }
        assert_eq!(reader.stream_position().unwrap(), cursor.position());
    }
}

#[test]
fn a_reader_of_everything_reads_everything() {
    let (_cache, file, bytes) = file();
    let mut all = Vec::new();
    file.reader(0).read_to_end(&mut all).unwrap();
    assert!(all == bytes);
    let lines = |lines: std::io::Split<FileReader>| lines.map(Result::unwrap).collect::<Vec<_>>();
    let expected: Vec<_> = bytes[5..].split(|&byte| byte == b'\n').map(<[u8]>::to_vec).collect();
    assert!(lines(file.reader(5).split(b'\n')) == expected[..expected.len()]);
    assert_eq!(file.reader(u64::MAX).read(&mut [0; 9]).unwrap(), 0);
    assert!(file.reader(u64::MAX).fill_buf().unwrap().is_empty());
    assert!(file.reader(u64::MAX).seek(SeekFrom::Current(1)).is_err());
}

#[test]
fn a_readers_errors_have_those_of_the_cache_inside() {
    let cache = Cache::new(Options::new(MIB)).unwrap();
    let mut reader = broken(&cache).reader(49_900);
    let failed = [reader.read(&mut [0; 9000]).unwrap_err(), reader.fill_buf().unwrap_err()];
    for error in failed {
        let error = error.downcast::<pinfold::Error>().unwrap();
        assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    }
    assert_eq!(reader.stream_position().unwrap(), 49_900);
}

#[tokio::test]
async fn many_reads_by_a_future_get_the_same() {
    let (_cache, file, bytes) = file();
    let mut rng = fastrand::Rng::with_seed(3);
    for turn in 0..20 {
        let mut bufs: Vec<_> = (0..turn * 10).map(|_| vec![0; rng.usize(0..9000)]).collect();
        let mut reads: Vec<_> =
            bufs.iter_mut().map(|buf| ReadAt::new(rng.u64(0..LENGTH + 9), buf)).collect();
        file.read_many_async(&mut reads).await.unwrap();
        for ReadAt { offset, buf, result } in reads {
            let start = (offset as usize).min(bytes.len());
            let expected = &bytes[start..(start + buf.len()).min(bytes.len())];
            assert_eq!(*result.as_ref().unwrap(), expected.len());
            assert!(buf[..expected.len()] == *expected);
        }
    }
    drop(is_future_sent(file.read_many_async(&mut [])));
}

fn is_future_sent<T: Send>(it: T) -> T {
    it
}

#[tokio::test]
async fn of_many_reads_by_a_future_each_has_its_own_error() {
    let cache = Cache::new(Options::new(MIB)).unwrap();
    let file = broken(&cache);
    let (mut one, mut two, mut three, mut four) = ([0; 9], [0; 9], [0; 9], [0; 9]);
    let mut reads = [
        ReadAt::new(10, &mut one),
        ReadAt::new(49_999, &mut two),
        ReadAt::new(u64::MAX, &mut three),
        ReadAt::new(90_000, &mut four),
    ];
    let error = file.read_many_async(&mut reads).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Read, "{error:?}");
    let results: Vec<_> = reads.iter().map(|read| read.result.as_ref().ok().copied()).collect();
    assert_eq!(results, [Some(9), None, None, Some(9)]);
}

#[test]
fn ranges_may_be_open() {
    let (_cache, file, _) = file();
    file.advise(.., Hint::Random).unwrap();
    for page in 0..20 {
        file.get(page).unwrap();
    }
    assert!(file.invalidate(5 * PAGE..).unwrap() > 0);
    assert!(file.try_get(0).unwrap().is_some() && file.try_get(19).unwrap().is_none());
    file.get(19).unwrap();
    assert!(file.invalidate(..).unwrap() > 0);
    assert!((0..20).all(|page| file.try_get(page).unwrap().is_none()));
    file.get(19).unwrap();
    file.advise(.., Hint::DontNeed).unwrap();
    assert!((0..20).all(|page| file.try_get(page).unwrap().is_none()));
    assert!(file.invalidate(..=u64::MAX).is_err());
}

/// 16 TiB, in which each page begins with its number and, on top, the file's.
#[derive(Debug)]
struct Huge(u64);

impl Source for Huge {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        for (n, page) in buf.chunks_mut(PAGE as usize).enumerate() {
            let number = self.0 << 60 | (offset / PAGE + n as u64);
            page[..8].copy_from_slice(&number.to_le_bytes());
        }
        Ok(buf.len())
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(16 << 40)
    }

    fn kind(&self) -> Cow<'static, str> {
        "huge".into()
    }
}

/// From 4 TiB on, an entry's word for where its folio begins does not name the file, so all ways in
/// that hold nothing have to leave these bytes to others.
#[test]
fn bytes_from_four_tebibytes_on_are_read_as_others_are() {
    let cache = Cache::new(Options::new(8 * MIB)).unwrap();
    let files = [0, 1, 2].map(|n| cache.attach("huge", Arc::new(Huge(n))).unwrap());
    let reader = cache.reader().unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
    let far = (4 << 40) / PAGE;
    let number = |bytes: &[u8]| u64::from_le_bytes(bytes[..8].try_into().unwrap());
    for turn in 0..3 {
        for (n, file) in (0..).zip(&files) {
            // The same pages of each file, and pages whose offsets differ in their upper bits.
            for page in [0, 1, far - 1, far, far + 1, 2 * far, 3 * far + n, 4 * far - 1] {
                let case = format!("turn {turn}, file {n}, page {page}");
                let wanted = n << 60 | page;
                let mut word = [0; 8];
                assert_eq!(file.read_at(&mut word, page * PAGE).unwrap(), 8, "{case}");
                assert_eq!(number(&word), wanted, "{case}");
                assert_eq!(number(&file.get(page).unwrap()), wanted, "{case}");
                assert_eq!(number(&file.borrow(page, &reader).unwrap()), wanted, "{case}");
                let pages = [page, page ^ 1, page, page ^ 1];
                assert_eq!(number(&file.get_many(&pages).unwrap()[1]), wanted ^ 1, "{case}");
                let optimistic = file.optimistic(page).unwrap();
                optimistic.read(0, &mut word);
                assert!(optimistic.validate() && number(&word) == wanted, "{case}");
                assert_eq!(
                    number(&runtime.block_on(file.get_async(page)).unwrap()),
                    wanted,
                    "{case}"
                );
                let mut words = [[0; 8]; 4];
                let mut reads: Vec<_> = (pages.iter().zip(&mut words))
                    .map(|(page, word)| ReadAt::new(page * PAGE, word))
                    .collect();
                file.read_many(&mut reads).unwrap();
                assert!(reads.iter().all(|read| read.result.as_ref().is_ok_and(|&got| got == 8)));
                assert_eq!(words.map(|word| number(&word)), pages.map(|page| n << 60 | page));
                let borrowed = file.borrow_many(&pages, &reader).unwrap();
                assert_eq!(number(&borrowed[1]), wanted ^ 1, "{case}");
                drop(borrowed);
                let pinned = file.pin(page * PAGE..page * PAGE + 8).unwrap();
                pinned.copy_to(&mut word, page * PAGE).unwrap();
                assert_eq!(number(&word), wanted, "{case}");
            }
        }
    }
}
