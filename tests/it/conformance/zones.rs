//! Rules of time zones: the newest release alone plans, and what an earlier one has planned is planned anew once.

use chrono::{DateTime, TimeDelta, Utc};
use reveille::base::id::Scope;
use reveille::base::metrics::Metrics;
use reveille::domain::notification::{Addresses, Delivery, Recipient};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::domain::trigger::NextFire;
use reveille::domain::trigger::zone::{Settings, ZoneRelease, ZoneSource, ZoneTable, Zones};
use reveille::engine::maintenance::zones::ZoneKeeper;
use reveille::engine::service::{NextTick as Tick, ServiceLoop};
use reveille::store::{DeliveryFilter, NewestZones, PlannedTask, ZonedTasks};
use serde_json::json;
use uuid::Uuid;

use super::world::{StoreHarness, new_task};
use crate::support::binary::TempDir;
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::zoneinfo;

on_both!(
    zone_release_that_is_not_ours_or_not_planned_holds_up_every_fire,
    zone_release_is_stored_once_with_its_rules,
    zoned_tasks_are_found_in_parts,
    zoned_task_moves_only_if_it_still_waits_for_what_was_seen,
    zone_keeper_plans_anew_what_earlier_builds_have_planned,
    zone_keeper_plans_anew_on_computing_threads,
    zone_keeper_fires_no_wall_time_twice,
    zone_keeper_notices_a_newer_folder_while_it_runs,
    zone_keeper_takes_newer_rules_from_another_instance_and_never_plans_back,
    zone_release_that_is_lost_gives_way_to_the_newest_that_can_be_read,
    zone_that_cannot_be_read_goes_by_the_bundle_and_the_others_by_their_release,
    tasks_of_a_lost_zone_release_are_rewritten_page_by_page_while_fires_go_on,
    zone_release_that_is_set_aside_is_stored_again_by_an_instance_that_has_it,
    zone_release_that_takes_the_place_of_a_lost_one_is_set_aside_no_more,
    zone_keeper_plans_tasks_anew_whose_owner_cannot_be_read,
);

const HOUR: i32 = 3600;

fn at(text: &str) -> DateTime<Utc> {
    text.parse().unwrap()
}

fn release(text: &str) -> ZoneRelease {
    ZoneRelease::parse(text).unwrap()
}

/// Monday, 23 November 2026, 08:00 UTC: a time at which zones differ by the releases that there are.
fn in_november(world: &StoreHarness) {
    world.pass(267 * 86_400);
    assert_eq!(world.now(), at("2026-11-23T08:00:00Z"));
}

/// A task of `a` as another release has planned it.
async fn planned(world: &StoreHarness, cron: &str, zone: &str, nominal: &str) -> Task {
    let (mut task, _) = new_task("a", json!({"cron": cron, "timezone": zone}), json!({}), world.now());
    task.next_fire_at = Some(at(nominal));
    world.store.create_task(&task, Some(at(nominal)), None).await.unwrap();
    world.plant("update tasks set zone_database = '2025b'").await;
    world.get_task(task.id).await
}

async fn reachable(world: &StoreHarness) {
    let addresses = Addresses { email: Some("ann@example.org".into()), ..Addresses::default() };
    let ann = Recipient { timezone: chrono_tz::Tz::UTC, locale: "en".into(), addresses, ..Recipient::default() };
    world.store.put_recipient(&Scope::Every, "a", &ann, None).await.unwrap();
}

async fn deliveries(world: &StoreHarness) -> Vec<Delivery> {
    world.store.list_deliveries(&Scope::Every, &DeliveryFilter { limit: 9, ..DeliveryFilter::default() }).await.unwrap()
}

async fn next_of(world: &StoreHarness, task: &Task) -> DateTime<Utc> {
    world.get_task(task.id).await.next_fire_at.unwrap()
}

fn keeper(world: &StoreHarness, folder: &str, zones: &Zones) -> ZoneKeeper {
    ZoneKeeper::new(world.store.clone(), Settings { zoneinfo_dir: folder.into() }, zones.clone(), Metrics::new())
}

