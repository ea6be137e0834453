//! The shape of the tree: folders of a size that can be looked over, types that have a name of their own, and few
//! macros.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;

use super::source::Source;

/// Most source files in one folder of `src`.
const FILES: usize = 20;
/// Most macros in `src/store`; the statements of both databases are functions over one transaction.
const STORE_MACROS: usize = 5;

/// Names of roles that sibling modules may each have a type for, with the folder below which they may.
const ROLES: [(&str, &str); 6] = [
    ("Settings", "src"),
    ("Command", "src/cli"),
    ("Args", "src/cli"),
    ("Arguments", "src/ports/tool/builtin"),
    ("Shown", "src/domain/notification/recipient"),
    ("Written", "src/domain/notification/recipient"),
];

/// Names of roles that each module may have a type for, as long as no other module sees it.
const PRIVATE_ROLES: [&str; 2] = ["Row", "Shared"];

/// A type that a module declares.
struct DeclaredType<'a> {
    line: usize,
    name: &'a str,
    is_private: bool,
}

/// Folders with too many files.
pub fn crowded_folders(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&Path, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/")) {
        *files.entry(Path::new(&source.path).parent().expect("a folder")).or_default() += 1;
    }
    let crowded = files.into_iter().filter(|(_, count)| *count > FILES);
    crowded.map(|(folder, count)| format!("{}: has {count} files, {FILES} at most", folder.display())).collect()
}

/// Names that more than one type has, unless each of these types has a role by its name.
pub fn shared_type_names(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    let mut without_role: BTreeSet<&str> = BTreeSet::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/")) {
        for declared in types(source) {
            places.entry(declared.name).or_default().push(format!("{}:{}", source.path, declared.line));
            if !has_role(source, &declared) {
                without_role.insert(declared.name);
            }
        }
    }
    let shared = places.into_iter().filter(|(name, places)| places.len() > 1 && without_role.contains(name));
    shared.map(|(name, places)| format!("`{name}` is {} types: {}", places.len(), places.join(", "))).collect()
}

/// Whether the name of a type is that of a role, which types of other modules may have as well.
fn has_role(source: &Source, declared: &DeclaredType<'_>) -> bool {
    if PRIVATE_ROLES.contains(&declared.name) {
        return declared.is_private;
    }
    let is_role_here = |(role, folder): &(&str, &str)| {
        let is_named_so = declared.name == *role || *role == "Args" && declared.name.ends_with("Args");
        is_named_so && source.is_one_of(&[*folder])
    };
    ROLES.iter().any(is_role_here)
}

/// More macros in the store than there may be, and those that await.
pub fn store_macros(sources: &[Source]) -> Vec<String> {
    let of_store = sources.iter().filter(|source| source.is_one_of(&["src/store"]));
    let found: Vec<String> = of_store
        .flat_map(|source| {
            let lines = source.code_lines().filter(|(_, line)| line.trim_start().starts_with("macro_rules!"));
            lines.map(|(line, _)| format!("{}:{line}: a macro", source.path)).collect::<Vec<_>>()
        })
        .collect();
    let awaiting = sources.iter().filter(|source| source.is_one_of(&["src/store"])).flat_map(awaiting_macros);
    if found.len() > STORE_MACROS { found.into_iter().chain(awaiting).collect() } else { awaiting.collect() }
}

/// The macros of a file that hold awaited logic. A macro ends where a line closes it at the depth at which it began.
fn awaiting_macros(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    let mut begun: Option<(usize, usize)> = None;
    for (number, line) in source.code_lines() {
        let depth = line.len() - line.trim_start().len();
        match begun {
            None if line.trim_start().starts_with("macro_rules!") => match line.trim_end().ends_with('}') {
                true if line.contains(".await") => found.push(format!("{}:{number}: a macro that awaits", source.path)),
                true => {}
                false => begun = Some((number, depth)),
            },
            Some((first, _)) if line.contains(".await") => {
                found.push(format!("{}:{first}: a macro that awaits", source.path))
            }
            Some((_, outer)) if depth == outer && line.trim() == "}" => begun = None,
            _ => {}
        }
    }
    found
}

