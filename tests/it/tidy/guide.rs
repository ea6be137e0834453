//! The diffs of `CONTRIBUTING.md` fit the tree: each changes a file that is there, at a place that reads as it says.

use std::path::Path;

use super::shape;
use super::source::Source;

/// A part of a diff: the file that it changes, and the lines that stand there before.
#[derive(Debug, PartialEq)]
struct Hunk {
    path: String,
    before: String,
}

#[test]
fn diffs_of_the_guide_fit_the_tree() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("the guide");
    let hunks = hunks(&guide);
    assert!(hunks.len() > 10, "the guide has its diffs");
    let faults: Vec<String> = hunks
        .iter()
        .filter_map(|hunk| fault(hunk, std::fs::read_to_string(root.join(&hunk.path)).ok().as_deref()))
        .collect();
    assert!(faults.is_empty(), "CONTRIBUTING.md no longer fits the tree; write its diffs anew:\n{}", faults.join("\n"));
}

#[test]
fn files_that_the_guide_adds_name_their_types_as_the_tree_asks() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let guide = std::fs::read_to_string(root.join("CONTRIBUTING.md")).expect("the guide");
    let mut sources = Source::read_all(root, &["src"], &["rs"]);
    let added = added_files(&guide);
    assert!(added.len() > 3, "the guide adds files");
    sources.extend(added.iter().map(|(path, text)| Source::new(path, text)));
    let faults = shape::shared_type_names(&sources);
    assert!(faults.is_empty(), "CONTRIBUTING.md:\n{}", faults.join("\n"));
}

#[test]
fn added_files_of_a_guide_are_read_whole() {
    let guide = "```diff\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1 +1 @@\n one\n+two\n--- /dev/null\n+++ b/src/b.rs\n\
                 @@ -0,0 +1,2 @@\n+new\n+\n--- /dev/null\n+++ b/src/c.rs\n@@ -0,0 +1 @@\n+other\n```\n+none\n";
    let file = |path: &str, text: &str| (path.to_owned(), text.to_owned());
    assert_eq!(added_files(guide), [file("src/b.rs", "new\n\n"), file("src/c.rs", "other\n")]);
}

#[test]
fn diff_that_does_not_fit_is_found() {
    let guide = "```diff\n--- a/src/a.rs\n+++ b/src/a.rs\n@@ -1,2 +1,2 @@\n one\n-two\n+three\n--- /dev/null\n+++ b/src/b.rs\n\
                 @@ -0,0 +1 @@\n+new\n```\n```sh\n-x\n```\n";
    let hunks = hunks(guide);
    assert_eq!(hunks, [Hunk { path: "src/a.rs".into(), before: "one\ntwo\n".into() }]);
    assert_eq!(fault(&hunks[0], Some("zero\none\ntwo\n")), None);
    assert_eq!(fault(&hunks[0], Some("one\n2\n")).as_deref(), Some("src/a.rs: nowhere stands\none\ntwo\n"));
    assert_eq!(fault(&hunks[0], None).as_deref(), Some("src/a.rs: is not there"));
}

fn fault(hunk: &Hunk, text: Option<&str>) -> Option<String> {
    match text {
        None => Some(format!("{}: is not there", hunk.path)),
        Some(text) if text.contains(&hunk.before) => None,
        Some(_) => Some(format!("{}: nowhere stands\n{}", hunk.path, hunk.before)),
    }
}

/// The files that the diffs of a document make, with their texts.
fn added_files(document: &str) -> Vec<(String, String)> {
    let mut files: Vec<(String, String)> = vec![];
    let (mut is_diff, mut is_new) = (false, false);
    for line in document.lines() {
        if line.starts_with("```") {
            (is_diff, is_new) = (line == "```diff", false);
        } else if is_diff && line.starts_with("--- ") {
            is_new = line == "--- /dev/null";
        } else if let Some(path) = line.strip_prefix("+++ b/").filter(|_| is_new) {
            files.push((path.to_owned(), String::new()));
        } else if let (true, Some(added), Some((_, text))) = (is_new, line.strip_prefix('+'), files.last_mut()) {
            text.push_str(added);
            text.push('\n');
        }
    }
    files
}

/// The parts of all diffs in a document, but for those that make a file.
fn hunks(document: &str) -> Vec<Hunk> {
    let mut hunks: Vec<Hunk> = vec![];
    let mut path = None;
    let mut is_diff = false;
    for line in document.lines() {
        match line.split_at_checked(1) {
            _ if line.starts_with("```") => is_diff = line == "```diff",
            _ if !is_diff || line.starts_with("+++ ") => {}
            _ if line.starts_with("--- ") => path = line.strip_prefix("--- a/").map(str::to_owned),
            _ if line.starts_with("@@") => {
                hunks.extend(path.clone().map(|path| Hunk { path, before: String::new() }));
            }
            Some((" " | "-", kept)) if path.is_some() => {
                if let Some(hunk) = hunks.last_mut() {
                    hunk.before += kept;
                    hunk.before.push('\n');
                }
            }
            _ => {}
        }
    }
    hunks
}