/// Ticks until there is nothing more to do.
async fn settle(keeper: &ZoneKeeper) {
    for _ in 0..20 {
        if keeper.tick().await.unwrap() == Tick::OnWake {
            return;
        }
    }
    panic!("the zone keeper does not come to an end");
}

fn bundled() -> Zones {
    Zones::new(ZoneTable::bundled())
}

/// Rules under which the clock of Tokyo is so far ahead of UTC since the first of November 2026, in a folder.
fn tokyo(release: &str, hours: i32) -> TempDir {
    let dir = TempDir::new();
    let change = at("2026-11-01T00:00:00Z").timestamp();
    zoneinfo::write(dir.path(), release, &[("Asia/Tokyo", zoneinfo::tzif(9 * HOUR, &[(change, hours * HOUR)]))]);
    dir
}

async fn store_planned(world: &StoreHarness, dir: &TempDir) -> ZoneRelease {
    let database = ZoneTable::of_folder(dir.path()).unwrap().0;
    world.store.add_zones(database.release(), &database.to_bytes(), world.now()).await.unwrap();
    world.store.zones_are_planned(database.release(), world.now()).await.unwrap();
    database.release().clone()
}

async fn zone_release_that_is_not_ours_or_not_planned_holds_up_every_fire(world: &StoreHarness) {
    let task = world.task(json!({"cron": "* * * * *", "timezone": "Europe/Berlin"})).await;
    let ours = ZoneTable::bundled().release().clone();
    for (stored, is_planned) in [("2020a", true), (ours.as_str(), false), ("2999a", true)] {
        world.plant("delete from zone_releases").await;
        let stored = release(stored);
        world.store.add_zones(&stored, b"", world.now()).await.unwrap();
        if is_planned {
            world.store.zones_are_planned(&stored, world.now()).await.unwrap();
        }
        world.pass(60);
        let fired = world.fire().await;
        assert!(fired.other_zones && fired.recorded == 0, "{stored}: {fired:?}");
    }
    assert_eq!(world.runs_of(&task).await, []);
    world.plant("delete from zone_releases").await;
    world.store.add_zones(&ours, b"", world.now()).await.unwrap();
    world.store.zones_are_planned(&ours, world.now()).await.unwrap();
    let fired = world.fire().await;
    assert!(!fired.other_zones && fired.recorded == 1, "{fired:?}");
}

async fn zone_release_is_stored_once_with_its_rules(world: &StoreHarness) {
    assert_eq!(world.store.newest_zones().await.unwrap(), None);
    assert_eq!(world.store.planned_zones().await.unwrap(), None);
    let (older, newer) = (release("2026e"), release("2026f"));
    world.store.add_zones(&older, b"one", world.now()).await.unwrap();
    world.store.zones_are_planned(&older, world.now()).await.unwrap();
    for rules in [&b"two"[..], b"three"] {
        world.store.add_zones(&newer, rules, world.now()).await.unwrap();
    }
    let newest = async || world.store.newest_zones().await.unwrap().unwrap();
    assert_eq!(newest().await, NewestZones { release: newer.clone(), is_planned: false });
    assert_eq!(world.store.planned_zones().await.unwrap(), Some(older.clone()));
    assert_eq!(world.store.zones_of(&newer).await.unwrap(), Some(b"two".to_vec()));
    assert_eq!(world.store.zones_of(&older).await.unwrap(), Some(b"one".to_vec()));
    world.store.zones_are_planned(&newer, world.now()).await.unwrap();
    assert_eq!(newest().await, NewestZones { release: newer, is_planned: true });
    assert_eq!(world.store.zones_of(&older).await.unwrap(), None, "nobody needs them any more");
}

