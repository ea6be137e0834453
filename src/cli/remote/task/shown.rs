//! A task as a person reads it.

use serde_json::{Map, Value};

use crate::base::expr::MissingField;
use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::condition::state_of;
use crate::cli::screen::{text_of, time_of, tone_of};
use crate::cli::{Screen, Tone};
use crate::domain::task::DECIDED;

/// Fields that the summary of a task shows in full.
const SUMMARY: [&str; 5] = ["tenant_id", "key", "name", "executor", "action.instruction"];

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
    facts.extend(missing_in_events(&task["missing"]).map(|text| ("missing", screen.tone(Tone::Notable, text))));
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

/// A field that an event trigger looks for and that no kept event has, in words; `None` where none is missing.
pub fn missing_in_events(missing: &Value) -> Option<String> {
    let missing: MissingField = serde_json::from_value(missing.clone()).ok()?;
    let hint = missing.did_you_mean.map_or(String::new(), |name| format!("; did you mean `{name}`?"));
    Some(on_one_line(&format!("none of the newest events has `{}`{hint}", missing.field)))
}

/// Prints a task and below it everything that its owner decided, defaults included, by the names that the API has for
/// it.
pub fn print_whole(task: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    print_task(task, as_json, screen)?;
    if as_json {
        return Ok(());
    }
    let mut rows = Vec::new();
    for field in DECIDED {
        leaves(field.to_owned(), &task[field], &mut rows);
    }
    rows.extend(["created_at", "updated_at"].map(|field| (field.to_owned(), time_of(&task[field]))));
    rows.push(("version".into(), text_of(&task["version"])));
    rows.retain(|(place, _)| !SUMMARY.contains(&place.as_str()));
    let rows: Vec<(&str, String)> = rows.iter().map(|(place, text)| (place.as_str(), text.clone())).collect();
    screen.line("")?;
    Ok(screen.facts(&rows)?)
}

/// Each value below `place` by its path; a step of a pipeline, and whatever else stands in a list of objects, in one
/// piece.
fn leaves(place: String, value: &Value, rows: &mut Vec<(String, String)>) {
    match value {
        Value::Object(fields) => fields.iter().for_each(|(name, value)| leaves(format!("{place}.{name}"), value, rows)),
        Value::Array(items) if items.iter().any(Value::is_object) => {
            let pieces =
                items.iter().enumerate().map(|(index, item)| (format!("{place}.{}", index + 1), item_text(item)));
            rows.extend(pieces);
        }
        Value::Array(items) => rows.push((place, items.iter().map(text_of).collect::<Vec<_>>().join(", "))),
        value => rows.push((place, text_of(value))),
    }
}

