//! Pins of the tools of MCP servers: what is accepted and what waits, whichever instance lists when; whom an acceptance
//! reaches; and of what the owners of tasks are told.

use chrono::{DateTime, Utc};
use futures::future::BoxFuture;
use reveille::base::id::Scope;
use reveille::domain::approval::proposal::text_hash;
use reveille::domain::approval::tool_pin::{PINS, PinState, PinVerdict, SeenDefinition, ToolPin};
use reveille::domain::task::Task;
use reveille::domain::task::change::TaskChange;
use reveille::store::{AuditEntry, AuditFilter, Store, StoreError, ToolOwner, UntoldTool};
use serde_json::json;
use sqlx::{Connection, PgConnection};

use super::races::until_stuck_or_done;
use super::world::{StoreHarness, open_postgres};
use crate::support::gate::Gate;
use PinVerdict::{Accepted, Unrecorded, Waiting};

on_both!(
    first_list_of_a_server_is_accepted_and_an_empty_one_is_none,
    changed_and_new_definitions_wait_and_equal_ones_do_not,
    definition_that_nobody_sees_any_more_goes_an_hour_after_the_accepted_one_is_back,
    two_instances_that_list_for_the_first_time_at_once_accept_one_list,
    acceptance_during_a_judgement_stands,
    acceptance_of_another_definition_is_refused_and_a_second_of_the_same_changes_nothing,
    acceptance_is_on_the_record_and_moves_the_version,
    pins_of_a_server_have_a_bound,
    pin_that_cannot_be_read_waits_until_it_is_accepted,
    change_is_untold_until_it_is_marked_and_another_within_a_day_waits,
    owners_of_a_tool_are_found_tenant_by_tenant,
);

const BY: &str = "token:admin";

/// A definition of a tool with this description.
pub fn seen(tool: &str, description: &str) -> SeenDefinition {
    let text = format!("{{\"description\":\"{description}\"}}");
    SeenDefinition { tool: tool.into(), hash: text_hash(&text), text }
}

fn hash(description: &str) -> String {
    seen("t", description).hash
}

async fn judged(store: &Store, server: &str, listed: &[(&str, &str)]) -> Vec<PinVerdict> {
    let listed: Vec<SeenDefinition> = listed.iter().map(|(tool, description)| seen(tool, description)).collect();
    store.judge_tools(server, &listed).await.unwrap()
}

async fn pin(store: &Store, server: &str, tool: &str) -> ToolPin {
    store.find_tool_pin(server, tool).await.unwrap().expect("a pin")
}

/// The hashes of the accepted definition and of the one that waits.
fn hashes(pin: &ToolPin) -> [Option<&str>; 2] {
    [&pin.accepted, &pin.waiting].map(|one| one.as_ref().map(|definition| definition.hash.as_str()))
}

