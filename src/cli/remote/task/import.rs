//! `reveille task import`: lines of a file to the service, some thousand at a time, and what became of them.

use std::fs::File;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Value, json};

use crate::cli::remote::task::shown::missing_in_events;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone};
use crate::config::Environment;

/// Most lines in one request: few enough to be stored well within the time that is waited for an answer.
const LINES: usize = 5_000;
const BYTES: usize = 8 * 1024 * 1024;
/// Bad lines, and warnings, that are printed; the rest of the bad lines are counted.
const PRINTED: usize = 100;

#[derive(Debug, clap::Args)]
#[command(
    after_help = "Each line is a task as `task create --file` takes it, in JSON. Good lines are stored whatever \
    stands in the others. A line with a `key` that is there already changes nothing, so a file may be imported again; \
    `task export` writes a key into every line."
)]
pub struct Args {
    /// Tasks in JSON, one to a line; `-` is standard input
    #[arg(value_name = "FILE")]
    file: PathBuf,
    /// Tenant of the imported tasks, whatever the lines say
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// The result of all pieces together, in the words of the service.
#[derive(Default)]
struct ImportReport {
    lines: u64,
    created: u64,
    kept: u64,
    bad: u64,
    /// Of the bad ones, those that a quota refuses.
    over_quota: u64,
    errors: Vec<Value>,
    warnings: Vec<Value>,
}

impl ImportReport {
    /// Adds what became of a piece before which so many lines of the file had been sent.
    fn add(&mut self, answer: &Value, before: u64) {
        let count = |name: &str| answer[name].as_u64().unwrap_or_default();
        self.lines += count("lines");
        self.created += count("created");
        self.kept += count("unchanged");
        self.bad += count("rejected");
        self.over_quota += count("over_quota");
        let room = PRINTED.saturating_sub(self.errors.len());
        for bad in answer["errors"].as_array().into_iter().flatten().take(room) {
            let line = before + bad["line"].as_u64().unwrap_or_default();
            let mut shown = json!({ "line": line, "errors": bad["errors"] });
            if let Some(quota) = bad.get("quota") {
                shown["quota"] = quota.clone();
            }
            self.errors.push(shown);
        }
        let room = PRINTED.saturating_sub(self.warnings.len());
        for warning in answer["warnings"].as_array().into_iter().flatten().take(room) {
            let line = before + warning["line"].as_u64().unwrap_or_default();
            self.warnings.push(json!({ "line": line, "missing": warning["missing"] }));
        }
    }

    fn json(&self) -> Value {
        let (lines, created, kept, bad) = (self.lines, self.created, self.kept, self.bad);
        let mut report =
            json!({ "lines": lines, "created": created, "unchanged": kept, "rejected": bad, "errors": self.errors });
        if self.over_quota > 0 {
            report["over_quota"] = json!(self.over_quota);
        }
        if !self.warnings.is_empty() {
            report["warnings"] = json!(self.warnings);
        }
        report
    }

