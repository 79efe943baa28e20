//! Blocking reads and writes of every source, against what the file holds.

use std::os::unix::fs::FileExt;

use super::*;
use crate::source::{Hint, Memory, Truncated};

const LEN: usize = 1_000_003;

/// Every kind of source, with the same contents.
fn all(directory: &Path, len: usize) -> Vec<Backing> {
    let path = file_of(directory, len);
    let engine = ring_engine();
    let memory = || Memory::new(pattern(len));
    let mut all = vec![
        backing(&path, Some(false), &engine),
        Backing::new(Arc::new(memory()), Arc::clone(&engine)),
        Backing::new(Arc::new(Plain(memory())), Arc::clone(&engine)),
    ];
    all.extend(direct(&path, &engine));
    all
}

#[test]
fn reads_of_any_shape_bring_what_the_file_holds_and_zeros_beyond() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path(), LEN) {
        let mut numbers = Numbers(7);
        for _ in 0..300 {
            let pages = [1, 1, 2, 3, 8, 100][numbers.below(6) as usize];
            let offset = numbers.below(1 + LEN as u64 / PAGE as u64 + 3) * PAGE as u64;
            let lent = Lent::filled((pages + 1) * PAGE, 0xaa);
            // Extents in the order of the file, with one page in front that is none of it.
            let whole = lent.extent();
            let cut = numbers.below(pages as u64) as usize * PAGE;
            let first = whole.part(PAGE, cut);
            let second = whole.part(PAGE + cut, pages * PAGE - cut);
            let got = backing.read(offset, &[first, second]).unwrap();
            check(offset, got, &lent.bytes()[PAGE..], LEN as u64);
            assert!(lent.bytes()[..PAGE].iter().all(|byte| *byte == 0xaa), "wrote outside");
        }
    }
}

#[test]
fn lengths_around_block_and_page_ends_are_read_exactly() {
    let directory = tempfile::tempdir().unwrap();
    for len in [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 12_288 + 512] {
        for backing in all(directory.path(), len) {
            assert_eq!(backing.len_bytes().unwrap(), len as u64);
            for offset in [0, PAGE, 2 * PAGE, 5 * PAGE, 1 << 40] {
                let lent = Lent::filled(4 * PAGE, 0xaa);
                let got = backing.read(offset as u64, &[lent.extent()]).unwrap();
                check(offset as u64, got, lent.bytes(), len as u64);
            }
        }
    }
}

#[test]
fn more_extents_than_one_system_call_takes() {
    let directory = tempfile::tempdir().unwrap();
    let pages = 1100;
    let len = pages * PAGE - 77;
    for backing in all(directory.path(), len) {
        let lent = Lent::filled(pages * PAGE, 0xaa);
        // Backwards in memory, so that no run of two can be taken for one.
        let extents: Vec<_> =
            (0..pages).rev().map(|n| lent.extent().part(n * PAGE, PAGE)).collect();
        let got = backing.read(0, &extents).unwrap();
        let forwards: Vec<u8> = lent.bytes().rchunks(PAGE).flatten().copied().collect();
        check(0, got, &forwards, len as u64);
    }
}

#[test]
fn offsets_beyond_what_a_file_can_have_are_an_error_or_the_end() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path(), LEN) {
        for offset in [!4095, (1 << 63) - 4096, 1 << 63] {
            let lent = Lent::filled(2 * PAGE, 0);
            match backing.read(offset, &[lent.extent()]) {
                Ok(got) => assert_eq!(got, 0, "{} at {offset}", backing.source().kind()),
                Err(cause) => {
                    assert_eq!(
                        cause.kind(),
                        io::ErrorKind::InvalidInput,
                        "{}",
                        backing.source().kind()
                    );
                }
            }
        }
    }
}

#[test]
fn direct_reads_that_are_not_aligned_are_refused_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let Some(backing) = direct(&file_of(directory.path(), LEN), &ring_engine()) else { return };
    assert!(backing.source().alignment() > 1);
    let lent = Lent::filled(3 * PAGE, 0);
    let cases = [
        (1, lent.extent().part(0, PAGE), "offset 0x1 is not a multiple"),
        (0, lent.extent().part(1, PAGE), "memory address"),
        (0, lent.extent().part(0, PAGE + 1), "length 0x1001 is not a multiple"),
    ];
    for (offset, extent, text) in cases {
        let read = backing.read(offset, &[extent]).unwrap_err();
        let write = write(&backing, offset, &[extent]).unwrap_err();
        for cause in [read, write] {
            assert_eq!(cause.kind(), io::ErrorKind::InvalidInput);
            assert!(cause.to_string().contains(text), "{cause}");
        }
    }
}

