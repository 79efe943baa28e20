//! What may be opened, what is said about the rest, and how direct I/O is chosen.

use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::os::unix::net::UnixListener;

use super::*;

fn refused(path: &Path, direct: Option<bool>) -> String {
    let error = open(path, Access::Read, direct, &pool_engine()).unwrap_err();
    let text = error.to_string();
    assert!(text.contains(path.to_str().unwrap()), "no path in: {text}");
    text
}

#[test]
fn what_is_no_file_is_refused_by_name() {
    let directory = tempfile::tempdir().unwrap();
    let at = |name| directory.path().join(name);
    let text = refused(directory.path(), None);
    assert!(text.ends_with("it is a directory, not a file or a block device"), "{text}");

    rustix::fs::mknodat(
        rustix::fs::CWD,
        at("pipe"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RUSR,
        0,
    )
    .unwrap();
    assert!(refused(&at("pipe"), None).contains("it is a pipe"));

    let _listener = UnixListener::bind(at("socket")).unwrap();
    assert!(refused(&at("socket"), None).contains("it is a socket"));
    assert!(refused(Path::new("/dev/null"), None).contains("it is a character device"));

    symlink(directory.path(), at("link")).unwrap();
    assert!(refused(&at("link"), None).contains("it is a directory"));
}

#[test]
fn what_the_system_refuses_is_told_with_its_cause() {
    let directory = tempfile::tempdir().unwrap();
    let missing = directory.path().join("missing");
    assert!(refused(&missing, None).contains("No such file or directory"));

    let file = file_of(directory.path(), 10);
    assert!(refused(&file.join("below"), None).contains("Not a directory"));

    let looped = directory.path().join("looped");
    symlink(&looped, &looped).unwrap();
    assert!(refused(&looped, None).contains("Too many levels of symbolic links"));
}

#[test]
fn no_permission_is_told_with_its_cause() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 10);
    std::fs::set_permissions(directory.path(), std::fs::Permissions::from_mode(0o755)).unwrap();
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o0)).unwrap();
    // In a thread of its own, which root's rights to files are taken from; others have none.
    let nobody = move || {
        // SAFETY: changes this thread's credentials only.
        unsafe { libc::setfsuid(65_534) };
        refused(&path, None)
    };
    let text = std::thread::spawn(nobody).join().unwrap();
    assert!(text.contains("Permission denied"), "{text}");
}

#[test]
fn one_file_has_one_identity_by_any_path() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 10);
    let (hard, soft) = (directory.path().join("hard"), directory.path().join("soft"));
    std::fs::hard_link(&path, &hard).unwrap();
    symlink(&path, &soft).unwrap();
    let identity = |path: &Path| find(path, Access::Read).unwrap().identity;
    let meta = std::fs::metadata(&path).unwrap();
    assert_eq!((identity(&path).device, identity(&path).inode), (meta.dev(), meta.ino()));
    assert_eq!(identity(&path), identity(&hard));
    assert_eq!(identity(&path), identity(&soft));
    assert_ne!(identity(&path), identity(&file_of(directory.path(), 11)));
}

#[test]
fn a_file_in_memory_is_read_through_the_kernel() {
    let Ok(directory) = tempfile::tempdir_in("/dev/shm") else {
        eprintln!("not tested: no /dev/shm");
        return;
    };
    let path = file_of(directory.path(), 10_001);
    let auto = backing(&path, None, &ring_engine());
    assert_eq!((auto.source().kind().as_ref(), auto.source().alignment()), ("buffered", 1));
    let lent = Lent::filled(3 * PAGE, 0xaa);
    let got = auto.read(0, &[lent.extent()]).unwrap();
    check(0, got, lent.bytes(), 10_001);
    let text = refused(&path, Some(true));
    assert!(text.contains("for direct I/O: its file system keeps it in memory"), "{text}");
}

#[test]
fn a_file_without_direct_io_is_read_through_the_kernel() {
    // sysfs refuses O_DIRECT. This file has the length that it reports: an ELF note of the kernel.
    let path = Path::new("/sys/kernel/notes");
    let Ok(whole) = std::fs::read(path) else {
        eprintln!("not tested: no {}", path.display());
        return;
    };
    let text = refused(path, Some(true));
    assert!(text.contains("for direct I/O: "), "{text}");
    let source = open(path, Access::Read, None, &pool_engine()).unwrap().source;
    assert_eq!(
        (source.kind().as_ref(), source.len_bytes().unwrap()),
        ("buffered", whole.len() as u64)
    );
    let mut buf = vec![0; whole.len() + 1];
    assert_eq!(source.read_at(0, &mut buf).unwrap(), whole.len());
    assert_eq!(&buf[..whole.len()], whole);
}

