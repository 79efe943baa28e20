//! Writing through the cache: against a plain vector, against failures, against those who read.

use std::borrow::Cow;
use std::io;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use pinfold::source::{Extent, Memory, Source};
use pinfold::{Cache, ErrorKind, File, FileOptions, Options};
use pinfold_testing::faulty::{Fault, Faulty, Operation, Rule, When};

const PAGE: u64 = 4096;
const MIB: u64 = 1 << 20;

fn on_disk() -> tempfile::TempDir {
    tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap()
}

const TO_WRITE: FileOptions = FileOptions { direct: None, write: true, create: true };

/// Whole blocks only, as of a device that the program implements.
#[derive(Debug, Default)]
struct Blocks(Memory);

impl Source for Blocks {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }
    fn is_writable(&self) -> bool {
        true
    }
    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        assert!(offset.is_multiple_of(512) && buf.len().is_multiple_of(512));
        self.0.write_at(offset, buf)
    }
    fn set_len(&self, bytes: u64) -> io::Result<()> {
        self.0.set_len(bytes)
    }
    fn sync(&self, data_only: bool) -> io::Result<()> {
        self.0.sync(data_only)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }
    fn alignment(&self) -> usize {
        512
    }
    fn kind(&self) -> Cow<'static, str> {
        "blocks".into()
    }
}

fn all_of(file: &File) -> Vec<u8> {
    let mut bytes = vec![0; file.len() as usize + 10];
    let got = file.read_at(&mut bytes, 0).unwrap();
    bytes.truncate(got);
    assert_eq!(bytes.len() as u64, file.len());
    bytes
}

#[track_caller]
fn assert_same(got: &[u8], expected: &[u8], what: &str) {
    assert_eq!(got.len(), expected.len(), "{what}");
    let differs = got.iter().zip(expected).position(|(got, expected)| got != expected);
    assert_eq!(differs, None, "{what}: the first byte that differs");
}

/// Random operations; `now` gives what the source has, after a sync.
fn random_operations(file: &File, seed: u64, now: impl Fn() -> Vec<u8>) {
    let mut random = fastrand::Rng::with_seed(seed);
    let mut model = now();
    let mut guards = Vec::new();
    for round in 0..1500 {
        let what = format!("seed {seed}, round {round}");
        let most = [100, 5000, 40_000, 300_000][random.usize(..4)];
        let mut bytes = vec![0; random.usize(1..most)];
        random.fill(&mut bytes);
        match random.u32(..100) {
            0..45 => {
                let far = if random.u32(..8) == 0 { 200_000 } else { 1 };
                let offset = random.usize(..model.len() + far);
                let offset = if random.bool() { offset / 4096 * 4096 } else { offset };
                file.write_at(&bytes, offset as u64).unwrap();
                let end = offset + bytes.len();
                model.resize(model.len().max(end), 0);
                model[offset..end].copy_from_slice(&bytes);
            }
            45..60 => {
                assert_eq!(file.append(&bytes).unwrap(), model.len() as u64, "{what}");
                model.extend(&bytes);
            }
            60..64 => {
                let len = random.usize(..=model.len() + 10_000);
                file.set_len(len as u64).unwrap();
                model.resize(len, 0);
            }
            64..84 => {
                let offset = random.usize(..=model.len());
                let got = file.read_at(&mut bytes, offset as u64).unwrap();
                let end = model.len().min(offset + bytes.len());
                assert_same(&bytes[..got], &model[offset..end], &what);
            }
            84..92 if !model.is_empty() => {
                let page = random.usize(..model.len().div_ceil(4096));
                let guard = file.get(page as u64).unwrap();
                let expected = &model[page * 4096..model.len().min(page * 4096 + 4096)];
                assert_same(&guard, expected, &what);
                guards.push((guard, expected.to_vec()));
                if guards.len() > 8 {
                    guards.remove(random.usize(..8));
                }
            }
            92..94 => {
                file.sync_data().unwrap();
                assert_same(&now(), &model, &what);
            }
            94..96 => drop(file.invalidate(..)),
            96..98 => drop(file.refresh()),
            _ => assert_same(&all_of(file), &model, &what),
        }
        assert_eq!(file.len(), model.len() as u64, "{what}");
        for (guard, expected) in &guards {
            assert_same(guard, expected, &format!("{what}: a guard"));
        }
        if model.len() > 6 << 20 {
            file.set_len(1 << 20).unwrap();
            model.truncate(1 << 20);
        }
    }
    file.sync_all().unwrap();
    assert_same(&now(), &model, "at the end");
}

#[test]
fn files_are_what_was_written() {
    let dir = on_disk();
    for (n, direct) in [None, Some(false)].into_iter().enumerate() {
        let path = dir.path().join(format!("{n}"));
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let file = cache.open_with(&path, FileOptions { direct, ..TO_WRITE }).unwrap();
        random_operations(&file, n as u64, || std::fs::read(&path).unwrap());
        drop(file);
        assert_eq!(cache.stats().dirty_bytes, 0);
    }
}

#[test]
fn sources_are_what_was_written() {
    for seed in 0..2 {
        let cache = Cache::new(Options::new(4 << 20)).unwrap();
        let memory = Arc::new(Memory::default());
        let file = cache.attach("memory", memory.clone()).unwrap();
        random_operations(&file, seed, || memory.to_vec());
        let blocks = Arc::new(Blocks::default());
        let file = cache.attach("blocks", blocks.clone()).unwrap();
        random_operations(&file, seed, || blocks.0.to_vec());
    }
}
