//! One connection of a process at a time is heard. A thread that is not given a processor may hold
//! a lock of the allocator or of this process's memory, for which a thread that serves faults then
//! waits: so of a thousand connections of one process, one is such a thread.
//!
//! Who has passed the gate parses and allocates, and waits for nothing of the process's own.

use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};

/// Who is heard has it.
#[derive(Debug, Default)]
pub struct Gate(Mutex<()>);

impl Gate {
    /// Waits for the other connections of the process.
    pub fn pass(&self) -> MutexGuard<'_, ()> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The gates of all processes.
#[derive(Debug, Default)]
pub struct Gates(Mutex<HashMap<u64, Weak<Gate>>>);

impl Gates {
    /// That of the process `owner`: all its connections have one.
    pub fn of(&self, owner: u64) -> Arc<Gate> {
        let mut gates = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(gate) = gates.get(&owner).and_then(Weak::upgrade) {
            return gate;
        }
        gates.retain(|_, gate| gate.strong_count() > 0);
        let gate = Arc::default();
        gates.insert(owner, Arc::downgrade(&gate));
        gate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_process_has_one_gate_and_none_when_it_has_left() {
        let gates = Gates::default();
        let (one, same, other) = (gates.of(1), gates.of(1), gates.of(2));
        assert!(Arc::ptr_eq(&one, &same) && !Arc::ptr_eq(&one, &other));
        let passing = one.pass();
        assert!(same.0.try_lock().is_err());
        drop(other.pass());
        drop(passing);
        drop((one, same, other));
        let _third = gates.of(3);
        assert_eq!(gates.0.lock().unwrap().len(), 1);
    }
}
