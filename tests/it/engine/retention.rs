//! A night's backlog is forgotten while tasks fire.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use futures::FutureExt;
use reveille::base::clock::pause;
use reveille::domain::run::RunState;
use reveille::engine::maintenance::housekeeping::Housekeeping;
use reveille::store::{StoreError, UiSession};
use serde_json::json;
use tokio_util::sync::CancellationToken;

use crate::support::world::{World, on_both};

on_both! {
    twenty_thousand_old_runs_are_forgotten_while_tasks_fire
    dead_tokens_of_tenants_are_forgotten_with_the_retention
    ended_sessions_and_links_of_the_day_before_are_forgotten
    round_ends_when_the_service_stops
    round_is_made_at_the_times_of_the_configuration_and_no_sooner
}

const LEFT: &str = "select (select count(*) from runs where fire_key like 'p:%')
    + (select count(*) from turns) + (select count(*) from deliveries)";

/// Old runs with two turns and a message each; their ids are of 1970.
async fn plant(world: &World, runs: usize) {
    let statements = [
        (
            format!(
                "with recursive n (i) as (select 1 union all select i + 1 from n where i < {runs})
                 insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
                 select unhex('0000' || hex(randomblob(14))), 'ann', 'p:' || i, 'schedule',
                        '1970-01-01T00:00:00+00:00', 'succeeded', '1970-01-01T00:00:00+00:00', '1970-01-01T00:00:00+00:00'
                   from n"
            ),
            format!(
                "insert into runs (id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at, finished_at)
                 select ('0000' || substr(replace(gen_random_uuid()::text, '-', ''), 5))::uuid, 'ann', 'p:' || i,
                        'schedule', 'epoch', 'succeeded', 'epoch', 'epoch'
                   from generate_series(1, {runs}) i"
            ),
        ),
        (
            "insert into turns (run_id, seq, turn, format, body, created_at)
             select r.id, s.seq, s.seq, 1, '{}', r.created_at
               from runs r, (select 0 as seq union all select 1) s where r.fire_key like 'p:%'"
                .to_owned(),
            "insert into turns (run_id, seq, turn, format, body, created_at)
             select r.id, s.seq, s.seq, 1, '{}', r.created_at
               from runs r, (select 0 as seq union all select 1) s where r.fire_key like 'p:%'"
                .to_owned(),
        ),
        (
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, fallback, state, created_at)
             select r.id, 'ann', 'ann', 'email', r.fire_key, r.id, 'result', '[]', 'delivered', r.created_at
               from runs r where r.fire_key like 'p:%'"
                .to_owned(),
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, fallback, state, created_at)
             select r.id, 'ann', 'ann', 'email', r.fire_key, r.id, 'result', '[]', 'delivered', r.created_at
               from runs r where r.fire_key like 'p:%'"
                .to_owned(),
        ),
    ];
    for (sqlite, postgres) in statements {
        world.execute(&sqlite, &postgres).await;
    }
}

async fn twenty_thousand_old_runs_are_forgotten_while_tasks_fire(world: World) {
    let instance = world.instance();
    let task = instance.task(json!({})).await;
    plant(&world, 20_000).await;
    assert_eq!(world.number(LEFT).await, 80_000);
    let stop = CancellationToken::new();
    let cleaning = instance
        .on(|store| async move { Housekeeping::delete_expired(&store, TimeDelta::days(90), &stop).await })
        .boxed_local()
        .shared();
    let (mut fired, mut amid) = (0, 0);
    loop {
        // one step of the cleaning, if it has one to make
        let done = cleaning.clone().now_or_never();
        world.advance(60.0);
        instance.live(0).await;
        fired += 1;
        let left = world.number("select count(*) from runs where fire_key like 'p:%'").await;
        amid += usize::from(left > 0 && left < 20_000);
        if let Some(forgotten) = done {
            assert_eq!((forgotten, left), (20_000, 0));
            break;
        }
    }
    assert!(amid >= 3, "tasks fired between two batches {amid} times");
    assert_eq!(world.number(LEFT).await, 0);
    let runs = instance.runs(&task).await;
    let on_time =
        runs.iter().filter(|run| run.state == RunState::Succeeded && run.started_at == Some(run.scheduled_for));
    assert_eq!((runs.len(), on_time.count()), (fired, fired));
    drop(cleaning);
    instance.finish(&world).await;
}

