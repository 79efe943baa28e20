//! What the guest boots into: an initramfs of busybox, our static programs, the
//! selftests if asked for, and the command; and a disk for ext4.

use crate::paths::Paths;
use crate::{cc, proc};
use anyhow::{Context, Result};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Our programs in `kernel/guest`, each one file of C.
const PROGRAMS: &[&str] = &["pread_bench", "mm_count", "mm_stress"];

/// Size of the guest's ext4 disk.
const DISK_MIB: u64 = 512;

/// Compiles a program statically.
fn compile(paths: &Paths, program: &str) -> Result<PathBuf> {
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

/// A folder to become the initramfs, with everything but the command.
///
/// # Errors
/// A program that does not compile, or a missing busybox.
pub(crate) fn root(paths: &Paths, extra: &[PathBuf]) -> Result<PathBuf> {
    let root = paths.guest("root");
    let _ = fs::remove_dir_all(&root);
    for dir in ["bin", "lab"] {
        fs::create_dir_all(root.join(dir))?;
    }
    let busybox = ["/bin/busybox", "/usr/bin/busybox"]
        .into_iter()
        .find(|path| Path::new(path).is_file())
        .context("no busybox; on Debian: apt-get install busybox-static")?;
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

/// Packs a root with this command in it.
///
/// # Errors
/// If cpio fails.
pub(crate) fn initramfs(paths: &Paths, root: &Path, command: &str) -> Result<PathBuf> {
    fs::write(root.join("lab/cmd"), format!("{command}\n"))?;
    let target = paths.guest("initramfs.gz");
    let script =
        format!("find . | cpio --quiet -o -H newc -R 0:0 | gzip -1 > {}", target.display());
    proc::run(
        "packing the guest",
        Command::new("sh").args(["-c", &script]).current_dir(root),
        &paths.log("initramfs"),
    )?;
    Ok(target)
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
    // Fixed names and seeds: two disks are the same, and so are the counts.
    proc::run(
        "making the guest's disk",
        Command::new(mke2fs)
            .args(["-q", "-F", "-t", "ext4", "-U", "00000000-0000-0000-0000-000000000001"])
            .args(["-E", "hash_seed=00000000-0000-0000-0000-000000000002,lazy_itable_init=0"])
            .arg(&path)
            .env("E2FSPROGS_FAKE_TIME", "1000000000"),
        &paths.log("mke2fs"),
    )?;
    Ok(path)
}
