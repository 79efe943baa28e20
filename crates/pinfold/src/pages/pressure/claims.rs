//! What futures have a claim to: pages that they bring, and that are held until they are polled.
//!
//! A program may leak a future, or not poll it: its claim must not keep others waiting for ever. So
//! claims are counted by *rounds*, which end while futures queue. A future that is polled brings its
//! claim into the present round. Of claims of a round before the last, only as much counts as is
//! still being read: the rest is memory that the future holds, as a guard would.

use crate::base::mutant::{self, Mutant};
pub(super) use crate::base::sizes::ROUND;

/// Pages that one future brings.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Claim {
    pages: u32,
    /// In which its future was polled last.
    round: u32,
}

impl Claim {
    pub(super) fn new(pages: u32, round: u32) -> Self {
        Claim { pages, round }
    }

    pub(crate) fn pages(self) -> u32 {
        self.pages
    }

    pub(super) fn round(self) -> u32 {
        self.round
    }
}

/// The claims of some futures.
#[derive(Debug, Default)]
pub(super) struct Claims {
    /// Of this round and of the last one.
    young: [u32; 2],
    old: u32,
}

impl Claims {
    fn of(&mut self, round: u32, now: u32) -> &mut u32 {
        match now.wrapping_sub(round) {
            age @ (0 | 1) => &mut self.young[age as usize],
            _ => &mut self.old,
        }
    }

    pub(super) fn add(&mut self, claim: Claim, now: u32) {
        *self.of(claim.round, now) += claim.pages;
    }

    pub(super) fn take(&mut self, claim: Claim, now: u32) {
        *self.of(claim.round, now) -= claim.pages;
    }

    /// A round has ended.
    pub(super) fn grow_old(&mut self) {
        let [this, last] = self.young;
        self.old += last;
        self.young = [0, this];
    }

    pub(super) fn all(&self) -> u32 {
        self.young[0] + self.young[1] + self.old
    }

    /// What they count for, while so many pages are on their way: of these futures, or of others.
    pub(super) fn counted(&self, on_their_way: u32) -> u32 {
        let young = self.young[0] + self.young[1];
        let old_counts = mutant::on(Mutant::UnpolledKeepsClaim);
        let most = if old_counts { u32::MAX } else { on_their_way };
        young.max(self.all().min(most))
    }
}
