//! The modules of one crate as they are written: which names each has and which paths it mentions.

use std::collections::{HashMap, HashSet};
use std::ops::RangeInclusive;
use std::path::PathBuf;

/// A crate's modules. The first is the root.
#[derive(Debug, Default)]
pub(super) struct Tree {
    pub(super) modules: Vec<Module>,
}

/// One module, with a file of its own or written in its parent's.
#[derive(Debug)]
pub(super) struct Module {
    pub(super) name: String,
    pub(super) parent: Option<usize>,
    /// The module that has the file in which this one is written: itself, if it isn't inline.
    pub(super) owner: usize,
    pub(super) file: PathBuf,
    pub(super) names: HashMap<String, Vec<Bound>>,
    pub(super) globs: Vec<Import>,
    pub(super) mentions: Vec<Mention>,
    /// What patterns bind: a lone word of these is a variable.
    pub(super) variables: HashSet<String>,
    pub(super) methods: Vec<Methods>,
    pub(super) types: Vec<Type>,
    /// The text of its file, of a module that has one, and which of its lines are left out.
    pub(super) text: String,
    pub(super) left_out: Vec<RangeInclusive<usize>>,
}

impl Module {
    /// The lines of its file that are not left out, each with its number.
    pub(super) fn lines(&self) -> impl Iterator<Item = (usize, &str)> {
        let all = self.text.lines().enumerate().map(|(n, line)| (n + 1, line));
        all.filter(|(n, _)| !self.left_out.iter().any(|out| out.contains(n)))
    }
}

/// What a name stands for in a module.
#[derive(Debug)]
pub(super) enum Bound {
    Item,
    Module(usize),
    Import(Import),
}

#[derive(Debug)]
pub(super) struct Import {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    /// Whether others may import it from here: `pub use`, `pub(crate) use` and the like.
    pub(super) public: bool,
}

/// A path in code, or the name of a method that is called.
#[derive(Debug)]
pub(super) struct Mention {
    pub(super) path: Vec<String>,
    pub(super) line: usize,
    pub(super) is_method: bool,
}

/// A type, trait or alias that a module defines, also inside of a function.
#[derive(Debug)]
pub(super) struct Type {
    pub(super) name: String,
    pub(super) line: usize,
}

/// The functions of an `impl` or of a trait.
#[derive(Debug)]
pub(super) struct Methods {
    /// The type, for an `impl` without a trait.
    pub(super) of: Option<Vec<String>>,
    pub(super) names: Vec<String>,
}

impl Tree {
    pub(super) fn add(
        &mut self,
        name: &str,
        parent: Option<usize>,
        file: Option<PathBuf>,
    ) -> usize {
        let id = self.modules.len();
        let (owner, file) = match (file, parent) {
            (Some(file), _) => (id, file),
            (None, Some(parent)) => {
                let parent = &self.modules[parent];
                (parent.owner, parent.file.clone())
            }
            (None, None) => unreachable!("a root has a file"),
        };
        if let Some(parent) = parent {
            let names = &mut self.modules[parent].names;
            names.entry(name.to_owned()).or_default().push(Bound::Module(id));
        }
        self.modules.push(Module {
            name: name.to_owned(),
            parent,
            owner,
            file,
            names: HashMap::new(),
            globs: Vec::new(),
            mentions: Vec::new(),
            variables: HashSet::new(),
            methods: Vec::new(),
            types: Vec::new(),
            text: String::new(),
            left_out: Vec::new(),
        });
        id
    }

    /// From the root down to `module`.
    pub(super) fn ancestry(&self, module: usize) -> Vec<usize> {
        let mut line: Vec<usize> =
            std::iter::successors(Some(module), |&m| self.modules[m].parent).collect();
        line.reverse();
        line
    }

    pub(super) fn is_below(&self, module: usize, above: usize) -> bool {
        module != above && self.ancestry(module).contains(&above)
    }
}
