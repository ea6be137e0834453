//! Where the rules of time zones come from, and what becomes of tasks when they change.

mod replan;

use std::path::Path;
use std::time::Duration;

use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::{TZ_VARIANTS, Tz};
use reveille::base::clock;
use reveille::domain::trigger::Schedule;
use reveille::domain::trigger::zone::{Settings, ZoneRelease, ZoneSource, ZoneTable};
use reveille::ports::egress::operator_client;
use serde_json::{Value, json};

use crate::support::api::Api;
use crate::support::binary::{Service, TempDir};
use crate::support::zoneinfo;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn release(text: &str) -> ZoneRelease {
    ZoneRelease::parse(text).unwrap()
}

fn settings(dir: &Path) -> Settings {
    Settings { zoneinfo_dir: dir.display().to_string() }
}

fn first(source: &ZoneTable, cron: &str, zone: &str, after: &str) -> String {
    let schedule: Schedule = serde_json::from_value(json!({"cron": cron, "timezone": zone})).unwrap();
    let next = schedule.compile_under(source, DateTime::UNIX_EPOCH).unwrap().next_after(at(after)).unwrap();
    next.format("%FT%H:%MZ").to_string()
}

#[test]
fn zones_that_changed_since_the_former_bundle_fire_by_the_current_rules() {
    let (former, bundled) = (ZoneTable::legacy(), ZoneTable::bundled());
    assert_eq!((former.release(), bundled.release()), (&release("2025b"), &release("2026f")));
    for (zone, after, before, now) in [
        ("America/Vancouver", "2027-01-10T12:00:00Z", "2027-01-10T16:00Z", "2027-01-10T15:00Z"),
        ("America/Edmonton", "2027-01-10T12:00:00Z", "2027-01-10T15:00Z", "2027-01-10T14:00Z"),
        ("America/Winnipeg", "2027-01-10T12:00:00Z", "2027-01-10T14:00Z", "2027-01-10T13:00Z"),
        ("Africa/Casablanca", "2027-01-10T00:00:00Z", "2027-01-10T07:00Z", "2027-01-10T08:00Z"),
        ("America/Havana", "2027-01-10T00:00:00Z", "2027-01-10T13:00Z", "2027-01-10T12:00Z"),
        ("Europe/Berlin", "2027-01-10T00:00:00Z", "2027-01-10T07:00Z", "2027-01-10T07:00Z"),
    ] {
        assert_eq!(first(&former, "0 8 * * *", zone, after), before, "{zone} under 2025b");
        assert_eq!(first(&bundled, "0 8 * * *", zone, after), now, "{zone} under 2026f");
    }
}

#[test]
fn zone_database_of_the_bundle_has_every_name() {
    let bundled = ZoneTable::bundled();
    for name in TZ_VARIANTS {
        assert_eq!(bundled.zone(name).name(), name.name());
    }
    let year = at("2027-01-01T00:00:00Z");
    assert_eq!(bundled.differing(&ZoneTable::bundled(), year, year + TimeDelta::days(3660)), []);
}

#[test]
fn zone_database_survives_being_stored() {
    let bundled = ZoneTable::bundled();
    let stored = ZoneTable::from_bytes(bundled.release().clone(), &bundled.to_bytes()).unwrap();
    assert_eq!((stored.source(), stored.release()), (&ZoneSource::Stored, bundled.release()));
    let from = at("1970-01-01T00:00:00Z");
    assert_eq!(stored.differing(&bundled, from, from + TimeDelta::days(100 * 366)), []);
    assert!(ZoneTable::from_bytes(release("2027a"), b"{").is_none());
}

#[test]
fn zoneinfo_folder_is_used_only_if_it_names_a_newer_release() {
    let dir = TempDir::new();
    let used =
        |present: &str| settings(dir.path()).newer_than(&release(present)).unwrap().map(|(database, _)| database);
    assert!(used("2025b").is_none(), "there is no folder");
    zoneinfo::write(dir.path(), "2026f-3-gabcdef", &[("Asia/Tokyo", zoneinfo::tzif(3600, &[]))]);
    assert!(used("2025b").is_none(), "a development version is no release");
    std::fs::remove_file(dir.path().join("tzdata.zi")).unwrap();
    assert!(used("2025b").is_none(), "it names no release");
    std::fs::write(dir.path().join("+VERSION"), "2027a\n").unwrap();
    assert!(used("2027a").is_none(), "it is no newer");
    let database = used("2026f").unwrap();
    assert_eq!(database.release(), &release("2027a"));
    assert_eq!(database.source(), &ZoneSource::Folder(dir.path().to_owned()));
    assert_eq!(first(&database, "0 8 * * *", "Asia/Tokyo", "2027-01-10T00:00:00Z"), "2027-01-10T07:00Z");
    assert!(Settings { zoneinfo_dir: String::new() }.newer_than(&release("2000a")).unwrap().is_none());
}

