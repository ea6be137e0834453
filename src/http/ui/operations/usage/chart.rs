//! Charts as the places of their bars, lines and words: a template draws them as SVG.
//!
//! A chart is `{kind, title, unit, width, height, axis, bars: [{x, y, width, height, label, value}],
//! ticks: [{at, value}], words: [{at, label}]}` in units of its view box.

use serde_json::{Value, json};

use crate::http::ui::frame::text::beginning_of;

/// Width of a chart.
const WIDTH: f64 = 720.0;
/// Height of a chart with columns.
const HEIGHT: f64 = 200.0;
/// Room for the values of the scale, left of the columns.
const LEFT: f64 = 72.0;
/// Room right of the bars.
const RIGHT: f64 = 8.0;
/// Room above the columns.
const TOP: f64 = 12.0;
/// Room for the days, below the columns.
const BOTTOM: f64 = 26.0;
/// Room for the names, left of the lines.
const NAMES: f64 = 216.0;
/// Room for the values, right of the lines.
const VALUES: f64 = 96.0;
/// Height of a line with its gap.
const LINE: f64 = 24.0;
/// Part of its place that a bar fills.
const FILLED: f64 = 0.75;
/// Lines of a chart: the largest ones.
const MOST_LINES: usize = 15;
/// Characters of a name beside a line.
const NAME: usize = 28;

/// A column for each row, in their order; the first, the middle and the last are named.
pub(super) fn columns(title: &str, unit: &str, rows: &[(&str, f64)]) -> Value {
    let most = ceiling(rows.iter().map(|(_, value)| *value).fold(0.0, f64::max));
    let (room, tall) = (WIDTH - LEFT - RIGHT, HEIGHT - TOP - BOTTOM);
    let step = room / rows.len().max(1) as f64;
    let bar = |(at, (label, value)): (usize, &(&str, f64))| {
        let height = value / most * tall;
        let x = LEFT + step * (at as f64 + (1.0 - FILLED) / 2.0);
        json!({
            "x": short(x), "y": short(TOP + tall - height), "width": short(step * FILLED), "height": short(height),
            "label": label, "value": value,
        })
    };
    let named: Vec<usize> = match rows.len() {
        0 => vec![],
        1 => vec![0],
        2 => vec![0, 1],
        count => vec![0, count / 2, count - 1],
    };
    let word = |at: usize| json!({ "at": short(LEFT + step * (at as f64 + 0.5)), "label": rows[at].0 });
    let tick = |part: f64| json!({ "at": short(TOP + tall * (1.0 - part)), "value": most * part });
    json!({
        "kind": "columns", "title": title, "unit": unit, "width": WIDTH, "height": HEIGHT,
        "axis": { "left": LEFT, "right": WIDTH - RIGHT, "bottom": HEIGHT - 8.0 },
        "bars": rows.iter().enumerate().map(bar).collect::<Vec<_>>(),
        "ticks": ([0.0, 0.5, 1.0].map(tick)),
        "words": named.into_iter().map(word).collect::<Vec<_>>(),
    })
}

/// A line for each of the largest rows, the largest first, each with its name and its value.
pub(super) fn lines(title: &str, unit: &str, rows: &[(&str, f64)]) -> Value {
    let mut largest: Vec<&(&str, f64)> = rows.iter().collect();
    largest.sort_by(|one, other| other.1.total_cmp(&one.1));
    largest.truncate(MOST_LINES);
    let most = largest.first().map_or(0.0, |row| row.1).max(f64::MIN_POSITIVE);
    let bar = |(at, (label, value)): (usize, &&(&str, f64))| {
        json!({
            "x": NAMES, "y": short(LINE * (at as f64 + (1.0 - FILLED) / 2.0)),
            "width": short(value / most * (WIDTH - NAMES - VALUES)), "height": LINE * FILLED,
            "label": label, "name": name(label), "value": value, "middle": LINE * (at as f64 + 0.5),
        })
    };
    json!({
        "kind": "lines", "title": title, "unit": unit, "width": WIDTH, "height": LINE * largest.len() as f64,
        "axis": { "left": NAMES, "right": WIDTH - VALUES },
        "bars": largest.iter().enumerate().map(bar).collect::<Vec<_>>(),
        "left_out": rows.len() - largest.len(),
    })
}

/// The least round number that is not below this one: 1, 2 or 5 with zeros.
fn ceiling(most: f64) -> f64 {
    if most <= 0.0 {
        return 1.0;
    }
    let power = 10_f64.powf(most.log10().floor());
    [1.0, 2.0, 5.0, 10.0].into_iter().map(|round| round * power).find(|round| *round >= most).unwrap_or(most)
}

/// A place in the view box, to a tenth.
fn short(place: f64) -> f64 {
    (place * 10.0).round() / 10.0
}

/// The beginning of a name.
fn name(label: &str) -> String {
    match beginning_of(label, NAME) {
        (shown, true) => format!("{shown}…"),
        (whole, false) => whole.to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_stand_on_the_axis_and_the_scale_ends_at_a_round_number() {
        let chart = columns("Tokens", "count", &[("2026-12-01", 1_500.0), ("2026-12-02", 0.0), ("2026-12-03", 750.0)]);
        let bars = chart["bars"].as_array().unwrap();
        assert_eq!(chart["ticks"][2]["value"], 2_000.0);
        for bar in bars {
            let bottom = bar["y"].as_f64().unwrap() + bar["height"].as_f64().unwrap();
            assert!((bottom - (HEIGHT - BOTTOM)).abs() < 0.2, "{bar}");
            assert!(bar["x"].as_f64().unwrap() >= LEFT, "{bar}");
        }
        assert_eq!(bars[1]["height"], 0.0);
        assert_eq!(chart["words"].as_array().unwrap().len(), 3);
        assert_eq!(columns("Tokens", "count", &[])["words"], json!([]));
        assert_eq!(columns("Tokens", "count", &[("a", 0.0)])["bars"][0]["height"], 0.0, "no division by nothing");
    }

    #[test]
    fn lines_are_the_largest_first_and_end_within_the_chart() {
        let rows: Vec<(String, f64)> = (0..20).map(|number| (format!("model {number}"), f64::from(number))).collect();
        let rows: Vec<(&str, f64)> = rows.iter().map(|(label, value)| (label.as_str(), *value)).collect();
        let chart = lines("Money", "usd", &rows);
        assert_eq!((chart["bars"].as_array().unwrap().len(), &chart["left_out"]), (MOST_LINES, &json!(5)));
        assert_eq!((&chart["bars"][0]["label"], &chart["bars"][0]["width"]), (&json!("model 19"), &json!(408.0)));
        assert_eq!(lines("Money", "usd", &[("a", 0.0)])["bars"][0]["width"], 0.0);
        assert_eq!(name(&"x".repeat(NAME)), "x".repeat(NAME));
        assert_eq!(name(&"é".repeat(NAME + 1)), format!("{}…", "é".repeat(NAME)));
    }

    #[test]
    fn ceiling_is_round_and_not_below() {
        for (most, round) in [(0.0, 1.0), (0.03, 0.05), (1.0, 1.0), (7.0, 10.0), (1_500.0, 2_000.0)] {
            assert!((ceiling(most) - round).abs() < 1e-9, "{most}: {}", ceiling(most));
        }
    }
}
