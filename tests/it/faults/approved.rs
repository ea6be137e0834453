//! `kill -9` around a call that a person has approved: it is asked about once, made once where nothing of it had begun, and
//! never a second time where it had.

use serde_json::{Value, json};

use super::harness::FaultHarness;
use super::turn_server::{TurnServer, TurnStep};
use crate::support::postgres::Database;

/// A call that is held for some seconds after its approval, as long as a service takes to be killed and to start.
const HELD: u64 = 8;
const WAITING: &str = "select count(*) from runs where state = 'pending_approval'";
const QUESTIONS: &str = "select count(*) from approvals";
const BEGUN: &str = "select count(*) from approvals where execution_started_at is not null";

/// A place in the life of an approved call in which the service dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The question is stored, and nobody has answered.
    Asked,
    /// It is approved and held: it may not begin yet.
    Approved,
    /// It has begun, and its result is not known.
    Begun,
    /// Its result is on its way to the model.
    Told,
}

/// Where it dies, how often the call is made in all, and whether nobody can know what became of it.
const ROWS: [(Death, usize, bool); 4] =
    [(Death::Asked, 1, false), (Death::Approved, 1, false), (Death::Begun, 1, true), (Death::Told, 1, false)];

fn with_agent(stage: FaultHarness, server: &TurnServer) -> FaultHarness {
    let url = format!("{}/tools/pay", server.url());
    let tool = format!(
        "[[tools]]\nname = \"pay\"\ndescription = \"Pays.\"\ncategory = \"side_effect\"\nconsequence = \"low\"\n\
         undo_seconds = {HELD}\n[tools.http]\nmethod = \"POST\"\nurl = \"{url}\"\n"
    );
    stage
        .with_config(&tool)
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
        .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
        .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", server.url()))
        .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
}

/// Approves the one call that waits.
async fn approve(stage: &FaultHarness) {
    let open = stage.get("/v1/approvals?status=pending").await;
    let question = &open["items"][0];
    let path = format!("/v1/approvals/{}/decision", question["id"].as_str().expect("an open question"));
    stage.post(&path, &json!({ "decision": "approve", "digest": question["digest"] })).await;
}

/// One run, whose call is approved, dies in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &TurnServer, task: &str, death: Death, before: i64) {
    server.begin_count();
    server.hold(match death {
        Death::Begun => Some(TurnStep::Call),
        Death::Told => Some(TurnStep::Result),
        Death::Asked | Death::Approved => None,
    });
    stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    stage.until_number(QUESTIONS, before + 1).await;
    stage.until_number(WAITING, 1).await;
    match death {
        Death::Asked => {}
        Death::Approved => approve(stage).await,
        Death::Begun => {
            approve(stage).await;
            server.until_asked(TurnStep::Call, &["pay"]).await;
        }
        Death::Told => {
            approve(stage).await;
            server.until_asked(TurnStep::Result, &["pay"]).await;
        }
    }
    if matches!(death, Death::Asked | Death::Approved) {
        assert_eq!(stage.source.number(BEGUN).await.unwrap(), before, "{death:?}: it has begun already");
    }
    stage.kill(0).await;
    server.hold(None);
    stage.start(0).await;
    if matches!(death, Death::Asked) {
        approve(stage).await;
    }
    stage.ran(before + 1).await;
}

async fn dies_everywhere(stage: FaultHarness, place: &str) {
    let server = TurnServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let never: Value = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
    let task = stage.agent_with(&["pay"], never).await;
    for (before, (death, calls, is_unknown)) in (0..).zip(ROWS) {
        die(&mut stage, &server, &task, death, before).await;
        let counts = server.counts();
        assert_eq!(counts.asked(TurnStep::Call, "pay"), calls, "{death:?}: calls\n{}", stage.logs());
        assert_eq!(stage.source.number(QUESTIONS).await.unwrap(), before + 1, "{death:?}: it is asked about once");
        let output = &stage.last_outputs(std::slice::from_ref(&task)).await[0];
        assert_eq!(output.contains("outcome_unknown"), is_unknown, "{death:?}: {output}");
        assert_eq!(output.contains(r#""done": "pay""#), !is_unknown, "{death:?}: {output}");
    }
    stage.must_hold(place).await;
}

#[tokio::test]
async fn on_sqlite_an_approved_call_is_made_once_wherever_the_service_is_killed() {
    dies_everywhere(FaultHarness::sqlite().await, "sqlite, kills around an approved call").await;
}

#[tokio::test]
async fn on_postgres_an_approved_call_is_made_once_wherever_the_service_is_killed() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    dies_everywhere(stage, "postgres, kills around an approved call").await;
}
