//! Circles among a crate's modules, folder by folder.

use std::collections::{BTreeMap, BTreeSet, VecDeque};

use super::depend::Dependency;
use super::tree::Tree;

/// What the parts of one folder need of each other: its own file and each file and folder in it.
pub(super) type Needs<'a> = BTreeMap<(usize, usize), Vec<&'a Dependency>>;

/// The dependencies by the folder in which they show. A folder's own file stands there under the
/// folder's number; each other part under the number of its module.
pub(super) fn by_folder<'a>(
    tree: &Tree,
    all: &'a BTreeSet<Dependency>,
) -> BTreeMap<usize, Needs<'a>> {
    let mut folders: BTreeMap<usize, Needs<'a>> = BTreeMap::new();
    for dependency in all {
        let (from, to) = (tree.ancestry(dependency.from), tree.ancestry(dependency.to));
        let common = from.iter().zip(&to).take_while(|(a, b)| a == b).count();
        let folder = from[common - 1];
        let part = |line: &[usize]| line.get(common).copied().unwrap_or(folder);
        let needs = folders.entry(folder).or_default();
        needs.entry((part(&from), part(&to))).or_default().push(dependency);
    }
    folders
}

/// The circles of one folder, as large as they are: parts that all need each other in the end.
pub(super) fn circles(needs: &Needs) -> Vec<BTreeSet<usize>> {
    let parts: BTreeSet<usize> = needs.keys().flat_map(|&(from, to)| [from, to]).collect();
    let reach: BTreeMap<usize, BTreeMap<usize, usize>> =
        parts.iter().map(|&part| (part, steps(needs, part))).collect();
    let mut circles: Vec<BTreeSet<usize>> = Vec::new();
    for &part in &parts {
        let circle: BTreeSet<usize> = (parts.iter().copied())
            .filter(|other| reach[&part].contains_key(other) && reach[other].contains_key(&part))
            .collect();
        if !circle.is_empty() && !circles.contains(&circle) {
            circles.push(circle);
        }
    }
    circles
}

/// A shortest way around in `circle`: each part needs the next, and the last the first.
pub(super) fn shortest(needs: &Needs, circle: &BTreeSet<usize>) -> Vec<usize> {
    let &start =
        (circle.iter().min_by_key(|&&part| steps(needs, part)[&part])).expect("a circle has parts");
    let mut way = vec![start];
    let mut left = steps(needs, start)[&start];
    while left > 1 {
        left -= 1;
        let here = way[way.len() - 1];
        let next = (circle.iter().copied())
            .find(|&next| {
                needs.contains_key(&(here, next)) && steps(needs, next).get(&start) == Some(&left)
            })
            .expect("a way back has a next step");
        way.push(next);
    }
    way
}

/// How many steps from `start` to each part that it reaches, itself only by a circle.
fn steps(needs: &Needs, start: usize) -> BTreeMap<usize, usize> {
    let mut steps = BTreeMap::new();
    let mut queue = VecDeque::from([(start, 0)]);
    while let Some((part, so_far)) = queue.pop_front() {
        for &(_, to) in needs.keys().filter(|&&(from, _)| from == part) {
            if let std::collections::btree_map::Entry::Vacant(new) = steps.entry(to) {
                new.insert(so_far + 1);
                queue.push_back((to, so_far + 1));
            }
        }
    }
    steps
}
