//! Calls of a tenant and looks of the engine whose reads must not grow with what others have stored; `plans` counts
//! them.

use reveille::base::id::{Scope, new_id};
use reveille::domain::memory::FactOrigin;
use reveille::domain::memory::recall::terms;
use reveille::domain::run::RunState;
use reveille::domain::task::TaskStatus;
use reveille::store::{
    ConversationFilter, EmbeddingPlace, EventFilter, ExtractionEnd, FactFilter, OverrideFilter, RunFilter, StoredToken,
    SuspendedFilter, TaskFilter, UiSession,
};
use serde_json::json;
use uuid::Uuid;

use super::conversations::{conversation, say};
use super::facts::{said, tenant};
use super::matching::event;
use super::message_starts::start_and_answer;
use super::tool_pins::seen;
use super::world::{LEASE, StoreHarness, WORKER, only};

/// Rows of a page.
const PAGE: i64 = 20;

/// Calls of a tenant that has little: what others have is newer, and there is much of it.
pub async fn calls(world: &StoreHarness) {
    let (of_a, store) = (only("a"), &world.store);
    let task = world.task_with("a", json!({"interval": "1h", "overlap": "allow"}), json!({})).await;
    let conversation = conversation(world, "a").await;
    let message = say(world, &conversation, "hello").await;
    start_and_answer(world).await;
    let token = StoredToken {
        id: new_id(world.now()),
        tenant_id: Some("a".into()),
        name: "laptop".into(),
        hash: new_id(world.now()).as_bytes().to_vec(),
        scopes: vec![],
        created_at: world.now(),
        expires_at: None,
        revoked_at: None,
        root: None,
    };
    store.create_token(&token, None).await.unwrap();
    // the first page, and one of those that come before an id that is newer than all
    for before in [None, Some(Uuid::max())] {
        lists(world, task.id, conversation.id, before).await;
    }
    for scope in [&of_a, &Scope::Every] {
        let suspended = SuspendedFilter { limit: PAGE, ..SuspendedFilter::default() };
        let waiting = store.list_suspended(scope, &suspended).await.unwrap().rows;
        if let Some(run) = waiting.first() {
            store.pause_suspended(scope, run.run_id, "token:t").await.unwrap();
            store.resume_suspended(scope, run.run_id, "token:t").await.unwrap();
        }
    }
    assert!(store.may_suspend("tenant-5").await.unwrap());
    store.get_conversation(&of_a, conversation.id).await.unwrap();
    store.earlier_runs("a", conversation.id, message, 20).await.unwrap();
    store.request_echo(&of_a, message).await.unwrap();
    store.expire_conversations(world.now(), 5).await.unwrap();
    store.last_runs(&of_a, &[task.id]).await.unwrap();
    store.run_progress(&[message, Uuid::nil()]).await.unwrap();
    store.upcoming_fires(&of_a, PAGE).await.unwrap();
    store.count_tasks(&of_a).await.unwrap();
    for scope in [&of_a, &Scope::Every] {
        assert!(!store.upcoming_fires(scope, PAGE).await.unwrap().is_empty());
    }
    store.announce_instance(WORKER, Some("one"), world.now()).await.unwrap();
    assert!(!store.list_instances().await.unwrap().is_empty());
    store.last_event(&of_a).await.unwrap();
    store.read_events(&of_a, &EventFilter { limit: PAGE, ..EventFilter::default() }).await.unwrap();
    let newest = EventFilter { newest_first: true, after: i64::MAX, limit: PAGE, ..EventFilter::default() };
    store.read_events(&of_a, &newest).await.unwrap();
    store.newest_events(&tenant("a"), Some("shop"), Some("order*"), 200, 5).await.unwrap();
    // of a tenant that has few, and of one that has many
    for (name, source) in [("a", None), ("a", Some("shop")), ("z", None), ("z", Some("shop"))] {
        store.find_event(&tenant(name), source, "99").await.unwrap();
        store.event_ids(&tenant(name), source, "99").await.unwrap();
    }
    // of a tenant that has none, and of one that has many
    for tenant in ["a", "tenant-7"] {
        store.approval_overrides_of_calls(tenant, Some("booker"), Some(task.id), &["t", "u"]).await.unwrap();
    }
    let (tenant, words) = (tenant("a"), terms("where does Ann live"));
    store.recall_facts(&tenant, &words, Some("s")).await.unwrap();
    store.fact_revision(&tenant).await.unwrap();
    let noted = store.note_fact(&tenant, &said("Lives in Vienna.", FactOrigin::Person), None).await.unwrap().fact;
    store.note_fact(&tenant, &said("Lives in Graz.", FactOrigin::Person), Some("Lives in Vienna.")).await.unwrap();
    store.recall_facts(&tenant, &words, Some("s")).await.unwrap();
    store.search_facts(&tenant, &words, Some("preferences")).await.unwrap();
    store.get_fact(&of_a, noted.id).await.unwrap();
    for space in ["a", "s", "z"] {
        let place = store.next_unembedded(space, &EmbeddingPlace::default()).await.unwrap();
        store.next_unembedded(space, &place.expect("facts without a vector")).await.unwrap();
    }
    let unembedded = store.claim_unembedded(&tenant, "", 16).await.unwrap();
    let vectors: Vec<_> = unembedded.iter().map(|(id, version, _)| (*id, *version, Some(vec![0; 8]))).collect();
    store.keep_vectors(&tenant, "s", &vectors).await.unwrap();
    store.embedded_facts(&tenant, "s", None).await.unwrap();
    store.vectors_of(&tenant, "s", &[noted.id]).await.unwrap();
    let many: Vec<Uuid> = (0..99).map(Uuid::from_u128).chain([noted.id]).collect();
    store.vectors_of(&tenant, "s", &many).await.unwrap();
    store.facts_by_ids(&tenant, &[noted.id]).await.unwrap();
    store.delete_fact(&of_a, noted.id, "token:t", None).await.unwrap();
    let queued = store.extractions_in_turn("tenant-5", 2, world.now()).await.unwrap();
    for (tenant, run) in &queued {
        let run = run.expect("the first of each is due");
        let claim = store.claim_extraction(tenant, run, world.now() + LEASE).await.unwrap().expect("a claim");
        store.finish_extraction(&claim, &ExtractionEnd::default()).await.unwrap();
    }
    assert!([0, 2].contains(&queued.len()), "{queued:?}");
    store.requeue_expired_claims(world.now()).await.unwrap();
    // of a server whose tool has changed, where it is stored, and of one that has listed its own
    for server in ["server-7", "files"] {
        assert_eq!(store.judge_tools(server, &[seen("t", "Does another thing.")]).await.unwrap().len(), 1);
        assert!(store.find_tool_pin(server, "t").await.unwrap().is_some());
    }
    store.tool_pin_version().await.unwrap();
    sign_in(world, &token.hash).await;
    store.publish_events(&[event(&new_id(world.now()).to_string())]).await.unwrap();
    let leased = store.lease_events(WORKER, world.now() + LEASE, 2, "", &[]).await.unwrap();
    let seqs: Vec<i64> = leased.events.iter().map(|event| event.seq).collect();
    store.acknowledge_events(&seqs).await.unwrap();
}

