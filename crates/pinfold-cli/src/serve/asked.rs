//! What connections ask the thread that serves faults for, and in which order it is done: each owner
//! in turn has one of its commands done, so that nobody waits for all that another one asks.

use std::collections::{HashMap, VecDeque};

/// What is asked, by who asks. A connection asks for one thing at a time, so there are not more than
/// there are connections.
#[derive(Debug)]
pub struct Asked<T> {
    queues: HashMap<u64, VecDeque<T>>,
    /// Those that have a queue, each once.
    turns: VecDeque<u64>,
}

impl<T> Default for Asked<T> {
    fn default() -> Self {
        Asked { queues: HashMap::new(), turns: VecDeque::new() }
    }
}

impl<T> Asked<T> {
    /// An owner asks for something.
    pub fn push(&mut self, owner: u64, command: T) {
        let queue = self.queues.entry(owner).or_insert_with(|| {
            self.turns.push_back(owner);
            VecDeque::new()
        });
        queue.push_back(command);
    }

    /// How many owners wait.
    pub fn owners(&self) -> usize {
        self.turns.len()
    }

    /// The owner whose turn it is. It has its next one after all others.
    pub fn next_owner(&mut self) -> Option<u64> {
        let owner = self.turns.pop_front()?;
        self.turns.push_back(owner);
        Some(owner)
    }

    /// The oldest thing that an owner has asked for.
    pub fn take(&mut self, owner: u64) -> Option<T> {
        let queue = self.queues.get_mut(&owner)?;
        let command = queue.pop_front();
        if queue.is_empty() {
            self.queues.remove(&owner);
            self.turns.retain(|&it| it != owner);
        }
        command
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_asks_for_much_makes_nobody_wait_for_all_of_it() {
        let mut asked = Asked::default();
        for n in 0..1000 {
            asked.push(1, n);
        }
        asked.push(2, 1000);
        asked.push(3, 1001);
        let mut done = Vec::new();
        while let Some(owner) = asked.next_owner() {
            done.extend(asked.take(owner));
        }
        assert_eq!(done[..4], [0, 1000, 1001, 1]);
        assert_eq!((done.len(), done[1001], asked.owners()), (1002, 999, 0));
    }
}
