//! NUL: Postgres keeps none, so neither database does. A run must not hang on one.

use reveille::base::id::{Scope, new_id};
use reveille::domain::notification::{Mark, MessageKind, NewDelivery};
use reveille::domain::run::RunState;
use reveille::domain::run::outcome::RunFault;
use reveille::domain::run::transcript::{ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::domain::task::change::TaskChange;
use reveille::store::{DeliveryFilter, Finish, Idempotency, RunFilter, StoredAnswer, StoredToken, TaskFilter};
use serde_json::json;

use super::world::{START, StoreHarness, end_of, leases, new_task};
use crate::support::outbox::claim_due;

on_both!(
    transcripts_outputs_and_errors_are_kept_without_nul,
    messages_and_their_errors_are_kept_without_nul,
    texts_of_people_are_kept_without_nul,
    looking_for_a_nul_finds_nothing_and_harms_nothing,
);

const SENT: &str = "a\0b\\u0000";
const KEPT: &str = "a\u{FFFD}b\\u0000";

async fn transcripts_outputs_and_errors_are_kept_without_nul(world: &StoreHarness) {
    let started = world.started(&world.task(json!({"interval": "1h"})).await).await;
    let said = |text: &str| {
        let call = ToolCall::new(text, text, json!({text: [text]}));
        vec![
            TranscriptMessage::Assistant {
                text: Some(text.into()),
                tool_calls: vec![call],
                provider_message: None,
                finish: None,
            },
            TranscriptMessage::Tool {
                call_id: text.into(),
                name: text.into(),
                notices: vec![],
                content: text.into(),
                is_error: true,
                reasons: vec![text.into()],
                fetched_at: None,
            },
        ]
    };
    let entries: Vec<TranscriptEntry> =
        (0..).zip(said(SENT)).map(|(seq, message)| TranscriptEntry::new(seq, 1, START, message)).collect();
    world.store.append("a", started.lease, &entries).await.unwrap();
    let kept: Vec<TranscriptMessage> = world
        .store
        .transcript(&Scope::Every, started.run.id, 0, 9)
        .await
        .unwrap()
        .into_iter()
        .map(|e| e.message)
        .collect();
    assert_eq!(kept, said(KEPT));
    let end = Finish {
        reason: Some(SENT.into()),
        output: Some(SENT.into()),
        error: Some(RunFault::new(SENT, SENT)),
        ..end_of(&started, RunState::Failed)
    };
    assert!(world.store.finish_runs(&[end]).await.unwrap().is_empty());
    let run = world.get_run(started.run.id).await;
    assert_eq!((run.output.as_deref(), run.reason.as_deref()), (Some(KEPT), Some(KEPT)));
    assert_eq!(run.error, Some(RunFault::new(KEPT, KEPT)));
}

async fn messages_and_their_errors_are_kept_without_nul(world: &StoreHarness) {
    let message = NewDelivery {
        tenant_id: "a".into(),
        recipient: "a".into(),
        channel: "email".into(),
        fallback: vec![],
        dedupe_key: SENT.into(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some(SENT.into()),
        text: Some(SENT.into()),
    };
    world.store.post_delivery(&message).await.unwrap();
    let claim = claim_due(&world.store, START, 9).await.unwrap().remove(0);
    world
        .store
        .mark_delivery(&claim, &Mark::Retry { at: START, error: SENT.into(), asked: false, maybe_delivered: false })
        .await
        .unwrap();
    let kept = world.store.find_delivery(&Scope::Every, "a", SENT).await.unwrap();
    let texts = [kept.subject, kept.text, kept.last_error, Some(kept.dedupe_key)];
    assert_eq!(texts, [0; 4].map(|_| Some(KEPT.to_owned())));
    let claim = claim_due(&world.store, START, 9).await.unwrap().remove(0);
    world.store.mark_delivery(&claim, &Mark::Sent { provider_id: Some(SENT.into()) }).await.unwrap();
    let kept = world.store.get_delivery(&Scope::Every, kept.id).await.unwrap();
    assert_eq!(kept.provider_id.as_deref(), Some(KEPT));
}

async fn texts_of_people_are_kept_without_nul(world: &StoreHarness) {
    let more = |text: &str| json!({"action": {"instruction": text}, "metadata": {text: text}});
    let (mut task, nominal) = new_task("a", json!({"interval": "1h"}), more(SENT), START);
    task.name = SENT.into();
    world.store.create_task(&task, nominal, None).await.unwrap();
    let (expected, _) = new_task("a", json!({"interval": "1h"}), more(KEPT), START);
    let kept = world.get_task(task.id).await;
    assert_eq!((kept.name.as_str(), &kept.spec), (KEPT, &expected.spec));
    let reason = Some(SENT.to_owned());
    world.store.change_task(&Scope::Every, task.id, &TaskChange::Pause { reason }).await.unwrap();
    assert_eq!(world.get_task(task.id).await.status_reason.as_deref(), Some(KEPT));

    let id = new_id(START);
    let asked = Idempotency {
        tenant: "a".into(),
        key: SENT.into(),
        digest: vec![1],
        status: 200,
        body: json!({"x": SENT}).into(),
    };
    let run = async || world.store.run_now(&Scope::Every, task.id, id, Some(json!([SENT])), START, Some(&asked)).await;
    assert_eq!(run().await.unwrap(), StoredAnswer::Done(()));
    assert_eq!(run().await.unwrap(), StoredAnswer::Replayed { status: 200, body: json!({"x": KEPT}) });
    assert_eq!(world.get_run(id).await.input, Some(json!([KEPT])));
    let starts = world.store.start_runs(&leases(&world.claim().await), START).await.unwrap();
    world.store.cancel_run(&Scope::Every, starts.started[0].run.id, SENT).await.unwrap();
    let asked = world.store.cancels_asked(super::world::WORKER).await.unwrap();
    assert_eq!(asked[0].cancel_reason.as_deref(), Some(KEPT));

    let token = StoredToken {
        id: new_id(START),
        tenant_id: None,
        name: SENT.into(),
        hash: vec![0],
        scopes: vec![SENT.into()],
        created_at: START,
        expires_at: None,
        revoked_at: None,
        root: None,
    };
    world.store.create_token(&token, None).await.unwrap();
    let kept = world.store.find_token(&[0]).await.unwrap().unwrap();
    assert_eq!((kept.name.as_str(), kept.scopes), (KEPT, vec![KEPT.to_owned()]));
}

async fn looking_for_a_nul_finds_nothing_and_harms_nothing(world: &StoreHarness) {
    world.task(json!({"interval": "1h"})).await;
    let nul = || Some("\0".to_owned());
    let every = &Scope::Every;
    for filter in [
        TaskFilter { q: nul(), limit: 9, ..TaskFilter::default() },
        TaskFilter { tenant: nul(), limit: 9, ..TaskFilter::default() },
        TaskFilter { trigger_type: nul(), limit: 9, ..TaskFilter::default() },
    ] {
        assert_eq!(world.store.list_tasks(every, &filter).await.unwrap(), []);
    }
    let runs = RunFilter { tenant: nul(), limit: 9, ..RunFilter::default() };
    assert_eq!(world.store.list_runs(every, &runs).await.unwrap(), []);
    for filter in [
        DeliveryFilter { tenant: nul(), limit: 9, ..DeliveryFilter::default() },
        DeliveryFilter { channel: nul(), limit: 9, ..DeliveryFilter::default() },
    ] {
        assert_eq!(world.store.list_deliveries(every, &filter).await.unwrap(), []);
    }
    assert_eq!(world.store.list_tokens(every, Some("\0"), None, 9).await.unwrap().rows, []);
    assert_eq!(world.store.recall_answer(every, "\0", &[0], START).await.unwrap(), None);
    let none = world.store.get_recipient(every, "\0").await;
    assert!(matches!(none, Err(reveille::store::StoreError::NotFound)), "{none:?}");
}
