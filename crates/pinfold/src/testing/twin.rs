//! The stress's broken twins (feature `flaws`): the shipped code with one flaw of `flaw.rs` on, in
//! the whole process.
//!
//! Belongs here: choosing one by its name. Called by `tests/twins.rs` and `pinfold stress --twin`.

use crate::flaw::{self, Flaw};

/// One deliberate mistake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Twin(Flaw);

impl Twin {
    /// All of them.
    pub fn all() -> impl Iterator<Item = Twin> {
        flaw::ALL.iter().map(|(flaw, _)| Twin(*flaw))
    }

    /// The one of this name.
    pub fn named(name: &str) -> Option<Twin> {
        Twin::all().find(|twin| twin.name() == name)
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

    /// Switches `twin` on until the process ends, and with it, or alone, pauses between the steps of
    /// the protocols. Before the cache is opened.
    pub fn switch_on(twin: Option<Twin>) {
        flaw::switch_on(twin.map(|twin| twin.0));
    }
}
