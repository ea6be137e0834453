//! Filters of the templates: instants, lengths of time, money, counts, states and JSON.

use chrono::DateTime;
use minijinja::Environment;
use minijinja::value::{Serde, Value};
use serde_json::Value as Json;

use crate::base::template::html::{MarkupPlace, escape_html};
use crate::base::unicode_safety::escape_hidden;
use crate::http::ui::frame::text::{beginning_of, readable};

/// In the place of a value that is not there.
const NONE: &str = "–";
/// Words of states, good and bad, and of those that wait; all others are plain.
const GOOD: [&str; 13] = [
    "accepted",
    "active",
    "approved",
    "completed",
    "connected",
    "delivered",
    "edited",
    "healthy",
    "ok",
    "ready",
    "replied",
    "sent",
    "succeeded",
];
const BAD: [&str; 12] = [
    "broken",
    "bounced",
    "dead",
    "error",
    "expired",
    "failed",
    "invalid",
    "missing",
    "needs_consent",
    "refused",
    "revoked",
    "undeliverable",
];
const WAITING: [&str; 12] = [
    "disabled",
    "expiring",
    "held",
    "paused",
    "pending",
    "pending_approval",
    "queued",
    "retrying",
    "stopped",
    "waiting",
    "waiting_for_completion",
    "waiting_for_input",
];

/// Adds the filters to an environment.
pub fn add_to(environment: &mut Environment<'_>) {
    environment.add_filter("when", |at: Option<&str>| at.map_or_else(none, when));
    environment.add_filter("day", |at: Option<&str>| at.map_or_else(String::new, |at| at.chars().take(10).collect()));
    environment.add_filter("took", |ms: Option<f64>| ms.map_or_else(|| NONE.to_owned(), took));
    environment.add_filter("between", |from: Option<&str>, to: Option<&str>| between(from, to));
    environment.add_filter("usd", |amount: Value| usd(&amount));
    environment.add_filter("count", |count: Option<f64>| count.map_or_else(|| NONE.to_owned(), grouped));
    environment.add_filter("size", |bytes: Option<f64>| bytes.map_or_else(|| NONE.to_owned(), size));
    environment.add_filter("pretty", |Serde(value): Serde<Json>| pretty(&value));
    environment.add_filter("plain", |Serde(value): Serde<Json>| plain(&value));
    environment.add_filter("state", |word: Option<&str>| word.map_or_else(none, badge));
    environment
        .add_filter("cut", |text: Option<&str>, most: usize| text.map_or_else(String::new, |text| cut(text, most)));
    environment.add_filter("exact", |text: &str| Value::from_safe_string(escape_html(text, MarkupPlace::Quoted)));
}

fn none() -> Value {
    Value::from(NONE)
}

/// An instant (RFC 3339) that the script turns into a relative one.
fn when(text: &str) -> Value {
    let Ok(at) = DateTime::parse_from_rfc3339(text) else { return Value::from(text) };
    let at = at.to_utc();
    let (exact, shown) = (at.format("%Y-%m-%dT%H:%M:%SZ"), at.format("%Y-%m-%d %H:%M:%S UTC"));
    Value::from_safe_string(format!("<time datetime=\"{exact}\">{shown}</time>"))
}

/// Milliseconds in words: `350 ms`, `1.2 s`, `3 min 5 s`, `2 h 5 min`, `3 d 4 h`.
pub fn took(ms: f64) -> String {
    let seconds = (ms / 1000.0).max(0.0);
    let whole = seconds as u64;
    match whole {
        0 => format!("{} ms", ms.max(0.0).round()),
        1..=59 => format!("{seconds:.1} s"),
        60..=3_599 => format!("{} min {} s", whole / 60, whole % 60),
        3_600..=86_399 => format!("{} h {} min", whole / 3_600, whole % 3_600 / 60),
        _ => format!("{} d {} h", whole / 86_400, whole % 86_400 / 3_600),
    }
}

fn between(from: Option<&str>, to: Option<&str>) -> String {
    let read = |text: Option<&str>| DateTime::parse_from_rfc3339(text?).ok();
    match (read(from), read(to)) {
        (Some(from), Some(to)) => took((to - from).num_milliseconds() as f64),
        _ => NONE.to_owned(),
    }
}

/// An amount in US dollars: a number, or a text that is one.
fn usd(amount: &Value) -> String {
    let number = match amount.as_str() {
        Some(text) => text.parse().ok(),
        None => f64::try_from(amount.clone()).ok(),
    };
    match number {
        None => NONE.to_owned(),
        Some(0.0) => "$0".to_owned(),
        Some(amount) if amount.abs() < 0.01 => format!("${amount:.5}"),
        Some(amount) if amount.abs() < 1.0 => format!("${amount:.4}"),
        Some(amount) => format!("${}", with_groups(&format!("{amount:.2}"))),
    }
}

