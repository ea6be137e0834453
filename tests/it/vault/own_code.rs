//! Credentials in the hands of code in Rust: read, listed, saved and deleted by a tool and by an executor, on the
//! record, and out of all that comes back.

use futures::future::BoxFuture;
use http::Method;
use reveille::app::{App, AppHandle};
use reveille::base::invalid::ValidationErrors;
use reveille::config::Config;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::run::{RunState, Usage};
use reveille::domain::task::Action;
use reveille::executor::{Executor, Job};
use serde_json::{Value, json};

use crate::support::postgres::Database;

const SECRET: &str = "s3cret-of-the-mailbox";
/// Too short to be looked for in the answers of servers.
const PIN: u32 = 471_193;

/// Does with credentials as its instruction says, and tells all that it found.
struct Clerk;

impl Executor for Clerk {
    fn name(&self) -> &'static str {
        "clerk"
    }

    fn validate(&self, _: &Action, _: &mut ValidationErrors) {}

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        Box::pin(async move {
            let instruction = job.task.as_ref().map(|task| task.spec.action.instruction.clone()).unwrap_or_default();
            let output = done(&job, &instruction).await.map_err(|why| RunError::fail("clerk", why))?;
            Ok(RunOutcome::Succeeded { output, finish: None, usage: Usage::default() })
        })
    }
}

async fn done(job: &Job, instruction: &str) -> Result<String, String> {
    let credentials = &job.credentials;
    match instruction {
        "get" => {
            let document = credentials.get("mailbox").await.map_err(|error| error.to_string())?;
            Ok(format!("the password is {} and {}", document.value()["password"], document.value()["pin"]))
        }
        "fail" => {
            let document = credentials.get("mailbox/primary").await.map_err(|error| error.to_string())?;
            Err(format!("401 for {}", document.value()["password"]))
        }
        "save" => {
            let saved = json!({ "document": { "password": SECRET, "pin": PIN }, "hosts": ["mail.example.org"] });
            let saved = credentials.save("mailbox", saved).await.map_err(|error| error.to_string())?;
            Ok(format!("{} with {SECRET}", saved.service))
        }
        "save odd" => {
            let odd = json!({ "document": { "password": SECRET }, "hosts": ["https://mail.example.org"] });
            Err(credentials.save("mailbox", odd).await.unwrap_err().to_string())
        }
        "list" => {
            let all = credentials.list(None).await.map_err(|error| error.to_string())?;
            let none = credentials.list(Some("calendar")).await.map_err(|error| error.to_string())?;
            let names: Vec<String> = all.iter().map(|known| known.reference().to_string()).collect();
            Ok(format!("{} and {}", names.join(","), none.len()))
        }
        "misname" => credentials.get("a/b/c").await.map(|_| String::new()).map_err(|error| error.to_string()),
        _ => credentials.delete("mailbox").await.map(|()| "deleted".into()).map_err(|error| error.to_string()),
    }
}

/// The state and the words of a run of a tenant that is told to do this.
async fn run(app: &App, tenant: &str, instruction: &str) -> (RunState, String) {
    let trigger = json!({ "type": "schedule", "cron": "0 0 1 1 *" });
    let task = json!({
        "name": instruction, "trigger": trigger, "executor": "clerk", "output": null,
        "action": { "instruction": instruction },
    });
    let run = app.run_task(&app.create_task(tenant, &task).await.unwrap(), None).await.unwrap();
    let words = run.output.or(run.error.map(|error| error.message));
    (run.state, words.unwrap_or_default())
}

async fn items(handle: &AppHandle, path: &str) -> Vec<Value> {
    let page = handle.call(Method::GET, path, None).await.unwrap();
    page["items"].as_array().cloned().unwrap_or_default()
}