#[test]
fn zone_files_that_cannot_be_read_fall_back_to_the_bundle_with_a_warning() {
    let dir = TempDir::new();
    zoneinfo::write(dir.path(), "2027a", &[("Asia/Tokyo", b"TZif2 and no more".to_vec())]);
    std::fs::remove_file(dir.path().join("Europe/Berlin")).unwrap();
    std::fs::write(dir.path().join("Europe/Paris"), vec![b'T'; 64 * 1024 + 1]).unwrap();
    std::fs::remove_file(dir.path().join("Europe/Rome")).unwrap();
    std::fs::create_dir(dir.path().join("Europe/Rome")).unwrap();
    let (database, mut warnings) = ZoneTable::of_folder(dir.path()).unwrap();
    warnings.sort();
    let zones = ["Asia/Tokyo", "Europe/Berlin", "Europe/Paris", "Europe/Rome"];
    assert_eq!(warnings.len(), zones.len(), "{warnings:?}");
    for (warning, zone) in warnings.iter().zip(zones) {
        assert!(warning.starts_with(&format!("the rules of {zone} can't be read from")), "{warning}");
    }
    assert!(warnings[2].ends_with("longer than 65536 bytes"), "{warnings:?}");
    assert_eq!(first(&database, "0 8 * * *", "Europe/Berlin", "2027-01-10T00:00:00Z"), "2027-01-10T07:00Z");
}

#[test]
fn zone_databases_are_compared_by_clocks_and_not_by_names_or_bytes() {
    let change = at("2027-03-01T00:00:00Z");
    let dir = TempDir::new();
    let japan = [
        ("Asia/Tokyo", zoneinfo::tzif(9 * 3600, &[])),
        ("Asia/Seoul", zoneinfo::tzif(9 * 3600, &[(change.timestamp(), 0)])),
    ];
    zoneinfo::write(dir.path(), "2027a", &japan);
    let (database, bundled) = (ZoneTable::of_folder(dir.path()).unwrap().0, ZoneTable::bundled());
    let from = at("2026-12-01T00:00:00Z");
    assert_eq!(database.differing(&bundled, from, from + TimeDelta::days(3660)), [Tz::Asia__Seoul]);
    assert_eq!(database.differing(&bundled, from, change - TimeDelta::days(1)), []);
}

/// The metrics about the rules that a service plans by.
async fn planned_by(service: &Service) -> String {
    let client = operator_client(Duration::from_secs(30));
    let asked = client.get(format!("{}/metrics", service.url())).bearer_auth(service.admin_token().unwrap());
    let page = asked.send().await.unwrap().text().await.unwrap();
    page.lines().find(|line| line.starts_with("reveille_zone_database{")).unwrap_or_default().to_owned()
}

/// The next fire of a task, once it is this one; else the last that was seen.
async fn next_fire(api: &Api, task: &str, expected: &str) -> Value {
    let mut seen = Value::Null;
    for _ in 0..600 {
        seen = api.get(&format!("/v1/tasks/{task}")).await["next_fire_at"].clone();
        if seen == expected {
            break;
        }
        clock::pause(Duration::from_millis(50)).await;
    }
    seen
}

#[tokio::test]
async fn zone_rules_that_are_replaced_between_starts_move_tasks_and_are_not_forgotten() {
    let folder = TempDir::new();
    let mut service = Service::new().with("REVEILLE_TIME__ZONEINFO_DIR", folder.path().display().to_string());
    service.start().await;
    let bundled = ZoneTable::bundled().release().to_string();
    let line =
        |release: &str, source: &str| format!("reveille_zone_database{{release=\"{release}\",source=\"{source}\"}} 1");
    assert_eq!(planned_by(&service).await, line(&bundled, "bundled"));
    let cron = json!({ "type": "schedule", "cron": "0 8 1 1 *", "timezone": "Antarctica/Vostok" });
    let task = json!({ "tenant_id": "ann", "name": "Year", "trigger": cron, "action": { "instruction": "Say so." } });
    let task = Api::of(&service).post("/v1/tasks", &task).await;
    let id = task["id"].as_str().unwrap();
    let before = at(task["next_fire_at"].as_str().unwrap());
    service.terminate().await;

    zoneinfo::write(folder.path(), "2999a", &[("Antarctica/Vostok", zoneinfo::tzif(6 * 3600, &[]))]);
    service.start().await;
    let moved = (before - TimeDelta::hours(1)).format("%FT%H:%M:%SZ").to_string();
    assert_eq!(next_fire(&Api::of(&service), id, &moved).await, moved.as_str());
    assert_eq!(planned_by(&service).await, line("2999a", "folder"));
    service.terminate().await;

    std::fs::remove_file(folder.path().join("tzdata.zi")).unwrap();
    service.start().await;
    assert_eq!(next_fire(&Api::of(&service), id, &moved).await, moved.as_str());
    assert_eq!(planned_by(&service).await, line("2999a", "stored"));
    assert!(service.log().contains("another instance has newer rules of time zones"), "{}", service.log());
    service.terminate().await;
}