/// A line for each field; a text in it stands as it was written.
fn item_text(item: &Value) -> String {
    let lines = |fields: &Map<String, Value>| {
        fields.iter().map(|(name, value)| format!("{name}: {}", text_of(value))).collect::<Vec<_>>().join("\n")
    };
    item.as_object().map_or_else(|| text_of(item), lines)
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

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::screen::TextPage;
    use crate::domain::trigger::condition::{Condition, FireOn, HttpPoll, PollSpec};
    use crate::domain::trigger::event::{BatchOptions, Debounce, Dedup, EventTrigger, Throttle};
    use crate::domain::trigger::policy::{CatchUp, DstFold, DstGap, OnResume, Overlap};
    use crate::domain::trigger::{Schedule, Trigger, When};

    fn page(task: &Value) -> String {
        let page = TextPage::default();
        print_whole(task, false, &mut Screen::plain(page.clone())).unwrap();
        page.text()
    }

    /// A task of this trigger, with every policy.
    fn task(trigger: &Trigger) -> Value {
        json!({
            "id": "1", "tenant_id": "ann", "key": "k", "name": "A task", "status": "active", "status_reason": null,
            "trigger": trigger, "executor": "pipeline", "condition": null, "last_run": null, "run_count": 2,
            "action": { "instruction": "Do it.", "config": {
                "steps": [
                    { "name": "read", "http": { "url": "https://a.test" }, "retry": 2 },
                    { "name": "say", "map": "'It is ' + string(steps.read.body.x)", "on_error": "stop" },
                ],
                "output": { "said": "{{ steps.say }}" },
            } },
            "output": { "channel": ["email", "sms"], "urgency": "high" }, "notify": "on_change", "max_runs": 9,
            "timeout_seconds": 77, "retry": { "max_attempts": 4, "backoff_seconds": 11 }, "pause_after_failures": 6,
            "metadata": { "team": "home" }, "created_at": "2027-03-01T08:00:00Z", "updated_at": "2027-03-02T08:00:00Z",
            "version": 3,
        })
    }

    #[test]
    fn field_that_no_kept_event_has_is_shown_on_one_line() {
        let missing = |name: Value| json!({ "expression": "x", "field": "event.data.totl", "did_you_mean": name });
        let shown = |missing: &Value| missing_in_events(missing).unwrap_or_default();
        assert_eq!(shown(&missing(Value::Null)), "none of the newest events has `event.data.totl`");
        let hint = shown(&missing(json!("to\u{1b}tal\n")));
        assert!(hint.starts_with("none of the newest events has `event.data.totl`; did you mean `to"), "{hint}");
        assert!(!hint.contains(char::is_control), "{hint:?}");
        assert_eq!(shown(&Value::Null), "");
    }

    /// Every value of a document stands on the page.
    fn shows(page: &str, value: &Value) {
        match value {
            Value::Object(fields) => fields.values().for_each(|value| shows(page, value)),
            Value::Array(items) => items.iter().for_each(|item| shows(page, item)),
            value => assert!(page.contains(&text_of(value)), "no {value} in:\n{page}"),
        }
    }

    #[test]
    fn whole_task_shows_its_policies_and_each_step_of_its_pipeline() {
        let schedule = Schedule {
            when: When::Cron("0 8 * * *".into()),
            timezone: Some("Europe/Berlin".into()),
            start_at: Some("2027-01-01".into()),
            end_at: Some("2028-01-01".into()),
            jitter: Some("30s".into()),
            exclude: vec!["2027-12-25".into(), "* * * * 6".into()],
            catch_up: CatchUp::All,
            catch_up_window: Some("2h".into()),
            overlap: Overlap::QueueAll,
            dst_gap: DstGap::Skip,
            dst_fold: DstFold::Both,
            on_resume: OnResume::CatchUp,
            overlap_counts_waiting: true,
        };
        let task = task(&Trigger::Schedule(schedule));
        let page = page(&task);
        for field in ["trigger", "metadata", "retry", "notify", "max_runs", "timeout_seconds", "pause_after_failures"] {
            shows(&page, &task[field]);
        }
        for text in [
            "trigger.catch_up_window ",
            "trigger.exclude ",
            " 2027-12-25, * * * * 6\n",
            "output.urgency ",
            "action.config.steps.1 ",
            "action.config.output.said ",
            " map: 'It is ' + string(steps.read.body.x)\n",
            " on_error: stop\n",
            " http: {\"url\":\"https://a.test\"}\n",
            " 2027-03-02 08:00:00Z\n",
        ] {
            assert!(page.contains(text), "no {text:?} in:\n{page}");
        }
    }

    #[test]
    fn whole_task_shows_every_option_of_an_event_trigger_and_a_condition() {
        let key = |text: &str| Some(text.to_owned());
        let event = EventTrigger {
            source: Some("shop".into()),
            event_type: Some("order.*".into()),
            filters: Map::from_iter([("from".to_owned(), json!("amazon"))]),
            filter: Some("event.data.total > 100".into()),
            debounce: Some(Debounce { quiet: "31s".into(), max_wait: Some("5m".into()), key: key("event.data.a") }),
            batch: Some(BatchOptions { size: 10, wait: "6m".into(), key: key("event.data.b") }),
            throttle: Some(Throttle { limit: 5, per: "1m".into(), key: key("event.data.c") }),
            dedup: Some(Dedup { key: "event.data.d".into(), window: "P1D".into() }),
            max_age: Some("1h".into()),
            buffer_while_paused: true,
            overlap: Overlap::CancelPrevious,
            overlap_counts_waiting: true,
        };
        let http = HttpPoll {
            url: "https://api.example.org".into(),
            method: Default::default(),
            headers: [("accept".to_owned(), "application/json".to_owned())].into(),
            credential: Some("flights".into()),
        };
        let condition = Condition {
            poll: PollSpec::Http(http),
            interval: "1m".into(),
            expression: Some("value.price < 500".into()),
            fire: FireOn::OnTrue,
            watch: Some("value.status".into()),
            reset: Some("value.price > 550".into()),
            hold_for: Some("10m".into()),
            cooldown: Some("6h".into()),
            timeout: Some("5s".into()),
            failure_notice_after: 7,
            start_at: Some("2027-03-01T08:00:00Z".parse().unwrap()),
            end_at: Some("2028-03-01T08:00:00Z".parse().unwrap()),
            overlap: Overlap::QueueOne,
            overlap_counts_waiting: true,
        };
        for trigger in [Trigger::Event(Box::new(event)), Trigger::Condition(condition)] {
            let task = task(&trigger);
            let page = page(&task);
            shows(&page, &task["trigger"]);
            for option in task["trigger"].as_object().unwrap().keys() {
                assert!(page.contains(&format!("trigger.{option}")), "no {option} in:\n{page}");
            }
        }
    }
}
