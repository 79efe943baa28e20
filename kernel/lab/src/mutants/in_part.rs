//! Compiles a change of a header only into some of the objects that include it. A header of `mm` is
//! included nearly everywhere, so with all of them, the kernel would be compiled twice: with the
//! change, and without it again.
//!
//! Make goes by times. A changed header gets its old time back, and the sources that are to be
//! compiled get a new one, always in this order: first the sources, then the header. So if this ends
//! half-way, make compiles too much and not too little.

use anyhow::{Context, Result};
use std::fs::{self, File};
use std::path::Path;
use std::time::SystemTime;

/// The headers that change, and the sources that are compiled with the change. Without headers, make
/// decides.
#[derive(Debug, PartialEq)]
pub(super) struct InPart {
    pub(super) headers: Vec<String>,
    pub(super) sources: Vec<String>,
}

impl InPart {
    /// Changes a tree, builds it, and restores it, also if the build fails.
    ///
    /// # Errors
    /// If a step fails, or a time cannot be read or set.
    pub(super) fn changed_and_restored<B>(
        &self,
        tree: &Path,
        change: impl FnOnce() -> Result<()>,
        build: impl FnOnce() -> Result<B>,
        restore: impl FnOnce() -> Result<()>,
    ) -> Result<B> {
        let times = self.headers.iter().map(|header| time(&tree.join(header)));
        let times = times.collect::<Result<Vec<_>>>()?;
        let built = change().and_then(|()| self.compile_anew(tree, &times)).and_then(|()| build());
        restore()?;
        self.compile_anew(tree, &times)?;
        built
    }

    /// Has make compile the sources, and nothing else that includes the headers.
    fn compile_anew(&self, tree: &Path, times: &[SystemTime]) -> Result<()> {
        for source in &self.sources {
            set_time(&tree.join(source), SystemTime::now())?;
        }
        for (header, time) in self.headers.iter().zip(times) {
            set_time(&tree.join(header), *time)?;
        }
        Ok(())
    }
}

fn time(file: &Path) -> Result<SystemTime> {
    fs::metadata(file)
        .and_then(|of| of.modified())
        .with_context(|| format!("cannot read the time of {}", file.display()))
}

fn set_time(file: &Path, time: SystemTime) -> Result<()> {
    File::options()
        .write(true)
        .open(file)
        .and_then(|file| file.set_modified(time))
        .with_context(|| format!("cannot set the time of {}", file.display()))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::proc;
    use anyhow::bail;
    use std::process::Command;
    use std::thread;
    use std::time::Duration;

    const MAKEFILE: &str = "all: one two three
one: one.c it.h\n\tcat one.c it.h > one
two: two.c it.h\n\tcat two.c it.h > two
three: three.c\n\tcat three.c > three\n";

    /// A tree that is built from a header.
    fn tree() -> tempfile::TempDir {
        let dir = tempfile::tempdir().unwrap();
        for (name, text) in [
            ("Makefile", MAKEFILE),
            ("one.c", "1"),
            ("two.c", "2"),
            ("three.c", "3"),
            ("it.h", "a"),
        ] {
            fs::write(dir.path().join(name), text).unwrap();
        }
        make(dir.path()).unwrap();
        dir
    }

    /// What is built.
    fn make(tree: &Path) -> Result<String> {
        // Times that are too close may be equal.
        thread::sleep(Duration::from_millis(20));
        proc::output(Command::new("make").arg("-s").arg("-C").arg(tree))?;
        thread::sleep(Duration::from_millis(20));
        ["one", "two", "three"]
            .iter()
            .map(|name| Ok(fs::read_to_string(tree.join(name))?))
            .collect()
    }

    fn write(tree: &Path, text: &str) -> Result<()> {
        Ok(fs::write(tree.join("it.h"), text)?)
    }

    #[test]
    fn only_the_named_sources_are_compiled_with_it() {
        let dir = tree();
        let tree = dir.path();
        let in_part = InPart { headers: vec!["it.h".into()], sources: vec!["two.c".into()] };
        let run = |build: &dyn Fn() -> Result<String>| {
            in_part.changed_and_restored(tree, || write(tree, "b"), build, || write(tree, "a"))
        };
        assert_eq!(run(&|| make(tree)).unwrap(), "1a2b3");
        assert_eq!(make(tree).unwrap(), "1a2a3");
        // A build that fails after it has compiled leaves nothing behind, either.
        let failing = || {
            make(tree)?;
            bail!("a build")
        };
        assert_eq!(run(&failing).unwrap_err().to_string(), "a build");
        assert_eq!(make(tree).unwrap(), "1a2a3");
    }

    #[test]
    fn without_a_header_make_decides() {
        let dir = tree();
        let tree = dir.path();
        let in_part = InPart { headers: vec![], sources: vec![] };
        let build = || make(tree);
        let built =
            in_part.changed_and_restored(tree, || write(tree, "b"), build, || write(tree, "a"));
        assert_eq!(built.unwrap(), "1b2b3");
        assert_eq!(make(tree).unwrap(), "1a2a3");
    }

    #[test]
    fn what_is_not_there_is_named() {
        let dir = tree();
        let in_part = InPart { headers: vec!["no.h".into()], sources: vec!["two.c".into()] };
        let nothing = || Ok(());
        let error = in_part.changed_and_restored(dir.path(), nothing, nothing, nothing);
        assert!(error.unwrap_err().to_string().contains("no.h"));
    }
}
