//! `current_time`: what time it is, here or elsewhere.

use chrono::{DateTime, SecondsFormat, Utc};
use chrono_tz::Tz;
use serde::Deserialize;
use serde_json::{Value, json};

use crate::domain::approval::{Category, Consequence};
use crate::domain::trigger::zone::{parse_zone, shown_in};
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, ToolError};

/// Name of the tool.
pub const CURRENT_TIME: &str = "current_time";

/// Arguments of `current_time`.
#[derive(Deserialize)]
pub(super) struct Arguments {
    timezone: Option<String>,
}

pub(super) fn current_time() -> BuiltinTool<Arguments> {
    let definition = Definition::new(
        CURRENT_TIME,
        "The present date, time and weekday, in the recipient's time zone or in another one.",
        json!({
            "type": "object",
            "properties": { "timezone": {
                "type": "string",
                "description": "IANA name, such as `Europe/Berlin`; absent: the recipient's",
            } },
            "additionalProperties": false,
        }),
        Category::Read,
        Consequence::Low,
    );
    BuiltinTool {
        definition,
        act: |context, arguments| {
            Box::pin(async move {
                let zone = arguments.timezone.as_deref().map_or(Ok(context.timezone), zone)?;
                Ok(told(context.clock.now(), zone))
            })
        },
    }
}

fn zone(name: &str) -> Result<Tz, ToolError> {
    parse_zone(name).map_err(|why| ToolError::arguments(format!("/timezone: {why}")))
}

fn told(now: DateTime<Utc>, zone: Tz) -> Value {
    let local = shown_in(now, zone);
    json!({
        "local": local.to_rfc3339_opts(SecondsFormat::Secs, false),
        "timezone": zone.name(),
        "weekday": local.format("%A").to_string(),
        "utc": now.to_rfc3339_opts(SecondsFormat::Secs, true),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_is_told_in_the_zone_and_in_utc() {
        let now = "2026-12-24T23:30:00.123Z".parse().unwrap();
        assert_eq!(
            told(now, chrono_tz::Asia::Shanghai),
            json!({
                "local": "2026-12-25T07:30:00+08:00", "timezone": "Asia/Shanghai",
                "weekday": "Friday", "utc": "2026-12-24T23:30:00Z",
            })
        );
    }

    #[test]
    fn unknown_zone_is_answered_with_the_near_one() {
        assert_eq!(
            zone("Europe/Berln").unwrap_err(),
            ToolError::arguments("/timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?")
        );
    }
}