/// A number with its thousands apart.
pub fn grouped(count: f64) -> String {
    let text = if count.fract() == 0.0 { format!("{count:.0}") } else { format!("{count:.2}") };
    with_groups(&text)
}

fn with_groups(number: &str) -> String {
    let (whole, rest) = number.split_at(number.find('.').unwrap_or(number.len()));
    let (sign, digits) = whole.split_at(whole.len() - whole.trim_start_matches('-').len());
    let mut grouped = sign.to_owned();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at) % 3 == 0 {
            grouped.push(',');
        }
        grouped.push(digit);
    }
    grouped + rest
}

fn size(bytes: f64) -> String {
    match bytes {
        ..1_024.0 => format!("{bytes:.0} B"),
        ..1_048_576.0 => format!("{:.1} KiB", bytes / 1_024.0),
        ..1_073_741_824.0 => format!("{:.1} MiB", bytes / 1_048_576.0),
        _ => format!("{:.1} GiB", bytes / 1_073_741_824.0),
    }
}

/// JSON over several lines; a text as it is.
fn pretty(value: &Json) -> String {
    match value {
        Json::Null => NONE.to_owned(),
        value => readable(value),
    }
}

/// JSON on one line; a text as it is.
fn plain(value: &Json) -> String {
    match value {
        Json::Null => NONE.to_owned(),
        Json::String(text) => text.clone(),
        value => value.to_string(),
    }
}

/// A state as a badge: its colour says what its word says.
fn badge(word: &str) -> Value {
    let tone = match word {
        word if GOOD.contains(&word) => "good",
        word if BAD.contains(&word) => "bad",
        word if WAITING.contains(&word) => "waiting",
        _ => "plain",
    };
    let shown = escape_html(&escape_hidden(&word.replace('_', " ")), MarkupPlace::Quoted);
    Value::from_safe_string(format!("<span class=\"badge {tone}\">{shown}</span>"))
}

/// The beginning of a text, on one line.
fn cut(text: &str, most: usize) -> String {
    let text = text.split_whitespace().collect::<Vec<_>>().join(" ");
    match beginning_of(&text, most) {
        (shown, true) => format!("{shown}…"),
        (_, false) => text,
    }
}

#[cfg(test)]
mod tests {
    use minijinja::{AutoEscape, context};
    use serde_json::json;

    use super::*;

    fn shown(template: &str, page: Json) -> String {
        let mut environment = Environment::new();
        environment.set_auto_escape_callback(|_| AutoEscape::Html);
        add_to(&mut environment);
        environment.render_str(template, context! { page => Value::from(Serde(page)) }).unwrap()
    }

    #[test]
    fn lengths_of_time_are_told_in_two_units_at_most() {
        let words = [0.0, 350.4, 1_240.0, 185_000.0, 7_500_000.0, 273_600_000.0].map(took);
        assert_eq!(words, ["0 ms", "350 ms", "1.2 s", "3 min 5 s", "2 h 5 min", "3 d 4 h"]);
    }

    #[test]
    fn amounts_and_counts_have_as_many_digits_as_they_need() {
        let page = json!({ "a": 0.00012, "b": "12345.5", "c": 0, "d": null, "e": 1234567, "f": -1234, "g": 2048 });
        let template = "{{ page.a | usd }} {{ page.b | usd }} {{ page.c | usd }} {{ page.d | usd }} {{ page.e | count }} \
                        {{ page.f | count }} {{ page.g | size }}";
        assert_eq!(shown(template, page), "$0.00012 $12,345.50 $0 – 1,234,567 -1,234 2.0 KiB");
    }

    #[test]
    fn instants_are_exact_and_what_is_none_is_told_as_missing() {
        let page =
            json!({ "at": "2026-12-24T15:00:00.5+01:00", "to": "2026-12-24T14:00:02Z", "bad": "<x>", "none": null });
        let at = "<time datetime=\"2026-12-24T14:00:00Z\">2026-12-24 14:00:00 UTC</time>";
        let template =
            "{{ page.at | when }}|{{ page.bad | when }}|{{ page.none | when }}|{{ page.at | between(page.to) }}";
        assert_eq!(shown(template, page), format!("{at}|&lt;x&gt;|–|1.5 s"));
    }

    #[test]
    fn states_are_badges_and_json_is_text() {
        let page = json!({ "state": "pending_approval", "bad": "<failed>", "json": { "a": ["<b>"] }, "long": "one\ntwo three" });
        let template = "{{ page.state | state }}{{ page.bad | state }}{{ page.json | plain }}{{ page.long | cut(7) }}";
        let expected = "<span class=\"badge waiting\">pending approval</span><span class=\"badge plain\">&lt;failed&gt;</span>\
                        {&quot;a&quot;:[&quot;&lt;b&gt;&quot;]}one two…";
        assert_eq!(shown(template, page), expected);
    }
}
