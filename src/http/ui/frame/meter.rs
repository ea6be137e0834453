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

#[cfg(test)]
mod tests {
    use super::*;

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
