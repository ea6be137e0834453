//! Data files: written whole, read by chunks, apart by tenant, and given up by their last use.

use chrono::TimeDelta;
use reveille::domain::data_file::{DataFile, NewDataFile};
use reveille::domain::quota::{Overrides, Quota};
use reveille::domain::run::RunState;
use reveille::store::{CHUNK_BYTES, Finish, Lease, Park, StoreError};
use serde_json::json;
use uuid::Uuid;

use super::world::{StoreHarness, end_of, tenant_of};

on_both!(
    file_is_read_by_its_tenant_chunk_by_chunk,
    same_calls_file_takes_the_place_of_the_earlier_one,
    use_is_noted_and_a_file_that_is_gone_is_none,
    full_tenant_gives_up_its_own_oldest_files_and_nobody_elses,
    file_that_finds_no_room_changes_nothing,
    old_files_are_forgotten_in_batches_by_their_last_use,
    batch_of_old_files_is_bounded_in_bytes,
    limit_that_was_lowered_far_is_met_in_several_transactions,
    file_of_a_run_that_goes_on_elsewhere_is_not_written,
    files_that_are_written_at_once_stay_within_their_tenants_bytes,
    all_files_are_given_up_by_their_last_use_until_enough_is_free,
    file_of_a_run_that_is_suspended_or_under_way_is_kept,
);

const ROOM: u64 = 1 << 30;

fn file(run_id: Uuid, call: &str, content: impl Into<String>) -> NewDataFile {
    NewDataFile {
        run_id,
        call_key: call.into(),
        tool: "look".into(),
        media_type: "text/plain".into(),
        summary: "a text".into(),
        content: content.into(),
    }
}

/// Keeps a file of so many bytes, a second after what was kept before.
async fn keep(world: &StoreHarness, tenant: &str, call: &str, bytes: usize, limit: u64) -> Result<Uuid, StoreError> {
    world.pass(1);
    world
        .store
        .keep_data_file(&tenant_of(tenant), &file(Uuid::from_u128(1), call, "x".repeat(bytes)), limit, None)
        .await
}

/// How many files and chunks there are.
async fn kept(world: &StoreHarness) -> (i64, i64) {
    (world.count("select count(*) from data_files").await, world.count("select count(*) from data_file_chunks").await)
}

/// Whether each of these files of a tenant is there; looking at it does not use it.
async fn there(world: &StoreHarness, ids: &[Uuid]) -> Vec<bool> {
    let mut there = Vec::new();
    for id in ids {
        there.push(world.count(&format!("select count(*) from data_files where id = {}", world.id(*id))).await == 1);
    }
    there
}

async fn file_is_read_by_its_tenant_chunk_by_chunk(world: &StoreHarness) {
    let (a, b) = (tenant_of("a"), tenant_of("b"));
    let content = format!("é\0{}end", "x".repeat(CHUNK_BYTES));
    let new = file(Uuid::from_u128(5), "k", content.clone());
    let id = world.store.keep_data_file(&a, &new, ROOM, None).await.unwrap();
    let found = world.store.use_data_file(&a, id).await.unwrap().unwrap();
    let expected = DataFile {
        id,
        run_id: Uuid::from_u128(5),
        tool: "look".into(),
        media_type: "text/plain".into(),
        bytes: content.len() as i64,
        summary: "a text".into(),
        created_at: world.now(),
        last_used_at: world.now(),
    };
    assert_eq!(found, expected);
    let first = world.store.data_file_chunk(&a, id, 0).await.unwrap().unwrap();
    assert_eq!(first.len(), CHUNK_BYTES);
    let second = world.store.data_file_chunk(&a, id, 1).await.unwrap().unwrap();
    assert_eq!([first, second].concat(), content.as_bytes());
    assert_eq!(world.store.data_file_chunk(&a, id, 2).await.unwrap(), None);
    assert_eq!(world.store.data_file_bytes().await.unwrap(), content.len() as u64);
    let overrides = Overrides { data_file_bytes: Some(7), ..Overrides::default() };
    world.store.put_quotas("a", &overrides, "token:admin").await.unwrap();
    let standing = world.store.quota_usage("a").await.unwrap().standings[&Quota::DataFileBytes];
    assert_eq!((standing.limit, standing.usage), (Some(7), Some(content.len() as u64)));
    assert_eq!(world.store.quotas_of("a").await.unwrap().data_file_bytes, 7);
    assert_eq!(world.store.quotas_of("b").await.unwrap().data_file_bytes, 1 << 30);

    assert_eq!(world.store.use_data_file(&b, id).await.unwrap(), None, "another tenant's");
    assert_eq!(world.store.data_file_chunk(&b, id, 0).await.unwrap(), None, "another tenant's");
}