async fn credentials_are_kept_for_code(config: Config) {
    let app = App::builder().config(config).with_temp_dir().executor(Clerk).start().await.unwrap();
    let ann = app.handle().of_tenant("ann").unwrap();
    let (state, words) = run(&app, "ann", "get").await;
    assert_eq!((state, words.contains("Please connect mailbox")), (RunState::Failed, true), "{words}");
    let (_, words) = run(&app, "ann", "save odd").await;
    assert!(words.contains("hosts/0"), "{words}");
    assert_eq!(run(&app, "ann", "save").await, (RunState::Succeeded, "mailbox with [redacted]".into()));
    assert_eq!(run(&app, "ann", "list").await, (RunState::Succeeded, "mailbox and 0".into()));

    // no word of it is in what the run answers, or fails with
    assert_eq!(
        run(&app, "ann", "get").await,
        (RunState::Succeeded, "the password is \"[redacted]\" and [redacted]".into())
    );
    assert_eq!(run(&app, "ann", "fail").await, (RunState::Failed, "401 for \"[redacted]\"".into()));
    let (_, words) = run(&app, "ann", "misname").await;
    assert!(words.contains("before whoever runs this service has put something right"), "{words}");
    // another tenant has none
    let (_, words) = run(&app, "bob", "get").await;
    assert!(words.contains("Please connect mailbox"), "{words}");
    assert_eq!(run(&app, "bob", "list").await.1, " and 0");

    let uses = items(&ann, "/v1/credentials/mailbox/primary/uses").await;
    let used: Vec<_> = uses.iter().rev().map(|used| (&used["used_by"], &used["host"], &used["outcome"])).collect();
    let by = json!("executor:clerk");
    let (host, taken, missing) = (json!(""), json!("used"), json!("missing"));
    assert_eq!(used, [(&by, &host, &missing), (&by, &host, &taken), (&by, &host, &taken)]);
    assert!(uses.iter().all(|used| used["run_id"].is_string()), "{uses:#?}");

    assert_eq!(run(&app, "ann", "delete").await, (RunState::Succeeded, "deleted".into()));
    assert_eq!(run(&app, "ann", "delete").await.0, RunState::Failed);
    let acts = items(&ann, "/v1/audit?limit=50").await;
    let acts: Vec<String> = acts
        .iter()
        .filter(|act| act["subject_type"] == "credential")
        .map(|act| format!("{} {}", act["actor"].as_str().unwrap(), act["action"].as_str().unwrap()))
        .collect();
    assert_eq!(acts, ["executor:clerk credential.deleted", "executor:clerk credential.put"]);
    app.stop().await;
}

#[tokio::test]
async fn on_sqlite_code_in_rust_keeps_credentials_and_shows_none_of_them() {
    credentials_are_kept_for_code(Config::default()).await;
}

#[tokio::test]
async fn on_postgres_code_in_rust_keeps_credentials_and_shows_none_of_them() {
    let database = Database::empty().await;
    let config = json!({
        "database": { "url": database.url }, "vault": { "master_keys": ["own:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8="] },
    });
    credentials_are_kept_for_code(serde_json::from_value(config).unwrap()).await;
}

#[tokio::test]
async fn calls_in_process_are_those_of_the_scope_and_of_no_stream() {
    let app = App::builder().with_temp_dir().start().await.unwrap();
    let (all, ann) = (app.handle(), app.handle().of_tenant("ann").unwrap());
    assert!(app.handle().of_tenant(" ann").is_err());
    let trigger = json!({ "type": "schedule", "cron": "0 8 * * *" });
    let task = |tenant: &str| json!({ "tenant_id": tenant, "name": "Mail", "trigger": trigger, "action": { "instruction": "x" } });
    let bobs = all.create_task(task("bob")).await.unwrap();
    let refused = ann.create_task(task("bob")).await.unwrap_err();
    assert_eq!((refused.status, &refused.problem["errors"][0]["pointer"]), (422, &json!("/tenant_id")), "{refused}");
    let path = format!("/v1/tasks/{}", bobs["id"].as_str().unwrap());
    assert_eq!(ann.call(Method::GET, &path, None).await.unwrap_err().status, 404);
    assert_eq!(all.call(Method::DELETE, &path, None).await.unwrap(), Value::Null);
    let stream = ann.call(Method::GET, "/v1/events/stream", None).await.unwrap_err();
    assert_eq!(stream.status, 406, "{stream}");
    let once = task("ann");
    let first = all.call_once("k-1", Method::POST, "/v1/tasks", Some(once.clone())).await.unwrap();
    assert_eq!(all.call_once("k-1", Method::POST, "/v1/tasks", Some(once)).await.unwrap()["id"], first["id"]);
    let metrics = all.call(Method::GET, "/metrics", None).await.unwrap();
    assert!(metrics.as_str().is_some_and(|text| text.contains("reveille_")), "{metrics}");
    assert!(all.subscribe("a.*.b").await.is_err());
    // the record says who it was, and a tenant that is disabled writes nothing
    all.call(Method::PUT, "/v1/tenants/ann/quotas", Some(json!({ "tasks": 5 }))).await.unwrap();
    let acts = items(&all, "/v1/audit?tenant_id=ann").await;
    assert_eq!(acts[0]["actor"], "process:embedder", "{acts:#?}");
    all.call(Method::POST, "/v1/tenants/ann/disable", Some(json!({ "reason": "unpaid" }))).await.unwrap();
    assert_eq!(ann.create_task(task("ann")).await.unwrap_err().status, 403);
    // more than is read at once, from here on, and the end with the service
    let mut events = all.subscribe("tick").await.unwrap();
    let ticks: Vec<Value> = (0..40)
        .map(|n| json!({ "tenant_id": "bob", "source": "clock", "type": "tick", "id": n.to_string() }))
        .collect();
    assert_eq!(all.publish(json!(ticks)).await.unwrap().len(), 40);
    for number in 0..40 {
        assert_eq!(events.next().await.unwrap().unwrap().id, number.to_string());
    }
    app.stop().await;
    assert!(events.next().await.is_none());
    assert!(all.call(Method::GET, "/v1/tasks", None).await.is_err());
}
