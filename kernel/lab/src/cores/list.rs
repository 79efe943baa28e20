//! What a program lists: its cases, their mutants, and what in it is not the kernel's.

use super::table::{Stub, Unit};
use anyhow::{Context, Result, bail};

/// Code that is broken on purpose.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Mutant {
    pub(crate) name: String,
    /// What the check says that has to notice it.
    pub(crate) complaint: String,
}

/// A case, as the program lists it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Case {
    pub(crate) name: String,
    pub(crate) unit: Unit,
    pub(crate) least_workers: usize,
    /// The name of a second figure: how often a second its freezer was done.
    pub(crate) second: Option<String>,
    pub(crate) mutants: Vec<Mutant>,
}

/// What a program lists.
#[derive(Debug, Default)]
pub(crate) struct List {
    pub(crate) cases: Vec<Case>,
    /// What `kernel/cores` writes out itself of the kernel.
    pub(crate) own: Vec<Stub>,
    pub(crate) stubs: Vec<Stub>,
    pub(crate) features: Vec<Feature>,
}

/// A feature of CPUs for which the kernel patches its code when it boots, and the program knows
/// what to do.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Feature {
    pub(crate) number: u16,
    pub(crate) what: Stub,
}

/// # Errors
/// If a line means nothing, a mutant has no complaint, or a case has no mutant.
pub(crate) fn parse(text: &str) -> Result<List> {
    let mut known = Vec::new();
    for line in text.lines() {
        if let ["mutant", name, complaint @ ..] = &line.split_whitespace().collect::<Vec<_>>()[..] {
            known.push(Mutant { name: (*name).to_string(), complaint: complaint.join(" ") });
        }
    }
    let mutant = |name: &str| {
        let found = known.iter().find(|m| m.name == name && !m.complaint.is_empty());
        found.cloned().with_context(|| format!("nothing says how {name} is noticed"))
    };
    let List { mut cases, mut own, mut stubs, mut features } = List::default();
    for line in text.lines() {
        match line.split_whitespace().collect::<Vec<_>>()[..] {
            ["case", name, unit, least, second, ref mutants @ ..] => cases.push(Case {
                name: name.to_string(),
                unit: Unit::of(unit)?,
                least_workers: least.parse().with_context(|| line.to_string())?,
                second: (second != "-").then(|| second.to_string()),
                mutants: mutants.iter().map(|m| mutant(m)).collect::<Result<_>>()?,
            }),
            ["mutant", ..] => {}
            [kind @ ("own" | "stub"), name, ref what @ ..] => {
                let list = if kind == "own" { &mut own } else { &mut stubs };
                list.push(Stub { name: name.to_string(), what: what.join(" ") });
            }
            ["feature", number, name, ref what @ ..] => features.push(Feature {
                number: number.parse().with_context(|| line.to_string())?,
                what: Stub { name: name.to_string(), what: what.join(" ") },
            }),
            _ => bail!("the program lists `{line}`"),
        }
    }
    if let Some(case) = cases.iter().find(|c| c.mutants.is_empty()) {
        bail!("no mutant shows that {} is checked", case.name);
    }
    Ok(List { cases, own, stubs, features })
}

/// # Errors
/// If a symbol is stubbed and not named, or the other way round.
pub(crate) fn all_are_named(symbols: &[String], stubs: &[Stub]) -> Result<()> {
    let unnamed = symbols.iter().find(|s| !stubs.iter().any(|n| n.name == **s));
    let gone = stubs.iter().find(|n| !symbols.contains(&n.name)).map(|n| &n.name);
    match unnamed.or(gone) {
        Some(name) => bail!("{name} is not both a symbol of stubs.c and in its list"),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIST: &str = "case one-folio ops/s 1 - lost-put extra-put\n\
                        case mixed ns 2 splits no-freeze\n\
                        mutant lost-put references left\nmutant extra-put folios destroyed\n\
                        mutant no-freeze folios got\nown g() by hand\nstub f frees nothing\n\
                        feature 308 smap not done\n";

    #[test]
    fn cases_and_stubs_are_listed() {
        let List { cases, own, stubs, features } = parse(LIST).unwrap();
        let what = Stub { name: "smap".into(), what: "not done".into() };
        assert_eq!(features, [Feature { number: 308, what }]);
        assert_eq!(own, [Stub { name: "g()".into(), what: "by hand".into() }]);
        assert_eq!(stubs, [Stub { name: "f".into(), what: "frees nothing".into() }]);
        let mutants: Vec<_> = cases[0].mutants.iter().map(|m| &m.name[..]).collect();
        assert_eq!(mutants, ["lost-put", "extra-put"]);
        assert_eq!(cases[0].mutants[1].complaint, "folios destroyed");
        assert_eq!((cases[0].unit, &cases[0].second), (Unit::OpsPerS, &None));
        assert_eq!((cases[1].unit, cases[1].least_workers), (Unit::Ns, 2));
        assert_eq!(cases[1].second.as_deref(), Some("splits"));
    }

    #[test]
    fn a_list_that_proves_nothing_is_an_error() {
        let error = |text: &str| parse(text).unwrap_err().to_string();
        assert_eq!(error("case a ns 1 -\n"), "no mutant shows that a is checked");
        assert_eq!(error("case a ns 1 - m\n"), "nothing says how m is noticed");
        assert_eq!(error("case a ns 1 - m\nmutant m\n"), "nothing says how m is noticed");
        assert_eq!(error("something\n"), "the program lists `something`");
        parse("case a s 1 - m\nmutant m x\n").unwrap_err();
        parse("feature smap 308\n").unwrap_err();
    }

    #[test]
    fn a_stub_without_a_name_is_an_error() {
        let stubs = parse(LIST).unwrap().stubs;
        let named = |symbols: &[&str]| {
            all_are_named(&symbols.iter().map(|s| (*s).to_string()).collect::<Vec<_>>(), &stubs)
        };
        named(&["f"]).unwrap();
        assert!(named(&["f", "g"]).unwrap_err().to_string().contains('g'));
        named(&[]).unwrap_err();
    }
}
