//! The days of which usage is shown.

use std::collections::BTreeMap;

use chrono::{NaiveDate, TimeDelta};
use serde_json::{Value, json};

/// Days where no first day is named.
const USUAL_DAYS: i64 = 30;
/// Most days that are filled in: as many as the API adds up.
const MOST_DAYS: i64 = 92;

/// A range of days as its reader wrote it, or the usual one.
pub(super) struct UsageRange {
    /// The first day; empty where it can't be known.
    pub(super) from: String,
    /// The day behind the last.
    pub(super) until: String,
    today: NaiveDate,
}

impl UsageRange {
    /// The range of these texts, of which none need be a day: the API says so.
    pub(super) fn of(from: Option<&str>, until: Option<&str>, today: NaiveDate) -> UsageRange {
        let until = until.map_or_else(|| earlier(today, -1), str::to_owned);
        let usual = || day(&until).map(|until| earlier(until, USUAL_DAYS)).unwrap_or_default();
        UsageRange { from: from.map_or_else(usual, str::to_owned), until, today }
    }

    /// As the API is asked for it.
    pub(super) fn asked(&self) -> impl Iterator<Item = (&'static str, String)> {
        let both = [("from", self.from.clone()), ("until", self.until.clone())];
        both.into_iter().filter(|(_, text)| !text.is_empty())
    }

    /// The last day; none where the range is no range.
    pub(super) fn last_day(&self) -> Option<String> {
        day(&self.until).map(|until| earlier(until, 1))
    }

    /// The first of the last days, so many with today.
    pub(super) fn days_before(&self, days: i64) -> String {
        earlier(self.today, days - 1)
    }

    /// The rows of each day of the range: a day without one has a row without figures.
    pub(super) fn fill(&self, rows: Vec<Value>) -> Vec<Value> {
        let (Some(from), Some(until)) = (day(&self.from), day(&self.until)) else { return rows };
        let key = |row: &Value| row["key"].as_str().unwrap_or_default().to_owned();
        let mut known: BTreeMap<String, Value> = rows.into_iter().map(|row| (key(&row), row)).collect();
        let days = (until - from).num_days().clamp(0, MOST_DAYS);
        for day in from.iter_days().take(usize::try_from(days).unwrap_or_default()) {
            let day = day.to_string();
            known.entry(day.clone()).or_insert_with(|| json!({ "key": day, "label": day }));
        }
        known.into_values().collect()
    }
}

fn day(text: &str) -> Option<NaiveDate> {
    text.parse().ok()
}

/// The day so many days before this one.
fn earlier(day: NaiveDate, days: i64) -> String {
    day.checked_sub_signed(TimeDelta::days(days)).unwrap_or(day).to_string()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn range(from: Option<&str>, until: Option<&str>) -> UsageRange {
        UsageRange::of(from, until, NaiveDate::from_ymd_opt(2026, 12, 24).unwrap())
    }

    #[test]
    fn usual_range_is_the_last_thirty_days_with_today() {
        let usual = range(None, None);
        assert_eq!((usual.from.as_str(), usual.until.as_str()), ("2026-11-25", "2026-12-25"));
        assert_eq!(usual.last_day().as_deref(), Some("2026-12-24"));
        assert_eq!((usual.days_before(7), usual.days_before(30)), ("2026-12-18".to_owned(), "2026-11-25".to_owned()));
        let odd = range(None, Some("soon"));
        assert_eq!((odd.last_day(), odd.asked().collect::<Vec<_>>()), (None, vec![("until", "soon".to_owned())]));
    }

    #[test]
    fn days_without_usage_are_filled_in_and_never_more_than_the_api_adds_up() {
        let rows = vec![json!({ "key": "2026-12-02", "label": "2026-12-02", "turns": 3 })];
        let filled = range(Some("2026-12-01"), Some("2026-12-04")).fill(rows.clone());
        assert_eq!(filled.len(), 3);
        assert_eq!((&filled[1]["turns"], &filled[2]["key"]), (&json!(3), &json!("2026-12-03")));
        assert_eq!(range(Some("0001-01-01"), Some("2026-12-04")).fill(vec![]).len(), MOST_DAYS as usize);
        assert_eq!(range(Some("soon"), Some("2026-12-04")).fill(rows).len(), 1);
    }
}