async fn first_list_of_a_server_is_accepted_and_an_empty_one_is_none(world: &StoreHarness) {
    let store = &world.store;
    assert_eq!(judged(store, "files", &[]).await, []);
    world.pass(60);
    assert_eq!(judged(store, "files", &[("read", "1"), ("write", "1")]).await, [Accepted, Accepted]);
    let pin = pin(store, "files", "read").await;
    let accepted = pin.accepted.as_ref().expect("an accepted definition");
    assert_eq!((pin.state(), pin.accepted_by.as_deref(), &pin.waiting), (PinState::Accepted, None, &None));
    assert_eq!((accepted.text.as_str(), accepted.at), (r#"{"description":"1"}"#, world.now()));
    assert_eq!(accepted.hash, hash("1"));
    // a list without the tool is no first one, and neither is that of a server that has lost all
    assert_eq!(judged(store, "files", &[]).await, []);
    assert_eq!(judged(store, "files", &[("new", "1")]).await, [Waiting]);
    assert_eq!(judged(store, "mail", &[("read", "2")]).await, [Accepted], "another server has pins of its own");
    assert_eq!(store.find_tool_pin("mail", "write").await.unwrap(), None);
}

async fn changed_and_new_definitions_wait_and_equal_ones_do_not(world: &StoreHarness) {
    let store = &world.store;
    judged(store, "files", &[("a", "1"), ("b", "1")]).await;
    world.pass(60);
    let verdicts = judged(store, "files", &[("c", "1"), ("b", "1"), ("a", "2")]).await;
    assert_eq!(verdicts, [Waiting, Accepted, Waiting], "in the order of the list");
    let (changed, new) = (pin(store, "files", "a").await, pin(store, "files", "c").await);
    assert_eq!((changed.state(), new.state()), (PinState::Changed, PinState::New));
    assert_eq!(hashes(&changed), [Some(hash("1").as_str()), Some(hash("2").as_str())]);
    assert_eq!(changed.difference(), ["description:", "- 1", "+ 2"]);
    let since = |pin: &ToolPin| pin.waiting.as_ref().map(|waiting| waiting.at);
    assert_eq!((since(&changed), since(&new)), (Some(world.now()), Some(world.now())));
    // it is listed again, and waits since it was first seen
    world.pass(3600);
    assert_eq!(judged(store, "files", &[("a", "2")]).await, [Waiting]);
    assert_eq!(since(&pin(store, "files", "a").await), since(&changed));
    // a tool that is gone keeps its pin, and one that comes back changed waits
    assert_eq!(judged(store, "files", &[("a", "1")]).await, [Accepted]);
    assert_eq!(judged(store, "files", &[("b", "1"), ("c", "1")]).await, [Accepted, Waiting]);
    assert_eq!(judged(store, "files", &[("a", "1"), ("b", "3")]).await, [Accepted, Waiting]);
}

async fn definition_that_nobody_sees_any_more_goes_an_hour_after_the_accepted_one_is_back(world: &StoreHarness) {
    let store = &world.store;
    judged(store, "files", &[("a", "1")]).await;
    judged(store, "files", &[("a", "2")]).await;
    // another instance lists a server that has it still
    world.pass(3_000);
    assert_eq!(judged(store, "files", &[("a", "2")]).await, [Waiting]);
    world.pass(3_599);
    assert_eq!(judged(store, "files", &[("a", "1")]).await, [Accepted]);
    assert_eq!(pin(store, "files", "a").await.state(), PinState::Changed);
    world.pass(1);
    assert_eq!(judged(store, "files", &[("a", "1")]).await, [Accepted]);
    assert_eq!(hashes(&pin(store, "files", "a").await), [Some(hash("1").as_str()), None]);
}

/// One of two who meet over a server, by its name.
type Act<T> = fn(Store, String) -> BoxFuture<'static, Result<T, StoreError>>;

/// The answer to one that lists.
type Judged = Result<Vec<PinVerdict>, StoreError>;

/// Interleaves two instances in every way, each time over another server: the first is held before each of its requests
/// in turn while the second does its whole work, or waits for it. On SQLite, which has one writer, they go at once.
async fn meet<A: Send + 'static, B: Send + 'static>(
    world: &StoreHarness,
    prepare: impl AsyncFn(&str),
    (first, second): (Act<A>, Act<B>),
    judge: impl AsyncFn(&str, Result<A, StoreError>, Result<B, StoreError>),
) {
    if !world.is_postgres() {
        prepare("s").await;
        let (one, other) =
            tokio::join!(first(world.store.clone(), "s".into()), second(world.store.clone(), "s".into()));
        return judge("s", one, other).await;
    }
    let gate = Gate::before(&world.url()).await;
    gate.open().await;
    let held = open_postgres(&gate.url(&world.url()), &world.clock).await;
    let other = world.other_instance().await;
    let mut watcher = PgConnection::connect(&world.url()).await.unwrap();
    for pass in 0.. {
        let server = format!("s{pass}");
        prepare(&server).await;
        held.ping().await.unwrap();
        gate.hold_after(pass);
        let mut one = tokio::spawn(first(held.clone(), server.clone()));
        let ended = tokio::select! {
            done = &mut one => Some(done.unwrap()),
            () = gate.held() => None,
        };
        let is_last = ended.is_some();
        let two = tokio::spawn(second(other.clone(), server.clone()));
        let (one, two) = match ended {
            Some(one) => (one, two.await.unwrap()),
            None => {
                until_stuck_or_done(&mut watcher, &two).await;
                gate.release();
                (one.await.unwrap(), two.await.unwrap())
            }
        };
        judge(&server, one, two).await;
        if is_last {
            assert!(pass >= 4, "the first makes {pass} requests only");
            break;
        }
    }
    gate.release();
    watcher.close().await.unwrap();
    held.close().await;
    other.close().await;
}

async fn two_instances_that_list_for_the_first_time_at_once_accept_one_list(world: &StoreHarness) {
    let one: Act<Vec<PinVerdict>> =
        |store, server| Box::pin(async move { store.judge_tools(&server, &[seen("a", "1"), seen("b", "1")]).await });
    let other: Act<Vec<PinVerdict>> =
        |store, server| Box::pin(async move { store.judge_tools(&server, &[seen("a", "2"), seen("b", "1")]).await });
    let is_one_accepted = async |server: &str, one: Judged, other: Judged| {
        let verdicts: [Vec<PinVerdict>; 2] = [one.unwrap(), other.unwrap()];
        let pin = pin(&world.store, server, "a").await;
        let (accepted, waiting) = match verdicts.each_ref().map(|verdicts| verdicts[0]) {
            [Accepted, Waiting] => ("1", "2"),
            [Waiting, Accepted] => ("2", "1"),
            other => panic!("{other:?}"),
        };
        assert_eq!(hashes(&pin), [Some(hash(accepted).as_str()), Some(hash(waiting).as_str())]);
        assert_eq!(verdicts.map(|verdicts| verdicts[1]), [Accepted; 2], "both have it");
    };
    meet(world, async |_| {}, (one, other), is_one_accepted).await;
}

async fn acceptance_during_a_judgement_stands(world: &StoreHarness) {
    let lists: Act<Vec<PinVerdict>> =
        |store, server| Box::pin(async move { store.judge_tools(&server, &[seen("a", "3")]).await });
    let accepts: Act<ToolPin> =
        |store, server| Box::pin(async move { store.accept_tool(&server, "a", Some(&hash("2")), BY).await });
    let prepare = async |server: &str| {
        judged(&world.store, server, &[("a", "1")]).await;
        assert_eq!(judged(&world.store, server, &[("a", "2")]).await, [Waiting]);
    };
    let stands = async |server: &str, verdicts: Judged, accepted: Result<ToolPin, StoreError>| {
        assert_eq!(verdicts.unwrap(), [Waiting]);
        let before = match accepted {
            Ok(_) => "2",
            Err(StoreError::Conflict(why)) if why.contains(&hash("3")) => "1",
            Err(error) => panic!("{error}"),
        };
        let pin = pin(&world.store, server, "a").await;
        assert_eq!(hashes(&pin), [Some(hash(before).as_str()), Some(hash("3").as_str())]);
    };
    meet(world, &prepare, (lists, accepts), &stands).await;
    let turned = async |server: &str, accepted: Result<ToolPin, StoreError>, verdicts: Judged| {
        stands(server, verdicts, accepted).await;
    };
    if world.is_postgres() {
        world.plant("delete from tool_pins").await;
        world.plant("delete from mcp_listed").await;
        meet(world, &prepare, (accepts, lists), turned).await;
    }
}

async fn acts(world: &StoreHarness) -> Vec<AuditEntry> {
    let filter = AuditFilter { action: Some("tool.accepted".into()), limit: 9, ..AuditFilter::default() };
    world.store.audit_page(&Scope::Every, &filter).await.unwrap().rows
}

async fn acceptance_of_another_definition_is_refused_and_a_second_of_the_same_changes_nothing(world: &StoreHarness) {
    let store = &world.store;
    let refused = async |tool: &str, of: Option<&str>| {
        let of = of.map(hash);
        match store.accept_tool("files", tool, of.as_deref(), BY).await {
            Err(StoreError::Conflict(why)) => why,
            other => panic!("{other:?}"),
        }
    };
    assert!(matches!(store.accept_tool("files", "a", None, BY).await, Err(StoreError::NotFound)));
    judged(store, "files", &[("a", "1")]).await;
    assert!(matches!(store.accept_tool("files", "b", None, BY).await, Err(StoreError::NotFound)));
    assert_eq!(refused("a", Some("2")).await, "no definition of `files.a` waits");
    judged(store, "files", &[("a", "2")]).await;
    let why = format!("another definition of `files.a` waits: {}", hash("2"));
    assert_eq!(refused("a", Some("3")).await, why);
    let version = store.tool_pin_version().await.unwrap();
    world.pass(5);
    let accepted = store.accept_tool("files", "a", Some(&hash("2")), BY).await.unwrap();
    assert_eq!(hashes(&accepted), [Some(hash("2").as_str()), None]);
    assert_eq!((accepted.accepted_by.as_deref(), accepted.accepted.as_ref().unwrap().at), (Some(BY), world.now()));
    assert_eq!(pin(store, "files", "a").await, accepted);
    assert_eq!(judged(store, "files", &[("a", "2")]).await, [Accepted]);
    assert_eq!(judged(store, "files", &[("a", "1")]).await, [Waiting], "the one before it waits by now");
    // once more, by its hash while another waits, and without one where nothing does
    world.pass(5);
    let again = store.accept_tool("files", "a", Some(&hash("2")), "token:other").await.unwrap();
    assert_eq!(hashes(&again), [Some(hash("2").as_str()), Some(hash("1").as_str())]);
    assert_eq!(again.accepted, accepted.accepted);
    judged(store, "mail", &[("a", "1")]).await;
    store.accept_tool("mail", "a", None, BY).await.unwrap();
    assert_eq!((store.tool_pin_version().await.unwrap(), acts(world).await.len()), (version + 1, 1));
}

async fn acceptance_is_on_the_record_and_moves_the_version(world: &StoreHarness) {
    let store = &world.store;
    let other = world.other_instance().await;
    judged(store, "files", &[("a", "1")]).await;
    assert_eq!(judged(store, "files", &[("a", "2"), ("b", "1")]).await, [Waiting, Waiting]);
    let version = other.tool_pin_version().await.unwrap();
    store.accept_tool("files", "b", None, BY).await.unwrap();
    assert_eq!(other.tool_pin_version().await.unwrap(), version + 1);
    world.pass(1);
    store.accept_tool("files", "a", None, BY).await.unwrap();
    assert_eq!(other.tool_pin_version().await.unwrap(), version + 2);
    assert_eq!(judged(&other, "files", &[("a", "2"), ("b", "1")]).await, [Accepted, Accepted]);
    let told: Vec<_> = acts(world).await.into_iter().map(|act| (act.tenant_id, act.actor, act.body)).collect();
    let act = |tool: &str, definition: &str, before: Option<&str>| {
        let body = json!({ "tool": tool, "definition": hash(definition), "before": before.map(hash) });
        ("*".to_owned(), BY.to_owned(), body)
    };
    assert_eq!(told, [act("files.a", "2", Some("1")), act("files.b", "1", None)]);
}

async fn pins_of_a_server_have_a_bound(world: &StoreHarness) {
    let store = &world.store;
    let many = |count: usize| -> Vec<SeenDefinition> { (0..count).map(|n| seen(&format!("t{n}"), "1")).collect() };
    let pins = async |server: &str| {
        world.count(&format!("select count(*) from tool_pins where server = '{server}'")).await as usize
    };
    let verdicts = store.judge_tools("full", &many(PINS + 1)).await.unwrap();
    assert!(verdicts[..PINS].iter().all(|verdict| *verdict == Accepted));
    assert_eq!((verdicts[PINS], pins("full").await), (Unrecorded, PINS));
    assert_eq!(judged(store, "full", &[("t0", "1"), ("new", "1"), ("t1", "2")]).await, [Accepted, Unrecorded, Waiting]);
    assert_eq!(store.find_tool_pin("full", "new").await.unwrap(), None);
    // tools that come and go make room for each other, and never one that was accepted
    judged(store, "moody", &[("kept", "1")]).await;
    let most = store.judge_tools("moody", &many(PINS - 1)).await.unwrap();
    assert!(most.iter().all(|verdict| *verdict == Waiting));
    world.pass(60);
    assert_eq!(judged(store, "moody", &[("one", "1"), ("another", "1")]).await, [Waiting, Waiting]);
    assert_eq!(pins("moody").await, PINS);
    assert_eq!(pin(store, "moody", "kept").await.state(), PinState::Accepted);
    assert_eq!(pin(store, "moody", "another").await.state(), PinState::New);
}

async fn pin_that_cannot_be_read_waits_until_it_is_accepted(world: &StoreHarness) {
    if world.is_postgres() {
        return; // the types of its columns let nothing in that can't be read
    }
    let store = &world.store;
    judged(store, "files", &[("a", "1"), ("b", "1")]).await;
    world.plant("update tool_pins set accepted_hash = x'ff', accepted_at = 'soon' where tool = 'a'").await;
    assert_eq!(judged(store, "files", &[("a", "1"), ("b", "1")]).await, [Waiting, Accepted]);
    world.plant("update tool_pins set waiting_since = 'soon', waiting_seen_at = 'soon' where tool = 'a'").await;
    assert_eq!(judged(store, "files", &[("a", "1"), ("b", "1")]).await, [Waiting, Accepted]);
    let pin = pin(store, "files", "a").await;
    assert_eq!(
        (pin.state(), pin.waiting.as_ref().map(|waiting| waiting.at)),
        (PinState::New, Some(DateTime::<Utc>::UNIX_EPOCH))
    );
    store.accept_tool("files", "a", None, BY).await.unwrap();
    assert_eq!(judged(store, "files", &[("a", "1"), ("b", "1")]).await, [Accepted, Accepted]);
}

async fn change_is_untold_until_it_is_marked_and_another_within_a_day_waits(world: &StoreHarness) {
    let store = &world.store;
    let untold = async |limit: i64| store.untold_tool_changes(limit).await.unwrap();
    let change = |tool: &str, description: &str, is_new: bool| UntoldTool {
        server: "files".into(),
        tool: tool.into(),
        hash: hash(description),
        is_new,
    };
    judged(store, "files", &[("a", "1")]).await;
    assert_eq!(untold(9).await, [], "a first list is no change");
    judged(store, "files", &[("a", "2"), ("b", "1")]).await;
    assert_eq!(untold(9).await, [change("a", "2", false), change("b", "1", true)]);
    assert_eq!(untold(1).await, [change("a", "2", false)]);
    store.mark_tool_told("files", "a", &hash("2")).await.unwrap();
    assert_eq!(untold(9).await, [change("b", "1", true)]);
    store.accept_tool("files", "b", None, BY).await.unwrap();
    assert_eq!(untold(9).await, [], "it was accepted before anybody was told");
    // another one within a day is told of when the day is over
    judged(store, "files", &[("a", "3")]).await;
    world.pass(86_399);
    assert_eq!(untold(9).await, []);
    world.pass(1);
    assert_eq!(untold(9).await, [change("a", "3", false)]);
    store.mark_tool_told("files", "a", &hash("3")).await.unwrap();
    // the one that was told of last is not told of again, however it came back
    judged(store, "files", &[("a", "1")]).await;
    world.pass(3 * 86_400);
    judged(store, "files", &[("a", "1")]).await;
    assert_eq!(pin(store, "files", "a").await.state(), PinState::Accepted);
    judged(store, "files", &[("a", "3")]).await;
    assert_eq!(untold(9).await, []);
}

/// A task of a tenant whose agent may use these tools.
async fn task_with_tools(world: &StoreHarness, tenant: &str, tools: &[&str]) -> Task {
    let action = json!({ "instruction": "say hello", "config": { "tools": tools } });
    world.task_with(tenant, json!({ "interval": "1h" }), json!({ "action": action })).await
}

async fn owners_of_a_tool_are_found_tenant_by_tenant(world: &StoreHarness) {
    let store = &world.store;
    let every = &Scope::Every;
    let first = task_with_tools(world, "a", &["files.read", "files.write"]).await;
    // its id is behind that of the first
    world.pass(1);
    task_with_tools(world, "a", &["files.read"]).await;
    task_with_tools(world, "b", &["files.write"]).await;
    let paused = task_with_tools(world, "c", &["files.read"]).await;
    store.change_task(every, paused.id, &TaskChange::Pause { reason: None }).await.unwrap();
    let disabled = task_with_tools(world, "d", &["files.read"]).await;
    store.disable_task_for(disabled.id, None, BY).await.unwrap();
    let deleted = task_with_tools(world, "e", &["files.read"]).await;
    store.delete_task(every, deleted.id).await.unwrap();
    let last = task_with_tools(world, "f", &["files.read"]).await;

    let mut owners: Vec<ToolOwner> = Vec::new();
    loop {
        let after = owners.last().map(|owner| owner.tenant.clone());
        let Some(next) = store.next_owner_of_tool("files.read", after.as_deref()).await.unwrap() else { break };
        owners.push(next);
        assert!(owners.len() < 9, "{owners:?}");
    }
    let owner =
        |task: &Task| ToolOwner { tenant: task.tenant_id.clone(), task_id: task.id, task_name: task.name.clone() };
    assert_eq!(owners, [owner(&first), owner(&paused), owner(&last)]);
    assert_eq!(store.next_owner_of_tool("files.delete", None).await.unwrap(), None);
}
