//! Runs of foreign runtimes: posts can be verified, every answer has its meaning, and one that is parked ends
//! once: by its report, its time limit, or a person.

use std::collections::HashSet;
use std::sync::Arc;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::domain::run::{Run, RunOutcome, RunState};
use reveille::domain::task::{Action, Task};
use reveille::executor::webhook::WebhookExecutor;
use reveille::executor::{Executor, Job};
use reveille::ports::egress::{self, Egress};
use reveille::ports::vault::credentials::Credentials;
use reveille::ports::vault::{self, Vault, WithoutKeys};
use serde_json::{Value, json};
use wiremock::matchers::{method, path};
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::harness::job;
use crate::agent::harness::AgentHarness;
use crate::support::app::Instance;
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::world::{ADMIN, World, on_both};

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

on_both! {
    parked_run_is_completed_once_with_its_own_token
    step_not_completed_in_time_expires_and_the_owner_is_told
    parked_run_frees_its_slot_and_can_be_cancelled
    deleted_task_takes_its_parked_runs_along
    every_answer_has_its_meaning
    secret_goes_in_and_never_comes_out
}

fn reaching_here(mut world: World) -> World {
    world.egress = this_machine();
    world
}

fn this_machine() -> egress::Settings {
    egress::Settings { allow: vec!["127.0.0.1:*".into()], ..egress::Settings::default() }
}

#[tokio::test]
async fn long_requests_are_written_and_long_answers_read_on_computing_threads() {
    let server = answering(ResponseTemplate::new(200).set_body_json(json!({ "output": "x".repeat(20_000) }))).await;
    let key = vault::KeySource::value("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    let keys = vault::Settings { master_keys: vec![key], accept_lost_keys: false };
    let (vault, _) = Vault::open(&keys, WithoutKeys::Refuse).unwrap();
    let credentials = Credentials::none(Egress::new(&this_machine()).unwrap());
    let compute = Compute::new(1);
    let executor = WebhookExecutor::new(credentials, vault, "http://127.0.0.1:7700", compute.clone());
    let written = json!({ "url": server.uri(), "secret": SECRET }).as_object().cloned().unwrap();
    let mut sealed = Action { instruction: String::new(), config: written };
    executor.seal(&Tenant::new("ann").unwrap(), &mut sealed, None).unwrap();
    let stage = AgentHarness::new(vec![], vec![]);
    let config = json!({ "url": server.uri(), "sealed_secret": sealed.config["sealed_secret"] });
    let short = job(&stage, stage.store.clone(), config, None);
    let run = Run { input: Some(json!("x".repeat(20_000))), ..(*short.run).clone() };
    let long = Job { run: Arc::new(run), ..short.clone() };
    // the request is written before the answer is read
    for (job, computations) in [(short, 1), (long, 2)] {
        let mut threads = HeldThreads::all_of(&compute, "ann").await;
        let meanwhile = async {
            for _ in 0..computations {
                until_waiting(&compute, 1).await;
                threads.let_pass().await;
            }
        };
        let (ended, ()) = tokio::join!(executor.execute(job), meanwhile);
        assert!(matches!(&ended, Ok(RunOutcome::Succeeded { output, .. }) if output.len() == 20_000), "{ended:?}");
        drop(threads);
    }
    assert!(server.received_requests().await.unwrap().iter().all(verifies));
}

async fn answering(template: ResponseTemplate) -> MockServer {
    let server = MockServer::start().await;
    Mock::given(method("POST")).respond_with(template).mount(&server).await;
    server
}

fn webhook(url: &str) -> Value {
    json!({
        "executor": "webhook",
        "action": { "instruction": "Book a table", "config": { "url": url, "secret": SECRET } },
        "metadata": { "team": "sales" },
    })
}

/// A run of a task whose webhook answers 202.
async fn parked(instance: &Instance, server: &MockServer) -> (Task, Run, Value) {
    let task = instance.task(webhook(&server.uri())).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    let run = instance.until(id, |run| run.state == RunState::WaitingForCompletion).await;
    let posted = server.received_requests().await.unwrap().pop().expect("a request");
    (task, run, serde_json::from_slice(&posted.body).unwrap())
}

fn token(posted: &Value) -> &str {
    posted["data"]["completion"]["token"].as_str().unwrap()
}

fn verifies(request: &Request) -> bool {
    let header = |name: &str| request.headers[name].to_str().unwrap().to_owned();
    let key = STANDARD.decode(SECRET.strip_prefix("whsec_").unwrap()).unwrap();
    let signed =
        [header("webhook-id").as_bytes(), b".", header("webhook-timestamp").as_bytes(), b".", &request.body].concat();
    let tag = aws_lc_rs::hmac::sign(&aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA256, &key), &signed);
    header("webhook-signature") == format!("v1,{}", STANDARD.encode(tag))
}

