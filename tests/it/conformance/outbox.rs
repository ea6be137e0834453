//! Events that were taken while the bus was away.

use reveille::domain::event::{Data, Event};
use serde_json::json;

use super::world::{StoreHarness, tenant_of};

on_both!(
    kept_events_wait_in_order_until_they_are_forgotten,
    kept_event_of_a_quiet_tenant_is_in_the_first_batch_however_many_of_another_wait,
    kept_events_of_more_tenants_than_a_batch_has_are_handed_out_in_turn,
    events_are_forwarded_up_to_their_bytes_the_first_of_each_tenant_before_the_second_of_any,
);

/// Events that are handed out together.
const BATCH: i64 = 200;
/// Bytes of events that are handed out together: `FORWARDED_BYTES`.
const BYTES: usize = 4 * 1024 * 1024;
/// Bytes of a long event, a little more with its attributes.
const LONG: usize = 250 * 1024;

fn event(tenant: &str, id: u32) -> Event {
    let fields = json!({"specversion": "1.0", "tenantid": tenant, "id": id.to_string(), "source": "s", "type": "t",
        "data": "a\0b"});
    Event::try_from(fields).unwrap()
}

fn events(tenant: &str, count: u32) -> Vec<Event> {
    (0..count).map(|n| event(tenant, n)).collect()
}

/// Tenants and ids of what is kept.
fn told(kept: &[(i64, String)]) -> Vec<(String, u32)> {
    let read = kept.iter().map(|(_, body)| serde_json::from_str::<Event>(body).unwrap());
    read.map(|event| (event.tenant.as_str().to_owned(), event.id.parse().unwrap())).collect()
}

/// Hands out a batch, and forgets it.
async fn forward(world: &StoreHarness, limit: i64) -> Vec<(String, u32)> {
    let kept = world.store.kept_events(limit).await.unwrap();
    assert!(kept.is_sorted_by_key(|(seq, _)| *seq) && kept.len() as i64 <= limit, "{kept:?}");
    let seqs: Vec<i64> = kept.iter().map(|(seq, _)| *seq).collect();
    world.store.forget_kept_events(&seqs).await.unwrap();
    told(&kept)
}

fn ids_of(handed_out: &[(String, u32)], tenant: &str) -> Vec<u32> {
    handed_out.iter().filter(|(of, _)| of == tenant).map(|(_, id)| *id).collect()
}

async fn kept_events_wait_in_order_until_they_are_forgotten(world: &StoreHarness) {
    assert!(!world.store.keeps_events_of(&tenant_of("a")).await.unwrap());
    assert_eq!(world.store.kept_events(10).await.unwrap(), []);
    world.store.keep_events(&events("a", 600)).await.unwrap();
    let kept = world.store.kept_events(1000).await.unwrap();
    assert_eq!(ids_of(&told(&kept), "a"), (0..600).collect::<Vec<_>>());
    world.store.keep_events(&[event("b", 600)]).await.unwrap();
    assert!(world.store.keeps_events_of(&tenant_of("b")).await.unwrap());
    assert!(!world.store.keeps_events_of(&tenant_of("c")).await.unwrap());

    let seqs: Vec<i64> = kept.iter().map(|(seq, _)| *seq).collect();
    world.store.forget_kept_events(&seqs).await.unwrap();
    assert_eq!(told(&world.store.kept_events(10).await.unwrap()), [("b".to_owned(), 600)]);
    assert!(!world.store.keeps_events_of(&tenant_of("a")).await.unwrap());
}

