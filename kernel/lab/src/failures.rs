//! What failed of several steps, where one that fails does not end the others.

use anyhow::{Result, bail};

/// What failed of several steps, none of which needs another one.
#[derive(Debug, Default)]
pub(crate) struct Failures(Vec<String>);

impl Failures {
    /// Notes the failure of a step, if it failed.
    pub(crate) fn of(&mut self, step: Result<()>) {
        self.0.extend(step.err().map(|error| format!("{error:#}")));
    }

    /// # Errors
    /// All failures, if a step failed.
    pub(crate) fn end(self) -> Result<()> {
        match self.0.as_slice() {
            [] => Ok(()),
            [one] => bail!("{one}"),
            all => bail!("{} steps failed:\n{}", all.len(), all.join("\n")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_step_that_fails_is_told() {
        let failing = |what: &[&str]| {
            let mut failed = Failures::default();
            for what in what {
                failed.of(Ok(()));
                failed.of(Err(anyhow::anyhow!("{what}").context("step")));
            }
            failed.end().map_err(|error| error.to_string())
        };
        assert_eq!(failing(&[]), Ok(()));
        assert_eq!(failing(&["a"]).unwrap_err(), "step: a");
        assert_eq!(failing(&["a", "b"]).unwrap_err(), "2 steps failed:\nstep: a\nstep: b");
    }
}
