//! The bare root itself: what apt has on this machine to reach its servers, and mmdebstrap.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use xshell::{Shell, cmd};

use super::jail::{Interrupted, Jail};

/// Keys, passwords and preferences. The root's own files of the same name stay.
const LENT: [&str; 8] = [
    "/etc/apt/trusted.gpg",
    "/etc/apt/trusted.gpg.d",
    "/etc/apt/keyrings",
    "/usr/share/keyrings",
    "/etc/apt/auth.conf",
    "/etc/apt/auth.conf.d",
    "/etc/apt/preferences",
    "/etc/apt/preferences.d",
];

/// Makes a root of essential packages, apt, and `packages`.
pub(super) fn make_root(
    sh: &Shell,
    suite: &str,
    packages: &[&str],
    root: &Path,
    interrupted: &Interrupted,
) -> Result<()> {
    let mut line = vec!["mmdebstrap".to_owned(), "--mode=root".into(), "--variant=apt".into()];
    line.push(format!("--include={}", packages.join(",")));
    // These hold in the root afterwards, too.
    for option in options(&cmd!(sh, "apt-config dump").quiet().read()?) {
        line.push(format!("--aptopt={option}"));
    }
    line.push(suite.to_owned());
    line.push(root.display().to_string());
    line.extend(sources(suite)?.iter().map(|file| file.display().to_string()));
    let line: Vec<_> = line.iter().map(String::as_str).collect();
    Jail::run(&line, interrupted)?;
    for file in LENT.map(Path::new).into_iter().filter(|file| file.exists()) {
        let into = root.join(file.parent().unwrap_or(file).strip_prefix("/")?);
        cmd!(sh, "cp -a --no-clobber {file} {into}").quiet().run()?;
    }
    // A proxy may have a certificate that only this machine knows.
    let certificates = Path::new("/etc/ssl/certs/ca-certificates.crt");
    if certificates.exists() {
        fs::create_dir_all(root.join("etc/ssl/certs"))?;
        fs::copy(certificates, root.join("etc/ssl/certs/ca-certificates.crt"))?;
    }
    for file in ["etc/hosts", "etc/resolv.conf"] {
        // It may be a link to what the root has not.
        let _ = fs::remove_file(root.join(file));
        fs::copy(Path::new("/").join(file), root.join(file))
            .with_context(|| format!("cannot copy /{file}"))?;
    }
    Ok(())
}

/// What of apt's configuration says how things are fetched: proxies, certificates, checks. Hooks
/// and programs are this machine's.
fn options(dump: &str) -> Vec<&str> {
    let about_fetching = |line: &&str| line.starts_with("Acquire::") && !line.ends_with(" \"\";");
    let is_program = |line: &&str| line.contains("Auto-Detect") || line.contains("AutoDetect");
    // Lists of compressors and index files are the same everywhere.
    let is_list = |line: &&str| line.contains("::CompressionTypes") || line.contains("::IndexTar");
    dump.lines().filter(about_fetching).filter(|l| !is_program(l) && !is_list(l)).collect()
}

/// The machine's lists of sources that have this suite; if there are none, mmdebstrap takes
/// Debian's own servers.
fn sources(suite: &str) -> Result<Vec<PathBuf>> {
    let mut files = vec![PathBuf::from("/etc/apt/sources.list")];
    if let Ok(folder) = fs::read_dir("/etc/apt/sources.list.d") {
        for entry in folder {
            files.push(entry?.path());
        }
    }
    files.sort();
    let has_suite = |file: &PathBuf| fs::read_to_string(file).is_ok_and(|t| names(&t, suite));
    files.retain(|file| is_list(file) && has_suite(file));
    Ok(files)
}

/// Whether apt would read it.
fn is_list(file: &Path) -> bool {
    file.extension().is_some_and(|extension| extension == "list" || extension == "sources")
}

/// Whether a list of sources names the suite, outside of remarks.
fn names(list: &str, suite: &str) -> bool {
    let lines = list.lines().filter(|line| !line.trim_start().starts_with('#'));
    lines.flat_map(str::split_whitespace).any(|word| word == suite)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_what_says_how_to_fetch_is_lent() {
        let dump = "APT \"\";\nAcquire \"\";\nAcquire::Check-Date \"false\";\n\
            Acquire::http::Proxy \"http://proxy:3142\";\nAcquire::http::Proxy-Auto-Detect \"/a\";\n\
            Acquire::IndexTargets::deb::DEP-11::MetaKey \"x\";\nDPkg::Post-Invoke:: \"rm x\";";
        assert_eq!(
            options(dump),
            ["Acquire::Check-Date \"false\";", "Acquire::http::Proxy \"http://proxy:3142\";"]
        );
    }

    #[test]
    fn a_list_has_the_suite_or_not() {
        let one_line = "deb http://packages.example/debian bookworm main\n";
        let stanza = "Types: deb\n# not bookworm\nSuites: trixie trixie-updates\n";
        assert!(names(one_line, "bookworm") && !names(one_line, "trixie"));
        assert!(names(stanza, "trixie") && !names(stanza, "bookworm"));
    }

    #[test]
    fn disabled_lists_are_not_read() {
        assert!(is_list(Path::new("debian.sources")) && is_list(Path::new("a.list")));
        assert!(!is_list(Path::new("a.list.disabled")) && !is_list(Path::new("README")));
    }
}