async fn dead_tokens_of_tenants_are_forgotten_with_the_retention(world: World) {
    let instance = world.instance();
    for (number, revoked_days_ago) in [(1, Some(91)), (2, Some(89)), (3, None)] {
        let revoked_at = revoked_days_ago.map_or("null".to_owned(), |days| {
            format!("'{}'", (world.clock.now() - TimeDelta::days(days)).to_rfc3339())
        });
        let row = |id: String, hash: String| {
            format!(
                "insert into tokens (id, tenant_id, name, hash, scopes, created_at, revoked_at, root)
                 values ({id}, 'ann', 'planted', {hash}, '[]', '2026-01-01T00:00:00+00:00', {revoked_at}, 'token:admin')"
            )
        };
        let sqlite = row(format!("x'{number:032}'"), format!("x'{number:064}'"));
        let postgres = row(format!("'{number:032}'"), format!("'\\x{number:064}'"));
        world.execute(&sqlite, &postgres).await;
    }
    let stop = CancellationToken::new();
    instance.on(|store| async move { Housekeeping::delete_expired(&store, TimeDelta::days(90), &stop).await }).await;
    assert_eq!(world.number("select count(*) from tokens where name = 'planted'").await, 2);
    assert_eq!(world.number("select count(*) from tokens where name = 'planted' and revoked_at is not null").await, 1);
    instance.finish(&world).await;
}

async fn ended_sessions_and_links_of_the_day_before_are_forgotten(world: World) {
    let instance = world.instance();
    let now = world.clock.now();
    let left = instance
        .on(move |store| async move {
            for (number, hours) in [(1_u8, -25), (2, -1), (3, 1)] {
                let (hash, at) = ([number; 32], now + TimeDelta::hours(hours));
                let session = UiSession { token_hash: vec![9; 32], created_at: at, seen_at: at, ends_at: at };
                store.open_ui_session(&hash, &session).await?;
                store.make_login_link(&hash, &[9; 32], at, at).await?;
            }
            let stop = CancellationToken::new();
            Housekeeping::delete_expired(&store, TimeDelta::days(90), &stop).await;
            let mut left = Vec::new();
            for number in 1..=3_u8 {
                let session = store.find_ui_session(&[number; 32]).await?.is_some();
                left.push((session, store.find_login_link(&[number; 32]).await?.is_some()));
            }
            Ok::<_, StoreError>(left)
        })
        .await
        .expect("a round");
    assert_eq!(left, [(false, false), (false, true), (true, true)]);
    instance.finish(&world).await;
}

async fn round_ends_when_the_service_stops(world: World) {
    let instance = world.instance();
    plant(&world, 1_000).await;
    let stop = CancellationToken::new();
    stop.cancel();
    let forgotten = instance
        .on(|store| async move { Housekeeping::delete_expired(&store, TimeDelta::days(90), &stop).await })
        .await;
    assert_eq!((forgotten, world.number(LEFT).await), (0, 4_000));
    instance.finish(&world).await;
}

async fn round_is_made_at_the_times_of_the_configuration_and_no_sooner(mut world: World) {
    world.settings.housekeeping = "0 30 2 * * *".into();
    let mut instance = world.instance();
    plant(&world, 300).await;
    let running = instance.start().await;
    for _ in 0..2 {
        pause(Duration::from_millis(200)).await;
        assert_eq!(world.number(LEFT).await, 1_200);
        world.advance(60.0);
    }
    for round in 1..=2 {
        if round > 1 {
            plant(&world, 300).await;
        }
        let began = Instant::now();
        // a day that passes while a round goes on has none of its own
        while world.number(LEFT).await > 0 {
            assert!(began.elapsed() < Duration::from_secs(30), "in round {round}");
            world.advance(24.0 * 3600.0);
            pause(Duration::from_millis(300)).await;
        }
    }
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}