async fn zoned_tasks_are_found_in_parts(world: &StoreHarness) {
    let mut tasks = Vec::new();
    for zone in ["Europe/Berlin", "Asia/Tokyo", "America/Havana"] {
        world.task(json!({"interval": "1h"})).await;
        tasks.push(world.task(json!({"cron": "0 8 * * *", "timezone": zone})).await);
    }
    let change = TaskChange::Pause { reason: None };
    world.store.change_task(&Scope::Every, tasks[1].id, &change).await.unwrap();
    let part = async |release: &str, after: Uuid| {
        world.store.tasks_planned_before(&ZoneRelease::parse(release).unwrap(), after, 4).await.unwrap()
    };
    let first = part("2999a", Uuid::nil()).await;
    assert_eq!(first.found, [(tasks[0].id, "Europe/Berlin".to_owned())], "what is paused is planned when it goes on");
    assert_eq!(first.last, Some(tasks[1].id));
    let rest = ZonedTasks { found: vec![(tasks[2].id, "America/Havana".into())], last: None };
    assert_eq!(part("2999a", tasks[1].id).await, rest);
    let ours = ZoneTable::bundled().release().to_string();
    assert_eq!(part(&ours, tasks[1].id).await.found, [], "they are planned by it");
}

async fn zoned_task_moves_only_if_it_still_waits_for_what_was_seen(world: &StoreHarness) {
    let task = world.task(json!({"cron": "0 9 * * *", "timezone": "Europe/Berlin"})).await;
    let later = at("2026-03-02T09:00:00Z");
    let seen = world.store.planned_task(task.id).await.unwrap().unwrap();
    assert_eq!(seen, PlannedTask { task: task.clone(), nominal: at("2026-03-02T08:00:00Z") });
    let next = Some(NextFire { nominal: later, run_at: later + TimeDelta::seconds(5) });
    let moved = async |by: &str, seen: &PlannedTask, next| {
        world.store.move_task(seen, next, &release(by), None, world.now()).await.unwrap()
    };
    assert!(moved("2999a", &seen, next).await);
    let after = world.get_task(task.id).await;
    assert_eq!(after, Task { next_fire_at: Some(later + TimeDelta::seconds(5)), ..task.clone() });
    assert!(!moved("2999b", &seen, next).await, "it waits for something else by now");
    let seen = world.store.planned_task(task.id).await.unwrap().unwrap();
    assert_eq!(seen.nominal, later);
    assert!(!moved("2999a", &seen, None).await, "another instance has planned it by this release");
    // a schedule that has no further instant is completed when it is looked at
    assert!(moved("2999b", &seen, None).await);
    assert_eq!(world.store.planned_task(task.id).await.unwrap(), None);
    world.fire().await;
    assert_eq!(world.get_task(task.id).await.status.as_str(), "completed");
    assert_eq!(world.store.planned_task(Uuid::nil()).await.unwrap(), None);
}

async fn zone_keeper_plans_anew_what_earlier_builds_have_planned(world: &StoreHarness) {
    in_november(world);
    reachable(world).await;
    let vancouver = planned(world, "0 8 * * *", "America/Vancouver", "2026-11-23T16:00:00Z").await;
    let berlin = planned(world, "0 8 * * *", "Europe/Berlin", "2026-11-24T07:00:00Z").await;
    let edmonton = planned(world, "0 8 * * *", "America/Edmonton", "2026-11-23T15:00:00Z").await;
    let keeper = keeper(world, "", &bundled());
    settle(&keeper).await;
    assert_eq!(next_of(world, &vancouver).await, at("2026-11-23T15:00:00Z"));
    assert_eq!(next_of(world, &edmonton).await, at("2026-11-23T14:00:00Z"));
    assert_eq!(world.get_task(berlin.id).await, berlin);
    let ours = ZoneTable::bundled().release().clone();
    let newest = NewestZones { release: ours, is_planned: true };
    assert_eq!(world.store.newest_zones().await.unwrap(), Some(newest));
    let notices = deliveries(world).await;
    assert_eq!(notices.len(), 2, "{notices:?}");
    let notice = notices.iter().find(|notice| notice.text.as_ref().unwrap().contains("Vancouver")).unwrap();
    let text = notice.text.as_ref().unwrap();
    assert!(text.contains("fires next at 2026-11-23 08:00") && text.contains("2026-11-23 16:00 UTC"), "{text}");
    // and once
    settle(&keeper).await;
    assert_eq!(next_of(world, &vancouver).await, at("2026-11-23T15:00:00Z"));
    assert_eq!(deliveries(world).await.len(), 2);
    world.pass(7 * 3600);
    world.fire().await;
    let runs = world.runs_of(&vancouver).await;
    assert_eq!(runs.iter().map(|run| run.scheduled_for).collect::<Vec<_>>(), [at("2026-11-23T15:00:00Z")]);
    assert_eq!(next_of(world, &vancouver).await, at("2026-11-24T15:00:00Z"));
}

