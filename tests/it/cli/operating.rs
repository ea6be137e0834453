//! Commands of an operator against a real service: tasks and tenants that are disabled, the stop switch, budgets, and
//! what was used.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use serde_json::{Value, json};

use super::Shell;
use crate::support::api::Api;
use crate::support::binary::Service;

/// How long something may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);
/// A model that needs no provider.
const SCRIPTED: &str = "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n";

/// A task whose runs need no model; its id.
async fn pipeline(api: &Api, tenant: &str) -> String {
    let steps = json!([{ "name": "say", "map": "'hello'" }]);
    made(
        api,
        &json!({ "tenant_id": tenant, "name": "Hourly", "executor": "pipeline", "output": null,
                       "trigger": { "type": "schedule", "interval": "1h" },
                       "action": { "config": { "steps": steps } } }),
    )
    .await
}

/// A task of ann whose runs ask the model; its id.
async fn agent(api: &Api) -> String {
    made(
        api,
        &json!({ "tenant_id": "ann", "name": "Morning", "output": null,
                       "trigger": { "type": "schedule", "interval": "1h" },
                       "action": { "instruction": "Say hello.", "config": { "tools": [] } } }),
    )
    .await
}

async fn made(api: &Api, task: &Value) -> String {
    id_of(&api.post("/v1/tasks", task).await)
}

fn id_of(answer: &Value) -> String {
    answer["id"].as_str().expect("an id").to_owned()
}

/// The run of this id once it has ended.
async fn ended(api: &Api, run: &str) -> Value {
    let begun = Instant::now();
    loop {
        let run = api.get(&format!("/v1/runs/{run}")).await;
        if ["succeeded", "failed", "skipped"].iter().any(|state| run["state"] == *state) {
            return run;
        }
        assert!(begun.elapsed() < PATIENCE, "{run:#}");
        pause(LOOK).await;
    }
}

/// Runs the task again and again, until a run ends in this state: what was said of a budget holds a moment later.
async fn run_until(api: &Api, task: &str, state: &str) -> Value {
    let begun = Instant::now();
    loop {
        let run = ended(api, &id_of(&api.post(&format!("/v1/tasks/{task}/run"), &json!({})).await)).await;
        if run["state"] == state {
            return run;
        }
        assert!(begun.elapsed() < PATIENCE, "{run:#}");
        pause(LOOK).await;
    }
}

/// The cells of the row that begins with a name, which stand two blanks or more apart.
fn row<'t>(table: &'t str, name: &str) -> Vec<&'t str> {
    let line = table.lines().find(|line| line.split_whitespace().next() == Some(name));
    let line = line.unwrap_or_else(|| panic!("no row of {name} in:\n{table}"));
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

/// Whether no limit stands in it.
fn is_nothing(said: &Value) -> bool {
    said.is_null() || said.as_object().is_some_and(|limits| limits.is_empty())
}

/// The secret of a token of ann, who may do what an owner does.
async fn owner(api: &Api) -> String {
    let draft = json!({ "name": "owner", "tenant_id": "ann", "scopes": ["tasks:read", "tasks:write"] });
    api.post("/v1/tokens", &draft).await["token"].as_str().expect("a token").to_owned()
}

#[tokio::test]
async fn disabled_task_is_shown_with_its_reason_and_its_owner_can_t_resume_it() {
    let mut service = Service::new();
    service.start().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    let task = pipeline(&api, "ann").await;
    let owner = Shell::beside(&service).with("REVEILLE_TOKEN", owner(&api).await);

    let shown = shell.ok(&["task", "disable", &task, "--reason", "it floods the shop"]).await;
    assert!(shown.contains("disabled (it floods the shop)"), "{shown}");
    let stored = api.get(&format!("/v1/tasks/{task}")).await;
    assert_eq!((&stored["status"], &stored["next_fire_at"]), (&json!("disabled"), &Value::Null), "{stored}");
    let refused = owner.refused(&["task", "resume", &task]).await;
    assert!(refused.contains("the operator has disabled the task"), "{refused}");
    let refused = owner.run(&["task", "enable", &task]).await;
    assert_ne!(refused.code, 0, "an owner enables nothing: {}", refused.out);

    let shown = shell.ok(&["task", "enable", &task]).await;
    assert!(shown.contains("active") && !shown.contains("it floods"), "{shown}");
    let stored = api.get(&format!("/v1/tasks/{task}")).await;
    assert!(stored["status"] == "active" && stored["next_fire_at"].is_string(), "{stored}");
    owner.ok(&["task", "pause", &task]).await;
    service.kill().await;
}

