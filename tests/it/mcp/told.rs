//! Whom the tool announcer tells of a tool that waits to be accepted, and how often.

use reveille::agent::configured::AgentDefinition;
use reveille::base::id::Scope;
use reveille::domain::approval::SeenDefinition;
use reveille::domain::approval::proposal::text_hash;
use reveille::domain::notification::{Addresses, Delivery, MessageKind, NoticeKind, Recipient, SubjectRef};
use reveille::domain::task::Task;
use reveille::engine::maintenance::tool_announcer::ToolAnnouncer;
use reveille::engine::service::{NextTick, ServiceLoop};
use reveille::store::DeliveryFilter;
use serde_json::{Value, json};

use crate::conformance::on_both;
use crate::conformance::world::{StoreHarness, only};

on_both!(
    owner_is_told_once_of_a_changed_tool_however_many_tasks_and_instances,
    owner_is_told_in_their_language_and_by_their_own_order,
    first_list_tells_nobody,
    tenant_without_a_task_that_names_it_hears_nothing,
    many_tenants_are_told_in_turns,
    owner_of_a_task_that_names_an_agent_with_the_tool_is_told_once,
    task_whose_name_cannot_be_read_keeps_nobody_from_being_told,
);

/// Tenants that one tick tells.
const TENANTS: usize = 100;

/// The server `github` lists its one tool with this description.
async fn listed(world: &StoreHarness, description: &str) {
    let text = json!({ "description": description }).to_string();
    let seen = SeenDefinition { tool: "merge".into(), hash: text_hash(&text), text };
    world.store.judge_tools("github", &[seen]).await.expect("judged");
}

async fn task_with(world: &StoreHarness, tenant: &str, tools: &[&str], more: Value) -> Task {
    let mut fields = json!({ "action": { "instruction": "say hello", "config": { "tools": tools } } });
    fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    world.task_with(tenant, json!({ "interval": "1h" }), fields).await
}

/// Gives a tenant an address.
async fn reachable(world: &StoreHarness, tenant: &str, locale: &str) {
    let recipient = Recipient {
        timezone: chrono_tz::Tz::UTC,
        locale: locale.into(),
        addresses: Addresses { email: Some("ann@example.org".into()), ..Addresses::default() },
        fallback: vec![],
        quiet: Default::default(),
        verified: Default::default(),
    };
    world.store.put_recipient(&Scope::Every, tenant, &recipient, None).await.expect("written");
}

/// The messages to a tenant.
async fn told(world: &StoreHarness, tenant: &str) -> Vec<Delivery> {
    let filter = DeliveryFilter { limit: 200, ..DeliveryFilter::default() };
    world.store.list_deliveries(&only(tenant), &filter).await.expect("deliveries")
}

async fn owner_is_told_once_of_a_changed_tool_however_many_tasks_and_instances(world: &StoreHarness) {
    reachable(world, "ann", "en").await;
    let first = task_with(world, "ann", &["github.merge"], json!({})).await;
    world.pass(1);
    task_with(world, "ann", &["github.merge"], json!({})).await;
    listed(world, "Merges.").await;
    listed(world, "Merges, and asks nobody.").await;
    let [here, there] = [(); 2].map(|()| ToolAnnouncer::new(world.store.clone()));
    let (one, other) = tokio::join!(here.tick(), there.tick());
    assert_eq!((one.expect("a tick"), other.expect("a tick")), (NextTick::OnWake, NextTick::OnWake));
    for announcer in [&here, &there, &ToolAnnouncer::new(world.store.clone())] {
        announcer.tick().await.expect("a tick");
    }
    let notices = told(world, "ann").await;
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    let subject = SubjectRef::Notice { notice: NoticeKind::ToolChanged, task_id: first.id };
    assert_eq!((notice.kind, notice.subject_ref.as_ref()), (MessageKind::Notice, Some(&subject)));
    assert_eq!(notice.subject.as_deref(), Some("A tool waits: Morning mail"));
    let text = notice.text.as_deref().unwrap();
    assert!(text.contains("`github.merge`") && text.contains("has changed"), "{text}");
    assert!(!text.contains("asks nobody"), "no word of the server: {text}");
    // another change of the day is told when the day is over
    listed(world, "Merges all.").await;
    here.tick().await.expect("a tick");
    assert_eq!(told(world, "ann").await.len(), 1);
    world.pass(86_400);
    here.tick().await.expect("a tick");
    assert_eq!(told(world, "ann").await.len(), 2);
}

async fn owner_is_told_in_their_language_and_by_their_own_order(world: &StoreHarness) {
    reachable(world, "ann", "de").await;
    task_with(world, "ann", &["github.merge"], json!({ "output": null })).await;
    listed(world, "Merges.").await;
    listed(world, "Merges all.").await;
    ToolAnnouncer::new(world.store.clone()).tick().await.expect("a tick");
    let notices = told(world, "ann").await;
    let [notice] = notices.as_slice() else { panic!("{notices:?}") };
    assert_eq!((notice.channel.as_str(), notice.recipient.as_str()), ("email", "ann"));
    assert_eq!(notice.subject.as_deref(), Some("Ein Werkzeug wartet: Morning mail"));
}

