//! The shape of the tree: folders of a size that can be looked over, types that have a name of their own, and few macros.

use std::collections::BTreeMap;
use std::path::Path;

use super::source::Source;

/// Most source files in one folder of `src`.
const FILES: usize = 20;
/// Most macros in `src/store`; the statements of both databases are functions over one transaction.
const STORE_MACROS: usize = 5;

/// Names of roles that sibling modules may each have a type for.
const ROLES: [&str; 10] =
    ["Settings", "Command", "Args", "Shared", "Rejection", "Arguments", "Row", "Error", "Shown", "Written"];

/// Folders with too many files.
pub fn crowded_folders(sources: &[Source]) -> Vec<String> {
    let mut files: BTreeMap<&Path, usize> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/")) {
        *files.entry(Path::new(&source.path).parent().expect("a folder")).or_default() += 1;
    }
    let crowded = files.into_iter().filter(|(_, count)| *count > FILES);
    crowded.map(|(folder, count)| format!("{}: has {count} files, {FILES} at most", folder.display())).collect()
}

/// Names that more than one type has.
pub fn shared_type_names(sources: &[Source]) -> Vec<String> {
    let mut places: BTreeMap<&str, Vec<String>> = BTreeMap::new();
    for source in sources.iter().filter(|source| source.path.starts_with("src/")) {
        for (line, name) in types(source) {
            places.entry(name).or_default().push(format!("{}:{line}", source.path));
        }
    }
    let is_role = |name: &str| ROLES.contains(&name) || name.len() > "Args".len() && name.ends_with("Args");
    let shared = places.into_iter().filter(|(name, places)| places.len() > 1 && !is_role(name));
    shared.map(|(name, places)| format!("`{name}` is {} types: {}", places.len(), places.join(", "))).collect()
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

/// The types that are declared in the modules of a file, its tests aside: not those in functions, and no associated types.
fn types(source: &Source) -> Vec<(usize, &str)> {
    let mut found = Vec::new();
    let mut in_words = false;
    for (number, line) in source.code_lines() {
        in_words = line == "words! {" || in_words && line != "}";
        // an enum of words stands in the macro that makes it
        let line = if in_words { line.trim_start() } else { line };
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
        found.push((number, &name[..end]));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shared_names_and_crowded_folders_are_found() {
        let one = Source::new(
            "src/a.rs",
            "//! A.\n\npub struct Seen;\nimpl X {\n    type Seen = u8;\n}\npub(super) enum Row {}\n",
        );
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
