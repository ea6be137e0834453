//! `kill -9` around calls that people have a say in: each is asked about once, made once where nothing of it had begun,
//! and never a second time where it had. One is approved and held for a while, one is approved and made at once, and
//! one is made by a configured agent, for whose call a person has supplied what it lacked.

use serde_json::{Value, json};

use super::harness::FaultHarness;
use super::turn_server::{TurnServer, TurnStep};
use super::turns;
use super::write_lock::{HeldWrites, WriteLock};
use crate::support::postgres::Database;
use crate::support::servers;

/// A call that is held for some seconds after its approval, as long as a service takes to be killed and to start.
const HELD: u64 = 8;
/// The one tool of each task; the last one is a configured agent.
const ASKED: [&str; 3] = ["pay", "send", "clerk"];
/// The tool that each run comes to call, by itself or through the agent.
const CALLED: [&str; 3] = ["pay", "send", "wire"];
const WAITING: &str = "select count(*) from runs where state in ('pending_approval', 'waiting_for_input')";
const QUESTIONS: &str = "select count(*) from approvals";
const INTENTS: &str = "select count(*) from turns where seq = 2";
/// Held calls that have begun.
const BEGUN: &str = "select count(*) from approvals where tool = 'pay' and execution_started_at is not null";
/// Calls that were made at once, and of which it is noted what came of them.
const OUTCOMES: &str = "select count(*) from approvals where tool = 'send' and outcome is not null";

/// A place in the life of these calls in which the service dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The calls are intended and the questions are not stored, and once more when they are: nobody has answered.
    Asked,
    /// One call is approved and held: it may not begin yet. One has begun. The agent has begun, and has said nothing.
    Approved,
    /// All have begun, and no result is known. Of the one that is made at once it is noted what came of it.
    Begun,
    /// The results are on their way to the model.
    Told,
}

/// Where it dies, and whether nobody can know what became of each call.
const ROWS: [(Death, [bool; 3]); 4] = [
    (Death::Asked, [false; 3]),
    (Death::Approved, [false, true, false]),
    (Death::Begun, [true; 3]),
    (Death::Told, [false; 3]),
];

fn config(server: &TurnServer) -> String {
    let tool = |name: &str, more: &str| {
        let url = format!("{}/tools/{name}", server.url());
        format!(
            "[[tools]]\nname = \"{name}\"\ndescription = \"Pays.\"\ncategory = \"side_effect\"\nconsequence = \"low\"\n\
             {more}[tools.http]\nmethod = \"POST\"\nurl = \"{url}\"\n"
        )
    };
    let agent = "[[agents]]\nname = \"clerk\"\ninstruction = \"You pay.\"\ntools = [\"wire\"]\n\
                 [[agents.fields]]\nname = \"place\"\ntype = \"string\"\nrequired = true\n";
    [tool("pay", &format!("undo_seconds = {HELD}\n")), tool("send", ""), tool("wire", ""), agent.to_owned()].concat()
}

fn with_agent(stage: FaultHarness, server: &TurnServer) -> FaultHarness {
    stage
        .with_config(&config(server))
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
        .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
        .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", server.url()))
        .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
        .with("REVEILLE_APPROVALS__TOOLS__WIRE__GATE", "auto")
}

/// The one open question about a call of this tool.
pub async fn question(stage: &FaultHarness, tool: &str) -> Value {
    let open = stage.get("/v1/approvals?status=pending").await;
    let found = open["items"].as_array().and_then(|items| items.iter().find(|item| item["agent_name"] == tool));
    found.unwrap_or_else(|| panic!("no question about {tool}: {open}")).clone()
}

async fn approve(stage: &FaultHarness, tool: &str) {
    let question = question(stage, tool).await;
    let path = format!("/v1/approvals/{}/decision", question["id"].as_str().expect("an open question"));
    stage.post(&path, &json!({ "decision": "approve", "digest": question["digest"] })).await;
}

/// Supplies what the call of the agent lacks.
async fn supply(stage: &FaultHarness) {
    let question = question(stage, "clerk").await;
    let path = format!("/v1/runs/{}/input", question["run_id"].as_str().expect("its run"));
    stage.post(&path, &json!({ "fields": { "place": "the sea" } })).await;
}