#[test]
fn what_is_written_is_in_the_file() {
    let directory = tempfile::tempdir().unwrap();
    let engine = ring_engine();
    for direct in [Some(false), None] {
        let path = file_of(directory.path(), LEN);
        let backing = backing(&path, direct, &engine);
        let lent = Lent::filled(3 * PAGE, 0x55);
        let (one, two) = (lent.extent().part(0, PAGE), lent.extent().part(PAGE, 2 * PAGE));
        write(&backing, PAGE as u64, &[two, one]).unwrap();
        let last = (LEN / PAGE * PAGE) as u64;
        write(&backing, last, &[one]).unwrap();
        assert_eq!(backing.len_bytes().unwrap(), last + PAGE as u64, "whole blocks are written");
        backing.source().set_len(LEN as u64).unwrap();
        backing.source().sync(true).unwrap();
        backing.source().sync(false).unwrap();

        let seen = std::fs::read(&path).unwrap();
        let mut expected = pattern(LEN);
        expected[PAGE..4 * PAGE].fill(0x55);
        expected[last as usize..].fill(0x55);
        assert!(seen == expected, "{}", backing.source().kind());
        assert_eq!(backing.stats().write.calls, 2);
    }
}

#[test]
fn writes_to_memory_and_by_the_default_reach_the_bytes() {
    let memory = Arc::new(Memory::new(pattern(100)));
    let first = Lent::filled(PAGE, 1);
    let second = Lent::filled(PAGE, 2);
    memory.write_extents_at(50, &[first.extent(), second.extent()]).unwrap();
    let expected = [pattern(50), vec![1; PAGE], vec![2; PAGE]].concat();
    assert_eq!(memory.to_vec(), expected);

    let plain = Plain(Memory::new(pattern(100)));
    plain.write_extents_at(50, &[first.extent(), second.extent()]).unwrap();
    assert_eq!(plain.0.to_vec(), expected);
    assert_eq!(plain.set_len(5).unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert_eq!(plain.sync(true).unwrap_err().kind(), io::ErrorKind::Unsupported);
    assert!(memory.write_at(u64::MAX, b"x").is_err());
    assert!(memory.set_len(u64::MAX).is_err());
}

#[test]
fn a_file_opened_for_reading_refuses_writes_in_words() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    let engine = ring_engine();
    for direct in [None, Some(false)] {
        let source = open(&path, Access::Read, direct, &engine).unwrap().source;
        let lent = Lent::filled(PAGE, 0);
        let write = source.write_extents_at(0, &[lent.extent()]).unwrap_err();
        let set_len = source.set_len(0).unwrap_err();
        for cause in [write, set_len] {
            assert_eq!(cause.kind(), io::ErrorKind::PermissionDenied);
            assert!(cause.to_string().contains("opened for reading only"), "{cause}");
        }
    }
    assert!(std::fs::read(&path).unwrap() == pattern(LEN));
}

#[test]
fn a_file_cut_short_by_another_is_told_where_it_ended() {
    let directory = tempfile::tempdir().unwrap();
    for direct in [None, Some(false)] {
        let path = file_of(directory.path(), 1 << 20);
        let backing = backing(&path, direct, &ring_engine());
        let recorded = backing.len_bytes().unwrap();
        std::fs::File::options().write(true).open(&path).unwrap().set_len(10_000).unwrap();
        for (offset, end) in [(0_u64, 10_000), (8192, 10_000), (65_536, 65_536)] {
            let lent = Lent::filled(8 * PAGE, 0xaa);
            let got = backing.read(offset, &[lent.extent()]).unwrap();
            check(offset, got, lent.bytes(), 10_000);
            let asked = 8 * PAGE as u64;
            let cut = Truncated::check(offset, asked, got as u64, recorded).unwrap_err();
            assert_eq!(cut, Truncated { offset, asked_bytes: asked, end, recorded_bytes: 1 << 20 });
            // A read that finds nothing does not know where the end is.
            let told = if end == offset { "there, or it ends before" } else { "at 10000" };
            assert_eq!(
                cut.to_string(),
                format!(
                    "the file was cut short while in use: it had 1048576 bytes, but a read of \
                     32768 at {offset} met its end {told}"
                )
            );
        }
    }
    // The end where it was expected is no cut.
    assert_eq!(Truncated::check(8192, 4096, 1808, 10_000), Ok(()));
    assert_eq!(Truncated::check(20_000, 4096, 0, 10_000), Ok(()));
    assert!(Truncated::check(8192, 4096, 1807, 10_000).is_err());
}