async fn parked_run_is_completed_once_with_its_own_token(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    instance.recipient().await;
    let server = answering(ResponseTemplate::new(202)).await;
    let (task, run, posted) = parked(&instance, &server).await;
    let request = server.received_requests().await.unwrap().pop().unwrap();
    assert!(verifies(&request));
    let id = run.id.to_string();
    assert_eq!(
        (request.headers["webhook-id"].to_str().unwrap(), request.headers["idempotency-key"].to_str().unwrap()),
        (id.as_str(), id.as_str())
    );
    let data = &posted["data"];
    assert_eq!(
        (&posted["type"], &data["run"]["id"], &data["task"], &data["instruction"]),
        (
            &json!("run.started"),
            &json!(run.id),
            &json!({ "id": task.id, "name": "a task", "metadata": { "team": "sales" } }),
            &json!("Book a table")
        )
    );
    assert_eq!(data["completion"]["url"], json!(format!("http://127.0.0.1:7700/v1/runs/{id}/complete")));
    assert_eq!(data["completion"]["expires_at"], json!("2027-03-01T09:00:00.000Z"));

    let (_, other, others) = parked(&instance, &server).await;
    let place = format!("/v1/runs/{id}/complete");
    let report = json!({ "state": "succeeded", "output": "Booked for eight." });
    for wrong in [token(&others), "rv_complete_", "rv_complete_00", &token(&posted)[..70]] {
        assert_eq!(instance.ask("POST", &place, wrong, Some(report.clone())).await.0, 401, "{wrong}");
    }
    // it is good for nothing else
    for (verb, elsewhere) in
        [("GET", format!("/v1/runs/{id}")), ("POST", format!("/v1/runs/{id}/cancel")), ("GET", "/v1/tasks".into())]
    {
        assert_eq!(instance.ask(verb, &elsewhere, token(&posted), None).await.0, 401, "{elsewhere}");
    }
    let (status, faults) = instance.ask("POST", &place, token(&posted), Some(json!({ "state": "done" }))).await;
    assert_eq!((status, &faults["errors"][0]["pointer"]), (422, &json!("/state")), "{faults}");

    let (status, ended) = instance.ask("POST", &place, token(&posted), Some(report.clone())).await;
    assert_eq!((status, &ended["state"], &ended["output"]), (200, &json!("succeeded"), &json!("Booked for eight.")));
    assert_eq!(instance.run(run.id).await.output.as_deref(), Some("Booked for eight."));
    let (status, _) = instance.ask("POST", &place, token(&posted), Some(report.clone())).await;
    assert_eq!(status, 409, "the first report counts");
    // an ordinary token may, too; and what failed is told as a failure
    let failed = json!({ "state": "failed", "error": { "code": "no_table", "message": "all tables are taken" } });
    let (status, ended) = instance.ask("POST", &format!("/v1/runs/{}/complete", other.id), ADMIN, Some(failed)).await;
    assert_eq!((status, &ended["state"], &ended["error"]["code"]), (200, &json!("failed"), &json!("no_table")));
    let told: HashSet<(uuid::Uuid, &str)> =
        instance.deliveries().await.iter().map(|d| (d.run_id.unwrap(), d.kind.as_str())).collect();
    assert_eq!(told, HashSet::from([(run.id, "result"), (other.id, "failure")]));
    instance.finish(&world).await;
}

