//! `kill -9` around calls that a standing grant covers: nobody is asked again, each use is counted once, and a call
//! that must not be made twice is made once at most, whether its use is stored or not.

use reveille::base::clock::pause;
use serde_json::json;

use super::approved::question;
use super::harness::FaultHarness;
use super::turn_server::{TurnServer, TurnStep};
use super::turns::{self, READING};
use super::write_lock::{HeldWrites, WriteLock};
use crate::support::postgres::Database;
use crate::support::servers;

/// A tool that must not be called again, and one that may; each task has one of them.
const TOOLS: [&str; 2] = ["pay", "reserve"];
/// Uses that each grant has at first.
const USES: i64 = 1_000;
const WAITING: &str = "select count(*) from runs where state = 'pending_approval'";
const QUESTIONS: &str = "select count(*) from approvals";
const INTENTS: &str = "select count(*) from turns where seq = 2";
const RESULTS: &str = "select count(*) from turns where tool_record is not null";
/// Uses by the calls that they are for, by what is left of the grants, and on the record of audit.
const USED: [&str; 3] = [
    "select count(*) from grant_uses",
    "select cast(2 * 1000 - sum(uses_left) as bigint) from grants",
    "select count(*) from audit where action = 'grant.used'",
];

/// A place in the life of these calls in which the service dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The model has answered, and the intent of its calls is not stored.
    Answered,
    /// The calls are intended, and no use of a grant is stored.
    Intended,
    /// The uses are stored, and the calls are under way.
    Begun,
    /// The calls are answered, and no result is stored.
    Done,
    /// The results are stored, and on their way to the model.
    Told,
    /// The runs have ended.
    Ended,
}

/// Where it dies, how often each tool is called in all, and whether nobody can know what became of the call.
const ROWS: [(Death, [usize; 2], [bool; 2]); 6] = [
    (Death::Answered, [1, 1], [false; 2]),
    // it may have been made, for all that the record says
    (Death::Intended, [0, 1], [true, false]),
    (Death::Begun, [1, 2], [true, false]),
    (Death::Done, [1, 2], [true, false]),
    (Death::Told, [1, 1], [false; 2]),
    (Death::Ended, [1, 1], [false; 2]),
];

fn config(server: &TurnServer) -> String {
    let tool = |(name, method): (&str, &str)| {
        let url = format!("{}/tools/{name}", server.url());
        format!(
            "[[tools]]\nname = \"{name}\"\ndescription = \"Does it.\"\ncategory = \"side_effect\"\nconsequence = \"low\"\n\
             [tools.http]\nmethod = \"{method}\"\nurl = \"{url}\"\n"
        )
    };
    [("pay", "POST"), ("reserve", "PUT")].map(tool).concat()
}

fn with_agent(stage: FaultHarness, server: &TurnServer) -> FaultHarness {
    stage
        .with_config(&config(server))
        .with("REVEILLE_DATABASE__MAX_CONNECTIONS", "16")
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
        .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
        .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", server.url()))
        .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
}

/// A run of each task, about whose call a person is asked and allows it for good.
async fn grant(stage: &FaultHarness, tasks: &[String]) {
    for task in tasks {
        stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    }
    stage.until_number(WAITING, tasks.len() as i64).await;
    for tool in TOOLS {
        let question = question(stage, tool).await;
        let path = format!("/v1/approvals/{}/decision", question["id"].as_str().expect("an open question"));
        let grant = json!({ "days": 7, "uses": USES });
        stage.post(&path, &json!({ "decision": "approve", "digest": question["digest"], "grant": grant })).await;
    }
    stage.ran(tasks.len() as i64).await;
}

async fn number(stage: &FaultHarness, query: &'static str) -> i64 {
    stage.source.number(query).await.unwrap()
}

/// Waits until this step is answered in both runs, and the service has come to the write behind it.
async fn until_read(server: &TurnServer, step: TurnStep) {
    server.until_answered(step, &TOOLS).await;
    pause(READING).await;
}