async fn zone_keeper_plans_anew_on_computing_threads(world: &StoreHarness) {
    in_november(world);
    let task = planned(world, "0 8 * * *", "America/Vancouver", "2026-11-23T16:00:00Z").await;
    let computing = world.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let keeper = keeper(world, "", &bundled());
    tokio::select! {
        () = settle(&keeper) => panic!("it was planned on a thread that gives way to nobody"),
        () = until_waiting(&computing, 1) => drop(threads),
    }
    assert_eq!(next_of(world, &task).await, at("2026-11-23T16:00:00Z"));
    settle(&keeper).await;
    assert_eq!(next_of(world, &task).await, at("2026-11-23T15:00:00Z"));
}

async fn zone_keeper_fires_no_wall_time_twice(world: &StoreHarness) {
    in_november(world);
    // under the earlier rules the clock of Tokyo was ten hours ahead: the 24th has fired at 22:00 UTC
    let earlier = tokyo("2026a", 10);
    let task = planned(world, "0 8 * * *", "Asia/Tokyo", "2026-11-23T22:00:00Z").await;
    world.pass(14 * 3600);
    assert_eq!(world.fire().await.recorded, 1);
    let before = store_planned(world, &earlier).await;
    let seen = world.store.planned_task(task.id).await.unwrap().unwrap();
    let nominal = at("2026-11-24T22:00:00Z");
    let by_the_earlier = Some(NextFire { nominal, run_at: nominal });
    assert!(world.store.move_task(&seen, by_the_earlier, &before, None, world.now()).await.unwrap());
    settle(&keeper(world, "", &bundled())).await;
    // the present rules have eight o'clock of the 24th an hour from now; it was
    assert_eq!(next_of(world, &task).await, at("2026-11-24T23:00:00Z"));
    world.pass(3600);
    assert_eq!(world.fire().await.recorded, 0);
    world.pass(24 * 3600);
    assert_eq!(world.fire().await.recorded, 1);
    let mut fired: Vec<_> = world.runs_of(&task).await.into_iter().map(|run| run.scheduled_for).collect();
    fired.sort();
    assert_eq!(fired, [at("2026-11-23T22:00:00Z"), at("2026-11-24T23:00:00Z")]);
}

async fn zone_keeper_notices_a_newer_folder_while_it_runs(world: &StoreHarness) {
    in_november(world);
    let task = world.task(json!({"cron": "0 8 * * *", "timezone": "Asia/Tokyo"})).await;
    assert_eq!(task.next_fire_at, Some(at("2026-11-23T23:00:00Z")));
    let dir = tokyo("2026a", 10);
    let zones = bundled();
    let keeper = keeper(world, &dir.path().display().to_string(), &zones);
    settle(&keeper).await;
    assert_eq!(zones.get().source(), &ZoneSource::Bundled, "the folder is older");
    zoneinfo::name_release(dir.path(), "2999a");
    assert_eq!(keeper.tick().await.unwrap(), Tick::OnWake, "it may be in the middle of being replaced");
    settle(&keeper).await;
    assert_eq!((zones.get().release(), zones.get().source().as_str()), (&release("2999a"), "folder"));
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    let newest = NewestZones { release: release("2999a"), is_planned: true };
    assert_eq!(world.store.newest_zones().await.unwrap(), Some(newest));
}

