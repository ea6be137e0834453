//! A task as it is typed: flags and files become the JSON that the service checks. No rule about tasks lives here.

use std::io::Read;
use std::path::{Path, PathBuf};

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::failure::CliFailure;
use super::flags::{FlagArgs, OfTask, object_in};

/// When a task fires.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "When")]
pub struct TriggerArgs {
    /// Cron expression: five fields, or six with seconds first; `@daily`, `L`, `W`, `#`
    #[arg(long, value_name = "EXPR", group = "when")]
    cron: Option<String>,
    /// Every so often, without drift: `5m`, `1h30m`, `PT15M`
    #[arg(long, value_name = "LENGTH", group = "when")]
    interval: Option<String>,
    /// Once: `2026-12-24T15:00:00` in the time zone, or with `Z` or an offset
    #[arg(long, value_name = "TIME", group = "when")]
    at: Option<String>,
    /// RFC 5545 recurrence rule, for what cron can't say
    #[arg(long, value_name = "RULE", group = "when")]
    rrule: Option<String>,
    /// IANA time zone [default: UTC]
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// No fire before this
    #[arg(long, value_name = "TIME")]
    start_at: Option<String>,
    /// No fire from this on
    #[arg(long, value_name = "TIME")]
    end_at: Option<String>,
    /// Spread fires over this long, the same for a task each time
    #[arg(long, value_name = "LENGTH")]
    jitter: Option<String>,
    /// A date or cron expression that is left out; may be given again
    #[arg(long, value_name = "DATE|EXPR")]
    exclude: Vec<String>,
    /// Handling of missed fires: latest, all, skip
    #[arg(long, value_name = "RULE")]
    catch_up: Option<String>,
    /// How late a fire may still start
    #[arg(long, value_name = "LENGTH")]
    catch_up_window: Option<String>,
    /// When a run is still going: skip, queue_one, queue_all, allow, cancel_previous
    #[arg(long, value_name = "RULE")]
    overlap: Option<String>,
    /// When the clock jumps over a fixed time of day: run_after, skip
    #[arg(long, value_name = "RULE")]
    dst_gap: Option<String>,
    /// When the clock shows a fixed time of day twice: first, both
    #[arg(long, value_name = "RULE")]
    dst_fold: Option<String>,
    /// Handling of fires that passed while the task was paused: skip, catch_up
    #[arg(long, value_name = "RULE")]
    on_resume: Option<String>,
    /// A run that waits for a person or for its completion counts as still going
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    overlap_counts_waiting: Option<bool>,
}

/// Arguments of a condition, which is polled every `--interval`.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "When something is so")]
pub struct ConditionArgs {
    /// Address to poll, every `--interval`
    #[arg(long, value_name = "URL", conflicts_with = "poll")]
    poll_url: Option<String>,
    /// The poll as a JSON object with `http`, `tool`, `sql` or `redis`
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    poll: Option<Map<String, Value>>,
    /// Condition for a fire, in CEL over `value`, `previous`, `now` and `task`
    #[arg(long, value_name = "CEL")]
    expression: Option<String>,
    /// Which polls fire: on_true, every_time, on_change
    #[arg(long, value_name = "RULE")]
    fire: Option<String>,
    /// With on_change: what is compared, in CEL [default: the whole value]
    #[arg(long, value_name = "CEL")]
    watch: Option<String>,
    /// Condition that must be true, the expression being false, before it fires again
    #[arg(long, value_name = "CEL")]
    reset: Option<String>,
    /// How long the expression must have been true
    #[arg(long, value_name = "LENGTH")]
    hold_for: Option<String>,
    /// No other fire for this long after one
    #[arg(long, value_name = "LENGTH")]
    cooldown: Option<String>,
    /// Longest time of one poll [default: 10s]
    #[arg(long, value_name = "LENGTH")]
    poll_timeout: Option<String>,
    /// Tell the owner after so many failing polls in a row [default: 3]
    #[arg(long, value_name = "N")]
    failure_notice_after: Option<u32>,
}