/// A run of each task dies in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &TurnServer, tasks: &[String], death: Death) {
    // of each run before, the intent and the result are stored, and its use but for the first ones
    let (before, used) = (number(stage, INTENTS).await, number(stage, USED[0]).await);
    let (runs, results) = (tasks.len() as i64, number(stage, RESULTS).await);
    server.begin_count();
    match death {
        Death::Answered | Death::Intended => server.hold(Some(TurnStep::Question)),
        Death::Begun | Death::Done => server.hold(Some(TurnStep::Call)),
        Death::Told => server.hold(Some(TurnStep::Result)),
        Death::Ended => server.hold(None),
    }
    for task in tasks {
        stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    }
    let mut lock = None;
    match death {
        Death::Answered | Death::Intended => {
            server.until_asked(TurnStep::Question, &TOOLS).await;
            let is_answered = matches!(death, Death::Answered);
            let held = if is_answered { HeldWrites::All } else { HeldWrites::GrantUses };
            lock = Some(WriteLock::take(&stage.source, held).await);
            server.hold(None);
            match is_answered {
                true => until_read(server, TurnStep::Question).await,
                false => stage.until_number(INTENTS, before + runs).await,
            }
        }
        Death::Begun => server.until_asked(TurnStep::Call, &TOOLS).await,
        Death::Done => {
            server.until_asked(TurnStep::Call, &TOOLS).await;
            lock = Some(WriteLock::take(&stage.source, HeldWrites::Results).await);
            server.hold(None);
            until_read(server, TurnStep::Call).await;
        }
        Death::Told => {
            server.until_asked(TurnStep::Result, &TOOLS).await;
            assert_eq!(number(stage, RESULTS).await, results + runs, "they are stored before the model is asked");
        }
        Death::Ended => stage.ran(before + runs).await,
    }
    stage.kill(0).await;
    if let Some(lock) = lock {
        lock.release().await;
    }
    let expected = if matches!(death, Death::Answered | Death::Intended) { used } else { used + runs };
    assert_eq!(number(stage, USED[0]).await, expected, "{death:?}: uses when it died");
    server.hold(None);
    stage.start(0).await;
    stage.ran(before + runs).await;
}

async fn dies_everywhere(stage: FaultHarness, place: &str) {
    let server = TurnServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let mut tasks = Vec::new();
    for tool in TOOLS {
        let never = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
        tasks.push(stage.agent_with(&[tool], never).await);
    }
    grant(&stage, &tasks).await;
    let rows = std::iter::repeat_n(ROWS, servers::drill_turns()).flatten();
    for (round, (death, calls, unknown)) in (1..).zip(rows) {
        die(&mut stage, &server, &tasks, death).await;
        let counts = server.counts();
        let made = TOOLS.map(|tool| counts.asked(TurnStep::Call, tool));
        assert_eq!(made, calls, "{death:?}: calls\n{}", stage.logs());
        assert!(counts.keys.values().all(|keys| keys.len() == 1), "{death:?}: {:?}", counts.keys);
        for query in USED {
            assert_eq!(number(&stage, query).await, round * tasks.len() as i64, "{death:?}: {query}");
        }
        let outputs = stage.last_outputs(&tasks).await;
        for ((output, tool), is_unknown) in outputs.iter().zip(TOOLS).zip(unknown) {
            turns::assert_results(&death, output, &[tool], is_unknown);
        }
    }
    assert_eq!(number(&stage, QUESTIONS).await, tasks.len() as i64, "people were asked at first alone");
    stage.must_hold(place).await;
}

#[tokio::test]
async fn on_sqlite_a_granted_call_uses_its_grant_once_wherever_the_service_is_killed() {
    dies_everywhere(FaultHarness::sqlite().await, "sqlite, kills around granted calls").await;
}

#[tokio::test]
async fn on_postgres_a_granted_call_uses_its_grant_once_wherever_the_service_is_killed() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    dies_everywhere(stage, "postgres, kills around granted calls").await;
}
