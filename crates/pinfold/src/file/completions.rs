//! Reads for a program with an event loop of its own. What has ended at once is kept until it is
//! taken; the others are in a [`Set`].

use std::collections::VecDeque;
use std::fmt;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, RawFd};
use std::sync::Arc;

use crate::access::futures::{Ready, Set};
use crate::error::Result;
use crate::file::File;
use crate::file::kept::FolioOf;

/// What has come of an operation that was begun with [`Completions`].
#[derive(Debug)]
#[non_exhaustive]
pub enum Completion {
    /// Of [`Completions::read_at`].
    Read {
        /// The buffer.
        buf: Vec<u8>,
        /// As of [`File::read_at`].
        result: Result<usize>,
    },
    /// Of [`Completions::get`]: the page; as of [`File::get`].
    Page(Result<FolioOf<Arc<File>>>),
    /// Of [`Completions::get_many`]: the pages; as of [`File::get_many_async`].
    Pages(Result<Vec<FolioOf<Arc<File>>>>),
}

/// Reads of files, for a program that waits by epoll(7), poll(2), or an `io_uring` of its own. The
/// descriptor is readable as long as something may have ended. The program then takes it, as from
/// an iterator, until there is nothing more *by now*; that never blocks. The first call after a
/// wait may find nothing, too: a batch wakes the program when a part of it has come.
///
/// ```
/// use pinfold::{Cache, Completion, Completions, Options, source::Memory};
/// use rustix::event::epoll;
/// use std::sync::Arc;
///
/// let cache = Cache::new(Options::new(8 << 20))?;
/// let file = Arc::new(cache.attach("table", Arc::new(Memory::new(vec![7; 100_000])))?);
/// let mut completions = Completions::new()?;
/// let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
/// let data = epoll::EventData::new_u64(0);
/// epoll::add(&epoll, &completions, data, epoll::EventFlags::IN).unwrap();
///
/// for request in 0..10 {
///     completions.read_at(&file, vec![0; 64], request * 10_000, request);
/// }
/// let mut answered = 0;
/// while answered < 10 {
///     let mut events = Vec::with_capacity(1);
///     epoll::wait(&epoll, rustix::buffer::spare_capacity(&mut events), None).unwrap();
///     for (_request, completion) in &mut completions {
///         let Completion::Read { buf, result } = completion else { panic!() };
///         assert!(result? == 64 && buf == [7; 64]);
///         answered += 1;
///     }
/// }
/// # Ok::<(), pinfold::Error>(())
/// ```
///
/// One thread at a time uses it. What is begun and not taken yet is given up by
/// [`cancel`](Self::cancel), and by the drop of the whole: a read that the source has begun goes
/// on, as for [dropped futures](crate#futures), but does not touch the buffer. In a child of
/// fork(2), what was begun by the parent never ends, and the descriptor is the parent's.
///
/// Cost beside that of the future: two allocations, a look into a map, and a mutex. The eventfd is
/// written once, and read once, between two times that nothing was there to take.
pub struct Completions {
    waiting: Set<u64, Operation>,
    /// What has ended at once, and was not taken.
    ended: VecDeque<(u64, Completion)>,
}

type Operation = dyn Future<Output = Completion> + Send;

impl Completions {
    /// Nothing to wait for yet.
    ///
    /// # Errors
    /// [`ErrorKind::System`](crate::ErrorKind::System): the system gives no descriptor.
    pub fn new() -> Result<Self> {
        Ok(Completions { waiting: Set::of(Ready::new()?), ended: VecDeque::new() })
    }

    /// Begins to copy bytes from `offset` on to `buf`, as [`File::read_at_async`]. The buffer comes
    /// back in the outcome, whose number is `user_data`: any number of the program's.
    pub fn read_at(&mut self, file: &Arc<File>, mut buf: Vec<u8>, offset: u64, user_data: u64) {
        let file = file.clone();
        self.begin(user_data, async move {
            let result = file.read_at_async(&mut buf, offset).await;
            Completion::Read { buf, result }
        });
    }

    /// Begins to get the page number `page`, as [`File::get_async`].
    pub fn get(&mut self, file: &Arc<File>, page: u64, user_data: u64) {
        let file = file.clone();
        self.begin(user_data, async move {
            let page = file.get_async(page).await;
            Completion::Page(page.map(|page| FolioOf::new(page, file.clone())))
        });
    }

