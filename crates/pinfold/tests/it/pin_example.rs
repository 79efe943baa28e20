//! Runs the example that sends pinned pages to a socket, and checks that the receiver got them.

#[path = "../../examples/pin_to_socket.rs"]
#[allow(dead_code, reason = "its `main` is called by the tests")]
mod pin_to_socket;

/// Whether there are rings here at all: some containers forbid them, and then there is nothing to
/// see.
fn rings() -> bool {
    match io_uring::IoUring::new(1) {
        Ok(_) => true,
        Err(why) => {
            println!("skipped: no io_uring here: {why}");
            false
        }
    }
}

#[test]
fn a_file_goes_to_a_socket_from_where_it_is_cached() {
    if !rings() {
        return;
    }
    let dir = tempfile::tempdir_in(env!("CARGO_TARGET_TMPDIR")).unwrap();
    let path = pin_to_socket::make(&dir.path().join("numbers")).unwrap();
    // Not a whole number of pages.
    let length = 8 * 1024 * 1024 - 777;
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length).unwrap();
    let expected = std::fs::read(&path).unwrap();
    let (sender, receiver) = pin_to_socket::pair().unwrap();
    let check = std::thread::spawn(move || pin_to_socket::compare(receiver, &expected));
    let sent = pin_to_socket::send(&path, sender).unwrap();
    check.join().unwrap().unwrap();
    assert_eq!(sent.bytes, length);
    assert!((2..=20).contains(&sent.buffers), "8 MiB: {sent:?}");
    println!("{sent:?}");
}

#[test]
fn the_receiver_notices_a_wrong_byte_and_a_missing_one() {
    let told = |sent: &[u8], expected: &[u8]| {
        let (mut sender, receiver) = pin_to_socket::pair().unwrap();
        std::io::Write::write_all(&mut sender, sent).unwrap();
        drop(sender);
        pin_to_socket::compare(receiver, expected).map_err(|error| error.to_string())
    };
    assert_eq!(told(b"12345", b"12345"), Ok(()));
    assert_eq!(told(b"12x45", b"12345"), Err("byte 2 is not the file's".to_owned()));
    assert_eq!(told(b"1234", b"12345"), Err("4 bytes came of 5".to_owned()));
}
