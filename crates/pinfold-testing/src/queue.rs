//! A source that keeps what is submitted to it until the test lets it go.
//!
//! Belongs here: what is on its way for as long as a test wants. One that is dropped with requests
//! ends them with an error, as any source does.

use std::borrow::Cow;
use std::io;
use std::sync::{Arc, Mutex};

use pinfold::source::{Extent, Memory, Request, Source, Start};

/// Where a request begins, and its bytes.
pub type Asked = (u64, usize);

/// The source. Reads that somebody waits for are not submitted, and do not wait.
#[derive(Debug)]
pub struct Queue {
    bytes: Memory,
    starts: Mutex<Vec<Vec<Asked>>>,
    kept: Mutex<Vec<Request>>,
}

impl Queue {
    /// One that has these bytes.
    pub fn new(bytes: Vec<u8>) -> Arc<Self> {
        let bytes = Memory::new(bytes);
        Arc::new(Queue { bytes, starts: Mutex::default(), kept: Mutex::default() })
    }

    /// Carries out all that it keeps.
    pub fn let_go(&self) {
        self.let_go_if(|_| true);
    }

    /// Carries out those that are `chosen`, and keeps the others.
    pub fn let_go_if(&self, chosen: impl Fn(Asked) -> bool) {
        self.end(chosen, |request| self.bytes.read_extents_at(request.offset(), request.extents()));
    }

    /// Ends all that it keeps with an error.
    pub fn fail(&self, cause: &str) {
        self.end(|_| true, |_| Err(io::Error::other(cause)));
    }

    /// The lock is free while they end: their completions may start others.
    fn end(&self, chosen: impl Fn(Asked) -> bool, result: impl Fn(&Request) -> io::Result<usize>) {
        let mut kept = self.kept.lock().unwrap();
        let all = std::mem::take(&mut *kept);
        let (ends, stays): (Vec<_>, _) =
            all.into_iter().partition(|request| chosen(asked(request)));
        *kept = stays;
        drop(kept);
        for request in ends {
            let result = result(&request);
            request.finish(result);
        }
    }

    /// What was submitted since the last call, each submission in the order of the file.
    pub fn started(&self) -> Vec<Vec<Asked>> {
        let mut starts = std::mem::take(&mut *self.starts.lock().unwrap());
        for start in &mut starts {
            start.sort_unstable();
        }
        starts
    }
}

fn asked(request: &Request) -> Asked {
    (request.offset(), request.extents().iter().map(Extent::bytes).sum())
}

impl Source for Queue {
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> io::Result<usize> {
        self.bytes.read_at(offset, buf)
    }
    fn len_bytes(&self) -> io::Result<u64> {
        self.bytes.len_bytes()
    }
    fn kind(&self) -> Cow<'static, str> {
        "queue".into()
    }
    fn start(&self, batch: &mut Vec<Request>) -> Start {
        self.starts.lock().unwrap().push(batch.iter().map(asked).collect());
        self.kept.lock().unwrap().append(batch);
        Start::Started
    }
}

#[cfg(test)]
mod tests {
    use pinfold::{Cache, Hint, Options};

    use super::*;

    #[test]
    fn what_is_kept_ends_as_the_test_wants_it() {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let queue = Queue::new(vec![7; 8 << 12]);
        let file = cache.attach("queue", queue.clone()).unwrap();
        file.advise(0..1, Hint::Random).unwrap();
        file.prefetch(&[5, 1, 3]).unwrap();
        assert_eq!(queue.started(), [[(1 << 12, 4096), (3 << 12, 4096), (5 << 12, 4096)]]);
        let cached = || [1, 3, 5].map(|page| file.try_get(page).unwrap().is_some());
        assert_eq!(cached(), [false; 3]);
        queue.let_go_if(|(offset, _)| offset == 3 << 12);
        assert_eq!(cached(), [false, true, false]);
        queue.fail("as the test wants it");
        assert_eq!((cached(), cache.stats().fills_in_flight), ([false, true, false], 0));
        file.prefetch(&[1]).unwrap();
        assert_eq!(queue.started(), [[(1 << 12, 4096)]]);
        queue.let_go();
        assert_eq!(cached(), [true, true, false]);
    }
}
