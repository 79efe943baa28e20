//! File systems of the ext kind whose times are coarse: an `open` and a `refresh` return what the
//! file has, though a change leaves its times as they were.
//!
//! They are images on loop devices, which only root can mount; elsewhere the test says that it
//! tests nothing.

use std::fs;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::Command;

use pinfold::{Cache, File, Options};

/// A mounted image, until it is dropped.
struct Mounted(tempfile::TempDir);

impl Mounted {
    /// # Errors
    /// What is not there.
    fn new(make: &[&str]) -> Result<Self, String> {
        let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
        let image = dir.path().join("image");
        fs::File::create(&image).unwrap().set_len(16 << 20).unwrap();
        run(Command::new(make[0]).args(&make[1..]).args(["-q", "-F"]).arg(&image))?;
        let at = dir.path().join("mounted");
        fs::create_dir(&at).unwrap();
        let of_type = make[0].trim_start_matches("mkfs.");
        run(Command::new("mount").args(["-o", "loop", "-t", of_type]).args([&image, &at]))?;
        Ok(Mounted(dir))
    }

    fn path(&self, name: &str) -> std::path::PathBuf {
        self.0.path().join("mounted").join(name)
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        let path = std::ffi::CString::new(self.path("").to_str().unwrap()).unwrap();
        // SAFETY: plain system call.
        unsafe { libc::umount2(path.as_ptr(), libc::MNT_DETACH) };
    }
}

fn run(command: &mut Command) -> Result<(), String> {
    let name = command.get_program().to_owned();
    let done = command.output().map_err(|why| format!("{}: {why}", name.display()))?;
    let said = || format!("{}: {}", name.display(), String::from_utf8_lossy(&done.stderr));
    if done.status.success() { Ok(()) } else { Err(said()) }
}

fn first_byte(file: &File) -> u8 {
    let mut byte = [0];
    assert_eq!(file.read_at(&mut byte, 0).unwrap(), 1);
    byte[0]
}

/// Of how many changes, one right after the other, an open and a refresh returned something older.
fn old_bytes(path: &Path) -> [usize; 2] {
    const CHANGES: usize = 2000;
    fs::write(path, [0; 4096]).unwrap();
    let cache = Cache::new(Options::new(1 << 20)).unwrap();
    let kept = cache.open(path).unwrap();
    let other = fs::OpenOptions::new().write(true).open(path).unwrap();
    let mut old = [0; 2];
    for n in 1..=CHANGES {
        other.write_all_at(&[n as u8; 4096], 0).unwrap();
        if n % 2 == 0 {
            old[0] += usize::from(first_byte(&cache.open(path).unwrap()) != n as u8);
        } else {
            kept.refresh().unwrap();
            old[1] += usize::from(first_byte(&kept) != n as u8);
        }
    }
    old
}

#[test]
fn changes_within_one_grain_of_time_are_seen() {
    let kinds: [&[&str]; 5] = [
        &["mkfs.ext4", "-I", "128"],
        &["mkfs.ext3", "-I", "256"],
        &["mkfs.ext2", "-I", "256"],
        &["mkfs.ext3", "-I", "128"],
        &["mkfs.ext4", "-I", "256"],
    ];
    for make in kinds {
        match Mounted::new(make) {
            Err(why) => println!("not tested: {make:?}: {}", why.trim()),
            Ok(mounted) => assert_eq!(old_bytes(&mounted.path("file")), [0; 2], "{make:?}"),
        }
    }
}

#[cfg(feature = "mutants")]
#[test]
fn it_fails_with_its_mutants() {
    if let Err(why) = Mounted::new(&["mkfs.ext3", "-I", "256"]) {
        return println!("not tested: {why}");
    }
    for mutant in ["AllExtFine", "WholeSecondsFine"] {
        let mut test =
            crate::again::again(module_path!(), "changes_within_one_grain_of_time_are_seen");
        test.env("PINFOLD_MUTANT", mutant);
        assert!(!test.output().unwrap().status.success(), "it does not fail with {mutant}");
    }
}
