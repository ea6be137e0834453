//! The settings of the bus: what they mean, and what can be judged of them before anything is opened.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::invalid::ValidationErrors;
use crate::base::secret::SecretUrl;

/// More streams than this are no gain, and each read blocks on all of them.
const MOST_PARTITIONS: u32 = 1024;
/// Schemes of a Redis, a cluster of them, and one behind sentinels.
const REDIS_SCHEMES: [&str; 6] =
    ["redis", "rediss", "redis+cluster", "rediss+cluster", "redis+sentinel", "rediss+sentinel"];

/// How long handled events may be kept.
const RETENTION: std::ops::RangeInclusive<Duration> = Duration::from_secs(60)..=Duration::from_secs(3_650 * 24 * 3_600);
/// Deliveries that an entry may be tried for.
const MOST_DELIVERIES: u32 = 1_000;

/// `[bus]`
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `embedded`: in the database. `redis://user:password@host:port/db` or `rediss://…`; `redis+cluster://h1:p1,h2:p2`
    /// (`rediss+cluster://…`); `redis+sentinel://h1:p1,h2:p2/service/db` (`rediss+sentinel://…`).
    pub url: SecretUrl,
    /// Streams are called `<prefix>:<partition>`, dead letters `<prefix>:dead`.
    pub stream_prefix: String,
    /// Over how many streams tenants are spread. Everybody who publishes by XADD has to know it.
    pub partitions: u32,
    /// The consumer group that all instances share.
    pub group: String,
    /// How long acknowledged events are kept for the log, such as `7d` or `12h`.
    pub retention: String,
    /// An entry whose consumer says nothing for this long is handed to another.
    pub stalled_after_seconds: f64,
    /// After this many deliveries that came to nothing an entry becomes a dead letter.
    pub max_deliveries: u32,
    /// Takes events into the database while Redis is away, and forwards them later; else publishing answers 503.
    pub outbox: bool,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            url: SecretUrl::new("embedded"),
            stream_prefix: "reveille:events".into(),
            partitions: 16,
            group: "reveille".into(),
            retention: "7d".into(),
            stalled_after_seconds: 60.0,
            max_deliveries: 5,
            outbox: false,
        }
    }
}

impl Settings {
    /// Adds what is wrong; pointers begin with `/bus`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        if !is_known(self.url.expose()) {
            faults.add(
                "/bus/url",
                "must be `embedded`, `redis://host:6379`, `redis+cluster://host1:6379,host2:6379` or \
                 `redis+sentinel://host1:26379,host2:26379/service`; with TLS `rediss…`",
            );
        }
        for (pointer, name) in [("/bus/stream_prefix", &self.stream_prefix), ("/bus/group", &self.group)] {
            if name.is_empty() || name.len() > 200 || name.contains(|c: char| c.is_control() || "{} ".contains(c)) {
                faults.add(pointer, "must have 1 to 200 characters, none of them a space, `{` or `}`");
            }
        }
        if !(1..=MOST_PARTITIONS).contains(&self.partitions) {
            faults.add("/bus/partitions", format!("must be from 1 to {MOST_PARTITIONS}"));
        }
        match humantime::parse_duration(&self.retention) {
            Ok(length) if RETENTION.contains(&length) => {}
            Ok(_) => faults.add("/bus/retention", "must be from `1m` to `3650d`"),
            Err(error) => faults.add("/bus/retention", format!("must be a length such as `7d` or `12h`: {error}")),
        }
        if !(0.1..=3600.0).contains(&self.stalled_after_seconds) {
            faults.add("/bus/stalled_after_seconds", "must be from 0.1 to 3600");
        }
        if !(1..=MOST_DELIVERIES).contains(&self.max_deliveries) {
            faults.add("/bus/max_deliveries", format!("must be from 1 to {MOST_DELIVERIES}"));
        }
    }

    /// How long acknowledged events are kept; what can't be read as a length counts as the default.
    pub fn retention(&self) -> Duration {
        let length = humantime::parse_duration(&self.retention).unwrap_or(Duration::from_secs(7 * 24 * 3600));
        length.clamp(*RETENTION.start(), *RETENTION.end())
    }

    /// Time after which entries of a silent consumer are taken over, between 0.1 s and an hour.
    pub fn stalled_after(&self) -> Duration {
        Duration::from_secs_f64(self.stalled_after_seconds.clamp(0.1, 3600.0))
    }

    /// Whether the events are in the database.
    pub fn is_embedded(&self) -> bool {
        self.url.expose() == "embedded"
    }
}

fn is_known(url: &str) -> bool {
    let scheme = url.split_once("://").filter(|(_, rest)| !rest.is_empty()).map(|(scheme, _)| scheme);
    url == "embedded" || scheme.is_some_and(|scheme| REDIS_SCHEMES.contains(&scheme))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_errors_name_the_key() {
        let settings = Settings {
            url: SecretUrl::new("amqp://h"),
            stream_prefix: "{x}".into(),
            partitions: 0,
            group: String::new(),
            retention: "soon".into(),
            stalled_after_seconds: 0.0,
            max_deliveries: 0,
            outbox: false,
        };
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        let keys =
            ["url", "stream_prefix", "group", "partitions", "retention", "stalled_after_seconds", "max_deliveries"];
        assert_eq!(places, keys.map(|key| format!("/bus/{key}")));
        let mut none = ValidationErrors::new();
        Settings::default().check(&mut none);
        for url in REDIS_SCHEMES.map(|scheme| format!("{scheme}://h:1/s")) {
            Settings { url: SecretUrl::new(url), ..Settings::default() }.check(&mut none);
        }
        assert_eq!(none.0, []);
        assert_eq!(Settings::default().retention(), Duration::from_secs(604_800));
    }
}