async fn kept_event_of_a_quiet_tenant_is_in_the_first_batch_however_many_of_another_wait(world: &StoreHarness) {
    world.store.keep_events(&events("busy", 5_000)).await.unwrap();
    world.store.keep_events(&events("quiet", 2)).await.unwrap();
    let first = forward(world, BATCH).await;
    assert_eq!(
        (ids_of(&first, "quiet"), first.len()),
        (vec![0, 1], 102),
        "half of the batch each, if there is as much"
    );
    let (mut of_busy, mut batches) = (ids_of(&first, "busy"), 1);
    loop {
        let next = forward(world, BATCH).await;
        if next.is_empty() {
            break;
        }
        batches += 1;
        of_busy.extend(ids_of(&next, "busy"));
    }
    assert_eq!(of_busy, (0..5_000).collect::<Vec<_>>(), "each once, in the order in which they came");
    assert_eq!(batches, 1 + 25, "a tenant that is alone has all of a batch");
}

async fn kept_events_of_more_tenants_than_a_batch_has_are_handed_out_in_turn(world: &StoreHarness) {
    const QUIET: u32 = 250;
    world.store.keep_events(&events("busy", 5_000)).await.unwrap();
    let quiet: Vec<Event> = (0..QUIET).map(|n| event(&format!("q{n:03}"), 0)).collect();
    world.store.keep_events(&quiet).await.unwrap();
    let (first, second) = (forward(world, BATCH).await, forward(world, BATCH).await);
    assert_eq!((first.len(), ids_of(&first, "busy")), (200, vec![0]), "one of each");
    assert_eq!((second.len(), ids_of(&second, "busy")), (51, vec![]), "and on behind the last one");
    assert_eq!(ids_of(&forward(world, BATCH).await, "busy"), (1..201).collect::<Vec<_>>());
    // the turn that ends with the last tenant of all is followed by that of the first
    world.store.keep_events(&[event("z", 7)]).await.unwrap();
    let one_by_one = [forward(world, 1).await, forward(world, 1).await, forward(world, 1).await].concat();
    let expected = [("busy", 201), ("z", 7), ("busy", 202)].map(|(tenant, id)| (tenant.to_owned(), id));
    assert_eq!(one_by_one, expected);
}

fn long_events(tenant: &str, count: u32) -> Vec<Event> {
    let long = |mut event: Event| {
        event.data = Data::Json(json!("x".repeat(LONG)));
        event
    };
    events(tenant, count).into_iter().map(long).collect()
}

async fn events_are_forwarded_up_to_their_bytes_the_first_of_each_tenant_before_the_second_of_any(
    world: &StoreHarness,
) {
    let fit = BYTES / LONG;
    for tenant in ["busy", "eager"] {
        world.store.keep_events(&long_events(tenant, 10)).await.unwrap();
    }
    world.store.keep_events(&events("quiet", 1)).await.unwrap();
    let first = forward(world, BATCH).await;
    assert_eq!((first.len(), ids_of(&first, "quiet")), (fit + 1, vec![0]));
    assert_eq!(ids_of(&first, "busy"), (0..8).collect::<Vec<_>>(), "as many as of the other");
    assert_eq!(ids_of(&first, "eager"), (0..8).collect::<Vec<_>>());
    let second = forward(world, BATCH).await;
    assert_eq!((ids_of(&second, "busy"), ids_of(&second, "eager")), (vec![8, 9], vec![8, 9]));
    // the first events of many tenants are more bytes than fit: the others have the next turn
    for tenant in 0..20 {
        world.store.keep_events(&long_events(&format!("t{tenant:02}"), 2)).await.unwrap();
    }
    let tenants = |told: &[(String, u32)]| told.iter().map(|(tenant, _)| tenant.clone()).collect::<Vec<_>>();
    let names = |tenants: std::ops::Range<usize>| tenants.map(|tenant| format!("t{tenant:02}")).collect::<Vec<_>>();
    assert_eq!(tenants(&forward(world, BATCH).await), names(0..fit));
    let others = forward(world, BATCH).await;
    assert_eq!((others.len(), others.iter().all(|(tenant, _)| names(fit..20).contains(tenant))), (8, true));
    assert_eq!(tenants(&forward(world, BATCH).await), names(0..fit));
    assert_eq!(forward(world, BATCH).await, []);
}
