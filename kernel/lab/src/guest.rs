//! Makes what the guest boots from: an initramfs of busybox, the lab's static programs, the
//! selftests if asked for, and the command; and a disk for ext4.

use crate::paths::Paths;
use crate::{cc, proc};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// The lab's programs in `kernel/guest`, each one file of C.
pub(crate) const PROGRAMS: &[&str] = &["pread_bench", "mm_count", "mm_stress", "uffd_unregister"];

/// Size of the guest's ext4 disk.
const DISK_MIB: u64 = 512;

/// Compiles a program of `kernel/guest` statically.
///
/// # Errors
/// If it does not compile.
pub(crate) fn compile(paths: &Paths, program: &str) -> Result<PathBuf> {
    let source = paths.kernel.join("guest").join(format!("{program}.c"));
    let target = paths.guest(program);
    let text =
        fs::read_to_string(&source).with_context(|| format!("cannot read {}", source.display()))?;
    let mut gcc = Command::new("gcc");
    gcc.args(["-O2", "-Wall", "-Wextra", "-Werror", "-static", "-o"])
        .arg(&target)
        .arg(&source)
        .arg("-lpthread");
    cc::compile(program, &text, &mut gcc, &target, &paths.log(&format!("compile-{program}")))?;
    Ok(target)
}

/// A statically linked busybox for the guest, which has no dynamic loader.
fn busybox() -> Option<&'static Path> {
    ["/bin/busybox", "/usr/bin/busybox"]
        .map(Path::new)
        .into_iter()
        .find(|path| fs::read(path).is_ok_and(|file| is_static(&file) == Some(true)))
}

/// Whether a program is statically linked; `None` if it is no 64-bit ELF file.
fn is_static(file: &[u8]) -> Option<bool> {
    const INTERPRETER: [u8; 4] = 3_u32.to_le_bytes();
    let number = |at: usize, bytes: usize| {
        let mut number = [0; 8];
        number[..bytes].copy_from_slice(file.get(at..at + bytes)?);
        usize::try_from(u64::from_le_bytes(number)).ok()
    };
    if !file.starts_with(b"\x7fELF\x02\x01") {
        return None;
    }
    let (headers, size, count) = (number(32, 8)?, number(54, 2)?, number(56, 2)?);
    let table = file.get(headers..headers.checked_add(size * count)?)?;
    Some(!table.chunks_exact(size.max(4)).any(|header| header[..4] == INTERPRETER))
}