async fn first_list_tells_nobody(world: &StoreHarness) {
    reachable(world, "ann", "en").await;
    task_with(world, "ann", &["github.merge"], json!({})).await;
    listed(world, "Merges.").await;
    ToolAnnouncer::new(world.store.clone()).tick().await.expect("a tick");
    assert_eq!(told(world, "ann").await.len(), 0);
}

async fn tenant_without_a_task_that_names_it_hears_nothing(world: &StoreHarness) {
    for tenant in ["ann", "bob"] {
        reachable(world, tenant, "en").await;
    }
    task_with(world, "ann", &["github.close"], json!({})).await;
    world.task_with("ann", json!({ "interval": "1h" }), json!({})).await;
    task_with(world, "bob", &["github.merge"], json!({})).await;
    // whom nobody can reach is told nothing, and holds up nobody
    task_with(world, "amy", &["github.merge"], json!({})).await;
    listed(world, "Merges.").await;
    listed(world, "Merges all.").await;
    assert_eq!(ToolAnnouncer::new(world.store.clone()).tick().await.expect("a tick"), NextTick::OnWake);
    for (tenant, count) in [("ann", 0), ("bob", 1), ("amy", 0)] {
        assert_eq!(told(world, tenant).await.len(), count, "{tenant}");
    }
}

async fn many_tenants_are_told_in_turns(world: &StoreHarness) {
    let tenants: Vec<String> = (0..=TENANTS).map(|number| format!("t{number:03}")).collect();
    for tenant in &tenants {
        reachable(world, tenant, "en").await;
        task_with(world, tenant, &["github.merge"], json!({})).await;
    }
    listed(world, "Merges.").await;
    listed(world, "Merges all.").await;
    let announcer = ToolAnnouncer::new(world.store.clone());
    assert_eq!(announcer.tick().await.expect("a tick"), NextTick::Now);
    let [.., last_of_first, beyond] = tenants.as_slice() else { unreachable!("there are many") };
    assert_eq!((told(world, last_of_first).await.len(), told(world, beyond).await.len()), (1, 0));
    assert_eq!(announcer.tick().await.expect("a tick"), NextTick::OnWake);
    assert_eq!((told(world, last_of_first).await.len(), told(world, beyond).await.len()), (1, 1));
    assert_eq!(world.store.untold_tool_changes(9).await.expect("changes"), []);
}

async fn owner_of_a_task_that_names_an_agent_with_the_tool_is_told_once(world: &StoreHarness) {
    let agent = |name: &str, tools: &[&str]| json!({ "name": name, "instruction": "Merge.", "tools": tools });
    let agents =
        json!([agent("Merger", &["github.merge"]), agent("Head", &["Merger"]), agent("Closer", &["github.close"])]);
    let agents: Vec<AgentDefinition> = serde_json::from_value(agents).expect("agents");
    for tenant in ["ann", "bob", "cem", "amy"] {
        reachable(world, tenant, "en").await;
    }
    // amy has a task of each kind, and one message
    for (tenant, tools) in [
        ("ann", &["Merger"][..]),
        ("bob", &["Head"][..]),
        ("cem", &["Closer"][..]),
        ("amy", &["github.merge"][..]),
        ("amy", &["Merger", "Head"][..]),
    ] {
        task_with(world, tenant, tools, json!({})).await;
        world.pass(1);
    }
    listed(world, "Merges.").await;
    listed(world, "Merges all.").await;
    let announcer = ToolAnnouncer::new(world.store.clone()).with_agents(agents);
    for _ in 0..2 {
        assert_eq!(announcer.tick().await.expect("a tick"), NextTick::OnWake);
    }
    for (tenant, count) in [("ann", 1), ("bob", 1), ("cem", 0), ("amy", 1)] {
        assert_eq!(told(world, tenant).await.len(), count, "{tenant}");
    }
}

async fn task_whose_name_cannot_be_read_keeps_nobody_from_being_told(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the type of the column lets nothing in that can't be read
    }
    for tenant in ["ann", "bob"] {
        reachable(world, tenant, "en").await;
        task_with(world, tenant, &["github.merge"], json!({})).await;
    }
    world.plant("update tasks set name = x'ff' where tenant_id = 'ann'").await;
    listed(world, "Merges.").await;
    listed(world, "Merges all.").await;
    assert_eq!(ToolAnnouncer::new(world.store.clone()).tick().await.expect("a tick"), NextTick::OnWake);
    for tenant in ["ann", "bob"] {
        assert_eq!(told(world, tenant).await.len(), 1, "{tenant}");
    }
}
