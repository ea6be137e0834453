//! The rules of prose that a machine can keep: comments name their subject and cite files of this repository, and a
//! test is found by its subject.
//!
//! The comments of migrations are not read: a migration that has landed is never edited.

use std::collections::BTreeSet;
use std::path::Path;

use super::source::{Comment, Source};

/// Words that must not begin a sentence: they leave its subject unnamed.
const UNNAMED: [&str; 3] = ["Who", "Whoever", "Whose"];

/// Words that must not open a doc comment, which names what it describes.
const OPENINGS: [&[&str]; 2] = [&["The", "same"], &["What"]];

/// Beginnings of names that hide the subject of a test.
const NAMES: [&str; 2] = ["fn what_", "fn who_"];

/// Endings of files that comments cite.
const CITED: [&str; 3] = [".md", ".rs", ".sh"];

/// Files of users, which are read by these names.
const OF_USERS: [&str; 1] = ["SKILL.md"];

/// Folders of the root that hold no file of the repository.
const FOREIGN: [&str; 4] = [".git", ".venv", "target", "node_modules"];

/// Folders whose files pages name by their whole paths.
const ROOTED: [&str; 3] = ["`src/", "`tests/", "`../"];

/// Pages for people beside those in `docs/`.
const PAGES: [&str; 4] = ["README.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md"];

