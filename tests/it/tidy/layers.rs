//! Layers of imports. The table is the one of the architecture; a module that is not in it fails.

use super::source::Source;

/// Time, ids and other things without I/O of the product.
const L0: &[&str] = &[
    "clock",
    "collections",
    "compute",
    "expr",
    "failpoint",
    "field",
    "id",
    "invalid",
    "json",
    "limiter",
    "metrics",
    "redact",
    "backoff",
    "secret",
    "signature",
    "template",
    "threads",
    "token",
    "unicode_safety",
    "words",
];
/// The domain: data and transitions.
const L1: &[&str] = &[
    "actor",
    "approval",
    "budget",
    "conversation",
    "credential",
    "data_file",
    "event",
    "notification",
    "halt",
    "memory",
    "quota",
    "run",
    "task",
    "trigger",
];
const L2: &[&str] = &["store"];
const L3A: &[&str] = &["egress", "skill", "vault"];
const L3B: &[&str] = &["bus", "channel", "llm", "poll", "tool"];
const L4: &[&str] = &["agent"];
const L5: &[&str] = &["executor"];
const L6: &[&str] = &["engine", "http"];
/// Sees everything, and nothing below sees it.
const L7: &[&str] = &["app", "bench", "cli", "config", "lib", "main", "telemetry"];
/// Files that only declare the modules of a folder.
const GROUP_FILES: &[&str] = &["base", "domain", "ports"];

/// The measurements are a guest: they import the product, and only these places may name them. The files that
/// declare the modules name them in that declaration and, for the subcommand, as their own child.
const GUEST: (&str, &[&str]) = ("bench", &["src/bench", "src/cli/local/bench"]);
const GUEST_DECLARED: [(&str, &str); 3] =
    [("src/lib.rs", "pub mod bench;"), ("src/cli.rs", "bench"), ("src/cli/local.rs", "bench")];

/// Single files that may reach further than their layer.
const EXCEPTIONS: [(&str, &str); 12] = [
    ("src/ports/vault/credentials", "egress"),
    ("src/ports/vault/credentials", "store"),
    ("src/ports/vault/document", "store"),
    ("src/ports/vault/oauth", "egress"),
    ("src/ports/vault/oauth", "store"),
    ("src/ports/vault/rotation", "store"),
    ("src/ports/bus/embedded", "store"),
    ("src/ports/bus/outbox", "store"),
    ("src/ports/bus/open", "store"),
    ("src/ports/channel/live", "store"),
    ("src/ports/poll/tool", "tool"),
    // the rules of time zones, which the process has once
    ("src/base/expr/zoned", "trigger"),
];

pub fn faults(source: &Source) -> Vec<String> {
    let module = source.module();
    let Some(allowed) = allowed(module) else {
        return vec![format!("{}:1: `{module}` has no layer; give it one in tests/it/tidy/layers.rs", source.path)];
    };
    let mut found = Vec::new();
    for import in source.imports() {
        let (top, _) = import.path.split_once("::").unwrap_or((&import.path, ""));
        // a name that is no module is a macro or one that lib.rs gives out
        let is_module = layers().any(|layer| layer.contains(&top));
        if is_module && top != module && !allowed.contains(&top) && !is_exception(source, &import.path) {
            let named = if module == "vault" && top == "store" { &import.path } else { top };
            found.push(format!("{}:{}: `{module}` must not import `{named}`", source.path, import.line));
        }
    }
    // a list may name a module more than once
    found.dedup();
    let (guest, homes) = GUEST;
    if !source.is_one_of(homes) {
        let declared = GUEST_DECLARED.iter().find(|(file, _)| *file == source.path).map(|(_, text)| *text);
        for line in source.lines_that_name(guest, declared) {
            found.push(format!("{}:{line}: only `bench` and `cli/bench` may name `{guest}`", source.path));
        }
    }
    for line in source.climbs_to_the_root() {
        found.push(format!("{}:{line}: reach other modules by `crate::`, not by climbing", source.path));
    }
    found
}

fn layers() -> impl Iterator<Item = &'static [&'static str]> {
    [L0, L1, L2, L3A, L3B, L4, L5, L6, L7].into_iter()
}

/// The modules that the module may import besides itself; `None` for a module that nobody has thought about.
fn allowed(module: &str) -> Option<Vec<&'static str>> {
    let in_layer = |layer: &[&str]| layer.contains(&module);
    let of = |layers: &[&[&'static str]]| Some(layers.concat());
    match module {
        "agent" => of(&[L0, L1, &["llm", "skill", "tool"]]),
        "engine" => of(&[L0, L1, L2, L3A, L3B, L4, L5]),
        "http" => of(&[L0, L1, L2, L3A, L3B, L5]),
        _ if in_layer(L0) => of(&[L0]),
        _ if in_layer(L1) => of(&[L0, L1]),
        _ if in_layer(L2) => of(&[L0, L1]),
        _ if in_layer(L3A) => of(&[L0, L1]),
        _ if in_layer(L3B) => of(&[L0, L1, L3A]),
        _ if in_layer(L5) => of(&[L0, L1, L2, L3A, L3B, L4]),
        _ if in_layer(GROUP_FILES) => of(&[]),
        _ if in_layer(L7) => of(&[L0, L1, L2, L3A, L3B, L4, L5, L6, L7]),
        _ => None,
    }
}

/// Modules of the table that are not there, and modules that the map in `lib.rs` does not show.
pub fn faults_of_the_map(sources: &[Source]) -> Vec<String> {
    let lib = sources.iter().find(|source| source.path == "src/lib.rs").map_or("", |lib| lib.raw.as_str());
    let map: String = lib.lines().take_while(|line| line.starts_with("//!")).collect();
    let mut found = Vec::new();
    for module in layers().flatten().filter(|module| !["lib", "main"].contains(*module)) {
        if !sources.iter().any(|source| source.path.starts_with("src/") && source.module() == *module) {
            found.push(format!("tests/it/tidy/layers.rs: there is no module `{module}`"));
        }
        if !map.contains(&format!("[`{module}`]")) {
            found.push(format!("src/lib.rs: the map does not show `{module}`"));
        }
    }
    found
}

fn is_exception(source: &Source, path: &str) -> bool {
    EXCEPTIONS.iter().any(|(file, module)| source.is_one_of(&[file]) && path.starts_with(module))
}
