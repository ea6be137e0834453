//! Circles of imports between files: none is wanted, because files in a circle can only be understood together.
//!
//! A file imports the file that defines a name. `pub use` hands a name on and is no import: the file that uses the name
//! imports the one that it comes from. A module that puts the parts in its own folder together imports none of them
//! in this sense; the parts may use what the module defines.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};

use super::source::Source;

/// One file as a module of the crate.
struct Module<'a> {
    file: &'a str,
    /// The name that stands for something else in this file, and the path that it stands for.
    names: HashMap<String, Vec<String>>,
    /// The names among these that other files may take from here.
    handed_on: HashSet<String>,
    /// Modules all of whose names are handed on.
    globs: Vec<Vec<String>>,
    /// Every path in the code that is not in a list of what is handed on.
    paths: BTreeSet<Vec<String>>,
}

/// The crate: its modules by their paths.
struct Crate<'a>(BTreeMap<Vec<String>, Module<'a>>);

/// The circles, each as a line with its files and what ties them.
pub fn circles(sources: &[Source]) -> Vec<String> {
    let tree = Crate::read(sources);
    let imports = tree.imports();
    let files: BTreeSet<&str> = imports.keys().copied().collect();
    let reached: BTreeMap<&str, BTreeSet<&str>> = files.iter().map(|file| (*file, reach(file, &imports))).collect();
    let mut told: BTreeSet<&str> = BTreeSet::new();
    let mut found = Vec::new();
    for file in &files {
        let is_tied = |other: &&&str| {
            reached[file].contains(**other) && reached.get(**other).is_some_and(|back| back.contains(file))
        };
        let circle: Vec<&str> = files.iter().filter(is_tied).copied().collect();
        if circle.is_empty() || told.contains(file) {
            continue;
        }
        told.extend(&circle);
        let ties = circle.iter().flat_map(|from| {
            let to = imports[from].iter().filter(|(to, _)| circle.contains(to));
            to.map(move |(to, names)| {
                format!("  {from} -> {to}: {}", names.iter().cloned().collect::<Vec<_>>().join(", "))
            })
        });
        found.push(format!("a circle of {} files:\n{}", circle.len(), ties.collect::<Vec<_>>().join("\n")));
    }
    found
}

type Imports<'a> = BTreeMap<&'a str, BTreeMap<&'a str, BTreeSet<String>>>;

fn reach<'a>(from: &str, imports: &Imports<'a>) -> BTreeSet<&'a str> {
    let mut reached = BTreeSet::new();
    let mut open = vec![from];
    while let Some(file) = open.pop() {
        for to in imports.get(file).into_iter().flat_map(BTreeMap::keys) {
            if reached.insert(*to) {
                open.push(to);
            }
        }
    }
    reached
}

impl<'a> Crate<'a> {
    fn read(sources: &'a [Source]) -> Crate<'a> {
        let of_crate = sources.iter().filter(|source| source.path.starts_with("src/") && source.path != "src/main.rs");
        Crate(of_crate.map(|source| (module_path(&source.path), Module::read(source))).collect())
    }

    fn imports(&self) -> Imports<'a> {
        let mut imports = Imports::new();
        for (path, module) in &self.0 {
            let of_file = imports.entry(module.file).or_default();
            for used in &module.paths {
                let Some((to, name)) = self.absolute(path, module, used).and_then(|used| self.definer(used, 0)) else {
                    continue;
                };
                if to != module.file && !is_part_of(to, module.file) {
                    of_file.entry(to).or_default().insert(name);
                }
            }
        }
        imports
    }

    /// The path from the root of the crate, if it leads into the crate.
    fn absolute(&self, here: &[String], module: &Module, path: &[String]) -> Option<Vec<String>> {
        let (first, rest) = path.split_first()?;
        let from = |base: &[String]| base.iter().chain(rest).cloned().collect::<Vec<_>>();
        match first.as_str() {
            "crate" => Some(rest.to_vec()),
            "self" => Some(from(here)),
            "super" => {
                let base = &here[..here.len().checked_sub(1)?];
                match rest.first().is_some_and(|next| next == "super") {
                    true => self.absolute(base, module, rest),
                    false => Some(from(base)),
                }
            }
            name => {
                let child: Vec<String> = here.iter().cloned().chain([name.to_owned()]).collect();
                if self.0.contains_key(&child) {
                    return Some(from(&child));
                }
                let stands_for = module.names.get(name).filter(|stands_for| stands_for[0] != *name)?;
                self.absolute(here, module, stands_for).map(|base| from(&base))
            }
        }
    }

    /// The file that defines what an absolute path names, and the name.
    fn definer(&self, path: Vec<String>, depth: usize) -> Option<(&'a str, String)> {
        if depth > 8 {
            return None;
        }
        let known = (0..=path.len()).rev().find(|length| self.0.contains_key(&path[..*length]))?;
        let module = &self.0[&path[..known]];
        let Some(name) = path.get(known) else {
            return (known > 0).then(|| (module.file, path[known - 1].clone()));
        };
        if module.handed_on.contains(name) {
            let from = module.names.get(name).filter(|from| **from != [name.clone()])?;
            let from = self.absolute(&path[..known], module, from);
            return from.and_then(|from| self.definer(from, depth + 1)).or(Some((module.file, name.clone())));
        }
        Some((module.file, name.clone()))
    }
}

