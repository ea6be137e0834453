//! The commands about what people are asked, against a real service: what is shown, what an answer does, what is on
//! record, and whether the record is as it was written.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, SqliteConnection};

use super::Shell;
use crate::support::binary::Service;

/// How long a run may take on a loaded machine, and how often it is looked at.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(50);

/// A service that asks before its model may look at the clock.
pub async fn asking() -> Service {
    asking_by("").await
}

/// A service like that of [`asking`], with more under `[approvals]`.
async fn asking_by(rules: &str) -> Service {
    let service = Service::new();
    let scenario = "[[steps]]\nturn = 1\n[[steps.calls]]\ntool = \"current_time\"\n\
        args = { timezone = \"Europe/Berlin\" }\n\
        [[steps]]\nturn = 2\ntext = \"In {{ current_time/timezone }}.\"\n";
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).unwrap();
    let mut service = service.with_config(&format!(
        "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n\
        [approvals]\n{rules}\n[approvals.tools.current_time]\ngate = \"confirm\"\n"
    ));
    service.start().await;
    service
}

fn id(value: &Value) -> String {
    value["id"].as_str().expect("an id").to_owned()
}

async fn task(shell: &Shell<'_>) -> String {
    let typed = ["task", "create", "--tenant", "ann", "--name", "Clock", "--cron", "@yearly", "--no-output"];
    id(&shell.json(&[&typed[..], &["--instruction", "What time is it?"]].concat()).await)
}

/// Runs the task; its run, once that is in this state.
async fn ran(shell: &Shell<'_>, task: &str, state: &str) -> String {
    let run = id(&shell.json(&["task", "run", task]).await);
    until(shell, &run, state).await;
    run
}

/// The run, once it is in this state.
async fn until(shell: &Shell<'_>, run: &str, state: &str) -> Value {
    let began = Instant::now();
    loop {
        let shown = shell.json(&["run", "show", run]).await["run"].clone();
        if shown["state"] == state {
            return shown;
        }
        assert!(began.elapsed() < PATIENCE, "the run is not {state}: {shown:#}");
        pause(LOOK).await;
    }
}

/// The one approval of a run.
async fn asked(shell: &Shell<'_>, run: &str) -> Value {
    let listed = shell.json(&["approval", "list", "--run", run]).await;
    let [approval] = listed["items"].as_array().expect("a list").as_slice() else { panic!("{listed:#}") };
    approval.clone()
}