    /// Begins to get all of `pages`, in their order and together, as [`File::get_many_async`].
    pub fn get_many(&mut self, file: &Arc<File>, pages: &[u64], user_data: u64) {
        let (file, pages) = (file.clone(), pages.to_vec());
        self.begin(user_data, async move {
            let pages = file.get_many_async(&pages).await;
            let kept = |page| FolioOf::new(page, file.clone());
            Completion::Pages(pages.map(|pages| pages.into_iter().map(kept).collect()))
        });
    }

    fn begin(&mut self, user_data: u64, future: impl Future<Output = Completion> + Send + 'static) {
        if let Some(ended) = self.waiting.begin(user_data, Box::pin(future)) {
            self.ended.push_back(ended);
            self.waiting.raise();
        }
    }

    /// Gives up all that was begun with this `user_data` and was not taken yet; returns how many.
    /// No completion with it comes any more, until the number is used again. Cost: a look at each.
    pub fn cancel(&mut self, user_data: u64) -> usize {
        let before = self.untaken();
        self.waiting.retain(|of| *of != user_data);
        self.ended.retain(|(of, _)| *of != user_data);
        before - self.untaken()
    }

    /// How much was begun and not taken yet. Feature `testing`.
    #[cfg(feature = "testing")]
    #[allow(clippy::len_without_is_empty, reason = "it is no collection")]
    pub fn len(&self) -> usize {
        self.untaken()
    }

    fn untaken(&self) -> usize {
        self.waiting.len() + self.ended.len()
    }
}

/// What has ended by now, with the `user_data` of each; after `None`, more may end.
impl Iterator for Completions {
    type Item = (u64, Completion);

    fn next(&mut self) -> Option<Self::Item> {
        self.ended.pop_front().or_else(|| self.waiting.next())
    }
}

/// Readable while something may have ended. Only [`Completions`] reads it.
impl AsFd for Completions {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.waiting.as_fd()
    }
}

impl AsRawFd for Completions {
    fn as_raw_fd(&self) -> RawFd {
        self.waiting.as_fd().as_raw_fd()
    }
}

impl fmt::Debug for Completions {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Completions")
            .field("waiting", &self.waiting.len())
            .field("ended", &self.ended.len())
            .finish_non_exhaustive()
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use std::sync::Arc;

    use rustix::event::{PollFd, PollFlags, Timespec};

    use super::{Completion, Completions};
    use crate::base::mutant::{self, Mutant};
    use crate::source::Memory;
    use crate::{Cache, Options};

    fn is_readable(completions: &Completions) -> bool {
        let mut fds = [PollFd::new(completions, PollFlags::IN)];
        let now = Timespec { tv_sec: 0, tv_nsec: 0 };
        rustix::event::poll(&mut fds, Some(&now)).unwrap() == 1
    }

    /// Whether the descriptor is readable as long as there is something to take, whoever adds it.
    fn readable_while_there_is_something() -> bool {
        let cache = Cache::new(Options::new(1 << 20)).unwrap();
        let file = cache.attach("file", Arc::new(Memory::new(vec![7; 9000]))).unwrap();
        let file = Arc::new(file);
        let mut completions = Completions::new().unwrap();
        assert!(!is_readable(&completions) && completions.next().is_none());
        file.get(0).unwrap();
        let mut right = true;
        for _ in 0..3 {
            // Two that are there at once.
            completions.get(&file, 0, 1);
            completions.read_at(&file, vec![0; 10], 0, 2);
            right &= is_readable(&completions);
            assert_eq!(completions.next().unwrap().0, 1);
            right &= is_readable(&completions);
            let (_, read) = completions.next().unwrap();
            assert!(matches!(read, Completion::Read { result: Ok(10), .. }), "{read:?}");
            assert!(completions.next().is_none() && !is_readable(&completions));
            // And the waker of one that is not there any more.
            completions.waiting.wake_nobody();
            right &= is_readable(&completions);
            assert!(completions.next().is_none() && !is_readable(&completions));
        }
        right
    }

    #[test]
    fn the_descriptor_is_readable_while_there_is_something_to_take() {
        assert!(readable_while_there_is_something());
        let caught =
            mutant::with(Some(Mutant::EventUnwritten), || !readable_while_there_is_something());
        assert!(caught, "the mutant does nothing");
    }
}