#[test]
fn comments_and_test_names_keep_the_rules_of_prose() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Source::read_all(root, &["src", "tests/it", "examples"], &["rs", "sql"]);
    sources.extend(Source::read_all(root, &["scripts"], &["sh"]));
    sources.push(Source::new(".ci/run", &std::fs::read_to_string(root.join(".ci/run")).expect("the script of CI")));
    assert!(["rs", "sql", "sh"].iter().all(|kind| sources.iter().any(|source| source.path.ends_with(kind))));
    let files = files(root);
    let found: Vec<String> = sources.iter().flat_map(|source| faults(source, &files)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn sentences_on_pages_and_in_messages_name_their_subject() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut sources = Source::read_all(root, &["docs", "src"], &["md", "html", "toml"]);
    sources.extend(PAGES.map(|page| Source::new(page, &std::fs::read_to_string(root.join(page)).expect("a page"))));
    assert!(["md", "html", "toml"].iter().all(|kind| sources.iter().any(|source| source.path.ends_with(kind))));
    let files = files(root);
    let found: Vec<String> = sources.iter().flat_map(|source| faults_of_page(source, &files)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn page_with_a_sentence_without_its_subject_is_found() {
    let files = BTreeSet::from(["src/domain/task.rs".to_owned()]);
    let found = |path: &str, text: &str| faults_of_page(&Source::new(path, text), &files).join("\n");
    let clean = "A run. It tells who waits: [task](../src/domain/task.rs).\n```\nWho waits.\n```\n| `Whose` |\n";
    assert_eq!(found("docs/a.md", clean), "");
    let gone = "docs/a.md:1: names `../src/task/gone.rs`, which is not in the repository";
    assert_eq!(found("docs/a.md", "See [it](../src/task/gone.rs)."), gone);
    for (path, text) in [
        ("docs/a.md", "A run.\nWho waits is told."),
        ("src/a.html", "<h1>Run</h1>\n<p>Who waits is told.</p>"),
        ("src/en.toml", "# words\nwaits = \"Who waits is told.\""),
    ] {
        assert_eq!(found(path, text), format!("{path}:2: a sentence begins with `Who`; name the subject"));
    }
}

/// The sentences without a subject on a page, or among the phrases of a language; blocks of code are not looked at.
fn faults_of_page(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
    let mut in_code = false;
    let mut lines = Vec::new();
    for (index, line) in source.raw.lines().enumerate() {
        let is_fence = line.trim_start().starts_with("```");
        in_code ^= is_fence;
        if !in_code && !is_fence {
            lines.push((index + 1, line.replace(['<', '>', '"'], " ")));
        }
    }
    let page = Comment { marker: "", lines };
    let mut found = unnamed(&page);
    let sources = citations(&page, files).into_iter();
    found.extend(sources.filter(|(_, fault)| ROOTED.iter().any(|folder| fault.contains(folder))));
    found.into_iter().map(|(line, fault)| format!("{}:{line}: {fault}", source.path)).collect()
}

#[test]
fn each_rule_of_prose_finds_a_planted_violation() {
    let files = BTreeSet::from(["docs/keys.md".to_owned(), "src/domain/task.rs".to_owned()]);
    let found = |path: &str, text: &str| faults(&Source::new(path, text), &files).join("\n");
    let clean = "//! Tasks: see `docs/keys.md` and `task.rs`'s lists, https://example.org/spec.md.\n\n\
        /// A task. It tells who waits, and of which kind; \"Whose\" is quoted.\n\
        fn overlap_skip_records_the_blocking_run() { let a = \"// Who\"; whoever(a); } // what is left\n";
    assert_eq!(found("src/domain/task.rs", clean), "");

    let unnamed = [
        ("src/domain/task.rs", "/// Who waits.\nfn f() {}", "1: a sentence begins with `Who`"),
        ("src/domain/task.rs", "fn f() {} // Whose it is.", "1: a sentence begins with `Whose`"),
        (
            "tests/it/api.rs",
            "//! A test.\n//!\n//! It ends. Whoever\n//! waits is told.",
            "3: a sentence begins with `Whoever`",
        ),
        ("src/domain/task.rs", "// Two ways. Of\n// which one is taken.", "1: a sentence begins with `Of which`"),
        ("src/store/sql/a.sql", "select 1\n-- Who is new.", "2: a sentence begins with `Who`"),
        ("scripts/test.sh", "#!/bin/sh\n# Whose it is.", "2: a sentence begins with `Whose`"),
    ];
    for (path, text, expected) in unnamed {
        assert_eq!(found(path, text), format!("{path}:{expected}; name the subject"), "{text}");
    }
    let opened = "opens with `The same`; name what it describes";
    assert_eq!(
        found("src/domain/task.rs", "/// The same, sorted.\nfn f() {}"),
        format!("src/domain/task.rs:1: {opened}")
    );
    assert_eq!(found("src/domain/task.rs", "// The same, sorted.\nfn f() {}"), "");
    assert_eq!(found("src/a.rs", "//! What waits."), "src/a.rs:1: opens with `What`; name what it describes");
    let named = "src/a.rs:2: a name begins with `what_` or `who_`; begin with the subject";
    assert_eq!(found("src/a.rs", "#[test]\nfn what_waits_is_told() {}"), named);
    assert_eq!(found("src/a.rs", "\n    async fn who_waits_is_told() {}"), named);
    let cited = "names `engine.md`, which is not in the repository";
    assert_eq!(found("src/a.rs", "/// Waits: `engine.md`, \"Policies\".\nfn f() {}"), format!("src/a.rs:1: {cited}"));
    assert_eq!(
        found("src/a.rs", "// see gone/task.rs\n"),
        "src/a.rs:1: names `gone/task.rs`, which is not in the repository"
    );
}

fn faults(source: &Source, files: &BTreeSet<String>) -> Vec<String> {
    let mut found = Vec::new();
    for comment in source.comments() {
        found.extend(unnamed(&comment));
        found.extend(opening(&comment));
        found.extend(citations(&comment, files));
    }
    if source.path.ends_with(".rs") {
        let hides = |line: &str| NAMES.iter().any(|name| line.contains(name));
        let lines = source.all_code_lines().filter(|(_, text)| hides(text));
        found.extend(
            lines.map(|(line, _)| (line, "a name begins with `what_` or `who_`; begin with the subject".into())),
        );
    }
    found.into_iter().map(|(line, fault): (usize, String)| format!("{}:{line}: {fault}", source.path)).collect()
}

/// The sentences without a subject. A capital letter tells that a word begins one; quoted words are not looked at.
fn unnamed(comment: &Comment) -> Vec<(usize, String)> {
    let words: Vec<(usize, &str)> =
        comment.words().map(|(line, word)| (line, word.trim_end_matches([',', ':', ';']))).collect();
    let fault = |line: usize, word: &str| (line, format!("a sentence begins with `{word}`; name the subject"));
    let single = words.iter().filter(|(_, word)| UNNAMED.contains(word)).map(|(line, word)| fault(*line, word));
    let pairs = words.windows(2).filter(|pair| (pair[0].1, pair[1].1) == ("Of", "which"));
    single.chain(pairs.map(|pair| fault(pair[0].0, "Of which"))).collect()
}

fn opening(comment: &Comment) -> Option<(usize, String)> {
    let line = comment.lines.first().map_or(0, |(line, _)| *line);
    let opens = |words: &[&str]| {
        comment
            .words()
            .map(|(_, word)| word.trim_end_matches([',', ':', ';']))
            .take(words.len())
            .eq(words.iter().copied())
    };
    let words = OPENINGS.iter().find(|words| comment.is_doc() && opens(words))?;
    Some((line, format!("opens with `{}`; name what it describes", words.join(" "))))
}

fn citations(comment: &Comment, files: &BTreeSet<String>) -> Vec<(usize, String)> {
    let mut found = Vec::new();
    for (line, text) in &comment.lines {
        for name in cited(text).filter(|name| !is_there(name, files)) {
            found.push((*line, format!("names `{name}`, which is not in the repository")));
        }
    }
    found
}

/// The names of files in a line, addresses aside.
fn cited(text: &str) -> impl Iterator<Item = &str> {
    let is_part = |c: char| c.is_ascii_alphanumeric() || "_-./".contains(c);
    let names = text.split(move |c| !is_part(c)).map(|word| word.trim_end_matches('.'));
    names.filter(|name| {
        CITED.iter().any(|ending| name.len() > ending.len() && name.ends_with(ending)) && !name.starts_with("//")
    })
}

/// Whether a file has this name, or a path that ends with it.
fn is_there(name: &str, files: &BTreeSet<String>) -> bool {
    let name = name.trim_start_matches("../");
    let is_of_users = OF_USERS.contains(&name);
    is_of_users
        || files.contains(name)
        || files.iter().any(|file| file.strip_suffix(name).is_some_and(|folder| folder.ends_with('/')))
}

/// The paths of all files below the root, with `/`.
fn files(root: &Path) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut folders = vec![root.to_owned()];
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(&folder).expect("a folder of the tree") {
            let path = entry.expect("an entry").path();
            let is_foreign = path.file_name().is_some_and(|name| FOREIGN.iter().any(|foreign| name == *foreign));
            match path.is_dir() {
                true if is_foreign => {}
                true => folders.push(path),
                false => found.extend(path.strip_prefix(root).ok().and_then(Path::to_str).map(str::to_owned)),
            }
        }
    }
    found
}