async fn zone_keeper_takes_newer_rules_from_another_instance_and_never_plans_back(world: &StoreHarness) {
    in_november(world);
    let task = world.task(json!({"cron": "0 8 * * *", "timezone": "Asia/Tokyo"})).await;
    let dir = tokyo("2999a", 10);
    let (newer, older) = (bundled(), bundled());
    let newer_one = keeper(world, &dir.path().display().to_string(), &newer);
    let older_one = keeper(world, "", &older);
    settle(&older_one).await;
    settle(&newer_one).await;
    settle(&newer_one).await;
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    settle(&older_one).await;
    assert_eq!((older.get().release(), older.get().source()), (&release("2999a"), &ZoneSource::Stored));
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    // one that comes up with the older release alone finds the newer one, too
    let late = bundled();
    settle(&keeper(world, "", &late)).await;
    assert_eq!(late.get().source(), &ZoneSource::Stored);
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    assert_eq!(world.store.newest_zones().await.unwrap().unwrap().release, release("2999a"));
}

/// Listed in `unreadable.rs`.
pub async fn zone_release_that_cannot_be_read_is_set_aside_and_fires_go_on(world: &StoreHarness) {
    in_november(world);
    let metrics = Metrics::new();
    world.store.show_counts(&metrics);
    let zones = bundled();
    let ours = zones.get().release().clone();
    let keeper = keeper(world, "", &zones);
    settle(&keeper).await;
    let task = world.task(json!({"cron": "* * * * *", "timezone": "Europe/Berlin"})).await;
    let lost = release("2999a");
    world.store.add_zones(&lost, b"{", world.now()).await.unwrap();
    world.store.zones_are_planned(&lost, world.now()).await.unwrap();
    for (name, aside) in [("2999a", vec!["2999a"]), ("soon", vec!["2999a", "soon"])] {
        if name == "soon" {
            let beside =
                "select 'soon', rules, created_at, replanned_at from zone_releases where replanned_at is not null";
            world
                .plant(&format!(
                    "insert into zone_releases (release, rules, created_at, replanned_at) {beside} and release = '{ours}'"
                ))
                .await;
        }
        world.pass(60);
        assert!(world.fire().await.other_zones, "{name}: another release plans");
        settle(&keeper).await;
        let fired = world.fire().await;
        assert!(!fired.other_zones && fired.recorded == 1, "{name}: {fired:?}");
        let newest = NewestZones { release: ours.clone(), is_planned: true };
        assert_eq!(world.store.newest_zones().await.unwrap(), Some(newest));
        assert_eq!(world.store.misnamed_zones().await.unwrap(), None);
        assert_eq!(world.store.zones_set_aside().await.unwrap(), aside);
    }
    assert_eq!((zones.get().source(), world.runs_of(&task).await.len()), (&ZoneSource::Bundled, 2));
    let told = "reveille_unreadable_rows_total{table=\"zone_releases\"} 2";
    assert!(metrics.text().contains(told), "each once: {}", metrics.text());
    // once newer rules plan, nobody need know of them any more
    world.pass(2 * 86_400);
    world.store.add_zones(&release("2999b"), b"{", world.now()).await.unwrap();
    world.store.zones_are_planned(&release("2999b"), world.now()).await.unwrap();
    assert_eq!(world.store.zones_set_aside().await.unwrap(), [""; 0]);
    let why = "it is a test";
    let set_aside = async |name: &str| {
        let own = (&ours, &b"{"[..]);
        world.store.set_aside_zones(name, &why, own, world.now()).await.unwrap()
    };
    assert_eq!((set_aside("2999b").await, set_aside("2999b").await), (true, false), "once");
}