async fn step_not_completed_in_time_expires_and_the_owner_is_told(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    instance.recipient().await;
    let server = answering(ResponseTemplate::new(202)).await;
    let (_, run, posted) = parked(&instance, &server).await;
    world.advance(3599.0);
    instance.expire().await;
    assert_eq!(instance.run(run.id).await.state, RunState::WaitingForCompletion);
    world.advance(1.0);
    instance.expire().await;
    let ended = instance.run(run.id).await;
    assert_eq!((ended.state, ended.reason.as_deref()), (RunState::Expired, Some("completion_timeout")));
    let deliveries = instance.deliveries().await;
    assert_eq!(deliveries.iter().map(|d| (d.run_id, d.kind.as_str())).collect::<Vec<_>>(), [(Some(run.id), "failure")]);
    let place = format!("/v1/runs/{}/complete", run.id);
    let late = instance.ask("POST", &place, token(&posted), Some(json!({ "state": "succeeded" }))).await;
    assert_eq!(late.0, 409, "{}", late.1);
    instance.finish(&world).await;
}

async fn parked_run_frees_its_slot_and_can_be_cancelled(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    let server = answering(ResponseTemplate::new(202)).await;
    let (task, run, posted) = parked(&instance, &server).await;
    let second = instance.run_now(&task).await;
    instance.settle(0).await;
    instance.until(second, |run| run.state == RunState::WaitingForCompletion).await;
    for id in [run.id, second] {
        instance.cancel(id).await;
        assert_eq!(instance.run(id).await.state, RunState::Cancelled);
    }
    let place = format!("/v1/runs/{}/complete", run.id);
    let late = instance.ask("POST", &place, token(&posted), Some(json!({ "state": "succeeded" }))).await;
    assert_eq!(late.0, 409);
    instance.finish(&world).await;
}

async fn deleted_task_takes_its_parked_runs_along(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    let server = answering(ResponseTemplate::new(202)).await;
    let (task, run, _) = parked(&instance, &server).await;
    assert_eq!(instance.ask("DELETE", &format!("/v1/tasks/{}", task.id), ADMIN, None).await.0, 204);
    assert_eq!(instance.run(run.id).await.state, RunState::Cancelled);
    instance.finish(&world).await;
}

async fn every_answer_has_its_meaning(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    let elsewhere = answering(ResponseTemplate::new(200)).await;
    let away = ResponseTemplate::new(307).insert_header("location", elsewhere.uri());
    for (template, expected) in [
        (ResponseTemplate::new(200).set_body_string("done"), "succeeded done"),
        (ResponseTemplate::new(200).set_body_json(json!({ "output": "said" })), "succeeded said"),
        (ResponseTemplate::new(204), "succeeded "),
        (
            ResponseTemplate::new(200).set_body_json(json!({ "state": "failed", "error": "no" })),
            "failed runtime_failed",
        ),
        (
            ResponseTemplate::new(200).set_body_json(json!({ "state": "failed", "error": "no", "run_id": "r1" })),
            "failed runtime_failed",
        ),
        (ResponseTemplate::new(400), "failed webhook_400"),
        (ResponseTemplate::new(410), "failed webhook_410"),
        (ResponseTemplate::new(302).insert_header("location", "/x"), "failed webhook_redirected"),
        (away, "failed webhook_redirected"),
        (ResponseTemplate::new(500), "failed webhook_500"),
    ] {
        let server = answering(template).await;
        let task = instance.task(webhook(&server.uri())).await;
        let id = instance.run_now(&task).await;
        instance.settle(0).await;
        let run = instance.until(id, |run| run.state.is_final()).await;
        let code = run.error.as_ref().map(|fault| fault.code.clone());
        assert_eq!(format!("{} {}", run.state.as_str(), code.or(run.output).unwrap_or_default()), expected);
    }
    assert_eq!(elsewhere.received_requests().await.unwrap().len(), 0, "another host hears nothing");

    // within the host a 307 is followed, and what may work later is tried later, under the same id
    let server = MockServer::start().await;
    let on = ResponseTemplate::new(307).insert_header("location", "/b");
    Mock::given(method("POST")).and(path("/a")).respond_with(on).mount(&server).await;
    let busy = ResponseTemplate::new(429).insert_header("retry-after", "7200");
    Mock::given(method("POST")).and(path("/b")).respond_with(busy).up_to_n_times(1).mount(&server).await;
    Mock::given(method("POST")).and(path("/b")).respond_with(ResponseTemplate::new(200)).mount(&server).await;
    let mut task = webhook(&format!("{}/a", server.uri()));
    task["retry"] = json!({ "max_attempts": 2 });
    let task = instance.task(task).await;
    let id = instance.run_now(&task).await;
    instance.settle(0).await;
    instance.until(id, |run| run.state == RunState::Queued && run.attempt == 1).await;
    world.advance(7199.0);
    instance.settle(0).await;
    assert_eq!(instance.run(id).await.attempt, 1, "not before the other side asked for it");
    world.advance(2.0);
    instance.settle(0).await;
    assert_eq!(instance.until(id, |run| run.state.is_final()).await.state, RunState::Succeeded);
    let ids: HashSet<String> = server
        .received_requests()
        .await
        .unwrap()
        .iter()
        .map(|r| r.headers["webhook-id"].to_str().unwrap().into())
        .collect();
    assert_eq!(ids, HashSet::from([id.to_string()]));
    instance.finish(&world).await;
}

