//! The rules of time zones: which release a service would plan by, and whether that is old.

use chrono::{DateTime, Utc};

use super::Finding;
use crate::domain::trigger::zone::{self, Settings, ZoneTable};

const NAME: &str = "time zones";

/// Findings on the zone rules by which a service with these settings would plan at `now`, and on unreadable ones.
pub(super) fn all(settings: &Settings, now: DateTime<Utc>) -> Vec<Finding> {
    let bundled = ZoneTable::bundled();
    let (database, warnings) = match settings.newer_than(bundled.release()) {
        Ok(Some((database, warnings))) => (database, warnings),
        Ok(None) => (bundled, Vec::new()),
        Err(why) => (bundled, vec![why]),
    };
    let mut findings = vec![of_release(&database, now)];
    findings.extend(summary(&warnings).map(|warning| Finding::warning(NAME, warning)));
    findings
}

fn of_release(database: &ZoneTable, now: DateTime<Utc>) -> Finding {
    let (release, source) = (database.release(), database.source());
    if !release.is_stale(now) {
        return Finding::ok(NAME, format!("release {release}, {source}"));
    }
    let message = format!(
        "release {release}, {source}, came out on {} or later, over nine months ago: rules may have changed since, \
         and tasks would fire at the wrong hour",
        release.released()
    );
    let hint = match database.source() {
        zone::ZoneSource::Folder(_) => "update the machine's tzdata package",
        _ => "install the machine's tzdata package and set `time.zoneinfo_dir`, or update Reveille",
    };
    Finding::warning(NAME, message).hint(hint)
}

/// The first of many warnings, and how many there are.
fn summary(warnings: &[String]) -> Option<String> {
    let (first, rest) = warnings.split_first()?;
    Some(if rest.is_empty() { first.clone() } else { format!("{first}; so are {} more", rest.len()) })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::local::check::CheckVerdict;

    #[test]
    fn zone_release_older_than_nine_months_is_odd() {
        let bundled = Settings { zoneinfo_dir: String::new() };
        let at = |text: &str| all(&bundled, text.parse().unwrap());
        let release = ZoneTable::bundled().release().clone();
        let fresh = Finding::ok(NAME, format!("release {release}, compiled in"));
        assert_eq!(at("2026-11-23T00:00:00Z"), [fresh]);
        let [old] = &at("2028-06-01T00:00:00Z")[..] else { panic!("one finding") };
        assert_eq!(old.verdict, CheckVerdict::Odd);
        assert!(old.message.contains("over nine months ago"), "{}", old.message);
        assert!(old.hint.as_deref().unwrap_or_default().contains("tzdata"));
    }
}
