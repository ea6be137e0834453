//! How much of a limit is used, as a bar shows it.

use serde_json::{Value, json};

/// The width of a whole bar.
const WHOLE: f64 = 100.0;
/// From this share on a limit is near.
const NEAR: f64 = 80.0;

/// `{percent, width, tone}`: the share that is used, the width of its bar (100 at most), and `near` from 80 percent on
/// or `over` from 100 percent on; `null` where there is no limit.
pub fn meter(used: f64, limit: Option<f64>) -> Value {
    let Some(limit) = limit.filter(|limit| *limit > 0.0) else { return Value::Null };
    let percent = (used / limit * WHOLE).max(0.0);
    let tone = match percent {
        WHOLE.. => "over",
        NEAR.. => "near",
        _ => "",
    };
    json!({ "percent": percent.floor() as u64, "width": percent.min(WHOLE).floor() as u64, "tone": tone })
}

/// Tokens and dollars of a day, `[{kind, used, reserved, limit, meter}]`; without a limit that and the meter are null.
pub fn day_bars(spent: &Value, limits: &Value) -> Vec<Value> {
    let kinds = [
        ("tokens", "tokens", "reserved_tokens", "tokens_per_day"),
        ("dollars", "cost_usd", "reserved_cost_usd", "cost_usd_per_day"),
    ];
    let bar = |(kind, used, reserved, limit): (&str, &str, &str, &str)| {
        let limit = limits[limit].as_f64();
        let shown = meter(spent[used].as_f64().unwrap_or_default(), limit);
        json!({ "kind": kind, "used": spent[used], "reserved": spent[reserved], "limit": limit, "meter": shown })
    };
    kinds.into_iter().map(bar).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn day_is_shown_with_and_without_a_limit() {
        let spent = json!({ "tokens": 900, "cost_usd": 0.5, "reserved_tokens": 10, "reserved_cost_usd": 0.0 });
        let bars = day_bars(&spent, &json!({ "tokens_per_day": 1000 }));
        assert_eq!((&bars[0]["meter"]["tone"], &bars[0]["limit"]), (&json!("near"), &json!(1000.0)));
        assert_eq!((&bars[1]["meter"], &bars[1]["used"]), (&Value::Null, &json!(0.5)));
    }

    #[test]
    fn meter_says_how_near_the_limit_is_and_its_bar_is_never_wider_than_whole() {
        assert_eq!(meter(5.0, None), Value::Null);
        assert_eq!(meter(0.0, Some(10.0)), json!({ "percent": 0, "width": 0, "tone": "" }));
        assert_eq!(meter(7.99, Some(10.0)), json!({ "percent": 79, "width": 79, "tone": "" }));
        assert_eq!(meter(8.0, Some(10.0)), json!({ "percent": 80, "width": 80, "tone": "near" }));
        assert_eq!(meter(10.0, Some(10.0)), json!({ "percent": 100, "width": 100, "tone": "over" }));
        assert_eq!(meter(25.0, Some(10.0)), json!({ "percent": 250, "width": 100, "tone": "over" }));
    }
}
