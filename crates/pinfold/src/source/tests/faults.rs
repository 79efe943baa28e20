//! What a source does wrong reaches the thread that asked, and is counted.

use std::time::Duration;

use super::*;
use crate::base::heap::HAS_NO_ROOM;
use crate::source::Memory;

const EIO: i32 = libc::EIO;

fn memory() -> Arc<Memory> {
    Arc::new(Memory::new(pattern(64 * PAGE)))
}

#[test]
fn short_reads_look_like_the_end() {
    let spoiled = Spoiled::new(memory(), |call, _, got| if call == 1 { Ok(100) } else { got });
    let backing = Backing::new(Arc::new(spoiled), pool_engine());
    let lent = Lent::filled(PAGE, 0xaa);
    assert_eq!(backing.read(0, &[lent.extent()]).unwrap(), 100);
    assert_eq!(lent.bytes()[..100], pattern(100));
    assert!(lent.bytes()[100..].iter().all(|byte| *byte == 0), "zeroed beyond the end");
    assert_eq!(backing.read(0, &[lent.extent()]).unwrap(), PAGE);
    assert_eq!(lent.bytes(), pattern(PAGE));
    let stats = backing.stats();
    assert_eq!((stats.read.calls, stats.read.short), (2, 1));
}

#[test]
fn a_torn_write_is_an_error_of_which_no_byte_counts() {
    let backing = Backing::new(Arc::new(Torn(memory())), pool_engine());
    let ones = Lent::filled(PAGE, 1);
    let torn = write(&backing, 0, &[ones.extent()]).unwrap_err();
    assert_eq!(torn.raw_os_error(), Some(EIO));
    let lent = Lent::filled(PAGE, 0xaa);
    assert_eq!(backing.read(0, &[lent.extent()]).unwrap(), PAGE);
    assert_eq!(lent.bytes()[..10], [1; 10]);
    assert_eq!(lent.bytes()[10..], pattern(PAGE)[10..]);
    let stats = backing.stats().write;
    assert_eq!((stats.calls, stats.errors, stats.bytes), (1, 1, 0));
}

#[test]
fn the_time_and_the_errors_of_reads_are_counted() {
    let spoiled = Spoiled::new(memory(), |call, _, got| {
        std::thread::sleep(Duration::from_millis(5) * call as u32);
        if call == 2 { Err(io::Error::from_raw_os_error(EIO)) } else { got }
    });
    let backing = Backing::new(Arc::new(spoiled), pool_engine());
    let lent = Lent::filled(PAGE, 0);
    backing.read(0, &[lent.extent()]).unwrap();
    let failed = backing.read(0, &[lent.extent()]).unwrap_err();
    assert_eq!(failed.raw_os_error(), Some(EIO));
    let read = backing.stats().read;
    assert!(read.total_ns >= 15_000_000 && read.max_ns >= 10_000_000, "{read:?}");
    assert_eq!((read.calls, read.errors), (2, 1));
}

#[test]
fn a_count_too_large_is_an_error_not_a_wild_write() {
    let engine = pool_engine();
    let spoiled = Spoiled::new(memory(), |_, _, got| Ok(got? + 7));
    let plain = Backing::new(Arc::new(Plain(Overlong)), Arc::clone(&engine));
    for backing in [Backing::new(Arc::new(spoiled), engine), plain] {
        let lent = Lent::filled(PAGE, 0);
        let cause = backing.read(0, &[lent.extent()]).unwrap_err();
        assert_eq!(cause.kind(), io::ErrorKind::InvalidData);
        assert!(cause.to_string().contains("4103 bytes where 4096 were asked for"), "{cause}");
        let (tell, told) = std::sync::mpsc::channel();
        backing.submit(&mut vec![request(0, PAGE, 1, &tell)]);
        assert_eq!(told.recv().unwrap().1.unwrap_err().kind(), io::ErrorKind::InvalidData);
    }
}

#[test]
fn the_default_vectored_calls_fail_where_the_heap_is_used_up() {
    let (torn, mut word) = (Torn(memory()), [0; 8]);
    HAS_NO_ROOM.set(true);
    let read = torn.read_extents_at(0, &[Extent::of(&mut word)]);
    let written = torn.write_extents_at(0, &[Extent::of(&mut word)]);
    HAS_NO_ROOM.set(false);
    assert_eq!(read.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
    assert_eq!(written.unwrap_err().kind(), io::ErrorKind::OutOfMemory);
}

/// Says 7 too many in the plain form.
#[derive(Debug)]
struct Overlong;

impl Source for Overlong {
    fn read_at(&self, _offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        Ok(buf.len() + 7)
    }

    fn len_bytes(&self) -> io::Result<u64> {
        Ok(1 << 20)
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "overlong".into()
    }
}

/// Writes ten bytes and then fails, as if power had failed.
#[derive(Debug)]
struct Torn(Arc<Memory>);

impl Source for Torn {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.0.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> io::Result<()> {
        self.0.write_at(offset, &buf[..10])?;
        Err(io::Error::from_raw_os_error(EIO))
    }

    fn len_bytes(&self) -> io::Result<u64> {
        self.0.len_bytes()
    }

    fn kind(&self) -> std::borrow::Cow<'static, str> {
        "torn".into()
    }
}