/// Arguments for the action and the options of a task.
#[derive(Debug, Default, clap::Args)]
#[command(next_help_heading = "What")]
pub struct SpecArgs {
    /// Name of the task
    #[arg(long)]
    name: Option<String>,
    /// Instruction to the agent, in plain words
    #[arg(long, value_name = "TEXT")]
    instruction: Option<String>,
    /// How runs are executed [default: orchestrator]
    #[arg(long, value_name = "NAME")]
    executor: Option<String>,
    /// Settings of the executor, a JSON object
    #[arg(long, value_name = "JSON", value_parser = json_object)]
    config: Option<Map<String, Value>>,
    /// Channel for the result; again for the next one if that fails [default: the recipient's order]
    #[arg(long, value_name = "NAME", conflicts_with = "no_output")]
    channel: Vec<String>,
    /// Tell the result to nobody
    #[arg(long)]
    no_output: bool,
    #[command(flatten)]
    fields: FlagArgs<OfTask>,
    /// Something of your own to keep with the task; may be given again
    #[arg(long, value_name = "KEY=VALUE", value_parser = pair)]
    metadata: Vec<(String, String)>,
}

impl TriggerArgs {
    /// Writes what was typed into a trigger; a new kind of schedule takes the old one's place.
    pub fn write_into(&self, trigger: &mut Map<String, Value>) {
        let kinds = [("cron", &self.cron), ("interval", &self.interval), ("at", &self.at), ("rrule", &self.rrule)];
        if let Some((kind, Some(text))) = kinds.iter().find(|(_, text)| text.is_some()) {
            kinds.iter().for_each(|(kind, _)| drop(trigger.remove(*kind)));
            trigger.insert((*kind).to_owned(), json!(text));
        }
        for (key, text) in [
            ("timezone", &self.timezone),
            ("start_at", &self.start_at),
            ("end_at", &self.end_at),
            ("jitter", &self.jitter),
            ("catch_up", &self.catch_up),
            ("catch_up_window", &self.catch_up_window),
            ("overlap", &self.overlap),
            ("dst_gap", &self.dst_gap),
            ("dst_fold", &self.dst_fold),
            ("on_resume", &self.on_resume),
        ] {
            set(trigger, key, text.as_ref());
        }
        set(trigger, "overlap_counts_waiting", self.overlap_counts_waiting);
        set(trigger, "exclude", Some(&self.exclude).filter(|dates| !dates.is_empty()));
    }
}

impl ConditionArgs {
    /// Writes what was typed into a trigger; with something to poll it becomes a condition.
    pub fn write_into(&self, trigger: &mut Map<String, Value>) {
        let poll = self.poll_url.as_ref().map(|url| json!({ "http": { "url": url } }));
        let poll = poll.or_else(|| self.poll.clone().map(Value::Object));
        if poll.is_some() {
            trigger.insert("type".into(), json!("condition"));
        }
        set(trigger, "poll", poll);
        for (key, text) in [
            ("expression", &self.expression),
            ("fire", &self.fire),
            ("watch", &self.watch),
            ("reset", &self.reset),
            ("hold_for", &self.hold_for),
            ("cooldown", &self.cooldown),
            ("timeout", &self.poll_timeout),
        ] {
            set(trigger, key, text.as_ref());
        }
        set(trigger, "failure_notice_after", self.failure_notice_after);
    }
}

impl SpecArgs {
    /// Writes what was typed into a task.
    pub fn write_into(&self, task: &mut Map<String, Value>) -> anyhow::Result<()> {
        set(task, "name", self.name.as_ref());
        set(task, "executor", self.executor.as_ref());
        if self.instruction.is_some() || self.config.is_some() {
            let action = object_in(task, "action");
            set(action, "instruction", self.instruction.as_ref());
            set(action, "config", self.config.as_ref());
        }
        self.fields.write_into(task)?;
        if !self.metadata.is_empty() {
            object_in(task, "metadata").extend(self.metadata.iter().map(|(key, value)| (key.clone(), json!(value))));
        }
        match self.channel.as_slice() {
            [] if self.no_output => drop(task.insert("output".into(), Value::Null)),
            [] => {}
            [one] => drop(task.insert("output".into(), json!({ "channel": one }))),
            many => drop(task.insert("output".into(), json!({ "channel": many }))),
        }
        Ok(())
    }
}

