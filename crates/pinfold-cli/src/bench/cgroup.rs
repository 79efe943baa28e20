//! A memory control group for one benchmark, which limits what the kernel keeps for its processes.
//!
//! Here: finding where a group may be made, version 2 first, then 1; making, entering and removing
//! it. The group is made below the one that this program is in, so that the program's limits still
//! hold, and no existing settings are changed.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result};

use crate::say;

/// The prefix of the names of our groups; the number of the process that made it follows.
const PREFIX: &str = "pinfold-bench-";

/// Tries to remove a group whose last process has just ended.
const REMOVE_TRIES: usize = 100;

/// Looks at what a group uses, before a sample begins in it.
const SETTLE_TRIES: usize = 100;

/// Which interface a hierarchy has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Version {
    One,
    Two,
}

/// A group below which one may be made.
#[derive(Debug, Clone, PartialEq, Eq)]
struct Parent {
    version: Version,
    dir: PathBuf,
}

/// A memory control group, removed when dropped.
#[derive(Debug)]
pub struct Group {
    version: Version,
    dir: PathBuf,
}

impl Group {
    /// Makes one with a limit. The error says why there is none, for all parents tried.
    pub fn make(limit_bytes: u64) -> Result<Self, String> {
        let read = |path| fs::read_to_string(path).unwrap_or_default();
        let parents = parents(&read("/proc/self/mountinfo"), &read("/proc/self/cgroup"));
        let mut refusals = Vec::new();
        for parent in parents {
            match Self::make_below(&parent, limit_bytes) {
                Ok(group) => return Ok(group),
                Err(why) => refusals.push(format!("{}: {why}", parent.dir.display())),
            }
        }
        if refusals.is_empty() {
            refusals.push("no control groups are mounted".to_owned());
        }
        Err(refusals.join("; "))
    }

    fn make_below(parent: &Parent, limit_bytes: u64) -> io::Result<Self> {
        if parent.version == Version::Two {
            let passed_on = fs::read_to_string(parent.dir.join("cgroup.subtree_control"))?;
            if !passed_on.split_whitespace().any(|controller| controller == "memory") {
                return Err(io::Error::other("it does not pass the memory controller on"));
            }
        }
        remove_stale(&parent.dir);
        let dir = parent.dir.join(format!("{PREFIX}{}", std::process::id()));
        fs::create_dir(&dir)?;
        let group = Group { version: parent.version, dir };
        group.limit(limit_bytes)?;
        if parent.version == Version::Two {
            // Absent where the kernel has no swap: then there is nothing to forbid.
            let _ = group.set("memory.swap.max", 0);
        }
        Ok(group)
    }

    fn set(&self, file: &str, bytes: u64) -> io::Result<()> {
        fs::write(self.dir.join(file), bytes.to_string())
    }

    /// Sets the limit.
    pub fn limit(&self, bytes: u64) -> io::Result<()> {
        let file = match self.version {
            Version::One => "memory.limit_in_bytes",
            Version::Two => "memory.max",
        };
        self.set(file, bytes)
    }