async fn same_calls_file_takes_the_place_of_the_earlier_one(world: &StoreHarness) {
    let first = keep(world, "a", "k", CHUNK_BYTES + 1, ROOM).await.unwrap();
    let other = keep(world, "a", "other", 1, ROOM).await.unwrap();
    assert_eq!(kept(world).await, (2, 3));
    let again = keep(world, "a", "k", 10, ROOM).await.unwrap();
    assert_eq!(there(world, &[first, other, again]).await, [false, true, true]);
    assert_eq!(kept(world).await, (2, 2));
}

async fn use_is_noted_and_a_file_that_is_gone_is_none(world: &StoreHarness) {
    let a = tenant_of("a");
    let id = keep(world, "a", "k", 10, ROOM).await.unwrap();
    let written = world.now();
    world.pass(60);
    let found = world.store.use_data_file(&a, id).await.unwrap().unwrap();
    assert_eq!((found.created_at, found.last_used_at), (written, world.now()));
    world.pass(60);
    assert_eq!(world.store.forget_data_files(world.now(), ROOM, 9).await.unwrap(), 1);
    assert_eq!(world.store.use_data_file(&a, id).await.unwrap(), None);
    assert_eq!(world.store.data_file_chunk(&a, id, 0).await.unwrap(), None);
    assert_eq!(kept(world).await, (0, 0));
}

async fn full_tenant_gives_up_its_own_oldest_files_and_nobody_elses(world: &StoreHarness) {
    let foreign = keep(world, "b", "b1", 100, 100).await.unwrap();
    let mut own = Vec::new();
    for call in ["a1", "a2", "a3"] {
        own.push(keep(world, "a", call, 30, 100).await.unwrap());
    }
    world.pass(60);
    world.store.use_data_file(&tenant_of("a"), own[0]).await.unwrap();
    // ten are free: twenty more take the second, which was not used for the longest time
    own.push(keep(world, "a", "a4", 30, 100).await.unwrap());
    assert_eq!(there(world, &own).await, [true, false, true, true]);
    own.push(keep(world, "a", "a5", 70, 100).await.unwrap());
    assert_eq!(there(world, &own).await, [false, false, false, true, true]);
    own.push(keep(world, "a", "a6", 100, 100).await.unwrap());
    assert_eq!(there(world, &own).await, [false, false, false, false, false, true]);
    assert_eq!(there(world, &[foreign]).await, [true]);
}

/// The last transaction finds no room beside a suspended run's file, and takes back what it gave up, and no more.
async fn limit_that_was_lowered_far_is_met_in_several_transactions(world: &StoreHarness) {
    const MIB: usize = 1 << 20;
    let a = tenant_of("a");
    let task = world.task(json!({ "interval": "1h" })).await;
    let suspended = world.started(&task).await;
    let park = Some(Park::Completion { until: world.now() + TimeDelta::days(9) });
    let ends = [Finish { park, ..end_of(&suspended, RunState::WaitingForCompletion) }];
    world.store.finish_runs(&ends).await.unwrap();
    let held = world.store.keep_data_file(&a, &file(suspended.run.id, "s", "x".repeat(MIB)), ROOM, None).await.unwrap();
    let mut ids = vec![held];
    for call in ["a1", "a2", "a3", "a4", "a5"] {
        ids.push(keep(world, "a", call, 11 * MIB, ROOM).await.unwrap());
    }
    let lowered = 2 * MIB as u64;
    let refused = keep(world, "a", "new", 2 * MIB, lowered).await;
    assert!(matches!(refused, Err(StoreError::Quota(_))), "{refused:?}");
    assert_eq!(there(world, &ids).await, [true, false, false, false, true, true]);
    keep(world, "a", "new", MIB, lowered).await.unwrap();
    assert_eq!(there(world, &ids).await, [true, false, false, false, false, false]);
}

async fn file_that_finds_no_room_changes_nothing(world: &StoreHarness) {
    let own = keep(world, "a", "a1", 60, 100).await.unwrap();
    let too_large = keep(world, "a", "a2", 101, 100).await;
    assert!(matches!(too_large, Err(StoreError::Quota(_))), "{too_large:?}");
    let same_call = keep(world, "a", "a1", 101, 100).await;
    assert!(matches!(same_call, Err(StoreError::Quota(_))), "{same_call:?}");
    assert_eq!(there(world, &[own]).await, [true]);
}

async fn old_files_are_forgotten_in_batches_by_their_last_use(world: &StoreHarness) {
    let mut ids = Vec::new();
    for call in ["k1", "k2", "k3", "k4"] {
        ids.push(keep(world, "a", call, 10, ROOM).await.unwrap());
    }
    world.pass(3600);
    world.store.use_data_file(&tenant_of("a"), ids[0]).await.unwrap();
    let before = world.now() - TimeDelta::minutes(1);
    assert_eq!(world.store.forget_data_files(before, ROOM, 2).await.unwrap(), 2);
    assert_eq!(there(world, &ids).await, [true, false, false, true]);
    assert_eq!(world.store.forget_data_files(before, ROOM, 2).await.unwrap(), 1);
    assert_eq!(world.store.forget_data_files(before, ROOM, 2).await.unwrap(), 0);
    assert_eq!(there(world, &ids).await, [true, false, false, false]);
}

