//! A directory with a snapshot, a server of it, and what clients send that are not `restore`.

#![allow(dead_code, unreachable_pub, reason = "each test file has a part")]

pub mod slow_file;

use std::io::{BufRead, BufReader, Read};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, channel};
use std::time::{Duration, Instant};

use pinfold_cli::serve::guest::Connection;
use pinfold_cli::serve::protocol::Stats;
use rustix::ioctl::{Opcode, Updater, ioctl, opcode};
use rustix::mm::{MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};

pub const MIB: u64 = 1 << 20;
pub const P: u64 = 4096;

/// How long anything may take, on a machine that is busy with something else.
pub const LIMIT: Duration = Duration::from_secs(240);

pub fn pinfold(command: &str) -> Command {
    let mut pinfold = Command::new(env!("CARGO_BIN_EXE_pinfold"));
    pinfold.arg(command);
    pinfold
}

/// A directory with a snapshot, each page of which says which it is.
pub struct Ground {
    dir: tempfile::TempDir,
}

impl Ground {
    pub fn new(bytes: u64) -> Self {
        let ground = Ground { dir: tempfile::tempdir().unwrap() };
        let file = std::fs::File::create(ground.snapshot()).unwrap();
        file.set_len(bytes).unwrap();
        for page in 0..bytes.div_ceil(P) {
            // A hole, pages of zeros, and a last page that is not whole.
            if page % 64 < 8 {
                continue;
            }
            let word = if page % 64 == 20 { 0 } else { page + 1 };
            let content = word.to_le_bytes().repeat(512);
            let length = (bytes - page * P).min(P) as usize;
            file.write_all_at(&content[..length], page * P).unwrap();
        }
        ground
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    pub fn snapshot(&self) -> PathBuf {
        self.path("snapshot")
    }

    pub fn socket(&self) -> PathBuf {
        self.path("socket")
    }

    /// A server; it listens.
    pub fn serve(&self, args: &[&str]) -> Server {
        self.serve_by(pinfold("serve"), args)
    }

    /// A server by this command; it listens.
    pub fn serve_by(&self, mut server: Command, args: &[&str]) -> Server {
        server.arg(self.snapshot()).arg("--socket").arg(self.socket()).args(args);
        let mut child = server.stderr(Stdio::piped()).spawn().unwrap();
        let stderr = BufReader::new(child.stderr.take().unwrap());
        let (send, said) = channel();
        std::thread::spawn(move || {
            for line in stderr.lines().map_while(Result::ok) {
                println!("server: {line}");
                let _ = send.send(line);
            }
        });
        let server = Server { child, said, socket: self.socket() };
        server.says("serving");
        server
    }

    /// A client, which checks what it reads.
    pub fn restore(&self, args: &[&str]) -> Child {
        let mut restore = pinfold("restore");
        restore.arg("--socket").arg(self.socket()).arg("--verify").arg(self.snapshot());
        restore.args(args).args(["--json", "-"]);
        restore.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap()
    }
}

pub struct Server {
    pub child: Child,
    said: Receiver<String>,
    pub socket: PathBuf,
}

impl Server {
    /// Waits until it has said a line with `part`.
    pub fn says(&self, part: &str) -> String {
        let deadline = Instant::now() + LIMIT;
        let mut all = Vec::new();
        loop {
            let left = deadline.saturating_duration_since(Instant::now());
            match self.said.recv_timeout(left) {
                Ok(line) if line.contains(part) => return line,
                Ok(line) => all.push(line),
                Err(why) => panic!("{why}: it has not said {part:?}, but {all:#?}"),
            }
        }
    }

    pub fn stats(&self) -> Stats {
        Connection::open(&self.socket).unwrap().stats().unwrap()
    }

    /// Waits until its counters are so.
    pub fn until(&self, what: &str, so: impl Fn(&Stats) -> bool) -> Stats {
        let deadline = Instant::now() + LIMIT;
        loop {
            let stats = self.stats();
            if so(&stats) {
                return stats;
            }
            assert!(Instant::now() < deadline, "not {what}: {stats:?}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    pub fn kill(mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// What a client that has ended in success says.
pub fn result(client: Child) -> serde_json::Value {
    let output = client.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{}: {stderr}", output.status);
    serde_json::from_slice(&output.stdout).unwrap()
}

#[repr(C)]
pub struct Api([u64; 3]);
#[repr(C)]
pub struct Register([u64; 4]);
pub const OP_API: Opcode = opcode::read_write::<Api>(0xAA, 0x3F);
pub const OP_REGISTER: Opcode = opcode::read_write::<Register>(0xAA, 0x00);

pub fn bare_uffd() -> OwnedFd {
    let flags = UserfaultfdFlags::CLOEXEC | UserfaultfdFlags::NONBLOCK;
    // SAFETY: used for memory of the tests alone.
    unsafe { userfaultfd(flags | UserfaultfdFlags::from_bits_retain(1)) }.unwrap()
}

/// Two pages of private memory, registered for missing pages; never unmapped.
pub fn two_pages() -> (OwnedFd, usize) {
    private_memory(2 * P, 0)
}

/// Private memory of any length, registered for missing pages; never unmapped.
pub fn private_memory(bytes: u64, features: u64) -> (OwnedFd, usize) {
    let uffd = bare_uffd();
    let prot = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a new mapping.
    let at = unsafe {
        mmap_anonymous(
            std::ptr::null_mut(),
            bytes as usize,
            prot,
            MapFlags::PRIVATE | MapFlags::NORESERVE,
        )
    };
    let at = at.unwrap().expose_provenance();
    let (mut api, mut register) = (Api([0xAA, features, 0]), Register([at as u64, bytes, 1, 0]));
    // SAFETY: the kernel's struct.
    unsafe { ioctl(&uffd, Updater::<OP_API, _>::new(&mut api)) }.unwrap();
    // SAFETY: the kernel's struct, and the mapping above.
    unsafe { ioctl(&uffd, Updater::<OP_REGISTER, _>::new(&mut register)) }.unwrap();
    (uffd, at)
}

pub fn send(stream: &UnixStream, text: &str, descriptors: &[&OwnedFd]) {
    try_send(stream, text, descriptors).unwrap();
}

pub fn try_send(
    stream: &UnixStream,
    text: &str,
    descriptors: &[&OwnedFd],
) -> rustix::io::Result<usize> {
    use rustix::net::{SendAncillaryBuffer, SendAncillaryMessage, SendFlags, sendmsg};
    let descriptors: Vec<_> = descriptors.iter().map(|fd| fd.as_fd()).collect();
    let mut space = [std::mem::MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(8))];
    let mut control = SendAncillaryBuffer::new(&mut space);
    if !descriptors.is_empty() {
        assert!(control.push(SendAncillaryMessage::ScmRights(&descriptors)));
    }
    let parts = [std::io::IoSlice::new(text.as_bytes())];
    sendmsg(stream, &parts, &mut control, SendFlags::NOSIGNAL)
}

pub fn mapping(address: usize, size: u64, offset: u64, more: &str) -> String {
    format!(r#"{{"base_host_virt_addr":{address},"size":{size},"offset":{offset}{more}}}"#)
}

/// Waits until the server has closed the connection.
pub fn closed(mut stream: &UnixStream) -> String {
    let mut said = Vec::new();
    // A reset says as much as an end.
    let _ = stream.read_to_end(&mut said);
    String::from_utf8_lossy(&said).into_owned()
}
