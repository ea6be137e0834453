//! A trigger of a task in words.

use serde_json::Value;

use crate::domain::trigger::interval::parse_length;

/// Days of the week as cron names and as people do; cron numbers them from 0, and Sunday is 7, too.
const DAYS: [(&str, &str); 7] = [
    ("SUN", "Sunday"),
    ("MON", "Monday"),
    ("TUE", "Tuesday"),
    ("WED", "Wednesday"),
    ("THU", "Thursday"),
    ("FRI", "Friday"),
    ("SAT", "Saturday"),
];
/// Units of a length of time, in seconds, the longest first.
const UNITS: [(i64, &str); 4] = [(86_400, "d"), (3_600, "h"), (60, "min"), (1, "s")];

/// A trigger, as the API has it, in words: `every day at 08:00 (Asia/Shanghai)`, `every 5 min`, `event order.paid from
/// shop`, `when value.price < 500, looked at every 30 min`.
pub fn trigger_words(trigger: &Value) -> String {
    match trigger["type"].as_str() {
        Some("event") => event_words(trigger),
        Some("condition") => condition_words(trigger),
        _ => schedule_words(trigger),
    }
}

fn schedule_words(trigger: &Value) -> String {
    let text = |name: &str| trigger[name].as_str();
    let zone = text("timezone").map_or(String::new(), |zone| format!(" ({zone})"));
    let when = match (text("cron"), text("interval"), text("at"), text("rrule")) {
        (Some(cron), ..) => cron_words(cron).unwrap_or_else(|| format!("cron {cron}")) + &zone,
        (_, Some(interval), ..) => format!("every {}", length_words(interval)),
        (_, _, Some(at), _) => format!("once at {at}{zone}"),
        (.., Some(rule)) => format!("by the rule {rule}{zone}"),
        _ => text("type").unwrap_or_default().to_owned(),
    };
    let from = text("start_at").map_or(String::new(), |at| format!(", from {at}"));
    let until = text("end_at").map_or(String::new(), |at| format!(", until {at}"));
    when + &from + &until
}

/// A cron expression of a common form; others are shown as they are.
fn cron_words(cron: &str) -> Option<String> {
    let fields: Vec<&str> = cron.split_whitespace().collect();
    let [minute, hour, day, month, weekday] = fields[..] else { return nickname(cron) };
    if (day, month) != ("*", "*") {
        return None;
    }
    match (number(minute, 59), number(hour, 23)) {
        (Some(minute), Some(hour)) => Some(format!("{} at {hour:02}:{minute:02}", weekday_words(weekday)?)),
        _ if (hour, weekday) != ("*", "*") => None,
        (Some(0), None) => Some("every hour".into()),
        (Some(minute), None) => Some(format!("every hour at minute {minute}")),
        (None, _) => minutes_words(minute),
    }
}

fn nickname(cron: &str) -> Option<String> {
    match cron.trim().to_ascii_lowercase().as_str() {
        "@hourly" => Some("every hour".into()),
        "@daily" | "@midnight" => Some("every day at 00:00".into()),
        _ => None,
    }
}

fn minutes_words(minute: &str) -> Option<String> {
    let step = match minute {
        "*" => 1,
        minute => number(minute.strip_prefix("*/")?, 59).filter(|step| *step > 0 && 60 % step == 0)?,
    };
    Some(if step == 1 { "every minute".into() } else { format!("every {step} min") })
}

fn weekday_words(weekday: &str) -> Option<String> {
    let upper = weekday.to_ascii_uppercase();
    match upper.as_str() {
        "*" => return Some("every day".into()),
        "1-5" | "MON-FRI" => return Some("Monday to Friday".into()),
        _ => {}
    }
    let numbered = number(&upper, 7).and_then(|day| DAYS.get(day as usize % DAYS.len()));
    let (_, name) = numbered.or_else(|| DAYS.iter().find(|(short, _)| *short == upper))?;
    Some(format!("every {name}"))
}

fn number(text: &str, most: u32) -> Option<u32> {
    text.parse().ok().filter(|number| *number <= most)
}

/// A length of time: `5 min`, `1 h 30 min`; one that can't be read as it is.
fn length_words(text: &str) -> String {
    let Ok(length) = parse_length(text) else { return text.to_owned() };
    let mut left = length.num_seconds();
    let mut words = Vec::new();
    for (seconds, unit) in UNITS {
        if left >= seconds {
            words.push(format!("{} {unit}", left / seconds));
            left %= seconds;
        }
    }
    words.join(" ")
}

