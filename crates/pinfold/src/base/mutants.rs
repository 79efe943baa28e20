//! The stress's mutants (feature `mutants`): the shipped code with one mutant of `mutant.rs` on in
//! the whole process.
//!
//! Finds a mutant by its name.

use crate::base::mutant::{self, Mutant};

/// A deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Named(Mutant);

impl Named {
    /// All mutants.
    pub fn all() -> impl Iterator<Item = Named> {
        mutant::ALL.iter().map(|(mutant, _)| Named(*mutant))
    }

    /// The mutant with this name.
    pub fn find(name: &str) -> Option<Named> {
        Named::all().find(|mutant| mutant.name() == name)
    }

    /// Its name, such as `no-last-look`.
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

    /// Switches on pauses between the steps of the protocols, and `mutant` if there is one, until
    /// the process ends. Call it before a cache is made.
    pub fn switch_on(mutant: Option<Named>) {
        mutant::switch_on(mutant.map(|mutant| mutant.0));
    }
}