    /// The numbers, for a person.
    fn facts(&self) -> Vec<(&'static str, String)> {
        let bad = match self.over_quota {
            0 => self.bad.to_string(),
            over => {
                format!("{}, {over} of them good and over a quota: import the file again once there is room", self.bad)
            }
        };
        vec![("created", self.created.to_string()), ("unchanged", self.kept.to_string()), ("rejected", bad)]
    }
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let mut from = open(&args.file)?;
    let (mut report, mut sent) = (ImportReport::default(), 0);
    loop {
        let (piece, lines) = next_chunk(&mut *from, args.tenant.as_deref()).context("read the tasks")?;
        if lines == 0 {
            break;
        }
        let answer = client.post_lines(&["v1", "tasks", "import"], piece).await.with_context(|| match sent {
            0 => "import".to_owned(),
            sent => format!("import from line {} on; what stands before it is stored", sent + 1),
        })?;
        report.add(&answer, sent);
        sent += lines;
    }
    if args.service.json {
        screen.json(&report.json())?;
    } else {
        screen.facts(&report.facts())?;
        for warning in &report.warnings {
            if let Some(missing) = missing_in_events(&warning["missing"]) {
                screen.line(screen.tone(Tone::Notable, format!("line {}: {missing}", warning["line"])))?;
            }
        }
    }
    if report.bad == 0 {
        return Ok(());
    }
    let mut failure = CliFailure::new(format!("{} of {} lines are not stored", report.bad, report.lines));
    for bad in &report.errors {
        for fault in bad["errors"].as_array().into_iter().flatten() {
            let place = fault["pointer"].as_str().unwrap_or_default().trim_start_matches('/').replace('/', ".");
            let place = if place.is_empty() { String::new() } else { format!(" {place}:") };
            let message = fault["message"].as_str().unwrap_or_default();
            failure = failure.detail(format!("line {}:{place} {message}", bad["line"]));
        }
    }
    Err(failure.into())
}

fn open(file: &Path) -> anyhow::Result<Box<dyn BufRead + Send>> {
    if file == Path::new("-") {
        return Ok(Box::new(BufReader::new(std::io::stdin())));
    }
    let opened = File::open(file).with_context(|| format!("read {}", file.display()))?;
    Ok(Box::new(BufReader::new(opened)))
}

/// The next lines, as many as are sent at once, and how many they are.
fn next_chunk(from: &mut dyn BufRead, tenant: Option<&str>) -> std::io::Result<(Vec<u8>, u64)> {
    let (mut piece, mut lines) = (Vec::new(), 0);
    while lines < LINES as u64 && piece.len() < BYTES {
        let mut line = Vec::new();
        if from.read_until(b'\n', &mut line)? == 0 {
            break;
        }
        lines += 1;
        match tenant.and_then(|tenant| with_tenant(&line, tenant)) {
            Some(line) => piece.extend(line.to_string().into_bytes()),
            // the service refuses lines that are no object, with their place
            None => piece.extend_from_slice(line.strip_suffix(b"\n").unwrap_or(&line)),
        }
        piece.push(b'\n');
    }
    Ok((piece, lines))
}

fn with_tenant(line: &[u8], tenant: &str) -> Option<Value> {
    let mut task: Value = serde_json::from_slice(line).ok()?;
    task.as_object_mut()?.insert("tenant_id".into(), json!(tenant));
    Some(task)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn file_is_sent_in_pieces_that_keep_its_lines() {
        let text = "{\"a\":1}\nno\n\n{\"b\":2}";
        let (piece_of, lines) = next_chunk(&mut text.as_bytes(), Some("ann")).unwrap();
        let piece_of = String::from_utf8(piece_of).unwrap();
        assert_eq!(piece_of, "{\"a\":1,\"tenant_id\":\"ann\"}\nno\n\n{\"b\":2,\"tenant_id\":\"ann\"}\n");
        assert_eq!(lines, 4);
        let long = "x\n".repeat(LINES + 3);
        let mut from = long.as_bytes();
        assert_eq!(next_chunk(&mut from, None).unwrap(), ("x\n".repeat(LINES).into_bytes(), LINES as u64));
        assert_eq!(next_chunk(&mut from, None).unwrap(), (b"x\nx\nx\n".to_vec(), 3));
        assert_eq!(next_chunk(&mut from, None).unwrap(), (Vec::new(), 0));
    }

    #[test]
    fn report_counts_the_lines_that_a_quota_refuses() {
        let bad = json!({ "line": 2, "errors": [], "quota": "tasks" });
        let answer =
            json!({ "lines": 2, "created": 1, "unchanged": 0, "rejected": 1, "over_quota": 1, "errors": [bad] });
        let mut report = ImportReport::default();
        report.add(&answer, 0);
        assert_eq!(report.json(), answer);
        assert!(report.facts()[2].1.starts_with("1, 1 of them good and over a quota"), "{:?}", report.facts());
        report.add(&answer, 2);
        assert_eq!(report.json()["over_quota"], 2);
    }

    #[test]
    fn warnings_are_kept_by_their_lines_in_the_file_up_to_their_number() {
        let missing = json!({ "expression": "event.data.totl > 1", "field": "event.data.totl" });
        let warnings = |lines: std::ops::Range<usize>| {
            lines.map(|line| json!({ "line": line, "missing": missing })).collect::<Vec<_>>()
        };
        let answer = |lines: usize| json!({ "lines": lines, "created": lines, "warnings": warnings(1..lines + 1) });
        let mut report = ImportReport::default();
        report.add(&answer(2), 0);
        report.add(&answer(1), 5_000);
        let told: Vec<Value> = report.warnings.iter().map(|warning| warning["line"].clone()).collect();
        assert_eq!(told, [1, 2, 5_001]);
        assert_eq!(report.json()["warnings"][2], json!({ "line": 5_001, "missing": missing }));
        report.add(&answer(PRINTED), 5_001);
        assert_eq!(report.warnings.len(), PRINTED);
    }

    #[test]
    fn bad_lines_are_counted_from_the_beginning_of_the_file() {
        let mut report = ImportReport::default();
        report.add(
            &json!({ "lines": 5000, "created": 4999, "unchanged": 0, "rejected": 1, "errors": [{ "line": 7, "errors": [] }] }),
            0,
        );
        report.add(
            &json!({ "lines": 2, "created": 0, "unchanged": 1, "rejected": 1, "errors": [{ "line": 2, "errors": [] }] }),
            5000,
        );
        let errors = json!([{ "line": 7, "errors": [] }, { "line": 5002, "errors": [] }]);
        assert_eq!(
            report.json(),
            json!({ "lines": 5002, "created": 4999, "unchanged": 1, "rejected": 2, "errors": errors })
        );
    }
}
