//! The conformance suite of the protocol, run for one side and one revision, and its verdicts held against the list of
//! what does not apply, so that neither a fault nor a place in the list that is needed no more goes unseen.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::process::Command;
use tokio::time::timeout;

use crate::support::binary::TempDir;

/// The revisions that are spoken, as the suite names them.
pub const REVISIONS: [&str; 2] = ["2025-11-25", "2026-07-28"];
/// The suite, below `tests/mcp`.
const SUITE: &str = "node_modules/@modelcontextprotocol/conformance";
/// How long a revision may take on a loaded machine with two cores, and a scenario of it, which may wait for others.
const LIFE: Duration = Duration::from_secs(900);
const SCENARIO_MS: &str = "800000";
/// Length of the instant behind the name of a scenario, as in `-2026-11-30T23-57-00-018Z`.
const STAMP_BYTES: usize = 25;

/// A side of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    Client,
    Server,
}

impl Side {
    fn name(self) -> &'static str {
        match self {
            Side::Client => "client",
            Side::Server => "server",
        }
    }
}

/// One thing that a scenario looks at. An id may come several times.
#[derive(Debug, Clone, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Check {
    id: String,
    status: String,
    #[serde(default)]
    description: String,
    #[serde(default)]
    error_message: Option<String>,
}

/// A scenario that does not apply, or some checks of one.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exception {
    scenario: String,
    /// Absent: every revision that has it.
    revisions: Option<Vec<String>>,
    /// Absent: all.
    #[serde(default)]
    checks: BTreeSet<String>,
    reason: String,
}

/// All that does not apply.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
struct Exceptions {
    client: Vec<Exception>,
    server: Vec<Exception>,
}

impl Exceptions {
    fn read() -> Exceptions {
        let text = fs::read_to_string(below("conformance-exceptions.json")).expect("the list");
        serde_json::from_str(&text).unwrap_or_else(|error| panic!("tests/mcp/conformance-exceptions.json: {error}"))
    }

    fn of(&self, side: Side) -> &[Exception] {
        match side {
            Side::Client => &self.client,
            Side::Server => &self.server,
        }
    }
}

impl Exception {
    fn holds_in(&self, revision: &str) -> bool {
        self.revisions.as_ref().is_none_or(|named| named.iter().any(|one| one == revision))
    }
}

/// Runs what a revision asks of a side, with these arguments and this environment besides.
///
/// # Panics
/// With all that fails and is not listed, and all that is listed and does not fail.
pub async fn assert_conforms(side: Side, revision: &str, arguments: &[&str], environment: &[(&str, &Path)]) {
    let results = TempDir::new();
    let mut suite = Command::new(node_22());
    suite
        .arg(below(SUITE).join("dist/index.js"))
        .args([side.name(), "--requirements", revision, "--timeout", SCENARIO_MS, "--output-dir"])
        .arg(results.path())
        .args(arguments)
        .envs(environment.iter().copied())
        .stdin(Stdio::null())
        .kill_on_drop(true);
    let done = timeout(LIFE, suite.output()).await.expect("the suite ends").expect("the suite runs");
    let verdicts = verdicts(results.path(), side);
    let faults = faults(&scenarios(side, revision), &verdicts, Exceptions::read().of(side), revision);
    assert!(
        faults.is_empty(),
        "{} {revision}:\n{}\n\n{}{}",
        side.name(),
        faults.join("\n"),
        String::from_utf8_lossy(&done.stdout),
        said(results.path(), &faults),
    );
}

/// All that is not as it should be, a line each.
fn faults(
    scenarios: &BTreeSet<String>,
    verdicts: &BTreeMap<String, Vec<Check>>,
    exceptions: &[Exception],
    revision: &str,
) -> Vec<String> {
    let mut faults = Vec::new();
    for scenario in scenarios {
        let failing = failing(verdicts.get(scenario).map_or(&[][..], Vec::as_slice));
        let listed = exceptions.iter().find(|one| one.scenario == *scenario && one.holds_in(revision));
        let excused = |check: &String| listed.is_some_and(|one| one.checks.is_empty() || one.checks.contains(check));
        let told = failing.iter().filter(|&(check, _)| !excused(check));
        faults.extend(told.map(|(check, why)| format!("{scenario}: {check}: {why}")));
        match listed {
            Some(one) if one.checks.is_empty() && failing.is_empty() => {
                faults.push(format!("{scenario}: is listed, and passes"));
            }
            Some(one) => {
                let needless = one.checks.iter().filter(|check| !failing.contains_key(*check));
                faults.extend(needless.map(|check| format!("{scenario}: {check}: is listed, and does not fail")));
            }
            None => {}
        }
    }
    faults
}

