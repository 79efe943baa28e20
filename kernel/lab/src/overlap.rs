//! Builds kernels one after the other, and boots each while the next one is built. A build keeps all
//! CPUs busy only while it compiles: not while it links, and not where few files have changed. And a
//! guest keeps one or two busy, so a whole kernel can be built beside guests.

use crate::failures::Failures;
use anyhow::{Result, anyhow};
use std::thread::{self, JoinHandle, ScopedJoinHandle};

/// Names for the copies of two images ([`crate::build::copied`]): while one kernel is booted from its
/// copy, the next one gets the other.
const COPIES: [&str; 2] = ["overlap-0", "overlap-1"];

/// Gives each item to `build`, with the name for a copy of the image, and what that returns to
/// `boot`, in a thread of its own. No two boots run at the same time.
///
/// # Errors
/// The first that comes, in the order of the items. The items after it are not booted.
pub(crate) fn builds_and_boots<I, B: Send>(
    items: impl IntoIterator<Item = I>,
    mut build: impl FnMut(I, &str) -> Result<B>,
    boot: impl Fn(B) -> Result<()> + Sync,
) -> Result<()> {
    let boot = &boot;
    thread::scope(|scope| {
        let mut booting = None;
        for (item, copy) in items.into_iter().zip(COPIES.into_iter().cycle()) {
            let built = build(item, copy);
            ended(booting.take())?;
            let built = built?;
            booting = Some(scope.spawn(move || boot(built)));
        }
        ended(booting)
    })
}

/// Waits for a boot, if there is one.
fn ended(boot: Option<ScopedJoinHandle<'_, Result<()>>>) -> Result<()> {
    boot.map_or(Ok(()), |boot| boot.join().unwrap_or_else(|_| Err(anyhow!("a boot panicked"))))
}

/// Runs one thing in a thread of its own, and another one beside it, each to its end.
///
/// # Errors
/// Those of both.
pub(crate) fn side_by_side(
    one: impl FnOnce() -> Result<()> + Send,
    other: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let (other, one) = thread::scope(|scope| {
        let one = scope.spawn(one);
        (other(), one.join().unwrap_or_else(|_| Err(anyhow!("a step panicked"))))
    });
    let mut failed = Failures::default();
    failed.of(other);
    failed.of(one);
    failed.end()
}

/// A build that other steps need not wait for. If the lab ends before it has, the build is killed:
/// what it runs ends with the thread that waits for it.
#[derive(Debug)]
pub(crate) struct Building(JoinHandle<Result<()>>);

impl Building {
    pub(crate) fn begin(build: impl FnOnce() -> Result<()> + Send + 'static) -> Self {
        Self(thread::spawn(build))
    }

    /// Waits for it.
    ///
    /// # Errors
    /// If it failed.
    pub(crate) fn end(self) -> Result<()> {
        self.0.join().unwrap_or_else(|_| Err(anyhow!("a build panicked")))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use anyhow::bail;
    use std::sync::Mutex;
    use std::sync::mpsc::sync_channel;

    #[test]
    fn each_is_booted_while_the_next_is_built() {
        let (second_is_built, wait) = sync_channel(0);
        let wait = Mutex::new(wait);
        let booted = Mutex::new(Vec::new());
        let mut copies = Vec::new();
        let build = |item: u32, copy: &str| {
            copies.push(copy.to_string());
            // This returns only if the first boot runs meanwhile.
            if item == 2 {
                second_is_built.send(()).unwrap();
            }
            Ok(item * 10)
        };
        let boot = |built| {
            if built == 10 {
                wait.lock().unwrap().recv().unwrap();
            }
            booted.lock().unwrap().push(built);
            Ok(())
        };
        builds_and_boots([1, 2, 3], build, boot).unwrap();
        assert_eq!(*booted.lock().unwrap(), [10, 20, 30]);
        assert_eq!(copies, [COPIES[0], COPIES[1], COPIES[0]]);
    }

    #[test]
    fn of_two_side_by_side_each_failure_is_told() {
        let (one_runs, wait) = sync_channel::<u32>(0);
        // Each waits for the other one.
        let one = move || bail!("one {}", wait.recv()?);
        let other = || Ok(one_runs.send(7)?);
        assert_eq!(side_by_side(one, other).unwrap_err().to_string(), "one 7");
        side_by_side(|| Ok(()), || Ok(())).unwrap();
        let both = side_by_side(|| panic!("a test"), || bail!("other")).unwrap_err().to_string();
        assert_eq!(both, "2 steps failed:\nother\na step panicked");
    }

    #[test]
    fn a_build_beside_other_steps_is_waited_for() {
        let (goes_on, wait) = sync_channel::<u32>(0);
        let building = Building::begin(move || bail!("build {}", wait.recv()?));
        // This returns only if the build runs meanwhile.
        goes_on.send(7).unwrap();
        assert_eq!(building.end().unwrap_err().to_string(), "build 7");
        Building::begin(|| Ok(())).end().unwrap();
        let panics = Building::begin(|| panic!("a test"));
        assert_eq!(panics.end().unwrap_err().to_string(), "a build panicked");
    }

    #[test]
    fn the_first_failure_ends_it() {
        let run = |no_build: u32, no_boot: u32| {
            let booted = Mutex::new(Vec::new());
            let build =
                |item, _: &str| if item == no_build { bail!("build {item}") } else { Ok(item) };
            let boot = |item| {
                booted.lock().unwrap().push(item);
                if item == no_boot {
                    bail!("boot {item}");
                }
                Ok(())
            };
            let error = builds_and_boots(1..=4, build, boot).unwrap_err().to_string();
            (error, booted.into_inner().unwrap())
        };
        assert_eq!(run(3, 0), ("build 3".to_string(), vec![1, 2]));
        assert_eq!(run(3, 2), ("boot 2".to_string(), vec![1, 2]));
        assert_eq!(run(0, 2), ("boot 2".to_string(), vec![1, 2]));
        assert_eq!(run(0, 4), ("boot 4".to_string(), vec![1, 2, 3, 4]));
        let error = builds_and_boots([1], |item, _| Ok(item), |_| panic!("a test")).unwrap_err();
        assert_eq!(error.to_string(), "a boot panicked");
    }
}