async fn batch_of_old_files_is_bounded_in_bytes(world: &StoreHarness) {
    for call in ["k1", "k2", "k3", "k4"] {
        keep(world, "a", call, 10, ROOM).await.unwrap();
    }
    world.pass(3600);
    for forgotten in [1, 2, 1] {
        let bytes = if forgotten == 2 { 11 } else { 10 };
        assert_eq!(world.store.forget_data_files(world.now(), bytes, 9).await.unwrap(), forgotten);
    }
}

async fn file_of_a_run_that_goes_on_elsewhere_is_not_written(world: &StoreHarness) {
    let a = tenant_of("a");
    let task = world.task(json!({ "interval": "1h" })).await;
    let started = world.started(&task).await;
    let write = |lease: Lease, content: &str| {
        let (new, a) = (file(started.run.id, "k", content), a.clone());
        async move { world.store.keep_data_file(&a, &new, ROOM, Some(lease)).await }
    };
    let id = write(started.lease, "as it is").await.unwrap();
    let earlier = write(Lease { token: started.lease.token - 1, ..started.lease }, "late").await;
    assert!(matches!(earlier, Err(StoreError::LeaseLost)), "{earlier:?}");
    assert_eq!(there(world, &[id]).await, [true], "the file of whoever holds the lease stays");
    world.store.finish_runs(&[end_of(&started, RunState::Succeeded)]).await.unwrap();
    let ended = write(started.lease, "late").await;
    assert!(matches!(ended, Err(StoreError::LeaseLost)), "{ended:?}");
}

async fn files_that_are_written_at_once_stay_within_their_tenants_bytes(world: &StoreHarness) {
    let calls: Vec<String> = (0..8).map(|number| format!("k{number}")).collect();
    let kept = futures::future::join_all(calls.iter().map(|call| keep(world, "a", call, 30, 100))).await;
    assert!(kept.iter().all(Result::is_ok), "{kept:?}");
    assert_eq!(world.store.data_file_bytes().await.unwrap(), 90);
}

async fn all_files_are_given_up_by_their_last_use_until_enough_is_free(world: &StoreHarness) {
    let mut ids = Vec::new();
    for (tenant, call) in [("a", "k1"), ("b", "k2"), ("a", "k3"), ("b", "k4")] {
        ids.push(keep(world, tenant, call, 10, ROOM).await.unwrap());
    }
    world.pass(60);
    world.store.use_data_file(&tenant_of("a"), ids[0]).await.unwrap();
    assert_eq!(world.store.data_file_bytes().await.unwrap(), 40);
    assert_eq!(world.store.evict_data_files(11, 1).await.unwrap(), 10, "one at most");
    assert_eq!(there(world, &ids).await, [true, false, true, true]);
    assert_eq!(world.store.evict_data_files(11, 9).await.unwrap(), 20);
    assert_eq!(there(world, &ids).await, [true, false, false, false]);
    assert_eq!(world.store.evict_data_files(11, 9).await.unwrap(), 10);
    assert_eq!(world.store.evict_data_files(11, 9).await.unwrap(), 0);
}

async fn file_of_a_run_that_is_suspended_or_under_way_is_kept(world: &StoreHarness) {
    let a = tenant_of("a");
    let task = world.task(json!({ "interval": "1h", "overlap": "allow" })).await;
    let (suspended, running) = (world.started(&task).await, world.started(&task).await);
    let park = Some(Park::Completion { until: world.now() + TimeDelta::days(9) });
    let ends = [Finish { park, ..end_of(&suspended, RunState::WaitingForCompletion) }];
    world.store.finish_runs(&ends).await.unwrap();
    let mut ids = Vec::new();
    for (run, call) in [(suspended.run.id, "s"), (running.run.id, "r"), (Uuid::from_u128(9), "ended")] {
        ids.push(world.store.keep_data_file(&a, &file(run, call, "x".repeat(10)), ROOM, None).await.unwrap());
    }
    world.pass(10);
    assert_eq!(world.store.forget_data_files(world.now(), ROOM, 9).await.unwrap(), 1);
    assert_eq!(world.store.evict_data_files(100, 9).await.unwrap(), 0);
    assert_eq!(there(world, &ids).await, [true, true, false]);
    // for a new file of its own tenant that of the run that is under way goes, and never that of the suspended one
    let new = world.store.keep_data_file(&a, &file(Uuid::from_u128(9), "new", "x".repeat(10)), 20, None).await;
    assert!(new.is_ok(), "{new:?}");
    assert_eq!(there(world, &ids).await, [true, false, false]);
    let more = world.store.keep_data_file(&a, &file(Uuid::from_u128(9), "more", "x".repeat(11)), 20, None).await;
    assert!(matches!(more, Err(StoreError::Quota(_))), "{more:?}");
    assert_eq!(there(world, &ids).await, [true, false, false]);
}