#[test]
fn the_kind_tells_how_it_is_read() {
    let directory = tempfile::tempdir().unwrap();
    let path = file_of(directory.path(), 10_001);
    let engine = pool_engine();
    assert_eq!(backing(&path, Some(false), &engine).source().kind(), "buffered");
    let Some(backing) = direct(&path, &engine) else { return };
    assert_eq!(backing.source().kind(), "direct (worker threads; no io_uring: switched off)");
    assert!(backing.source().alignment().is_power_of_two() && backing.source().alignment() >= 512);
}

/// Makes the system call fail with `errno`: in this thread and those it starts from now on, or in
/// all of the process.
pub(super) fn forbid(call: libc::c_long, errno: i32, everywhere: bool) {
    let number = u32::try_from(call).expect("a system call's number");
    let statement = |code: u32, k: u32, jt, jf| libc::sock_filter { code: code as u16, jt, jf, k };
    let mut program = [
        statement(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0), // the call's number
        statement(libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K, number, 0, 1),
        statement(
            libc::BPF_RET | libc::BPF_K,
            libc::SECCOMP_RET_ERRNO | errno.cast_unsigned(),
            0,
            0,
        ),
        statement(libc::BPF_RET | libc::BPF_K, libc::SECCOMP_RET_ALLOW, 0, 0),
    ];
    let filter = libc::sock_fprog { len: program.len() as u16, filter: program.as_mut_ptr() };
    // SAFETY: needs no memory; concerns this thread only.
    assert_eq!(unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) }, 0);
    let flags = if everywhere { libc::SECCOMP_FILTER_FLAG_TSYNC } else { 0 };
    let mode = libc::SECCOMP_SET_MODE_FILTER;
    // SAFETY: the program is whole, and read during the call only.
    let set = unsafe { libc::syscall(libc::SYS_seccomp, mode, flags, &raw const filter) };
    assert_eq!(set, 0, "{}", io::Error::last_os_error());
}

#[test]
fn a_kernel_that_refuses_rings_is_told_of_and_done_without() {
    for (errno, text) in
        [(libc::EPERM, "Operation not permitted"), (libc::ENOSYS, "Function not implemented")]
    {
        let without_rings = move || {
            forbid(libc::SYS_io_uring_setup, errno, false);
            let directory = tempfile::tempdir().unwrap();
            let Some(backing) = direct(&file_of(directory.path(), 10_001), &ring_engine()) else {
                return;
            };
            let kind = backing.source().kind();
            assert!(kind.starts_with("direct (worker threads; no io_uring: "), "{kind}");
            assert!(kind.contains(text), "{kind}");
            let (tell, told) = std::sync::mpsc::channel();
            backing.submit(&mut vec![request(0, 3 * PAGE, 3, &tell)]);
            let (_, result, lent) = told.recv().unwrap();
            check(0, result.unwrap(), lent.bytes(), 10_001);
        };
        std::thread::spawn(without_rings).join().unwrap();
    }
}

/// An overlay of directories on tmpfs, for this thread alone. `None` if it may not mount.
fn overlay(dir: &Path) -> Option<std::path::PathBuf> {
    use std::ffi::CString;
    let mount = |kind: &str, at: &Path, flags: libc::c_ulong, data: &str| {
        let [kind, at, data] =
            [kind, at.to_str().unwrap(), data].map(|text| CString::new(text).unwrap());
        let (kind, at, data) = (kind.as_ptr(), at.as_ptr(), data.as_ptr().cast());
        // SAFETY: all of these are strings.
        unsafe { libc::mount(kind, at, kind, flags, data) == 0 }
    };
    // SAFETY: it concerns this thread alone.
    if unsafe { libc::unshare(libc::CLONE_NEWNS) } != 0
        || !mount("none", Path::new("/"), libc::MS_REC | libc::MS_PRIVATE, "")
        || !mount("tmpfs", dir, 0, "")
    {
        return None;
    }
    for name in ["upper", "work", "lower", "over"] {
        std::fs::create_dir(dir.join(name)).unwrap();
    }
    let at = dir.display();
    let data = format!("lowerdir={at}/lower,upperdir={at}/upper,workdir={at}/work");
    let over = dir.join("over");
    mount("overlay", &over, 0, &data).then_some(over)
}

#[test]
fn a_file_in_memory_below_an_overlay_is_not_read_directly() {
    let directory = tempfile::tempdir().unwrap();
    let test = || {
        let Some(over) = overlay(directory.path()) else { return };
        let path = file_of(&over, 100_000);
        let opened = open(&path, Access::Read, None, &pool_engine()).unwrap();
        assert_eq!(opened.source.kind(), "buffered");
        let text = refused(&path, Some(true));
        assert!(text.contains("below its overlay keeps it in memory"), "{text}");
    };
    std::thread::scope(|scope| scope.spawn(test).join().unwrap());
}