#[tokio::test]
async fn disabled_tenant_is_listed_and_its_tokens_read_alone_until_it_is_enabled() {
    let mut service = Service::new();
    service.start().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    let task = pipeline(&api, "ann").await;
    let owner = Shell::beside(&service).with("REVEILLE_TOKEN", owner(&api).await);
    assert_eq!(shell.ok(&["tenant", "show", "ann"]).await, "nothing of ann is stopped or disabled\n");
    assert_eq!(shell.ok(&["tenant", "list"]).await, "nothing of everybody is stopped or disabled\n");

    let disable = ["tenant", "disable", "ann", "--reason", "it has not paid"];
    for command in [&disable[..], &["tenant", "show", "ann"], &["tenant", "list"]] {
        let table = shell.ok(command).await;
        let cells = row(&table, "ann");
        assert!(table.starts_with("TENANT"), "{command:?}: {table}");
        assert_eq!((cells[1], cells.last()), ("tenant_disabled", Some(&"it has not paid")), "{command:?}: {table}");
    }
    let shown = shell.json(&["tenant", "show", "ann"]).await;
    assert_eq!((&shown["tenant_id"], &shown["halts"][0]["tenant_id"]), (&json!("ann"), &json!("ann")), "{shown}");
    assert_eq!(shell.ok(&["tenant", "show", "bob"]).await, "nothing of bob is stopped or disabled\n");
    owner.ok(&["task", "show", &task]).await;
    let refused = owner.refused(&["task", "pause", &task]).await;
    assert!(refused.contains("the operator has disabled this tenant"), "{refused}");

    assert_eq!(shell.ok(&["tenant", "enable", "ann"]).await, "nothing of ann is stopped or disabled\n");
    owner.ok(&["task", "pause", &task]).await;
    service.kill().await;
}

#[tokio::test]
async fn stopped_work_waits_until_it_is_started() {
    let mut service = Service::new();
    service.start().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    let (ann, bob) = (pipeline(&api, "ann").await, pipeline(&api, "bob").await);
    assert_eq!(shell.run(&["stop"]).await.code, 2, "whose work must be said");

    let table = shell.ok(&["stop", "--tenant", "ann", "--reason", "maintenance"]).await;
    let cells = row(&table, "ann");
    assert_eq!((cells[1], cells.last()), ("stopped", Some(&"maintenance")), "{table}");
    let waiting = id_of(&shell.json(&["task", "run", &ann]).await);
    let other = id_of(&shell.json(&["task", "run", &bob]).await);
    assert_eq!(ended(&api, &other).await["state"], "succeeded", "others go on");
    assert_eq!(api.get(&format!("/v1/runs/{waiting}")).await["state"], "queued");
    assert_eq!(shell.ok(&["start", "--tenant", "ann"]).await, "nothing of ann is stopped or disabled\n");
    assert_eq!(ended(&api, &waiting).await["state"], "succeeded");

    let table = shell.ok(&["stop", "--all"]).await;
    assert_eq!(row(&table, "everybody")[1], "stopped", "{table}");
    assert_eq!(row(&shell.ok(&["tenant", "show", "bob"]).await, "everybody")[1], "stopped");
    let waiting = id_of(&shell.json(&["task", "run", &bob]).await);
    // over a restart, too
    service.terminate().await;
    service.start().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    assert_eq!(api.get(&format!("/v1/runs/{waiting}")).await["state"], "queued");
    assert_eq!(row(&shell.ok(&["tenant", "list"]).await, "everybody")[1], "stopped");
    assert_eq!(shell.ok(&["start", "--all"]).await, "nothing of everybody is stopped or disabled\n");
    assert_eq!(ended(&api, &waiting).await["state"], "succeeded");
    service.kill().await;
}

