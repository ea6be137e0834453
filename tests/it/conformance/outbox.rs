//! Events that were taken while the bus was away.

use reveille::domain::event::Event;
use serde_json::json;

use super::world::{StoreHarness, tenant_of};

on_both!(kept_events_wait_in_order_until_they_are_forgotten,);

async fn kept_events_wait_in_order_until_they_are_forgotten(world: &StoreHarness) {
    let event = |tenant: &str, id: u32| {
        let fields = json!({"specversion": "1.0", "tenantid": tenant, "id": id.to_string(), "source": "s", "type": "t",
            "data": "a\0b"});
        Event::try_from(fields).unwrap()
    };
    assert!(!world.store.keeps_events_of(&tenant_of("a")).await.unwrap());
    let many: Vec<Event> = (0..600).map(|n| event("a", n)).collect();
    world.store.keep_events(&many).await.unwrap();
    world.store.keep_events(&[event("b", 600)]).await.unwrap();
    assert!(world.store.keeps_events_of(&tenant_of("b")).await.unwrap());
    assert!(!world.store.keeps_events_of(&tenant_of("c")).await.unwrap());

    let kept = world.store.kept_events(1000).await.unwrap();
    let ids: Vec<u32> =
        kept.iter().map(|(_, body)| serde_json::from_str::<Event>(body).unwrap().id.parse().unwrap()).collect();
    assert_eq!(ids, (0..=600).collect::<Vec<_>>());
    let seqs: Vec<i64> = kept[..600].iter().map(|(seq, _)| *seq).collect();
    world.store.forget_kept_events(&seqs).await.unwrap();
    assert_eq!(world.store.kept_events(10).await.unwrap(), kept[600..]);
    assert!(!world.store.keeps_events_of(&tenant_of("a")).await.unwrap());
}