    /// How memory is limited, for people.
    pub fn kind(&self) -> &'static str {
        match self.version {
            Version::One => "cgroup v1",
            Version::Two => "cgroup v2",
        }
    }

    /// Waits, up to a limit, until the memory left by earlier processes is below this much.
    pub fn settle(&self, below_bytes: u64) {
        let file = match self.version {
            Version::One => "memory.usage_in_bytes",
            Version::Two => "memory.current",
        };
        for _ in 0..SETTLE_TRIES {
            let used = fs::read_to_string(self.dir.join(file)).unwrap_or_default();
            // Page tables of a process are given back some time after its end.
            if used.trim().parse::<u64>().is_ok_and(|used| used < below_bytes) {
                return;
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Its directory, to be [entered](enter).
    pub fn dir(&self) -> &Path {
        &self.dir
    }
}

impl Drop for Group {
    fn drop(&mut self) {
        for _ in 0..REMOVE_TRIES {
            match fs::remove_dir(&self.dir) {
                // The kernel is still cleaning up after the last process.
                Err(why) if why.kind() == io::ErrorKind::ResourceBusy => {
                    std::thread::sleep(Duration::from_millis(10));
                }
                _ => return,
            }
        }
        say::tell(format_args!("cannot remove {}: it is still in use", self.dir.display()));
    }
}

/// Puts the calling process into the group.
pub fn enter(dir: &Path) -> Result<()> {
    fs::write(dir.join("cgroup.procs"), std::process::id().to_string())
        .with_context(|| format!("cannot enter the control group {}", dir.display()))
}

/// Removes groups left by a process that was killed.
fn remove_stale(dir: &Path) {
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let owner = name.strip_prefix(PREFIX).and_then(|owner| owner.parse::<u32>().ok());
        if owner.is_some_and(|owner| !Path::new(&format!("/proc/{owner}")).exists()) {
            // The kernel refuses to remove one that is in use.
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// Where a group may be made, the best first: from `/proc/self/mountinfo` and `/proc/self/cgroup`.
fn parents(mountinfo: &str, own: &str) -> Vec<Parent> {
    let mut parents = Vec::new();
    for version in [Version::Two, Version::One] {
        let Some((root, mount)) = mountinfo.lines().find_map(|line| mounted(line, version)) else {
            continue;
        };
        let Some(group) = own.lines().find_map(|line| own_group(line, version)) else { continue };
        // In a container the path is the host's, and the mount is the container's own group.
        let below = Path::new(group).strip_prefix(root).unwrap_or(Path::new(""));
        let dir = Path::new(mount).join(below);
        // Version 2 keeps processes in leaves: where a group below ours cannot be made, one beside
        // it may work.
        let beside = dir.parent().filter(|_| version == Version::Two && below != Path::new(""));
        let beside = beside.map(Path::to_owned);
        parents
            .extend([Some(dir), beside].into_iter().flatten().map(|dir| Parent { version, dir }));
    }
    parents
}

/// Root and mount point, if the line of mountinfo is of the hierarchy with the memory controller.
fn mounted(line: &str, version: Version) -> Option<(&str, &str)> {
    let (mount, kind) = line.split_once(" - ")?;
    let mut kind = kind.split_whitespace();
    let fitting = match version {
        Version::One => {
            kind.next() == Some("cgroup")
                && kind.nth(1).is_some_and(|options| options.split(',').any(|o| o == "memory"))
        }
        Version::Two => kind.next() == Some("cgroup2"),
    };
    let mut mount = mount.split_whitespace().skip(3);
    fitting.then(|| Some((mount.next()?, mount.next()?))).flatten()
}

/// The group of this process, if the line of /proc/self/cgroup is of that hierarchy.
fn own_group(line: &str, version: Version) -> Option<&str> {
    let mut parts = line.splitn(3, ':');
    let (hierarchy, controllers) = (parts.next()?, parts.next()?);
    let fitting = match version {
        Version::One => controllers.split(',').any(|controller| controller == "memory"),
        Version::Two => hierarchy == "0" && controllers.is_empty(),
    };
    fitting.then(|| parts.next()).flatten()
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNIFIED: &str = "\
24 1 0:22 / /proc rw,nosuid - proc proc rw
31 30 0:27 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate";

    const BOTH: &str = "\
31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw
32 30 0:28 / /sys/fs/cgroup/cpu rw - cgroup cgroup rw,cpu
33 30 0:29 / /sys/fs/cgroup/memory rw - cgroup cgroup rw,memory";

    fn parent(version: Version, dir: &str) -> Parent {
        Parent { version, dir: dir.into() }
    }

    #[test]
    fn below_the_own_group_or_beside_it() {
        assert_eq!(
            parents(UNIFIED, "0::/user.slice/run.scope"),
            [
                parent(Version::Two, "/sys/fs/cgroup/user.slice/run.scope"),
                parent(Version::Two, "/sys/fs/cgroup/user.slice"),
            ]
        );
        assert_eq!(parents(UNIFIED, "0::/"), [parent(Version::Two, "/sys/fs/cgroup")]);
    }

    #[test]
    fn version_two_before_version_one() {
        assert_eq!(
            parents(BOTH, "9:cpu:/\n4:memory:/a/b\n0::/"),
            [
                parent(Version::Two, "/sys/fs/cgroup/unified"),
                parent(Version::One, "/sys/fs/cgroup/memory/a/b"),
            ]
        );
    }

    #[test]
    fn in_a_container_the_mount_itself() {
        let inside = "33 30 0:29 /docker/1f /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory";
        assert_eq!(
            parents(inside, "4:memory:/docker/1f"),
            [parent(Version::One, "/sys/fs/cgroup/memory")]
        );
        assert_eq!(
            parents(inside, "4:memory:/elsewhere"),
            [parent(Version::One, "/sys/fs/cgroup/memory")]
        );
    }

    #[test]
    fn nothing_is_found_in_nothing() {
        assert_eq!(parents("", ""), []);
        assert_eq!(parents("gibberish - \n - cgroup", "x\n4:memory"), []);
    }
}