/// A task written in a file: JSON or TOML where its name ends so, else YAML; `-` is JSON or YAML from standard input.
pub fn read_file(path: &Path) -> anyhow::Result<Map<String, Value>> {
    let shown = path.display();
    let mut text = String::new();
    if path == Path::new("-") {
        std::io::stdin().read_to_string(&mut text).context("read standard input")?;
    } else {
        text = std::fs::read_to_string(path).with_context(|| format!("read {shown}"))?;
    }
    let ends_in = |ending: &str| path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case(ending));
    let value: Value = if ends_in("json") {
        serde_json::from_str(&text).map_err(|error| CliFailure::new(format!("{shown} is not JSON: {error}")))?
    } else if ends_in("toml") {
        let table: toml::Table = toml::from_str(&text)
            .map_err(|error| CliFailure::new(format!("{shown} is not TOML: {}", error.message())))?;
        of_toml(toml::Value::Table(table))
    } else {
        // YAML 1.2: `no` and `on` are texts, not booleans
        let options = serde_saphyr::options! { strict_booleans: true, with_snippet: false };
        serde_saphyr::from_str_with_options(&text, options)
            .map_err(|error| CliFailure::new(format!("{shown} is not YAML: {error}")))?
    };
    match value {
        Value::Object(task) => Ok(task),
        _ => Err(CliFailure::new(format!("{shown} does not hold a task"))
            .hint("an object with `trigger` and `action`")
            .into()),
    }
}

/// TOML as JSON. A date or time is the text that stands in the file.
fn of_toml(value: toml::Value) -> Value {
    match value {
        toml::Value::String(text) => Value::String(text),
        toml::Value::Integer(number) => json!(number),
        toml::Value::Float(number) => json!(number),
        toml::Value::Boolean(is) => Value::Bool(is),
        toml::Value::Datetime(instant) => Value::String(instant.to_string()),
        toml::Value::Array(values) => values.into_iter().map(of_toml).collect(),
        toml::Value::Table(table) => {
            Value::Object(table.into_iter().map(|(key, value)| (key, of_toml(value))).collect())
        }
    }
}

/// A file of [`read_file`], as a flag.
pub type TaskFile = PathBuf;

fn set(object: &mut Map<String, Value>, key: &str, value: Option<impl serde::Serialize>) {
    if let Some(value) = value {
        object.insert(key.to_owned(), json!(value));
    }
}

