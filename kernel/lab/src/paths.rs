//! Where things are: the repository's `kernel/`, and the cache outside of it in
//! which sources are unpacked and kernels are built. Nothing else invents paths.

use crate::{Config, Tree};
use anyhow::{Context, Result, bail};
use std::env;
use std::fs;
use std::path::{Path, PathBuf};

/// The folders of one run of the lab.
#[derive(Debug, Clone)]
pub(crate) struct Paths {
    /// The repository's `kernel/` folder.
    pub(crate) kernel: PathBuf,
    /// `$PINFOLD_LAB_CACHE`, or `pinfold-lab` in the user's cache folder.
    pub(crate) cache: PathBuf,
}

impl Paths {
    /// Finds both folders and makes the cache.
    ///
    /// # Errors
    /// If neither `HOME` nor one of the cache variables is set, or the cache
    /// cannot be made.
    pub(crate) fn find() -> Result<Self> {
        let kernel = Path::new(env!("CARGO_MANIFEST_DIR"))
            .parent()
            .context("the lab lies in no folder")?
            .to_path_buf();
        if !kernel.join("litmus").is_dir() {
            bail!("{} is gone: the lab runs from the repository it was built in", kernel.display());
        }
        let cache = if let Some(dir) = env::var_os("PINFOLD_LAB_CACHE") {
            PathBuf::from(dir)
        } else if let Some(dir) = env::var_os("XDG_CACHE_HOME") {
            PathBuf::from(dir).join("pinfold-lab")
        } else {
            let home = env::var_os("HOME")
                .context("no place for the cache: set PINFOLD_LAB_CACHE, XDG_CACHE_HOME or HOME")?;
            PathBuf::from(home).join(".cache/pinfold-lab")
        };
        let paths = Paths { kernel, cache };
        for dir in ["src", "build", "guest", "log", "results"] {
            let dir = paths.cache.join(dir);
            fs::create_dir_all(&dir).with_context(|| format!("cannot make {}", dir.display()))?;
        }
        Ok(paths)
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
        self.cache.join("guest").join(name)
    }
}