#[test]
fn hints_are_taken_by_every_source() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path(), LEN) {
        for hint in [Hint::Sequential, Hint::Random, Hint::WillNeed, Hint::DontNeed] {
            for range in [0..PAGE as u64, 5..5, 0..u64::MAX >> 1] {
                backing.advise(range, hint).unwrap();
            }
        }
    }
}

#[test]
fn reads_are_counted_and_timed() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path(), LEN) {
        let lent = Lent::filled(PAGE, 0);
        for page in 0..10 {
            backing.read(page * PAGE as u64, &[lent.extent()]).unwrap();
        }
        backing.read((LEN / PAGE * PAGE) as u64, &[lent.extent()]).unwrap();
        let stats = backing.stats();
        assert_eq!(stats.kind, backing.source().kind());
        assert_eq!((stats.read.calls, stats.read.short, stats.read.errors), (11, 1, 0));
        assert_eq!(stats.read.bytes, (10 * PAGE + LEN % PAGE) as u64);
        assert_eq!(stats.read.latency.iter().sum::<u64>(), 11);
        assert!(stats.read.max_ns <= stats.read.total_ns && stats.read.max_ns > 0);
        assert_eq!(stats.read_ahead.calls, 0);
    }
}

#[test]
fn many_threads_read_one_source() {
    let directory = tempfile::tempdir().unwrap();
    for backing in all(directory.path(), LEN) {
        std::thread::scope(|scope| {
            for seed in 0..8 {
                let backing = &backing;
                scope.spawn(move || {
                    let mut numbers = Numbers(seed);
                    let lent = Lent::filled(2 * PAGE, 0);
                    for _ in 0..50 {
                        let offset = numbers.below(LEN as u64 / PAGE as u64) * PAGE as u64;
                        let got = backing.read(offset, &[lent.extent()]).unwrap();
                        check(offset, got, lent.bytes(), LEN as u64);
                    }
                });
            }
        });
    }
}

#[test]
fn extents_move_bytes_at_any_alignment() {
    let from = pattern(64);
    for at in 0..17 {
        for bytes in 0..40 {
            let mut memory = vec![0xaa; 64];
            let extent = Extent::of(&mut memory);
            extent.store(at, &from[..bytes]);
            let mut back = vec![0; bytes];
            extent.load(at, &mut back);
            assert_eq!(back, from[..bytes]);
            assert_eq!(memory[at..at + bytes], from[..bytes]);
            assert!(memory[..at].iter().chain(&memory[at + bytes..]).all(|byte| *byte == 0xaa));
            Extent::of(&mut memory).zero(at, bytes);
            assert!(memory[at..at + bytes].iter().all(|byte| *byte == 0));
            assert!(memory[..at].iter().chain(&memory[at + bytes..]).all(|byte| *byte == 0xaa));
        }
    }
}

#[test]
#[should_panic(expected = "do not lie in an extent")]
fn extents_refuse_what_lies_outside() {
    Extent::of(&mut [0; 8]).store(1, &[0; 8]);
}

/// A buffered source sees what another program writes to the file.
#[test]
fn a_write_by_another_is_seen_by_the_next_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), LEN);
    let backing = backing(&path, None, &ring_engine());
    let other = std::fs::File::options().write(true).open(&path).unwrap();
    other.write_all_at(&[0x77; 3], 4097).unwrap();
    let lent = Lent::filled(PAGE, 0);
    backing.read(PAGE as u64, &[lent.extent()]).unwrap();
    assert_eq!(lent.bytes()[1..4], [0x77; 3]);
}