/// A JSON object on the command line.
pub fn json_object(text: &str) -> Result<Map<String, Value>, String> {
    serde_json::from_str(text).map_err(|error| format!("not a JSON object: {error}"))
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (key, value) = text.split_once('=').ok_or("write it as KEY=VALUE")?;
    Ok((key.to_owned(), value.to_owned()))
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct TypedFields {
        #[command(flatten)]
        trigger: TriggerArgs,
        #[command(flatten)]
        condition: ConditionArgs,
        #[command(flatten)]
        spec: SpecArgs,
    }

    fn written(base: Value, typed: &[&str]) -> Value {
        let typed = TypedFields::parse_from([&["task"], typed].concat());
        let mut task = base.as_object().unwrap().clone();
        typed.trigger.write_into(object_in(&mut task, "trigger"));
        typed.condition.write_into(object_in(&mut task, "trigger"));
        typed.spec.write_into(&mut task).unwrap();
        Value::Object(task)
    }

    #[test]
    fn flags_become_the_json_of_a_task() {
        let typed = [
            "--cron=0 8 * * *",
            "--timezone=Asia/Shanghai",
            "--jitter=30s",
            "--exclude=2026-12-25",
            "--name=Morning mail",
            "--instruction=Summarize my mail",
            "--channel=sms",
            "--channel=email",
            "--timeout=10m",
            "--max-attempts=2",
            "--metadata=team=a=b",
        ];
        assert_eq!(
            written(json!({}), &typed),
            json!({
                "trigger": { "cron": "0 8 * * *", "timezone": "Asia/Shanghai", "jitter": "30s", "exclude": ["2026-12-25"] },
                "name": "Morning mail",
                "action": { "instruction": "Summarize my mail" },
                "output": { "channel": ["sms", "email"] },
                "timeout_seconds": 600,
                "retry": { "max_attempts": 2 },
                "metadata": { "team": "a=b" }
            })
        );
    }

    #[test]
    fn every_field_of_a_schedule_can_be_typed() {
        let fields = [
            ("timezone", "Europe/Berlin"),
            ("start_at", "2027-01-01T09:00:00"),
            ("end_at", "2028-01-01T00:00:00Z"),
            ("jitter", "30s"),
            ("catch_up", "all"),
            ("catch_up_window", "P1D"),
            ("overlap", "queue_one"),
            ("dst_gap", "skip"),
            ("dst_fold", "both"),
            ("on_resume", "catch_up"),
        ];
        let mut expected = json!({
            "type": "schedule", "rrule": "FREQ=MONTHLY;BYDAY=-1FR", "exclude": ["2027-12-31", "* * * 8 *"],
            "overlap_counts_waiting": true
        });
        let mut typed = vec![
            "--rrule=FREQ=MONTHLY;BYDAY=-1FR".to_owned(),
            "--exclude=2027-12-31".into(),
            "--exclude=* * * 8 *".into(),
            "--overlap-counts-waiting".into(),
        ];
        for (field, value) in fields {
            expected[field] = json!(value);
            typed.push(format!("--{}={value}", field.replace('_', "-")));
        }
        let typed: Vec<&str> = typed.iter().map(String::as_str).collect();
        let base = json!({ "trigger": { "type": "schedule" } });
        assert_eq!(written(base.clone(), &typed)["trigger"], expected);
        let taken_back = written(base, &["--rrule=FREQ=DAILY", "--overlap-counts-waiting=false"]);
        assert_eq!(taken_back["trigger"]["overlap_counts_waiting"], json!(false));
    }

    #[test]
    fn every_field_of_a_condition_can_be_typed() {
        let typed = [
            "--poll-url=https://example.org/price",
            "--interval=30m",
            "--expression=value.price < 500",
            "--fire=on_true",
            "--watch=value.status",
            "--reset=value.price > 550",
            "--hold-for=10m",
            "--cooldown=6h",
            "--poll-timeout=5s",
            "--failure-notice-after=4",
        ];
        let expected = json!({
            "type": "condition", "poll": { "http": { "url": "https://example.org/price" } }, "interval": "30m",
            "expression": "value.price < 500", "fire": "on_true", "watch": "value.status", "reset": "value.price > 550",
            "hold_for": "10m", "cooldown": "6h", "timeout": "5s", "failure_notice_after": 4
        });
        let base = json!({ "trigger": { "type": "schedule" } });
        assert_eq!(written(base.clone(), &typed)["trigger"], expected);
        let other = written(base, &[r#"--poll={"redis":{"source":"s","key":"k"}}"#, "--interval=1m"]);
        assert_eq!(other["trigger"]["poll"], json!({ "redis": { "source": "s", "key": "k" } }));
    }

    #[test]
    fn edit_keeps_what_was_not_typed_and_a_new_kind_replaces_the_old() {
        let stored = json!({
            "trigger": { "type": "schedule", "cron": "0 8 * * *", "timezone": "Asia/Shanghai" },
            "action": { "instruction": "old", "config": { "max_turns": 3 } },
        });
        assert_eq!(
            written(stored, &["--interval=5m", "--instruction=new", "--no-output"]),
            json!({
                "trigger": { "type": "schedule", "interval": "5m", "timezone": "Asia/Shanghai" },
                "action": { "instruction": "new", "config": { "max_turns": 3 } },
                "output": null,
            })
        );
    }

    #[test]
    fn task_reads_the_same_from_json_and_yaml() {
        let dir = std::env::temp_dir().join(format!("reveille-draft-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&dir).unwrap();
        let (json_file, yaml_file) = (dir.join("task.json"), dir.join("task.yaml"));
        let text = r#"{"name": "n", "trigger": {"cron": "0 8 * * *"}, "max_runs": 3, "metadata": {"country": "no", "on": true}}"#;
        std::fs::write(&json_file, text).unwrap();
        let yaml = "name: n\ntrigger:\n  cron: 0 8 * * *\nmax_runs: 3\nmetadata:\n  country: no\n  'on': true\n";
        std::fs::write(&yaml_file, yaml).unwrap();
        let read = [&json_file, &yaml_file].map(|file| read_file(file).unwrap());
        std::fs::write(&yaml_file, "- a\n").unwrap();
        let refused = read_file(&yaml_file).unwrap_err().to_string();
        std::fs::remove_dir_all(&dir).unwrap();
        assert_eq!(read[0], read[1]);
        assert!(refused.contains("does not hold a task"), "{refused}");
    }
}
