//! The rules of time zones: which release a service would plan by, whether that is old, and which stored one can't be
//! read.

use std::path::Path;

use chrono::{DateTime, Utc};

use super::{Finding, place};
use crate::config::Config;
use crate::domain::trigger::zone::{self, Settings, ZoneRelease, ZoneTable};
use crate::store::{Store, StoreError};

const NAME: &str = "time zones";

/// Findings on the zone rules by which a service with these settings would plan at `now`, and on unreadable ones.
pub(super) fn all(settings: &Settings, now: DateTime<Utc>) -> Vec<Finding> {
    let (database, warnings) = own(settings);
    let mut findings = vec![of_release(&database, now)];
    findings.extend(summary(&warnings).map(|warning| Finding::warning(NAME, warning)));
    findings
}

/// The rules that this machine has, and what is to be warned of.
fn own(settings: &Settings) -> (ZoneTable, Vec<String>) {
    let bundled = ZoneTable::bundled();
    match settings.newer_than(bundled.release()) {
        Ok(Some((database, warnings))) => (database, warnings),
        Ok(None) => (bundled, Vec::new()),
        Err(why) => (bundled, vec![why]),
    }
}

/// A finding on the releases that are stored in the service's database and can't be read. Where the database can't say,
/// the look at it or at the keys does.
pub(super) async fn stored(config: &Config, data_dir: &Path) -> Option<Finding> {
    let (database, _) = own(&config.time);
    let release = database.release();
    let looked = place::query_store(config, data_dir, async |store| unreadable(store, release).await).await;
    let lost = looked.ok().flatten().filter(|lost| !lost.is_empty())?;
    Some(of_unreadable(&lost))
}

fn of_unreadable(lost: &[String]) -> Finding {
    let message = format!(
        "what is stored as release {} can't be read: it is set aside, and tasks are planned by the newest release that can be",
        lost.join(", ")
    );
    Finding::warning(NAME, message)
        .hint("update the machine's tzdata package, or Reveille: newer rules plan once an instance has them")
}

/// The names of stored releases that are set aside; and of the newest one, where the next look of a service would do
/// that.
async fn unreadable(store: &Store, own: &ZoneRelease) -> Result<Vec<String>, StoreError> {
    let mut lost = store.zones_set_aside().await?;
    if let Some(name) = store.misnamed_zones().await? {
        lost.push(name);
    } else if let Some(newest) = store.newest_zones().await?.map(|newest| newest.release)
        && newest > *own
    {
        let rules = match store.zones_of(&newest).await {
            Err(StoreError::Corrupt(_)) => None,
            rules => rules?,
        };
        if rules.and_then(|rules| ZoneTable::from_bytes(newest.clone(), &rules)).is_none() {
            lost.push(newest.to_string());
        }
    }
    Ok(lost)
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
    fn zone_releases_that_cannot_be_read_are_odd_and_named() {
        let found = of_unreadable(&["soon".into(), "2999a".into()]);
        assert_eq!(found.verdict, CheckVerdict::Odd);
        assert!(found.message.contains("release soon, 2999a can't be read"), "{}", found.message);
    }

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
