//! The fires that come next: the earliest first, of a scope, and none of what does not fire.

use reveille::base::id::Scope;
use reveille::domain::task::change::TaskChange;
use reveille::store::UpcomingFire;
use serde_json::json;

use super::world::{StoreHarness, only};

on_both!(upcoming_fires_are_the_earliest_of_the_scope);

async fn upcoming_fires_are_the_earliest_of_the_scope(world: &StoreHarness) {
    let later = world.task_with("a", json!({"interval": "2h"}), json!({})).await;
    let sooner = world.task_with("a", json!({"interval": "1h"}), json!({})).await;
    let foreign = world.task_with("b", json!({"interval": "30m"}), json!({})).await;
    let paused = world.task_with("a", json!({"interval": "10m"}), json!({})).await;
    world.store.change_task(&Scope::Every, paused.id, &TaskChange::Pause { reason: None }).await.unwrap();
    world.task_with("a", json!({"type": "event", "source": "shop"}), json!({})).await;
    let upcoming = async |scope: &Scope, limit| {
        let fires = world.store.upcoming_fires(scope, limit).await.unwrap();
        fires.into_iter().map(|fire| fire.task_id).collect::<Vec<_>>()
    };
    assert_eq!(upcoming(&Scope::Every, 9).await, [foreign.id, sooner.id, later.id]);
    assert_eq!(upcoming(&Scope::Every, 2).await, [foreign.id, sooner.id]);
    assert_eq!(upcoming(&only("a"), 9).await, [sooner.id, later.id]);
    assert!(upcoming(&only("c"), 9).await.is_empty());
    let expected = UpcomingFire {
        task_id: foreign.id,
        tenant_id: "b".into(),
        name: foreign.name.clone(),
        next_fire_at: foreign.next_fire_at.expect("a next fire"),
    };
    assert_eq!(world.store.upcoming_fires(&only("b"), 9).await.unwrap(), [expected]);
}