#[tokio::test]
async fn approval_is_listed_shown_approved_edited_and_cancelled() {
    let service = asking().await;
    let shell = Shell::beside(&service);
    let task = task(&shell).await;
    let mut runs = Vec::new();
    for _ in 0..3 {
        runs.push(ran(&shell, &task, "pending_approval").await);
    }
    let [first, second, third] = <[String; 3]>::try_from(runs).unwrap();

    let table = shell.ok(&["approval", "list", "--status", "pending", "--tenant", "ann"]).await;
    let rows: Vec<&str> = table.lines().collect();
    assert!(rows.len() == 4 && rows[0].starts_with("ID ") && rows[0].contains("EXPIRES"), "{table}");
    assert!(rows[1..].iter().all(|row| row.contains("pending") && row.contains("current_time")), "{table}");
    let limited = shell.json(&["approval", "list", "--task", &task, "--limit", "2"]).await;
    assert_eq!(limited["items"].as_array().map(Vec::len), Some(2));

    // approved as it was proposed
    let approval = asked(&shell, &first).await;
    let approval_id = id(&approval);
    let shown = shell.ok(&["approval", "show", &approval_id]).await;
    for part in ["current_time", "Europe/Berlin", "pending", approval["digest"].as_str().unwrap()] {
        assert!(shown.contains(part), "`{part}` is missing in:\n{shown}");
    }
    assert_eq!(shell.json(&["approval", "show", &approval_id]).await, approval);
    let other = "0".repeat(64);
    let said = shell.refused(&["approval", "approve", &approval_id, "--digest", &other]).await;
    assert!(said.starts_with("error: "), "{said}");
    assert_eq!(asked(&shell, &first).await["status"], "pending", "what was not looked at is not approved");
    let told = shell.ok(&["approval", "approve", &approval_id, "--comment", "go on"]).await;
    assert!(told.contains("Europe/Berlin") && told.contains("approved") && told.contains("go on"), "{told}");
    assert_eq!(until(&shell, &first, "succeeded").await["output"], "In Europe/Berlin.");
    let said = shell.refused(&["approval", "cancel", &approval_id]).await;
    assert!(said.contains("approved"), "{said}");

    // with another argument
    let approval_id = id(&asked(&shell, &second).await);
    let said = shell.refused(&["approval", "edit", &approval_id, "--set", "timezone=7"]).await;
    assert!(said.contains("timezone"), "{said}");
    let edited = shell.json(&["approval", "edit", &approval_id, "--set", "timezone=Asia/Tokyo"]).await;
    assert_eq!((&edited["status"], &edited["modifications"]), (&json!("edited"), &json!({ "timezone": "Asia/Tokyo" })));
    until(&shell, &second, "succeeded").await;
    let told = shell.ok(&["run", "show", &second]).await;
    assert!(told.contains("\"timezone\":\"Asia/Tokyo\""), "{told}");

    // refused: the model is told
    let approval_id = id(&asked(&shell, &third).await);
    let told = shell.ok(&["approval", "reject", &approval_id, "--comment", "not now"]).await;
    assert!(told.contains("cancelled") && told.contains("not now"), "{told}");
    until(&shell, &third, "succeeded").await;
    assert!(shell.ok(&["run", "show", &third]).await.contains("User cancelled this action."));

    let explained = shell.ok(&["run", "explain", &second]).await;
    assert!(explained.contains("current_time (turn 1)") && explained.contains("  because "), "{explained}");
    let explained = shell.json(&["run", "explain", &second]).await;
    assert_eq!((&explained["run_id"], &explained["state"]), (&json!(second), &json!("succeeded")));
    assert_eq!(explained["calls"][0]["tool"], "current_time");

    let table = shell.ok(&["audit", "list", "--tenant", "ann"]).await;
    assert!(table.lines().next().is_some_and(|heading| heading.starts_with("AT ")), "{table}");
    for act in ["approval.asked", "approval.approved", "approval.edited", "approval.cancelled"] {
        assert!(table.contains(act), "`{act}` is not on record:\n{table}");
    }
    let of_one = shell.json(&["audit", "list", "--subject", &approval_id]).await;
    let acts: Vec<&str> = of_one["items"].as_array().unwrap().iter().filter_map(|act| act["action"].as_str()).collect();
    assert_eq!(acts, ["approval.cancelled", "approval.asked"]);
    // all three were asked within the same minute
    let said = shell.refused(&["audit", "list", "--subject", &approval_id[..6]]).await;
    assert!(said.contains("means more than one approval"), "{said}");
    let filtered = shell.json(&["audit", "list", "--action", "approval.edited"]).await;
    assert_eq!(filtered["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(shell.refused(&["approval", "show", &task]).await, "error: there is no such approval\n");
}

#[tokio::test]
async fn suspended_agent_is_listed_paused_resumed_and_cancelled() {
    let service = asking().await;
    let shell = Shell::beside(&service);
    let task = task(&shell).await;
    let run = ran(&shell, &task, "pending_approval").await;
    let line = shell.ok(&["agent", "suspended", "--tenant", "ann"]).await;
    for part in [run.as_str(), "ann", "pending_approval", "the run's own", "1"] {
        assert!(line.contains(part), "{part} in {line}");
    }
    assert_eq!(shell.json(&["agent", "suspended", "--tenant", "bob"]).await["items"], json!([]));
    let paused = shell.ok(&["agent", "pause", &run]).await;
    assert!(paused.contains("paused until it is resumed, or "), "{paused}");
    let approval = id(&asked(&shell, &run).await);
    let refused = shell.refused(&["approval", "approve", &approval]).await;
    assert!(refused.contains("it has to be resumed first"), "{refused}");
    let explained = shell.ok(&["run", "explain", &run]).await;
    assert!(explained.contains("It is paused: until somebody resumes it"), "{explained}");
    assert!(shell.ok(&["agent", "resume", &run]).await.contains("pending_approval"));
    shell.ok(&["approval", "approve", &approval]).await;
    until(&shell, &run, "succeeded").await;
    let why = shell.refused(&["agent", "pause", &run]).await;
    assert!(why.contains("the run waits for nobody; it is `succeeded`"), "{why}");

    // one more than may wait is told so, and goes on
    let other = ran(&shell, &task, "pending_approval").await;
    shell.ok(&["quota", "set", "ann", "suspended_agents=1"]).await;
    let more = id(&shell.json(&["task", "run", &task]).await);
    let told = loop {
        let shown = shell.json(&["run", "show", &more]).await;
        if !["queued", "running"].contains(&shown["run"]["state"].as_str().expect("a state")) {
            break shown.to_string();
        }
        pause(LOOK).await;
    };
    assert!(told.contains("too_many_suspended"), "{told}");
    assert!(shell.ok(&["agent", "cancel", &other]).await.contains("cancelled"));
    until(&shell, &other, "cancelled").await;
    assert_eq!(shell.json(&["agent", "suspended"]).await["items"], json!([]));
}

#[tokio::test]
async fn standing_grant_is_listed_and_revoked() {
    let service = asking().await;
    let shell = Shell::beside(&service);
    let task = task(&shell).await;
    let run = ran(&shell, &task, "pending_approval").await;
    let approval_id = id(&asked(&shell, &run).await);
    let typed = ["approval", "approve", &approval_id, "--always", "--days", "7", "--uses", "3", "--arg", "timezone"];
    let grant_id = shell.json(&typed).await["grant_id"].as_str().expect("a grant").to_owned();
    until(&shell, &run, "succeeded").await;

    let second = ran(&shell, &task, "succeeded").await;
    assert_eq!(shell.json(&["approval", "list", "--run", &second]).await, json!({ "items": [] }), "it was not asked");
    let table = shell.ok(&["grant", "list", "--tenant", "ann", "--task", &task]).await;
    let row = table.lines().nth(1).expect("a row");
    assert!(row.starts_with(&grant_id) && row.contains("current_time") && row.contains("Europe/Berlin"), "{table}");
    let listed = shell.json(&["grant", "list"]).await;
    assert_eq!((&listed["items"][0]["id"], &listed["items"][0]["uses_left"]), (&json!(grant_id), &json!(2)));

    let recorded = shell.json(&["audit", "list", "--subject", &grant_id[..32]]).await;
    let acts = recorded["items"].as_array().expect("a list");
    let acts: Vec<&Value> = acts.iter().map(|act| &act["action"]).collect();
    assert_eq!(acts, ["grant.used", "grant.created"]);

    assert_eq!(shell.ok(&["grant", "revoke", &grant_id]).await, format!("revoked {grant_id}\n"));
    ran(&shell, &task, "pending_approval").await;
    let said = shell.refused(&["grant", "revoke", &approval_id]).await;
    assert_eq!(said, "error: there is no such grant\n");
}

#[tokio::test]
async fn record_is_verified_beside_the_running_service_and_without_it() {
    let mut service = asking().await;
    let shell = Shell::beside(&service);
    let task = task(&shell).await;
    let run = ran(&shell, &task, "pending_approval").await;
    shell.ok(&["approval", "approve", &id(&asked(&shell, &run).await)]).await;
    let began = Instant::now();
    let verified = loop {
        let verified = shell.json(&["audit", "verify"]).await;
        if verified["unsealed"] == 0 && verified["sealed"].as_i64() >= Some(2) {
            break verified;
        }
        assert!(began.elapsed() < PATIENCE, "{verified:#}");
        pause(LOOK).await;
    };
    assert_eq!(verified["broken"], json!(null));
    let sealed = verified["sealed"].as_i64().unwrap();
    let good = format!("{sealed} entries are as they were sealed, 0 not sealed yet\n");
    assert_eq!(shell.ok(&["audit", "verify"]).await, good);
    assert_eq!(service.terminate().await.code(), Some(0));
    let shell = Shell { dir: service.dir.path(), environment: vec![] };
    assert_eq!(shell.ok(&["audit", "verify"]).await, good, "a service is not needed");

    service.start().await;
    let shell = Shell { dir: service.dir.path(), environment: vec![] };
    let file = format!("sqlite://{}/data/reveille.db", service.dir.path().display());
    let mut database = SqliteConnection::connect(&file).await.expect("the database");
    database.execute("update audit set actor = 'somebody else' where position = 2").await.expect("a forgery");
    let done = shell.run(&["audit", "verify"]).await;
    assert_eq!((done.code, done.out.as_str()), (1, "1 entry is as it was sealed, 0 not sealed yet\n"));
    assert!(
        done.err.starts_with("error: the chain is broken at position 2: ") && done.err.contains("hint: "),
        "{}",
        done.err
    );
    let done = shell.run(&["audit", "verify", "--json"]).await;
    let verified: Value = serde_json::from_str(&done.out).expect("JSON");
    assert_eq!((done.code, &verified["broken"]["position"]), (1, &json!(2)));
}

#[tokio::test]
async fn person_who_started_a_run_may_not_answer_it_where_the_configuration_bars_the_requester() {
    for (rules, may) in [("exclude_requester = true", false), ("exclude_requester = false", true)] {
        let service = asking_by(rules).await;
        let shell = Shell::beside(&service);
        let task = task(&shell).await;
        let run = ran(&shell, &task, "pending_approval").await;
        let approval_id = id(&asked(&shell, &run).await);
        let done = shell.run(&["approval", "approve", &approval_id]).await;
        if may {
            assert_eq!((done.code, done.err.as_str()), (0, ""));
            until(&shell, &run, "succeeded").await;
        } else {
            assert_eq!(done.code, 1, "{}", done.out);
            assert!(done.err.contains("asked for"), "{}", done.err);
            assert_eq!(asked(&shell, &run).await["status"], "pending");
        }
    }
}
