//! All paths of the lab: the repository's `kernel/`, and the cache outside of it, in which
//! sources are unpacked and kernels are built.

use crate::kernels::{Config, Tree};
use anyhow::{Context, Result, bail};
use std::env;
use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

/// What guests boot from is in the first, and in the second for those that run beside others.
const GUESTS: &str = "guest";
const BESIDE: &str = "guest-beside";

/// The folders of one run of the lab.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// The repository's `kernel/` folder.
    pub(crate) kernel: PathBuf,
    /// `$PINFOLD_LAB_CACHE`, or `pinfold-lab` in the user's cache folder.
    pub(crate) cache: PathBuf,
    /// The folder in the cache for what guests boot from.
    guests: &'static str,
}

/// The cache's folder, from the first variable that is set and not empty.
fn cache(variable: impl Fn(&str) -> Option<OsString>) -> Result<PathBuf> {
    let set = |name| variable(name).filter(|value| !value.is_empty()).map(PathBuf::from);
    let dir = set("PINFOLD_LAB_CACHE")
        .or_else(|| Some(set("XDG_CACHE_HOME")?.join("pinfold-lab")))
        .or_else(|| Some(set("HOME")?.join(".cache/pinfold-lab")))
        .context("no folder for the cache: set PINFOLD_LAB_CACHE, XDG_CACHE_HOME or HOME")?;
    let dir = std::path::absolute(dir).context("cannot tell the current folder")?;
    if dir.to_string_lossy().contains([' ', '\t', '\n', ':']) {
        bail!(
            "the kernel's Makefile does not work in a folder with a space or a colon in its name, \
             such as {}: set PINFOLD_LAB_CACHE to another folder",
            dir.display()
        );
    }
    Ok(dir)
}

impl Paths {
    /// Finds both folders and makes the cache.
    ///
    /// # Errors
    /// If no variable names a folder for the cache, or the folder cannot be made, or the
    /// kernel's Makefile does not work in it.
    pub(crate) fn find() -> Result<Self> {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("kernel/lab has no parent folder")?
            .to_path_buf();
        if !kernel.join("litmus").is_dir() {
            bail!(
                "{} is gone: the lab works only in the repository that it was built in",
                kernel.display()
            );
        }
        let cache = cache(|name| env::var_os(name))?;
        let paths = Paths::new(kernel, cache);
        for dir in ["src", "build", GUESTS, BESIDE, "log", "results"] {
            let dir = paths.cache.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(paths)
    }

    /// The paths in these folders, which need not be there.
    pub(crate) fn new(kernel: impl Into<PathBuf>, cache: impl Into<PathBuf>) -> Self {
        Self { kernel: kernel.into(), cache: cache.into(), guests: GUESTS }
    }

    /// The same for guests that run beside others, and so boot from other files.
    pub(crate) fn beside(&self) -> Self {
        Self { guests: BESIDE, ..self.clone() }
    }

    pub(crate) fn source(&self, tree: Tree) -> PathBuf {
        self.cache.join("src").join(tree.name())
    }

    pub(crate) fn objects(&self, tree: Tree, config: Config) -> PathBuf {
        self.cache.join("build").join(format!("{}-{}", tree.name(), config.name()))
    }

    pub(crate) fn log(&self, name: &str) -> PathBuf {
        self.cache.join("log").join(format!("{name}.log"))
    }

    pub(crate) fn result(&self, name: &str) -> PathBuf {
        self.cache.join("results").join(format!("{name}.json"))
    }

    pub(crate) fn guest(&self, name: &str) -> PathBuf {
        self.cache.join(self.guests).join(name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cache_by(variables: &[(&str, &str)]) -> Result<PathBuf> {
        cache(|name| variables.iter().find(|(n, _)| *n == name).map(|(_, v)| (*v).into()))
    }

    #[test]
    fn the_first_variable_that_is_not_empty_counts() {
        let all = [("PINFOLD_LAB_CACHE", "/a"), ("XDG_CACHE_HOME", "/b"), ("HOME", "/c")];
        assert_eq!(cache_by(&all).unwrap(), Path::new("/a"));
        assert_eq!(cache_by(&all[1..]).unwrap(), Path::new("/b/pinfold-lab"));
        assert_eq!(cache_by(&all[2..]).unwrap(), Path::new("/c/.cache/pinfold-lab"));
        cache_by(&[]).unwrap_err();
        let empty = [("PINFOLD_LAB_CACHE", ""), ("XDG_CACHE_HOME", ""), ("HOME", "/c")];
        assert_eq!(cache_by(&empty).unwrap(), Path::new("/c/.cache/pinfold-lab"));
    }

    #[test]
    fn guests_side_by_side_share_no_file() {
        let paths = Paths::new("/kernel", "/cache");
        let beside = paths.beside();
        assert_ne!(paths.guest("root"), beside.guest("root"));
        assert_eq!(paths.log("x"), beside.log("x"));
    }

    #[test]
    fn the_cache_has_an_absolute_path_that_make_can_use() {
        let here = env::current_dir().unwrap();
        assert_eq!(cache_by(&[("PINFOLD_LAB_CACHE", "a")]).unwrap(), here.join("a"));
        for name in ["/a b", "/a:b"] {
            let error = cache_by(&[("PINFOLD_LAB_CACHE", name)]).unwrap_err().to_string();
            assert!(error.contains(name) && error.contains("PINFOLD_LAB_CACHE"), "{error}");
        }
    }
}
