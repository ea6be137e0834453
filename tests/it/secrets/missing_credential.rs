//! A task that lacks a credential is paused and its owner told, whatever fails or dies meanwhile, and at no foreign
//! word.

use std::time::Duration;

use reveille::base::clock::pause;
use reveille::domain::notification::{Delivery, MessageKind};
use reveille::domain::run::RunState;
use reveille::domain::task::TaskStatus;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::{open, save};
use crate::support::app::Instance;
use crate::support::world::{World, on_both};

on_both! {
    owner_is_told_once_though_the_end_of_the_run_is_not_recorded
    run_does_not_end_before_its_owner_is_told
    credential_saved_meanwhile_pauses_nothing_and_the_failure_is_told_as_any_other
    credential_error_of_a_foreign_runtime_is_an_ordinary_failure
}

/// No run fails from now on.
const NO_END: (&str, &str) = (
    "create trigger no_end before update on runs when new.state = 'failed' begin select raise(abort, 'no'); end",
    "create function no_end() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
     create trigger no_end before update on runs for each row when (new.state = 'failed') execute function no_end()",
);
/// No task is paused from now on.
const NO_PAUSE: (&str, &str) = (
    "create trigger no_pause before update on tasks when new.status = 'paused' begin select raise(abort, 'no'); end",
    "create function no_pause() returns trigger language plpgsql as $$ begin raise exception 'no'; end $$;
     create trigger no_pause before update on tasks for each row when (new.status = 'paused') execute function no_pause()",
);

fn once() -> Value {
    json!({ "type": "schedule", "at": "2027-03-01T08:01:00Z" })
}

fn hourly() -> Value {
    json!({ "type": "schedule", "interval": "1h" })
}

fn lacking(trigger: Value) -> Value {
    let steps = json!([{ "name": "look", "http": { "url": "http://127.0.0.1:9/", "credential": "shop" } }]);
    json!({ "executor": "pipeline", "action": { "config": { "steps": steps } }, "trigger": trigger,
            "retry": { "max_attempts": 5 } })
}

async fn sent_notices(instance: &Instance) -> Vec<(MessageKind, String)> {
    let shown = |delivery: Delivery| (delivery.kind, delivery.subject.unwrap_or_default());
    instance.deliveries().await.into_iter().map(shown).collect()
}

async fn wait_for_notice(instance: &Instance) {
    while sent_notices(instance).await.is_empty() {
        pause(Duration::from_millis(5)).await;
    }
}

async fn owner_is_told_once_though_the_end_of_the_run_is_not_recorded(world: World) {
    for (trigger, status) in [(once(), TaskStatus::Completed), (hourly(), TaskStatus::Paused)] {
        let mut world = open(match world.is_postgres() {
            true => World::postgres().await,
            false => World::sqlite(),
        });
        world.settings.lease_seconds = 60.0;
        let instance = world.instance();
        instance.recipient().await;
        let task = instance.task(lacking(trigger.clone())).await;
        let notice = (MessageKind::Notice, "Please connect shop".to_owned());
        // before it fires: what is due may start with its record
        world.define(NO_END.0, NO_END.1).await;
        if status == TaskStatus::Completed {
            world.advance(60.0);
            instance.fire().await;
        } else {
            instance.run_now(&task).await;
        }
        instance.work().await;
        wait_for_notice(&instance).await;
        pause(Duration::from_millis(200)).await;
        let run = instance.runs(&task).await.remove(0);
        assert_eq!((run.state, run.error), (RunState::Running, None), "its end can't be recorded");
        instance.crash();
        world.define("drop trigger no_end", "drop trigger no_end on runs").await;

        world.advance(61.0);
        let instance = world.instance();
        instance.live(0).await;
        let run = instance.runs(&task).await.remove(0);
        let fault = run.error.expect("a fault");
        assert_eq!((run.state, run.crashes, fault.code.as_str()), (RunState::Failed, 1, "credential_missing"));
        assert_eq!(sent_notices(&instance).await, [notice]);
        assert_eq!(instance.stored(&task).await.status, status);
        instance.finish(&world).await;
    }
}

async fn run_does_not_end_before_its_owner_is_told(world: World) {
    let world = open(world);
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(lacking(hourly())).await;
    let id = instance.run_now(&task).await;
    world.define(NO_PAUSE.0, NO_PAUSE.1).await;
    instance.work().await;
    if world.is_postgres() {
        // the store is away for all that anybody knows
        pause(Duration::from_millis(500)).await;
        assert_eq!((instance.run(id).await.state, sent_notices(&instance).await), (RunState::Running, vec![]));
        world.define("", "drop trigger no_pause on tasks").await;
        instance.until(id, |run| run.state == RunState::Failed).await;
        assert_eq!(sent_notices(&instance).await, [(MessageKind::Notice, "Please connect shop".to_owned())]);
        assert_eq!(instance.stored(&task).await.status, TaskStatus::Paused);
    } else {
        // it will never be paused, so the failure is told like any other
        instance.until(id, |run| run.state == RunState::Failed).await;
        assert_eq!(
            sent_notices(&instance).await.into_iter().map(|(kind, _)| kind).collect::<Vec<_>>(),
            [MessageKind::Failure]
        );
        assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
    }
    instance.settle(0).await;
    instance.finish(&world).await;
}

async fn credential_saved_meanwhile_pauses_nothing_and_the_failure_is_told_as_any_other(world: World) {
    let world = open(world);
    let instance = world.instance();
    instance.recipient().await;
    let task = instance.task(json!({ "acts": ["lack:shop"], "trigger": hourly() })).await;
    save(&world, &instance, "shop", json!({ "as": "bearer", "from": "/key" }), json!({ "key": "the-shops-key" })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    assert_eq!(run.error.map(|fault| fault.code).as_deref(), Some("lacks"));
    assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
    let told: Vec<MessageKind> = sent_notices(&instance).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(told, [MessageKind::Failure]);
    instance.finish(&world).await;
}

async fn credential_error_of_a_foreign_runtime_is_an_ordinary_failure(world: World) {
    let world = open(world);
    let server = MockServer::start().await;
    let said = json!({ "code": "credential_missing", "message": "Please connect google/work: there is none",
                       "credential_issue": { "credential": "google/work", "kind": "missing" } });
    let report = json!({ "state": "failed", "error": said });
    Mock::given(any()).respond_with(ResponseTemplate::new(200).set_body_json(report)).mount(&server).await;
    let instance = world.instance();
    instance.recipient().await;
    let config = json!({ "url": server.uri(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" });
    let task =
        instance.task(json!({ "executor": "webhook", "action": { "config": config }, "trigger": hourly() })).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state.is_final()).await;
    let fault = run.error.expect("a fault");
    assert_eq!((fault.code.as_str(), fault.credential_issue), ("credential_missing", None));
    assert_eq!(instance.stored(&task).await.status, TaskStatus::Active);
    let told: Vec<MessageKind> = sent_notices(&instance).await.into_iter().map(|(kind, _)| kind).collect();
    assert_eq!(told, [MessageKind::Failure]);
    instance.finish(&world).await;
}