/// All calls are intended, and the service dies before any question is stored: `before` is how many there are.
async fn dies_before_it_asks(stage: &mut FaultHarness, server: &TurnServer, before: i64) {
    server.until_asked(TurnStep::Question, &ASKED).await;
    let lock = WriteLock::take(&stage.source, HeldWrites::Ends).await;
    server.hold(None);
    stage.until_number(INTENTS, before + ASKED.len() as i64).await;
    stage.kill(0).await;
    lock.release().await;
    assert_eq!(stage.source.number(QUESTIONS).await.unwrap(), before, "they are asked about already");
    stage.start(0).await;
}

/// A run of each task, whose call people have a say in, dies in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &TurnServer, tasks: &[String], death: Death) {
    // each run before has one question, and has succeeded
    let before = stage.source.number(QUESTIONS).await.unwrap();
    let asked = before + tasks.len() as i64;
    let begun = stage.source.number(BEGUN).await.unwrap();
    let outcomes = stage.source.number(OUTCOMES).await.unwrap();
    server.begin_count();
    match death {
        Death::Asked => server.hold(Some(TurnStep::Question)),
        Death::Approved => server.hold_each(&[(TurnStep::Call, "send"), (TurnStep::Question, "wire")]),
        Death::Begun => server.hold(Some(TurnStep::Call)),
        Death::Told => server.hold(Some(TurnStep::Result)),
    }
    for task in tasks {
        stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    }
    if matches!(death, Death::Asked) {
        dies_before_it_asks(stage, server, before).await;
    }
    stage.until_number(QUESTIONS, asked).await;
    stage.until_number(WAITING, tasks.len() as i64).await;
    let mut lock = None;
    match death {
        Death::Asked => {}
        Death::Approved => {
            approve(stage, "send").await;
            supply(stage).await;
            server.until_asked(TurnStep::Call, &["send"]).await;
            server.until_asked(TurnStep::Question, &["wire"]).await;
            approve(stage, "pay").await;
        }
        Death::Begun => {
            approve_and_supply(stage, server, TurnStep::Call).await;
            lock = Some(WriteLock::take(&stage.source, HeldWrites::Results).await);
            server.hold_each(&[(TurnStep::Call, "pay"), (TurnStep::Call, "wire")]);
            stage.until_number(OUTCOMES, outcomes + 1).await;
        }
        Death::Told => approve_and_supply(stage, server, TurnStep::Result).await,
    }
    if matches!(death, Death::Asked | Death::Approved) {
        assert_eq!(stage.source.number(BEGUN).await.unwrap(), begun, "{death:?}: it has begun already");
    }
    stage.kill(0).await;
    if let Some(lock) = lock {
        lock.release().await;
    }
    server.hold(None);
    stage.start(0).await;
    if matches!(death, Death::Asked) {
        approve(stage, "pay").await;
        approve(stage, "send").await;
        supply(stage).await;
    }
    stage.ran(asked).await;
}

/// All questions are answered, and this step is under way in each run. The held call comes first, so that none is under
/// way for long.
async fn approve_and_supply(stage: &FaultHarness, server: &TurnServer, step: TurnStep) {
    approve(stage, "pay").await;
    server.until_asked(step, &["pay"]).await;
    approve(stage, "send").await;
    supply(stage).await;
    server.until_asked(step, &CALLED).await;
}

async fn dies_everywhere(stage: FaultHarness, place: &str) {
    let server = TurnServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let mut tasks = Vec::new();
    for tool in ASKED {
        let never = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
        tasks.push(stage.agent_with(&[tool], never).await);
    }
    let rows = std::iter::repeat_n(ROWS, servers::drill_turns()).flatten();
    for (asked, (death, unknown)) in (1..).zip(rows) {
        die(&mut stage, &server, &tasks, death).await;
        let counts = server.counts();
        let calls = CALLED.map(|tool| counts.asked(TurnStep::Call, tool));
        assert_eq!(calls, [1; 3], "{death:?}: calls\n{}", stage.logs());
        let questions = stage.source.number(QUESTIONS).await.unwrap();
        assert_eq!(questions, asked * tasks.len() as i64, "{death:?}: each is asked about once");
        let outputs = stage.last_outputs(&tasks).await;
        for ((output, tool), is_unknown) in outputs.iter().zip(CALLED).zip(unknown) {
            turns::assert_results(&death, output, &[tool], is_unknown);
        }
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