#[tokio::test]
async fn budget_of_a_tenant_is_set_shown_and_reset_and_ends_its_runs() {
    let mut service = scripted().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    let task = agent(&api).await;
    let table = shell.ok(&["budget", "show", "ann"]).await;
    assert!(table.starts_with("BUDGET"), "{table}");
    assert_eq!(row(&table, "tenant.tokens_per_day").last(), Some(&"everybody's"));

    let table = shell.ok(&["budget", "set", "ann", "tenant.tokens_per_day=1000000"]).await;
    let cells = row(&table, "tenant.tokens_per_day");
    assert_eq!((cells[1], cells.last()), ("1000000", Some(&"its own")), "{table}");
    let begun = Instant::now();
    let spent = loop {
        run_until(&api, &task, "succeeded").await;
        let spent = shell.json(&["budget", "show", "ann"]).await["today"]["tokens"].as_i64().expect("tokens");
        if spent > 0 {
            break spent.to_string();
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is paid by the day");
    };
    assert_eq!(row(&shell.ok(&["budget", "show", "ann"]).await, "tenant.tokens_per_day")[2], spent);

    let table = shell.ok(&["budget", "set", "ann", "run.tokens=100"]).await;
    assert_eq!(row(&table, "run.tokens"), ["run.tokens", "100", "its own"]);
    assert_eq!(row(&table, "tenant.tokens_per_day")[1], "1000000", "what is not named stays");
    assert_eq!(run_until(&api, &task, "skipped").await["reason"], "budget");
    let refused = shell.run(&["budget", "set", "ann", "run.token=100"]).await;
    assert!(refused.code == 2 && refused.err.contains("there is no budget `run.token`"), "{}", refused.err);

    // for the one task it may be more
    let table = shell.ok(&["budget", "set", "ann", "--task", &task, "run.tokens=1000000"]).await;
    assert!(table.lines().any(|line| line.contains("1000000") && line.contains(&task)), "{table}");
    run_until(&api, &task, "succeeded").await;
    let refused = shell.run(&["budget", "set", "ann", "--task", &task, "tenant.tokens_per_day=5"]).await;
    assert!(refused.code != 0 && refused.err.contains("leave --task out"), "{}", refused.err);
    shell.ok(&["budget", "reset", "ann", "--task", &task]).await;
    assert_eq!(shell.json(&["budget", "show", "ann"]).await["task_overrides"], json!([]));
    assert_eq!(run_until(&api, &task, "skipped").await["reason"], "budget");

    assert_eq!(shell.ok(&["budget", "reset", "ann"]).await, "ann may spend what everybody may\n");
    let shown = shell.json(&["budget", "show", "ann"]).await;
    assert!(shown["overrides"].as_object().is_none_or(|said| said.values().all(is_nothing)), "{shown}");
    run_until(&api, &task, "succeeded").await;
    service.kill().await;
}

#[tokio::test]
async fn stats_add_up_what_runs_have_used() {
    let mut service = scripted().await;
    let (shell, api) = (Shell::beside(&service), Api::of(&service));
    let task = agent(&api).await;
    let nothing = shell.json(&["stats", "--tenant", "ann"]).await;
    assert_eq!(nothing["items"], json!([]));
    let run = run_until(&api, &task, "succeeded").await;
    let usage = &run["usage"];
    assert_eq!(usage["turns"], 1, "{run:#}");

    for (by, key) in [("model", "main"), ("task", task.as_str()), ("tenant", "ann")] {
        let table = shell.ok(&["stats", "--by", by]).await;
        assert!(table.starts_with(&by.to_uppercase()), "{table}");
        let cells = row(&table, key);
        let used = [&usage["turns"], &usage["input_tokens"], &usage["output_tokens"]].map(Value::to_string);
        assert_eq!(cells[1..4], used, "{by}: {table}");
    }
    let days = shell.json(&["stats", "--tenant", "ann", "--task", &task]).await;
    let days = days["items"].as_array().expect("days");
    assert_eq!((days.len(), &days[0]["input_tokens"]), (1, &usage["input_tokens"]), "{days:?}");
    assert_eq!(shell.json(&["stats", "--tenant", "bob"]).await["items"], json!([]));
    service.kill().await;
}

/// A service that is running, and whose model says hello.
async fn scripted() -> Service {
    let mut service = Service::new().with_config(SCRIPTED);
    std::fs::write(service.dir.path().join("scenario.toml"), "[[steps]]\ntext = \"Hello.\"\n").expect("write it");
    service.start().await;
    service
}
