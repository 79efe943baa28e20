//! Which of several servers has a socket.

#[allow(clippy::multiple_unsafe_ops_per_block, reason = "tests")]
mod ground;

use std::os::unix::net::UnixListener;
use std::process::{Child, Stdio};
use std::time::Instant;

use rustix::io::Errno;
use rustix::net::{
    AddressFamily, SocketAddrUnix, SocketFlags, SocketType, bind, connect, listen, socket_with,
};
use rustix::process::{Pid, Signal, kill_process};

use ground::*;

fn start(ground: &Ground) -> Child {
    let mut serve = pinfold("serve");
    serve.arg(ground.snapshot()).arg("--socket").arg(ground.socket());
    serve.stderr(Stdio::piped()).spawn().unwrap()
}

/// What a server says that does not serve.
fn refused(mut server: Child) -> String {
    let deadline = Instant::now() + LIMIT;
    // Ends: with the server, or with the time.
    while server.try_wait().unwrap().is_none() {
        if Instant::now() >= deadline {
            server.kill().unwrap();
            panic!("it waits: {:?}", server.wait_with_output());
        }
        std::thread::yield_now();
    }
    let output = server.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(1), "{output:?}");
    String::from_utf8(output.stderr).unwrap()
}

#[test]
fn of_many_servers_at_a_stale_socket_one_serves() {
    let ground = Ground::new(MIB);
    for round in 0..8 {
        drop(UnixListener::bind(ground.socket())); // the file stays
        let mut servers: Vec<Child> = (0..6).map(|_| start(&ground)).collect();
        let deadline = Instant::now() + LIMIT;
        let mut ended = Vec::new();
        while ended.len() < 5 {
            assert!(Instant::now() < deadline, "{} of 6 serve in round {round}", servers.len());
            let is_over = |server: &mut Child| server.try_wait().unwrap().is_some();
            ended.extend(servers.extract_if(.., is_over));
            std::thread::yield_now();
        }
        let why = format!("another server (pid {}) has this socket", servers[0].id());
        for server in ended {
            let said = refused(server);
            assert!(said.contains(&why), "{said}");
        }
        result(ground.restore(&[]));
        for mut server in servers {
            server.kill().unwrap();
            server.wait().unwrap();
        }
    }
}

/// Connects until the listener's queue is full.
fn fill_queue(ground: &Ground) -> Vec<std::os::fd::OwnedFd> {
    let mut all = Vec::new();
    // Ends: a queue has an end.
    loop {
        let flags = SocketFlags::NONBLOCK | SocketFlags::CLOEXEC;
        let one = socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None).unwrap();
        match connect(&one, &SocketAddrUnix::new(ground.socket()).unwrap()) {
            Ok(()) => all.push(one),
            Err(Errno::AGAIN) => return all,
            Err(why) => panic!("{why}"),
        }
    }
}

#[test]
fn a_server_that_stands_still_makes_no_other_wait() {
    let ground = Ground::new(MIB);
    let server = ground.serve(&[]);
    let pid = Pid::from_raw(server.child.id().cast_signed()).unwrap();
    kill_process(pid, Signal::STOP).unwrap();
    let queue = fill_queue(&ground);
    let said = refused(start(&ground));
    let why = format!("another server (pid {}) has this socket", server.child.id());
    assert!(said.contains(&why), "{said}");
    drop((queue, server));

    // Another program, which has no such lock, and takes no connection.
    std::fs::remove_file(ground.socket()).unwrap();
    let other =
        socket_with(AddressFamily::UNIX, SocketType::STREAM, SocketFlags::CLOEXEC, None).unwrap();
    bind(&other, &SocketAddrUnix::new(ground.socket()).unwrap()).unwrap();
    listen(&other, 0).unwrap();
    let said = refused(start(&ground));
    let why = format!("another server (pid {}) has this socket", std::process::id());
    assert!(said.contains(&why), "{said}");
    let queue = fill_queue(&ground);
    let said = refused(start(&ground));
    assert!(said.contains("another server has this socket"), "{said}");
    drop(queue);
}