fn event_words(trigger: &Value) -> String {
    let of_type = trigger["event_type"].as_str().map_or("any event".to_owned(), |kind| format!("event {kind}"));
    let source = trigger["source"].as_str().map_or(String::new(), |source| format!(" from {source}"));
    let filter = trigger["filter"].as_str().map_or(String::new(), |filter| format!(" where {filter}"));
    let filters = if trigger["filters"].is_object() { ", filtered" } else { "" };
    let quiet = &trigger["debounce"]["quiet"];
    let quiet = quiet.as_str().map_or(String::new(), |quiet| format!(", once quiet for {}", length_words(quiet)));
    let batch = trigger["batch"]["size"].as_u64().map_or(String::new(), |size| format!(", {size} at a time"));
    let throttle = match (trigger["throttle"]["limit"].as_u64(), trigger["throttle"]["per"].as_str()) {
        (Some(limit), Some(per)) => format!(", at most {limit} in {}", length_words(per)),
        _ => String::new(),
    };
    let parts: [&str; 7] = [&of_type, &source, &filter, filters, &quiet, &batch, &throttle];
    parts.concat()
}

fn condition_words(trigger: &Value) -> String {
    let text = |name: &str| trigger[name].as_str();
    let is_change = text("fire") == Some("on_change");
    let watched = text("watch").unwrap_or("the value");
    let asks = match text("expression") {
        Some(expression) if is_change => format!("when {watched} changes and {expression}"),
        Some(expression) => format!("when {expression}"),
        None => format!("when {watched} changes"),
    };
    let interval = text("interval").map_or(String::new(), |every| format!(", looked at every {}", length_words(every)));
    asks + &interval
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn cron_of_a_common_form_is_told_as_people_say_it_and_others_as_they_are() {
        for (cron, words) in [
            ("0 8 * * *", "every day at 08:00 (Europe/Berlin)"),
            ("30 17 * * 1-5", "Monday to Friday at 17:30 (Europe/Berlin)"),
            ("5 9 * * fri", "every Friday at 09:05 (Europe/Berlin)"),
            ("5 9 * * 7", "every Sunday at 09:05 (Europe/Berlin)"),
            ("0 * * * *", "every hour (Europe/Berlin)"),
            ("7 * * * *", "every hour at minute 7 (Europe/Berlin)"),
            ("* * * * *", "every minute (Europe/Berlin)"),
            ("*/15 * * * *", "every 15 min (Europe/Berlin)"),
            ("@daily", "every day at 00:00 (Europe/Berlin)"),
            ("*/7 * * * *", "cron */7 * * * * (Europe/Berlin)"),
            ("*/0 * * * *", "cron */0 * * * * (Europe/Berlin)"),
            ("* * * * 1", "cron * * * * 1 (Europe/Berlin)"),
            ("0 8 1 * *", "cron 0 8 1 * * (Europe/Berlin)"),
            ("0 0 8 * * *", "cron 0 0 8 * * * (Europe/Berlin)"),
            ("0 8 * * 1,3", "cron 0 8 * * 1,3 (Europe/Berlin)"),
        ] {
            let trigger = json!({ "type": "schedule", "cron": cron, "timezone": "Europe/Berlin" });
            assert_eq!(trigger_words(&trigger), words);
        }
    }

    #[test]
    fn schedules_of_other_kinds_are_told_with_their_bounds() {
        for (trigger, words) in [
            (json!({ "type": "schedule", "interval": "90m" }), "every 1 h 30 min"),
            (
                json!({ "type": "schedule", "interval": "PT5M", "end_at": "2027-01-01" }),
                "every 5 min, until 2027-01-01",
            ),
            (json!({ "type": "schedule", "interval": "a while" }), "every a while"),
            (
                json!({ "type": "schedule", "at": "2026-12-24T15:00:00", "timezone": "Asia/Shanghai" }),
                "once at 2026-12-24T15:00:00 (Asia/Shanghai)",
            ),
            (
                json!({ "type": "schedule", "rrule": "FREQ=MONTHLY;BYDAY=-1FR", "start_at": "2027-01-01" }),
                "by the rule FREQ=MONTHLY;BYDAY=-1FR, from 2027-01-01",
            ),
        ] {
            assert_eq!(trigger_words(&trigger), words);
        }
    }

    #[test]
    fn events_and_conditions_are_told_with_what_they_look_for() {
        for (trigger, words) in [
            (json!({ "type": "event" }), "any event"),
            (
                json!({ "type": "event", "source": "shop", "event_type": "order.*", "filter": "event.data.n > 1",
                    "batch": { "size": 10, "wait": "1m" } }),
                "event order.* from shop where event.data.n > 1, 10 at a time",
            ),
            (
                json!({ "type": "event", "source": "shop", "filters": { "n": 1 }, "debounce": { "quiet": "90s" },
                    "throttle": { "limit": 3, "per": "1h" } }),
                "any event from shop, filtered, once quiet for 1 min 30 s, at most 3 in 1 h",
            ),
            (
                json!({ "type": "condition", "interval": "30m", "expression": "value.price < 500", "fire": "on_true" }),
                "when value.price < 500, looked at every 30 min",
            ),
            (
                json!({ "type": "condition", "interval": "1m", "watch": "value.status", "fire": "on_change" }),
                "when value.status changes, looked at every 1 min",
            ),
            (
                json!({ "type": "condition", "interval": "1m", "expression": "value.ok", "fire": "on_change" }),
                "when the value changes and value.ok, looked at every 1 min",
            ),
        ] {
            assert_eq!(trigger_words(&trigger), words);
        }
    }
}