impl<'a> Module<'a> {
    fn read(source: &'a Source) -> Module<'a> {
        let mut module = Module {
            file: &source.path,
            names: HashMap::new(),
            handed_on: HashSet::new(),
            globs: Vec::new(),
            paths: BTreeSet::new(),
        };
        let words = words(source.code_before_tests());
        let mut at = 0;
        while at < words.len() {
            if words[at] == "use" {
                let end = words[at..].iter().position(|word| *word == ";").map_or(words.len(), |length| at + length);
                let is_handed_on = at > 0 && (words[at - 1] == "pub" || words[at - 1] == ")");
                module.take_use(&words[at + 1..end], is_handed_on);
                at = end;
            } else if is_name(words[at]) && (at == 0 || words[at - 1] != "::") {
                let mut path = vec![words[at].to_owned()];
                while words.get(at + 1) == Some(&"::") && words.get(at + 2).is_some_and(|word| is_name(word)) {
                    path.push(words[at + 2].to_owned());
                    at += 2;
                }
                if path.len() > 1 {
                    module.paths.insert(path);
                }
            }
            at += 1;
        }
        module
    }

    fn take_use(&mut self, words: &[&str], is_handed_on: bool) {
        let mut leaves = Vec::new();
        leaves_of(words, &mut 0, &[], &mut leaves);
        for (path, name) in leaves {
            if is_handed_on {
                self.handed_on.insert(name.clone());
            } else {
                self.paths.insert(path.clone());
            }
            if name == "*" {
                self.globs.push(path);
            } else {
                self.names.insert(name, path);
            }
        }
    }
}

/// The paths of a `use`, each with the name that it has in the file: `a::{b, c as d}` → `a::b` as `b`, `a::c` as `d`.
fn leaves_of(words: &[&str], at: &mut usize, base: &[String], leaves: &mut Vec<(Vec<String>, String)>) {
    let mut path = base.to_vec();
    while *at < words.len() {
        match words[*at] {
            "::" => *at += 1,
            "{" => {
                *at += 1;
                while *at < words.len() && words[*at] != "}" {
                    leaves_of(words, at, &path, leaves);
                    if words.get(*at) == Some(&",") {
                        *at += 1;
                    }
                }
                *at += 1;
                return;
            }
            "," | "}" => break,
            "as" => {
                let name = words[*at + 1].to_owned();
                *at += 2;
                leaves.push((path, name));
                return;
            }
            "self" if path.len() > base.len() || !base.is_empty() => *at += 1,
            word => {
                path.push(word.to_owned());
                *at += 1;
            }
        }
    }
    if let Some(name) = path.last().cloned() {
        leaves.push((path, name));
    }
}

/// `src/store/tasks.rs` → `store::tasks`; `src/lib.rs` → the root.
fn module_path(file: &str) -> Vec<String> {
    let path = file.trim_start_matches("src/").trim_end_matches(".rs");
    if path == "lib" { Vec::new() } else { path.split('/').map(str::to_owned).collect() }
}

/// Whether a file lies in the folder of a module's file: `src/store/tasks.rs` in that of `src/store.rs`.
fn is_part_of(file: &str, module: &str) -> bool {
    let folder = module.trim_end_matches(".rs");
    file.strip_prefix(folder).is_some_and(|rest| rest.starts_with('/'))
}

/// Names, `::`, and every other sign by itself.
fn words(code: &str) -> Vec<&str> {
    let mut words = Vec::new();
    let mut at = 0;
    while let Some(c) = code[at..].chars().next() {
        let length = match c {
            c if is_part(c) => code[at..].find(|c| !is_part(c)).unwrap_or(code.len() - at),
            ':' if code[at..].starts_with("::") => 2,
            c => c.len_utf8(),
        };
        if !c.is_whitespace() {
            words.push(&code[at..at + length]);
        }
        at += length;
    }
    words
}

fn is_part(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

fn is_name(word: &str) -> bool {
    word.starts_with(|c: char| c.is_alphabetic() || c == '_')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn circle_is_found_through_names_that_are_handed_on_and_a_folder_may_use_its_own_module() {
        let sources = [
            Source::new("src/a.rs", "mod b;\nmod c;\npub use b::B;\npub struct A;\nfn f() { c::g(); }\n"),
            Source::new("src/a/b.rs", "use crate::a::c::C;\npub struct B(C);\n"),
            Source::new("src/a/c.rs", "use crate::a::{A, B};\npub struct C(A);\nfn g() -> B {}\n"),
        ];
        let found = circles(&sources);
        assert_eq!(found, ["a circle of 2 files:\n  src/a/b.rs -> src/a/c.rs: C\n  src/a/c.rs -> src/a/b.rs: B"]);
    }
}
