//! Files that are closed and have mirrors.
//!
//! A mirror is a memfd: a descriptor, and addresses. What is cached of a closed file stays, and its
//! mirror with it. So few of these files stay cached: otherwise a program that maps and closes many
//! would run out of descriptors long before the cache is full.

use std::collections::VecDeque;

use crate::base::sync::locks::Mutex;

/// How many of them stay cached.
const MOST: usize = 32;

/// Numbers of files, in the order in which they were closed. A number may be another file's by now.
#[derive(Debug, Default)]
pub(crate) struct ClosedFiles(Mutex<VecDeque<u32>>);

impl ClosedFiles {
    /// The file with the number `id` was closed. Returns one that has to go.
    pub(crate) fn add(&self, id: u32) -> Option<u32> {
        let mut closed = self.0.lock();
        closed.retain(|&other| other != id);
        closed.push_back(id);
        if closed.len() > MOST { closed.pop_front() } else { None }
    }
}

#[cfg(all(test, not(any(loom, shuttle))))]
mod tests {
    use super::*;

    #[test]
    fn who_was_closed_first_goes_first() {
        let closed = ClosedFiles::default();
        let most = MOST as u32;
        assert!((0..most).all(|id| closed.add(id).is_none()));
        assert_eq!(closed.add(0), None, "it was closed again");
        assert_eq!(closed.add(most), Some(1));
        assert_eq!(closed.add(most + 1), Some(2));
    }
}