/// A link that is spent, and a session that is used and ended.
async fn sign_in(world: &StoreHarness, token: &[u8]) {
    let (store, now, hash) = (&world.store, world.now(), new_id(world.now()).as_bytes().to_vec());
    store.make_login_link(&hash, token, now, now + LEASE).await.unwrap();
    assert!(store.find_login_link(&hash).await.unwrap().is_some());
    assert_eq!(store.spend_login_link(&hash, now).await.unwrap().as_deref(), Some(token));
    let session = UiSession { token_hash: token.to_vec(), created_at: now, seen_at: now, ends_at: now + LEASE };
    store.open_ui_session(&hash, &session).await.unwrap();
    assert!(store.find_ui_session(&hash).await.unwrap().is_some());
    store.touch_ui_session(&hash, now + LEASE).await.unwrap();
    store.end_ui_session(&hash).await.unwrap();
}

/// Pages of what a tenant has, before an id.
async fn lists(world: &StoreHarness, task: Uuid, conversation: Uuid, before: Option<Uuid>) {
    let (of_a, store) = (only("a"), &world.store);
    for status in [None, Some(TaskStatus::Paused)] {
        let page = TaskFilter { status, before, limit: PAGE, ..TaskFilter::default() };
        store.tasks_page(&of_a, &page).await.unwrap();
    }
    store.list_facts(&of_a, &FactFilter { before, limit: PAGE, ..FactFilter::default() }).await.unwrap();
    let page = OverrideFilter { before, limit: PAGE, ..OverrideFilter::default() };
    store.list_approval_overrides(&of_a, &page).await.unwrap();
    store.list_tokens(&of_a, None, before, PAGE).await.unwrap();
    let page = ConversationFilter { before, limit: PAGE };
    store.list_conversations(&of_a, &page).await.unwrap();
    store.conversation_messages(&of_a, conversation, &page).await.unwrap();
    for q in ["m:", "Morning"] {
        let found = RunFilter { q: Some(q.into()), before, limit: PAGE, ..RunFilter::default() };
        store.run_summaries(&of_a, &found).await.unwrap();
    }
    store.task_names(&of_a, &[task]).await.unwrap();
    for task_id in [None, Some(task)] {
        let runs = RunFilter { task_id, before, limit: PAGE, ..RunFilter::default() };
        store.run_summaries(&of_a, &runs).await.unwrap();
        let today = RunFilter { since: Some(world.now()), until: Some(world.now() + LEASE), ..runs.clone() };
        store.run_summaries(&of_a, &today).await.unwrap();
        for state in [RunState::PendingApproval, RunState::Failed] {
            store.run_summaries(&of_a, &RunFilter { state: Some(state), ..runs.clone() }).await.unwrap();
        }
    }
}
