//! A task as a person reads it.

use serde_json::Value;

use crate::cli::condition::state_of;
use crate::cli::screen::{Screen, text_of, time_of, tone_of};

/// Prints a task, whole where JSON is asked for.
pub fn print_task(task: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(task)?);
    }
    let status = match (text_of(&task["status"]), text_of(&task["status_reason"])) {
        (status, reason) if reason.is_empty() => status,
        (status, reason) => format!("{status} ({reason})"),
    };
    let tone = tone_of(&text_of(&task["status"]));
    let when = match &task["condition"] {
        Value::Null => vec![("next fire", time_of(&task["next_fire_at"]))],
        condition => state_of(condition),
    };
    let mut facts = vec![
        ("id", text_of(&task["id"])),
        ("tenant", text_of(&task["tenant_id"])),
        ("key", text_of(&task["key"])),
        ("name", text_of(&task["name"])),
        ("status", screen.tone(tone, status)),
        ("trigger", trigger_of(&task["trigger"])),
    ];
    facts.extend(when);
    facts.extend([
        ("runs", text_of(&task["run_count"])),
        ("last run", last_run_of(&task["last_run"])),
        ("executor", text_of(&task["executor"])),
        ("instruction", text_of(&task["action"]["instruction"])),
        ("output", output_of(task)),
    ]);
    Ok(screen.facts(&facts)?)
}

/// `cron 0 8 * * * Asia/Shanghai`, `every 30m: value.price < 500`
pub fn trigger_of(trigger: &Value) -> String {
    if trigger["type"] == "event" {
        let part = |name: &str| trigger[name].as_str().unwrap_or("*").to_owned();
        return format!("event {} {}", part("source"), part("event_type"));
    }
    if trigger["type"] == "condition" {
        let asks = ["expression", "watch"].iter().find_map(|key| trigger[key].as_str()).unwrap_or("any change");
        return format!("every {}: {asks}", text_of(&trigger["interval"]));
    }
    let kinds = ["cron", "interval", "at", "rrule"];
    let when = kinds.iter().find_map(|kind| Some(format!("{kind} {}", trigger[kind].as_str()?)));
    let zone = trigger["timezone"].as_str().filter(|zone| *zone != "UTC").unwrap_or_default();
    format!("{} {zone}", when.unwrap_or_else(|| text_of(&trigger["type"]))).trim_end().to_owned()
}

fn last_run_of(run: &Value) -> String {
    format!("{} {}", text_of(&run["state"]), text_of(&run["id"])).trim().to_owned()
}

fn output_of(task: &Value) -> String {
    match (task.get("output"), task["output"]["channel"].as_array()) {
        (None, _) => "the recipient's order".into(),
        (Some(Value::Null), _) => "nobody".into(),
        (_, Some(channels)) => channels.iter().map(text_of).collect::<Vec<_>>().join(", then "),
        _ => text_of(&task["output"]["channel"]),
    }
}
