//! When the ring's thread wakes futures. Not under shuttle, where there is no `pinfold-testing`.

use std::sync::atomic::AtomicUsize;
use std::sync::mpsc::channel;
use std::time::Duration;

use pinfold_testing::waker::Counted;

use super::*;
use crate::base::mutant::{self, Mutant};
use crate::source::Start;
use crate::source::descriptor::Descriptor;
use crate::source::ring::ABSORBED_MAX;

const LEN: usize = 3_000_001;
const WAIT: Duration = Duration::from_secs(60);

/// How many reads at most had ended without the future being woken that waited for them, where each
/// turn of the ring's thread finds that more have ended.
fn most_unwoken() -> Option<usize> {
    const READS: usize = 1000;
    let directory = tempfile::tempdir().unwrap();
    // In the kernel's cache: what is read ends as it is submitted.
    let file = std::fs::File::open(file_of(directory.path(), LEN)).unwrap();
    let file = Descriptor { begins_at_once: true, ..Descriptor::of(file.into(), 1) };
    let options = EngineOptions { ring_depth: 4, ..EngineOptions::default() };
    let engine = Arc::new(Engine::new(options));
    let Ok(ring) = engine.ring.clone() else { return None };
    let (woken, waker) = Counted::waker();
    let (ended, most) = <(Arc<AtomicUsize>, Arc<AtomicUsize>)>::default();
    let (tell, told) = channel();
    let read = |_| {
        let (woken, waker) = (woken.clone(), waker.clone());
        let (ended, most) = (ended.clone(), most.clone());
        let (lent, tell) = (Lent::filled(PAGE, 0xaa), tell.clone());
        let extent = lent.extent();
        let end = move |result: io::Result<usize>| {
            assert_eq!(result.unwrap(), lent.bytes().len());
            let ended = ended.fetch_add(1, Ordering::SeqCst) + 1;
            most.fetch_max(ended - woken.times(), Ordering::SeqCst);
            crate::base::wait::wake(waker.clone());
            tell.send(()).unwrap();
        };
        // SAFETY: the completion owns the memory.
        unsafe { Request::read(0, vec![extent], Box::new(end)) }.awaited()
    };
    let mut batch: Vec<_> = (0..READS).map(read).collect();
    assert_eq!(ring.start(&Arc::new(file), &mut batch), Start::Started);
    (0..READS).for_each(|_| told.recv_timeout(WAIT).unwrap());
    drop((ring, engine)); // the ring's thread has woken all when it has ended
    assert_eq!(woken.times(), READS);
    Some(most.load(Ordering::SeqCst))
}

#[test]
fn futures_are_woken_however_many_reads_end() {
    let Some(most) = most_unwoken() else { return };
    assert!(most < ABSORBED_MAX + 4, "{most} had ended");
    // The kernel may have a read wait for one of its own threads: then a turn finds no more.
    let caught = mutant::with(Some(Mutant::AbsorbsAll), || {
        (0..100).any(|_| most_unwoken().is_some_and(|most| most >= ABSORBED_MAX + 4))
    });
    assert!(caught, "the mutant does nothing");
}
