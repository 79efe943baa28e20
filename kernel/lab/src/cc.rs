//! Compiles the guest's programs: once for each source, compiler, and command line.

use crate::proc;
use anyhow::{Context, Result};
use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::Path;
use std::process::Command;

/// The compiler's name and version.
///
/// # Errors
/// If there is no compiler.
pub(crate) fn version() -> Result<String> {
    let text = proc::output(Command::new("gcc").arg("--version"))?;
    Ok(text.lines().next().unwrap_or_default().to_string())
}

/// A hash of a text, for records that are only compared. Another release of the standard library
/// may give another hash; then what the text describes is built again.
pub(crate) fn hash(text: &str) -> String {
    let mut hasher = DefaultHasher::new();
    text.hash(&mut hasher);
    format!("{:016x}", hasher.finish())
}

/// Compiles `program` into `binary`, unless this command line has made `binary` from the same
/// `source` before.
///
/// # Errors
/// If the compiler fails; the error shows the end of its log.
pub(crate) fn compile(
    program: &str,
    source: &str,
    gcc: &mut Command,
    binary: &Path,
    log: &Path,
) -> Result<()> {
    let inputs = format!("{}\n{}\n{gcc:?}\n", version()?, hash(source));
    let record = binary.with_extension("inputs");
    if binary.is_file() && fs::read_to_string(&record).is_ok_and(|text| text == inputs) {
        return Ok(());
    }
    proc::run(&format!("compiling {program}"), gcc, log)?;
    fs::write(record, inputs).context("cannot record how a program was compiled")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn another_source_or_command_line_is_compiled_again() {
        let dir = tempfile::tempdir().unwrap();
        let (source, binary) = (dir.path().join("a.c"), dir.path().join("a"));
        let status = |text: &str, flag: &str| {
            fs::write(&source, text).unwrap();
            // In another checkout, the source may be older than the binary.
            fs::File::options()
                .write(true)
                .open(&source)
                .unwrap()
                .set_modified(std::time::UNIX_EPOCH)
                .unwrap();
            let mut gcc = Command::new("gcc");
            gcc.arg(flag).arg("-o").arg(&binary).arg(&source);
            compile("a", text, &mut gcc, &binary, &dir.path().join("log")).unwrap();
            Command::new(&binary).status().unwrap().code().unwrap()
        };
        assert_eq!(status("int main(void) { return X; }", "-DX=3"), 3);
        assert_eq!(status("int main(void) { return X; }", "-DX=4"), 4);
        assert_eq!(status("int main(void) { return X + 1; }", "-DX=4"), 5);
    }

    #[test]
    fn what_was_compiled_is_not_compiled_again() {
        let dir = tempfile::tempdir().unwrap();
        let binary = dir.path().join("a");
        let log = dir.path().join("log");
        let touch = |name: &str| {
            let mut touch = Command::new("touch");
            touch.arg(dir.path().join(name)).current_dir(dir.path());
            touch
        };
        compile("a", "source", &mut touch("a"), &binary, &log).unwrap();
        fs::remove_file(&log).unwrap();
        compile("a", "source", &mut touch("a"), &binary, &log).unwrap();
        assert!(!log.exists());
        compile("a", "other", &mut touch("a"), &binary, &log).unwrap();
        assert!(log.exists());
    }
}