/// The checks that fail, with why; a scenario in which nothing has passed fails by itself.
fn failing(checks: &[Check]) -> BTreeMap<String, String> {
    let fails = |check: &&Check| matches!(check.status.as_str(), "FAILURE" | "WARNING");
    let why = |check: &Check| check.error_message.clone().unwrap_or_else(|| check.description.clone());
    let failing: BTreeMap<String, String> =
        checks.iter().filter(fails).map(|check| (check.id.clone(), why(check))).collect();
    if failing.is_empty() && !checks.iter().any(|check| check.status == "SUCCESS") {
        return BTreeMap::from([("no-check".to_owned(), "nothing was checked".to_owned())]);
    }
    failing
}

/// The scenarios of a revision, those that the suite does not score among them.
fn scenarios(side: Side, revision: &str) -> BTreeSet<String> {
    let file = below(SUITE).join(format!("requirements/{revision}.yaml"));
    let text = fs::read_to_string(&file).unwrap_or_else(|error| panic!("{}: {error}", file.display()));
    let (mut found, mut section, mut unscored) = (BTreeSet::new(), String::new(), String::new());
    for line in text.lines() {
        if let Some(name) = line.strip_prefix("  - scenario: ") {
            name.clone_into(&mut unscored);
        } else if let Some(name) = line.strip_prefix("  - ") {
            if section == side.name() {
                found.insert(name.to_owned());
            }
        } else if let Some(leg) = line.strip_prefix("    leg: ") {
            if leg == side.name() {
                found.insert(std::mem::take(&mut unscored));
            }
        } else if let Some(name) = line.strip_suffix(':').filter(|name| !name.starts_with([' ', '#'])) {
            name.clone_into(&mut section);
        }
    }
    assert!(found.len() > 10, "{}: {found:?}", file.display());
    found
}

/// The checks of each scenario that was run.
fn verdicts(results: &Path, side: Side) -> BTreeMap<String, Vec<Check>> {
    let read = |dir: PathBuf| {
        let text = fs::read_to_string(dir.join("checks.json")).expect("checks");
        let checks: Vec<Check> = serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"));
        (scenario_of(results, &dir, side), checks)
    };
    ended(results).into_iter().map(read).collect()
}

/// The last words of the programs under test, for the scenarios that have faults.
fn said(results: &Path, faults: &[String]) -> String {
    let has_fault = |name: &str| faults.iter().any(|fault| fault.starts_with(&format!("{name}: ")));
    let of = |dir: &PathBuf| {
        let name = scenario_of(results, dir, Side::Client);
        let text = fs::read_to_string(dir.join("stderr.txt")).ok().filter(|_| has_fault(&name))?;
        let last: Vec<&str> = text.lines().rev().take(5).collect();
        Some(format!("\n{name} said:\n{}\n", last.into_iter().rev().collect::<Vec<_>>().join("\n")))
    };
    ended(results).iter().filter_map(of).collect()
}

/// The name of a scenario, from the directory of its results.
fn scenario_of(results: &Path, dir: &Path, side: Side) -> String {
    let name = dir.strip_prefix(results).expect("below").to_str().expect("text");
    let name = &name[..name.len() - STAMP_BYTES];
    match side {
        Side::Client => name.to_owned(),
        Side::Server => name.strip_prefix("server-").expect("the side").to_owned(),
    }
}

/// The directories of results; a scenario may have a `/` in its name.
fn ended(results: &Path) -> Vec<PathBuf> {
    let (mut found, mut open) = (Vec::new(), vec![results.to_owned()]);
    while let Some(dir) = open.pop() {
        if dir.join("checks.json").is_file() {
            found.push(dir);
            continue;
        }
        let entries = fs::read_dir(dir).expect("results").map(|entry| entry.expect("an entry").path());
        open.extend(entries.filter(|path| path.is_dir()));
    }
    found
}

/// Node, of version 22 at least.
pub fn node_22() -> PathBuf {
    std::env::var_os("REVEILLE_TEST_NODE").map_or_else(|| PathBuf::from("node"), PathBuf::from)
}

/// A file of the tests of the protocol.
pub fn below(file: &str) -> PathBuf {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp");
    assert!(dir.join(SUITE).is_dir(), "run the tests with scripts/test.sh, which installs the suite");
    dir.join(file)
}