/// The types that are declared in the modules of a file, its tests aside: not those in functions, and no associated
/// types.
fn types(source: &Source) -> Vec<DeclaredType<'_>> {
    let mut found = Vec::new();
    let mut in_words = false;
    for (number, line) in source.code_lines() {
        in_words = line == "words! {" || in_words && line != "}";
        // an enum of words stands in the macro that makes it
        let line = if in_words { line.trim_start() } else { line };
        let is_private = !line.starts_with("pub");
        let declared = line.strip_prefix("pub ").unwrap_or(line);
        let declared = match declared.strip_prefix("pub(") {
            Some(rest) => rest.split_once(") ").map_or(declared, |(_, declared)| declared),
            None => declared,
        };
        let keyword =
            ["struct ", "enum ", "trait ", "type ", "union "].into_iter().find(|word| declared.starts_with(word));
        let Some(keyword) = keyword else { continue };
        let name = &declared[keyword.len()..];
        let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
        found.push(DeclaredType { line: number, name: &name[..end], is_private });
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roles_are_shared_below_their_folders_and_private_ones_where_no_other_module_sees_them() {
        let found = |files: [(&str, &str); 2]| {
            let sources = files.map(|(path, text)| Source::new(path, &format!("//! A.\n\n{text}\n")));
            shared_type_names(&sources)
        };
        for (one, other, text) in [
            ("src/http/a.rs", "src/engine/b.rs", "pub struct Settings;"),
            ("src/cli.rs", "src/cli/local/b.rs", "pub enum Command {}"),
            ("src/cli/a.rs", "src/cli/b.rs", "pub struct ListArgs;"),
            ("src/ports/tool/builtin/a.rs", "src/ports/tool/builtin/b.rs", "pub(super) struct Arguments;"),
            ("src/store/a.rs", "src/http/b.rs", "struct Shared(u8);"),
        ] {
            assert_eq!(found([(one, text), (other, text)]), Vec::<String>::new(), "{text}");
        }
        for (one, other, text, name) in [
            ("src/cli/a.rs", "src/http/b.rs", "pub enum Command {}", "Command"),
            ("src/cli/a.rs", "src/http/b.rs", "pub struct ListArgs;", "ListArgs"),
            ("src/ports/tool/builtin/a.rs", "src/http/b.rs", "struct Arguments;", "Arguments"),
            ("src/store/a.rs", "src/store/b.rs", "pub(super) struct Row;", "Row"),
            ("src/store/a.rs", "src/store/b.rs", "enum Error {}", "Error"),
        ] {
            let fault = format!("`{name}` is 2 types: {one}:3, {other}:3");
            assert_eq!(found([(one, text), (other, text)]), [fault]);
        }
        let seen = [("src/store/a.rs", "struct Row;"), ("src/store/b.rs", "pub struct Row;")];
        assert_eq!(found(seen), ["`Row` is 2 types: src/store/a.rs:3, src/store/b.rs:3"]);
    }

    #[test]
    fn shared_names_and_crowded_folders_are_found() {
        let one =
            Source::new("src/a.rs", "//! A.\n\npub struct Seen;\nimpl X {\n    type Seen = u8;\n}\nenum Row {}\n");
        let other = Source::new("src/b.rs", "//! B.\n\nstruct Seen(u8);\nstruct Row;\n");
        assert_eq!(shared_type_names(&[one, other]), ["`Seen` is 2 types: src/a.rs:3, src/b.rs:3"]);
        let many: Vec<Source> = (0..=FILES).map(|file| Source::new(&format!("src/x/f{file}.rs"), "")).collect();
        assert_eq!(crowded_folders(&many), ["src/x: has 21 files, 20 at most"]);
        let macros = "macro_rules! m { () => {}; }\n".repeat(STORE_MACROS + 1);
        assert_eq!(store_macros(&[Source::new("src/store/x.rs", &macros)]).len(), STORE_MACROS + 1);
        let awaiting =
            "macro_rules! m {\n    () => {\n        f().await\n    };\n}\nasync fn g() {\n    f().await;\n}\n";
        let found = store_macros(&[Source::new("src/store/x.rs", awaiting)]);
        assert_eq!(found, ["src/store/x.rs:1: a macro that awaits"]);
        let found = store_macros(&[Source::new("src/store/x.rs", "macro_rules! m { () => { f().await }; }\n")]);
        assert_eq!(found, ["src/store/x.rs:1: a macro that awaits"]);
    }
}
