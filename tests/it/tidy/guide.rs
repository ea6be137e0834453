//! The diffs of `CONTRIBUTING.md` apply to the tree: each changes a file that is there, part by part at the one place
//! that reads as it says, and what comes of it keeps the rules of names and imports what there is.

use std::collections::BTreeMap;
use std::path::Path;

use super::shape;
use super::source::Source;

/// The change of one file.
#[derive(Debug, PartialEq)]
struct FileDiff {
    path: String,
    /// It makes the file.
    is_new: bool,
    hunks: Vec<Hunk>,
}

/// A part of a change: its first line, and the lines of the file before and after it.
#[derive(Debug, PartialEq)]
struct Hunk {
    header: String,
    before: Vec<String>,
    after: Vec<String>,
}

#[test]
fn diffs_of_the_guide_apply_to_the_tree() {
    let (changed, faults) = applied(&guide());
    assert!(changed.len() > 15, "the guide has its diffs");
    assert!(faults.is_empty(), "CONTRIBUTING.md no longer fits the tree; write its diffs anew:\n{}", faults.join("\n"));
}

#[test]
fn tree_after_the_diffs_of_the_guide_names_its_types_as_the_tree_asks() {
    let (changed, _) = applied(&guide());
    let mut sources = Source::read_all(root(), &["src"], &["rs"]);
    sources.retain(|source| !changed.contains_key(&source.path));
    let rust = changed.iter().filter(|(path, _)| path.ends_with(".rs"));
    sources.extend(rust.map(|(path, text)| Source::new(path, text)));
    let faults = shape::shared_type_names(&sources);
    assert!(faults.is_empty(), "CONTRIBUTING.md:\n{}", faults.join("\n"));
}

#[test]
fn files_after_the_diffs_of_the_guide_import_what_there_is() {
    let (changed, _) = applied(&guide());
    let module = |path: &str| changed.get(path).cloned().or_else(|| std::fs::read_to_string(root().join(path)).ok());
    let rust = changed.iter().filter(|(path, _)| path.ends_with(".rs"));
    let faults: Vec<String> = rust.flat_map(|(path, text)| missing_imports(path, text, &module)).collect();
    assert!(faults.is_empty(), "CONTRIBUTING.md:\n{}", faults.join("\n"));
}

#[test]
fn diff_is_read_file_by_file_and_applied_part_by_part() {
    let guide = "```diff\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n@@ -4 +4,2 @@\n one\n+four\n\
                 --- /dev/null\n+++ b/src/b.rs\n@@ -0,0 +1,2 @@\n+new\n+\n```\n```sh\n-x\n```\n+none\n";
    let diffs = file_diffs(guide);
    let [change, addition] = &diffs[..] else { panic!("two files") };
    let lines = |lines: &[&str]| lines.iter().map(|line| (*line).to_owned()).collect::<Vec<_>>();
    let hunk = |header: &str, before: &[&str], after: &[&str]| Hunk {
        header: header.to_owned(),
        before: lines(before),
        after: lines(after),
    };
    let hunks = vec![
        hunk("@@ -1,2 +1,2 @@", &["one", "two"], &["one", "three"]),
        hunk("@@ -4 +4,2 @@", &["one"], &["one", "four"]),
    ];
    assert_eq!(*change, FileDiff { path: "src/a.rs".into(), is_new: false, hunks });
    assert_eq!(apply(change, Some("zero\none\ntwo\none\n")), Ok("zero\none\nthree\none\nfour\n".into()));
    assert_eq!(apply(addition, None), Ok("new\n\n".into()));
}

#[test]
fn diff_that_does_not_fit_is_found() {
    let diff = |hunks: &str| file_diffs(&format!("```diff\n--- a/a.rs\n+++ b/a.rs\n{hunks}```\n")).remove(0);
    let one = diff("@@ -1,2 +1,2 @@\n one\n-two\n+three\n");
    let fault = |diff: &FileDiff, text: Option<&str>| apply(diff, text).expect_err("a fault");
    assert_eq!(fault(&one, None), "a.rs: is not there");
    assert_eq!(fault(&one, Some("one\n2\n")), "a.rs: nowhere below line 0 stands\none\ntwo");
    let twice = fault(&one, Some("one\ntwo\none\ntwo\n"));
    assert_eq!(twice, "a.rs: stands more than once, and needs more context\none\ntwo");
    // the end of another line is no line
    assert!(fault(&one, Some("no one\ntwo\n")).contains("nowhere"));
    let backwards = diff("@@ -2 +2,2 @@\n two\n+b\n@@ -1 +1,2 @@\n one\n+a\n");
    assert_eq!(fault(&backwards, Some("one\ntwo\n")), "a.rs: nowhere below line 3 stands\none");
    let miscounted = diff("@@ -1,3 +1,2 @@\n one\n-two\n+three\n");
    assert_eq!(fault(&miscounted, Some("one\ntwo\n")), "a.rs: `@@ -1,3 +1,2 @@` stands above 2 lines that become 2");
    let new = file_diffs("```diff\n--- /dev/null\n+++ b/b.rs\n@@ -0,0 +1 @@\n+new\n```\n").remove(0);
    assert_eq!(fault(&new, Some("old\n")), "b.rs: is there already");
}