#[test]
fn list_names_what_there_is_once_and_with_a_reason() {
    let exceptions = Exceptions::read();
    for side in [Side::Client, Side::Server] {
        let known = REVISIONS.map(|revision| (revision, scenarios(side, revision)));
        for exception in exceptions.of(side) {
            let Exception { scenario, revisions, reason, .. } = exception;
            let having: Vec<&str> =
                known.iter().filter(|(_, there)| there.contains(scenario)).map(|(revision, _)| *revision).collect();
            let named: Vec<&str> = revisions
                .as_ref()
                .map_or_else(|| having.clone(), |named| named.iter().map(|one| one.as_str()).collect());
            assert!(
                !named.is_empty() && named.iter().all(|one| having.contains(one)),
                "{scenario}: {named:?}, {having:?}"
            );
            assert!(reason.ends_with('.') && reason.len() > 20, "{scenario}: {reason}");
            for revision in named {
                let same = exceptions.of(side).iter().filter(|one| one.scenario == *scenario && one.holds_in(revision));
                assert_eq!(same.count(), 1, "{scenario} is listed twice for {revision}");
            }
        }
    }
}

/// Whether there is a test of this name, such as `mcp_server::tools::NAME` or, of a file of the crate, `http::mcp::NAME`.
fn is_a_test(name: &str) -> bool {
    let (file, function) = name.rsplit_once("::").expect("a file before the name");
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let places = ["tests/it", "src"].map(|dir| root.join(dir).join(file.replace("::", "/")).with_extension("rs"));
    let written = places.iter().find_map(|place| fs::read_to_string(place).ok()).unwrap_or_default();
    written.contains(&format!("fn {function}("))
}

#[test]
fn tests_that_stand_in_for_scenarios_are_there() {
    let Exceptions { client, server } = Exceptions::read();
    let reasons = client.iter().chain(&server).flat_map(|exception| exception.reason.split('`'));
    let named: BTreeSet<&str> = reasons.filter(|part| part.contains("::") && !part.contains(' ')).collect();
    assert!(named.len() > 10, "{named:?}");
    let gone: Vec<&str> = named.into_iter().filter(|name| !is_a_test(name)).collect();
    assert_eq!(gone, [""; 0]);
}

#[test]
fn fault_is_told_and_so_is_a_place_in_the_list_that_is_not_needed() {
    let checks = |statuses: &[(&str, &str)]| -> Vec<Check> {
        let check = |(id, status): &(&str, &str)| -> Value {
            serde_json::json!({ "id": id, "status": status, "description": "d", "errorMessage": "why" })
        };
        statuses.iter().map(|one| serde_json::from_value(check(one)).expect("a check")).collect()
    };
    let exception = |scenario: &str, checks: &[&str]| -> Exception {
        let listed = serde_json::json!({ "scenario": scenario, "revisions": ["r"], "checks": checks, "reason": "…" });
        serde_json::from_value(listed).expect("an exception")
    };
    let judge = |ran: &[(&str, &str)], listed: &[Exception], revision: &str| {
        let verdicts = BTreeMap::from([("s".to_owned(), checks(ran))]);
        faults(&BTreeSet::from(["s".to_owned()]), &verdicts, listed, revision)
    };
    let none = Vec::<String>::new();
    let (passes, fails) =
        ([("a", "SUCCESS"), ("b", "SKIPPED")], [("a", "SUCCESS"), ("a", "FAILURE"), ("b", "WARNING")]);
    assert_eq!(judge(&passes, &[], "r"), none);
    assert_eq!(judge(&fails, &[], "r"), ["s: a: why", "s: b: why"]);
    assert_eq!(judge(&[("b", "SKIPPED")], &[], "r"), ["s: no-check: nothing was checked"]);
    assert_eq!(faults(&BTreeSet::from(["s".to_owned()]), &BTreeMap::new(), &[], "r").len(), 1);

    let whole = [exception("s", &[])];
    assert_eq!(judge(&fails, &whole, "r"), none);
    assert_eq!(judge(&passes, &whole, "r"), ["s: is listed, and passes"]);
    assert_eq!(judge(&fails, &whole, "another").len(), 2);
    let one = [exception("s", &["a"])];
    assert_eq!(judge(&fails, &one, "r"), ["s: b: why"]);
    assert_eq!(judge(&passes, &one, "r"), ["s: a: is listed, and does not fail"]);
    assert_eq!(judge(&fails, &[exception("s", &["a", "b"])], "r"), none);
}