/// Makes the folder of the initramfs, with everything but the command.
///
/// # Errors
/// If a program does not compile, or there is no static busybox.
pub(crate) fn root(paths: &Paths, extra: &[PathBuf]) -> Result<PathBuf> {
    let root = paths.guest("root");
    let _ = fs::remove_dir_all(&root);
    for dir in ["bin", "lab"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let busybox = busybox().context("no static busybox; `cargo lab prepare` installs one")?;
    fs::copy(busybox, root.join("bin/busybox"))?;
    fs::copy(paths.kernel.join("guest/init.sh"), root.join("init"))?;
    fs::set_permissions(root.join("init"), fs::Permissions::from_mode(0o755))?;
    for program in PROGRAMS {
        fs::copy(compile(paths, program)?, root.join("lab").join(program))?;
    }
    for file in extra {
        let name = file.file_name().context("an extra file without a name")?;
        fs::copy(file, root.join("lab").join(name))
            .with_context(|| format!("cannot copy {}", file.display()))?;
    }
    Ok(root)
}

/// Packs such a folder with this command in it.
///
/// # Errors
/// If `cpio` fails.
pub(crate) fn initramfs(paths: &Paths, root: &Path, command: &str) -> Result<PathBuf> {
    fs::write(root.join("lab/cmd"), format!("{command}\n"))?;
    let target = paths.guest("initramfs.cpio");
    pack(paths, root, &target)?;
    Ok(target)
}

/// Packs a folder.
///
/// # Errors
/// If `cpio` fails.
pub(crate) fn pack(paths: &Paths, root: &Path, target: &Path) -> Result<()> {
    let mut list = target.as_os_str().to_owned();
    list.push(".list");
    // Not a pipe, which would hide that `find` failed.
    let script = "find . > \"$2\" && cpio --quiet -o -H newc -R 0:0 -F \"$1\" < \"$2\"";
    proc::run(
        "packing the guest",
        Command::new("sh")
            .args(["-c", script, "sh"])
            .args([target.as_os_str(), &list])
            .current_dir(root),
        &paths.guest("initramfs.log"),
    )
}

/// A fresh ext4 file system for the guest's `/mnt`.
///
/// # Errors
/// If it cannot be made.
pub(crate) fn disk(paths: &Paths) -> Result<PathBuf> {
    let path = paths.guest("ext4.img");
    let _ = fs::remove_file(&path);
    fs::File::create(&path)?.set_len(DISK_MIB << 20)?;
    let mke2fs = ["/usr/sbin/mke2fs", "/sbin/mke2fs"]
        .into_iter()
        .find(|p| Path::new(p).is_file())
        .unwrap_or("mke2fs");
    // With a fixed UUID, seed and time all disks are the same, and so are the counts.
    proc::run(
        "making the guest's disk",
        Command::new(mke2fs)
            .args(["-q", "-F", "-t", "ext4", "-U", "00000000-0000-0000-0000-000000000001"])
            .args(["-E", "hash_seed=00000000-0000-0000-0000-000000000002,lazy_itable_init=0"])
            .arg(&path)
            .env("E2FSPROGS_FAKE_TIME", "1000000000"),
        &paths.guest("mke2fs.log"),
    )?;
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    fn paths_in(dir: &Path) -> Paths {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().to_path_buf();
        let paths = Paths::new(kernel, dir);
        for folder in ["guest", "log"] {
            fs::create_dir(dir.join(folder)).unwrap();
        }
        paths
    }

    #[test]
    fn only_a_static_program_is_static() {
        let dir = tempfile::tempdir().unwrap();
        let source = dir.path().join("a.c");
        fs::write(&source, "int main(void) { return 0; }").unwrap();
        let made = |flag: &str| {
            let binary = dir.path().join("a");
            proc::output(Command::new("gcc").arg(flag).arg("-o").arg(&binary).arg(&source))
                .unwrap();
            fs::read(binary).unwrap()
        };
        assert_eq!(is_static(&made("-static")), Some(true));
        assert_eq!(is_static(&made("-pie")), Some(false));
        assert_eq!(is_static(&made("-no-pie")), Some(false));
        assert_eq!(is_static(b"#!/bin/sh\n"), None);
        assert_eq!(is_static(b"\x7fELF\x02\x01"), None);
    }

    #[test]
    fn a_guest_that_cannot_be_packed_is_an_error() {
        let dir = tempfile::tempdir().unwrap();
        let paths = paths_in(dir.path());
        let root = dir.path().join("root");
        fs::create_dir_all(root.join("lab")).unwrap();
        initramfs(&paths, &root, "true").unwrap();
        // In a list with a name on each line, this file looks like two that are not there.
        fs::write(root.join("a\nb"), "").unwrap();
        initramfs(&paths, &root, "true").unwrap_err();
    }

    #[test]
    fn the_benchmark_does_not_wait_for_readers_that_failed_to_start() {
        let dir = tempfile::tempdir().unwrap();
        let program = compile(&paths_in(dir.path()), "pread_bench").unwrap();
        let mut sh = Command::new("sh");
        // Enough memory for the program, but not for a buffer of 1 MiB.
        sh.args(["-c", "ulimit -v 1700; exec \"$0\" -p 2 -b 1048576 -f 1048576 -s 0.1 x"])
            .arg(program)
            .current_dir(dir.path());
        let out = proc::capture(&mut sh, Duration::from_secs(20)).unwrap();
        assert_eq!(out.status.code(), Some(1));
        assert!(String::from_utf8(out.stderr).unwrap().contains("buffer"));
    }
}