async fn zone_release_that_is_lost_gives_way_to_the_newest_that_can_be_read(world: &StoreHarness) {
    in_november(world);
    let task = world.task(json!({"cron": "0 8 * * *", "timezone": "Asia/Tokyo"})).await;
    let dir = tokyo("2999a", 10);
    let newer_one = keeper(world, &dir.path().display().to_string(), &bundled());
    settle(&newer_one).await;
    settle(&newer_one).await;
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    let lost = release("2999b");
    world.store.add_zones(&lost, b"{", world.now()).await.unwrap();
    let zones = bundled();
    let keeper = keeper(world, "", &zones);
    settle(&keeper).await;
    assert_eq!((zones.get().release(), zones.get().source()), (&release("2999a"), &ZoneSource::Stored));
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"), "nothing is planned back");
    let newest = async || world.store.newest_zones().await.unwrap().unwrap().release;
    assert_eq!(newest().await, release("2999a"));
    // one that is there again as it was is another instance's, which can read it: the fires are left to that one
    world.store.add_zones(&lost, b"{", world.now()).await.unwrap();
    for _ in 0..3 {
        assert_eq!((keeper.tick().await.unwrap(), newest().await), (Tick::OnWake, lost.clone()));
        world.pass(2 * 3600);
    }
    // unless nobody fires by it, or it is another one
    world.pass(10 * 3600);
    settle(&keeper).await;
    assert_eq!(newest().await, release("2999a"));
    world.store.add_zones(&lost, b"[", world.now()).await.unwrap();
    settle(&keeper).await;
    assert_eq!(newest().await, release("2999a"));
}

async fn zone_that_cannot_be_read_goes_by_the_bundle_and_the_others_by_their_release(world: &StoreHarness) {
    in_november(world);
    let dir = tokyo("2999a", 10);
    let stored = ZoneTable::of_folder(dir.path()).unwrap().0.to_bytes();
    let mut stored: serde_json::Value = serde_json::from_slice(&stored).unwrap();
    let places = stored["rules"].as_array_mut().unwrap();
    places.push(json!("VFppZjkgYW5kIG5vIG1vcmU="));
    let last = places.len() - 1;
    stored["zones"]["Europe/Berlin"] = json!(last);
    let stored = serde_json::to_vec(&stored).unwrap();
    world.store.add_zones(&release("2999a"), &stored, world.now()).await.unwrap();
    let task = planned(world, "0 8 * * *", "Asia/Tokyo", "2026-11-23T23:00:00Z").await;
    let zones = bundled();
    settle(&keeper(world, "", &zones)).await;
    assert_eq!((zones.get().release(), zones.get().source()), (&release("2999a"), &ZoneSource::Stored));
    assert_eq!(zones.get().unread_zones(), ["Europe/Berlin"]);
    assert_eq!(world.store.zones_set_aside().await.unwrap(), [""; 0]);
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
    let (berlin, now) = (chrono_tz::Tz::Europe__Berlin, world.now());
    assert_eq!(zones.get().zone(berlin).offset(now), ZoneTable::bundled().zone(berlin).offset(now));
    let handed_on = ZoneTable::from_bytes(release("2999a"), &zones.get().to_bytes()).unwrap();
    assert_eq!(handed_on.unread_zones(), ["Europe/Berlin"], "another build may read it");
}

async fn tasks_of_a_lost_zone_release_are_rewritten_page_by_page_while_fires_go_on(world: &StoreHarness) {
    let ours = ZoneTable::bundled().release().clone();
    let lost = release("2999a");
    let mut tasks = Vec::new();
    for _ in 0..3 {
        tasks.push(world.task(json!({"cron": "* * * * *", "timezone": "Europe/Berlin"})).await.id);
    }
    world.plant("update tasks set zone_database = '2999a'").await;
    let rewritten = async || world.count(&format!("select count(*) from tasks where zone_database = '{ours}'")).await;
    let rewrite = async |after: Uuid| world.store.rewrite_tasks_of_zones("2999a", &ours, after, 2).await.unwrap();
    world.store.add_zones(&lost, b"{", world.now()).await.unwrap();
    world.store.zones_are_planned(&lost, world.now()).await.unwrap();
    assert_eq!((rewrite(Uuid::nil()).await, rewritten().await), (Some(tasks[1]), 0), "it is not set aside");
    let own = (&ours, &b"ours"[..]);
    assert!(world.store.set_aside_zones("2999a", &"it is a test", own, world.now()).await.unwrap());
    assert_eq!(rewritten().await, 0, "one statement for all could take longer than it may");
    world.pass(60);
    let fired = world.fire().await;
    assert!(!fired.other_zones && fired.recorded == 3, "{fired:?}");
    assert_eq!((rewrite(Uuid::nil()).await, rewritten().await), (Some(tasks[1]), 2));
    assert_eq!((rewrite(tasks[1]).await, rewritten().await), (None, 3));
    // the keeper does so by itself, also after a start
    world.plant("update tasks set zone_database = '2999a'").await;
    settle(&keeper(world, "", &bundled())).await;
    assert_eq!(rewritten().await, 3);
}