#[test]
fn import_of_what_is_not_there_is_found() {
    let module = |path: &str| (path == "src/a/b.rs").then(|| "pub struct Thing;\npub use c::Other;\n".to_owned());
    let missing = |text: &str| missing_imports("src/x.rs", text, &module);
    assert_eq!(missing("use crate::a::b::Thing;\nuse crate::a::b::{Other, Thing};\nuse serde::Serialize;\n"), [""; 0]);
    assert_eq!(missing("use crate::a::b::{Thin, Other};\n"), ["src/x.rs: there is no `Thin` in src/a/b.rs"]);
    assert_eq!(missing("use crate::a::d::Thing;\n"), ["src/x.rs: there is no src/a/d.rs"]);
}

fn root() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn guide() -> String {
    std::fs::read_to_string(root().join("CONTRIBUTING.md")).expect("the guide")
}

/// The files that the diffs of a document change or make, as they are then, and the faults of the diffs that do not
/// fit.
fn applied(document: &str) -> (BTreeMap<String, String>, Vec<String>) {
    let mut changed: BTreeMap<String, String> = BTreeMap::new();
    let mut faults = Vec::new();
    for diff in file_diffs(document) {
        let text = changed.get(&diff.path).cloned().or_else(|| std::fs::read_to_string(root().join(&diff.path)).ok());
        match apply(&diff, text.as_deref()) {
            Ok(text) => drop(changed.insert(diff.path, text)),
            Err(fault) => faults.push(fault),
        }
    }
    (changed, faults)
}

/// The file after a change, or why the change does not fit: each part stands below the one before, at exactly one
/// place.
fn apply(diff: &FileDiff, text: Option<&str>) -> Result<String, String> {
    let fault = |why: String| Err(format!("{}: {why}", diff.path));
    let mut lines: Vec<String> = match (text, diff.is_new) {
        (None, false) => return fault("is not there".into()),
        (Some(_), true) => return fault("is there already".into()),
        (text, _) => text.unwrap_or_default().lines().map(str::to_owned).collect(),
    };
    let mut next = 0;
    for Hunk { header, before, after } in &diff.hunks {
        if counts(header) != Some((before.len(), after.len())) {
            return fault(format!("`{header}` stands above {} lines that become {}", before.len(), after.len()));
        }
        let fits = |place: &usize| lines[*place..].starts_with(before);
        let places: Vec<usize> = (next..=lines.len()).filter(fits).collect();
        let place = match (&places[..], before.is_empty()) {
            ([place], false) => *place,
            (_, true) if diff.is_new => 0,
            ([], _) => return fault(format!("nowhere below line {next} stands\n{}", before.join("\n"))),
            _ => return fault(format!("stands more than once, and needs more context\n{}", before.join("\n"))),
        };
        lines.splice(place..place + before.len(), after.iter().cloned());
        next = place + after.len();
    }
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

/// How many lines the first line of a part says that there are before and after it.
fn counts(header: &str) -> Option<(usize, usize)> {
    let (before, after) = header.strip_prefix("@@ -")?.strip_suffix(" @@")?.split_once(" +")?;
    let count = |range: &str| range.split_once(',').map_or(Some(1), |(_, count)| count.parse::<usize>().ok());
    Some((count(before)?, count(after)?))
}

/// The changes in all diffs of a document, file by file.
fn file_diffs(document: &str) -> Vec<FileDiff> {
    let mut files: Vec<FileDiff> = Vec::new();
    let (mut is_diff, mut is_new) = (false, false);
    for line in document.lines() {
        if line.starts_with("```") {
            is_diff = line == "```diff";
        } else if !is_diff {
            continue;
        } else if line.starts_with("--- ") {
            is_new = line == "--- /dev/null";
        } else if let Some(path) = line.strip_prefix("+++ b/") {
            files.push(FileDiff { path: path.to_owned(), is_new, hunks: Vec::new() });
        } else if let Some(file) = files.last_mut() {
            read_line(file, line);
        }
    }
    files
}

/// Adds the first line of a part, or a line of the last one.
fn read_line(file: &mut FileDiff, line: &str) {
    if line.starts_with("@@") {
        file.hunks.push(Hunk { header: line.to_owned(), before: Vec::new(), after: Vec::new() });
        return;
    }
    let Some(hunk) = file.hunks.last_mut() else { return };
    let (mark, text) = line.split_at_checked(1).unwrap_or((" ", ""));
    if mark != "+" {
        hunk.before.push(text.to_owned());
    }
    if mark != "-" {
        hunk.after.push(text.to_owned());
    }
}

/// The imports of a file, one to a line and from this crate, whose module does not have the name. A name that a module
/// hands on stands in it, too.
fn missing_imports(path: &str, text: &str, module: &dyn Fn(&str) -> Option<String>) -> Vec<String> {
    let imports = text.lines().filter_map(|line| line.strip_prefix("use crate::")?.strip_suffix(';'));
    let mut faults = Vec::new();
    for (place, names) in imports.filter_map(|import| import.rsplit_once("::")) {
        // a list that has a path in it has lists of its own
        if place.contains('{') {
            continue;
        }
        let file = format!("src/{}.rs", place.replace("::", "/"));
        let Some(module) = module(&file) else {
            faults.push(format!("{path}: there is no {file}"));
            continue;
        };
        let words: Vec<&str> = module.split(|c: char| !(c.is_alphanumeric() || c == '_')).collect();
        // the name in the module stands before `as`
        let names = names.trim_matches(['{', '}']).split(',').filter_map(|name| name.split_whitespace().next());
        let missing = names.filter(|name| *name != "self" && !words.contains(name));
        faults.extend(missing.map(|name| format!("{path}: there is no `{name}` in {file}")));
    }
    faults
}
