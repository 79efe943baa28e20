//! Tests that have to fail with code that is broken on purpose.
#![cfg(feature = "mutants")]

use crate::again::again;

/// Runs tests of a module, of which `module` is the `module_path!()`, each with its mutant, up to
/// so many times until it fails: a race need not be met. Panics if it does not.
pub(crate) fn each_is_caught(module: &str, mutants: &[(&str, &str)], times: u32) {
    for (name, mutant) in mutants {
        // Ends: the range does.
        let caught = (0..times).any(|_| {
            let mut test = again(module, name);
            test.env("PINFOLD_MUTANT", mutant);
            !test.output().unwrap().status.success()
        });
        assert!(caught, "{name} does not fail with {mutant}");
    }
}