async fn zone_release_that_is_set_aside_is_stored_again_by_an_instance_that_has_it(world: &StoreHarness) {
    in_november(world);
    let task = world.task(json!({"cron": "0 8 * * *", "timezone": "Asia/Tokyo"})).await;
    let dir = tokyo("2999a", 10);
    let newer_one = keeper(world, &dir.path().display().to_string(), &bundled());
    settle(&newer_one).await;
    settle(&newer_one).await;
    let rules = if world.is_postgres() { "'\\x7b'" } else { "x'7b'" };
    world.plant(&format!("update zone_releases set rules = {rules}")).await;
    let older = bundled();
    let older_one = keeper(world, "", &older);
    settle(&older_one).await;
    assert_eq!(older.get().source(), &ZoneSource::Bundled);
    assert_eq!(world.store.zones_set_aside().await.unwrap(), ["2999a"]);
    assert_eq!(world.store.zones_of(&release("2999a")).await.unwrap(), None);
    let kept = "select count(*) from zone_releases where release = '2999a' and set_aside_at is not null";
    assert_eq!(world.count(kept).await, 1, "under its own name");
    settle(&newer_one).await;
    settle(&older_one).await;
    assert_eq!((older.get().release(), older.get().source()), (&release("2999a"), &ZoneSource::Stored));
    assert_eq!(world.store.zones_set_aside().await.unwrap(), [""; 0]);
    assert_eq!(next_of(world, &task).await, at("2026-11-23T22:00:00Z"));
}

async fn zone_release_that_takes_the_place_of_a_lost_one_is_set_aside_no_more(world: &StoreHarness) {
    let ours = ZoneTable::bundled().release().clone();
    let (ahead, lost, why) = (release("2999a"), release("2999b"), "it is a test");
    world.store.add_zones(&ahead, b"{", world.now()).await.unwrap();
    assert!(world.store.set_aside_zones("2999a", &why, (&ours, &b"ours"[..]), world.now()).await.unwrap());
    // planned by no instance any more: it does not come back by itself
    world.store.zones_are_planned(&ahead, world.now()).await.unwrap();
    assert_eq!(world.store.newest_zones().await.unwrap(), None);
    world.store.add_zones(&lost, b"{", world.now()).await.unwrap();
    world.store.zones_are_planned(&lost, world.now()).await.unwrap();
    assert_eq!(world.store.zones_set_aside().await.unwrap(), ["2999a"]);
    assert!(world.store.set_aside_zones("2999b", &why, (&ahead, &b"rules"[..]), world.now()).await.unwrap());
    let newest = NewestZones { release: ahead.clone(), is_planned: true };
    assert_eq!(world.store.newest_zones().await.unwrap(), Some(newest));
    assert_eq!(world.store.zones_of(&ahead).await.unwrap().as_deref(), Some(&b"rules"[..]));
    assert_eq!(world.store.zones_set_aside().await.unwrap(), ["2999b"]);
}

async fn zone_keeper_plans_tasks_anew_whose_owner_cannot_be_read(world: &StoreHarness) {
    in_november(world);
    reachable(world).await;
    world.plant("update recipients set body = '7'").await;
    let vancouver = planned(world, "0 8 * * *", "America/Vancouver", "2026-11-23T16:00:00Z").await;
    settle(&keeper(world, "", &bundled())).await;
    assert_eq!(next_of(world, &vancouver).await, at("2026-11-23T15:00:00Z"));
    assert_eq!(world.store.recipient_to_tell("a").await.unwrap(), None);
    assert_eq!(deliveries(world).await, []);
}
