//! The stress's mutants (feature `mutants`): the shipped code with one mutant of `mutant.rs` on, in
//! the whole process.
//!
//! Belongs here: choosing one by its name. Called by `tests/mutants.rs` and `pinfold stress --mutant`.

use crate::mutant::{self, Mutant};

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named(Mutant);

impl Named {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Named> {
        mutant::ALL.iter().map(|(mutant, _)| Named(*mutant))
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Named> {
        Named::all().find(|mutant| mutant.name() == name)
    }

    /// Like `no-last-look`.
    pub fn name(self) -> String {
        let mut name = String::new();
        for letter in format!("{:?}", self.0).chars() {
            if letter.is_uppercase() && !name.is_empty() {
                name.push('-');
            }
            name.extend(letter.to_lowercase());
        }
        name
    }

    /// Switches `mutant` on until the process ends, and with it, or alone, pauses between the steps of
    /// the protocols. Before the cache is opened.
    pub fn switch_on(mutant: Option<Named>) {
        mutant::switch_on(mutant.map(|mutant| mutant.0));
    }
}
