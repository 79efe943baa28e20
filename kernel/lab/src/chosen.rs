//! What is chosen by name on the command line.

use anyhow::{Result, bail};

/// Those with these names, or all if there are no names. `what` is what one of them is called.
///
/// # Errors
/// If there is none with one of the names.
pub(crate) fn chosen<T>(
    what: &str,
    all: Vec<T>,
    name: impl Fn(&T) -> &str,
    names: &[String],
) -> Result<Vec<T>> {
    if let Some(unknown) = names.iter().find(|n| all.iter().all(|one| name(one) != **n)) {
        let known: Vec<_> = all.iter().map(&name).collect();
        bail!("no {what} `{unknown}`; there are {}", known.join(", "));
    }
    let is_chosen = |one: &T| names.is_empty() || names.iter().any(|n| n == name(one));
    Ok(all.into_iter().filter(is_chosen).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_chosen_or_those_that_are_named() {
        let chosen = |names: &[&str]| {
            let names: Vec<_> = names.iter().map(|name| (*name).to_string()).collect();
            chosen("case", vec![("a", 1), ("b", 2), ("b", 3)], |one| one.0, &names)
        };
        assert_eq!(chosen(&[]).unwrap(), [("a", 1), ("b", 2), ("b", 3)]);
        assert_eq!(chosen(&["b"]).unwrap(), [("b", 2), ("b", 3)]);
        let error = chosen(&["b", "c"]).unwrap_err().to_string();
        assert_eq!(error, "no case `c`; there are a, b, b");
    }
}