async fn secret_goes_in_and_never_comes_out(world: World) {
    let world = reaching_here(world);
    let instance = world.instance();
    let server = answering(ResponseTemplate::new(200)).await;
    let mut body = webhook(&server.uri());
    body["tenant_id"] = json!("ann");
    body["name"] = json!("hook");
    body["trigger"] = json!({ "type": "schedule", "interval": "1h" });
    let (status, made) = instance.ask("POST", "/v1/tasks", ADMIN, Some(body.clone())).await;
    assert_eq!(status, 201, "{made}");
    let place = format!("/v1/tasks/{}", made["id"].as_str().unwrap());
    let (_, read) = instance.ask("GET", &place, ADMIN, None).await;
    let (_, listed) = instance.ask("GET", "/v1/tasks", ADMIN, None).await;
    for answer in [&made, &read, &listed["items"][0]] {
        assert_eq!(answer["action"]["config"], json!({ "url": server.uri(), "secret_set": true }));
    }
    // what was read can be put back, and keeps it
    let changed = json!({ "action": { "instruction": "Else", "config": read["action"]["config"] } });
    assert_eq!(instance.ask("PATCH", &place, ADMIN, Some(changed)).await.0, 200);
    assert_eq!(instance.ask("PATCH", &place, ADMIN, Some(json!({ "name": "hook 2" }))).await.0, 200);
    assert_eq!(instance.ask("PATCH", &place, ADMIN, Some(json!({ "executor": "webhook" }))).await.0, 200);
    let (status, run) = instance.ask("POST", &format!("{place}/run"), ADMIN, None).await;
    assert_eq!(status, 201);
    instance.settle(0).await;
    let run_id = run["id"].as_str().unwrap().parse().unwrap();
    assert_eq!(instance.until(run_id, |run| run.state.is_final()).await.state, RunState::Succeeded);
    assert!(verifies(&server.received_requests().await.unwrap()[0]));

    body["action"]["config"] = json!({ "url": "http://10.0.0.1/", "secret": "short", "scret": 1, "timeout_seconds": 0,
        "completion_timeout_seconds": 0, "headers": { "webhook-id": "x" }, "sealed_secret": "x" });
    let (status, told) = instance.ask("POST", "/v1/tasks", ADMIN, Some(body.clone())).await;
    let mut places: Vec<&str> =
        told["errors"].as_array().unwrap().iter().map(|e| e["pointer"].as_str().unwrap()).collect();
    places.sort();
    let at = |key: &str| format!("/action/config/{key}");
    let expected = [
        "completion_timeout_seconds",
        "headers/webhook-id",
        "scret",
        "sealed_secret",
        "secret",
        "timeout_seconds",
        "url",
    ];
    assert_eq!((status, places), (422, expected.map(at).iter().map(String::as_str).collect()));
    body["action"]["config"] = json!({ "url": server.uri() });
    let (status, told) = instance.ask("POST", "/v1/tasks", ADMIN, Some(body)).await;
    assert_eq!((status, &told["errors"][0]["pointer"]), (422, &json!("/action/config/secret")));
    instance.finish(&world).await;
}
