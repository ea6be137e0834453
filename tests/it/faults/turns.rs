//! `kill -9` before and after each write of an agent's turn: no call whose result is stored is made again, none is lost,
//! and one that must not be made twice never is.
//!
//! The test stands between the writes: the model and the tools answer when it lets them, and a lock of its own keeps the
//! database from writing. Three runs at once, each with another kind of tool, die in each of these places.

use std::collections::BTreeMap;
use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::json;
use sqlx::{Connection, Executor};

use super::harness::FaultHarness;
use super::turn_server::{TurnServer, TurnStep};
use crate::support::checker::Source;
use crate::support::postgres::Database;

/// A tool that only reads, one that may be called again, and one that must not.
const TOOLS: [&str; 3] = ["look", "reserve", "pay"];
/// After an answer that the service can't store yet, until it is killed: it is waiting by then, or has the answer yet
/// to read. Either is before the write.
const READING: Duration = Duration::from_millis(300);
/// Entries of a run that went well: its beginning, the call, the result, the answer.
const ENTRIES: &str = "select count(*) from runs r
                        where state = 'succeeded' and (select count(*) from turns t where t.run_id = r.id) <> 5";
/// Results that name a data file.
const REFERENCES: &str = "select count(*) from turns where seq = 3 and cast(body as text) like '%[Data file %'";
/// Data files that are whole.
const FILES: &str = "select count(*) from data_files f
                      where f.bytes = (select sum(length(c.content)) from data_file_chunks c where c.file_id = f.id)";
const INTENTS: &str = "select count(*) from turns where seq = 2";
const ANSWERS: &str = "select count(*) from turns where seq = 4";

/// A place in a run in which it dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// This step is under way: what came before it is stored.
    In(TurnStep),
    /// This step has been answered, and nothing of it is stored.
    Behind(TurnStep),
    /// The answer of the run is stored.
    Answered,
    /// The run has ended.
    Ended,
}

/// Where it dies, how often each tool is called in all, how often the model is asked the first and the second question,
/// and whether nobody can know what became of the payment.
type Row = (Death, [usize; 3], [[usize; 3]; 2], bool);

const ROWS: [Row; 8] = [
    (Death::In(TurnStep::Question), [1, 1, 1], [[2, 2, 2], [1, 1, 1]], false),
    // a tool that only reads runs before anything is stored
    (Death::Behind(TurnStep::Question), [2, 1, 1], [[2, 2, 2], [1, 1, 1]], false),
    (Death::In(TurnStep::Call), [2, 2, 1], [[1, 1, 1], [1, 1, 1]], true),
    (Death::Behind(TurnStep::Call), [2, 2, 1], [[1, 1, 1], [1, 1, 1]], true),
    (Death::In(TurnStep::Result), [1, 1, 1], [[1, 1, 1], [2, 2, 2]], false),
    (Death::Behind(TurnStep::Result), [1, 1, 1], [[1, 1, 1], [2, 2, 2]], false),
    (Death::Answered, [1, 1, 1], [[1, 1, 1], [1, 1, 1]], false),
    (Death::Ended, [1, 1, 1], [[1, 1, 1], [1, 1, 1]], false),
];

fn config(server: &TurnServer) -> String {
    let tool = |(name, method, category): (&str, &str, &str)| {
        let url = format!("{}/tools/{name}", server.url());
        format!(
            "[[tools]]\nname = \"{name}\"\ndescription = \"Does it.\"\ncategory = \"{category}\"\nconsequence = \"low\"\n\
             [tools.http]\nmethod = \"{method}\"\nurl = \"{url}\"\n"
        )
    };
    [("look", "GET", "read"), ("reserve", "PUT", "side_effect"), ("pay", "POST", "side_effect")].map(tool).concat()
}

fn with_agent(stage: FaultHarness, server: &TurnServer) -> FaultHarness {
    stage
        .with_config(&config(server))
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
        .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
        .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", server.url()))
        .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
        .with("REVEILLE_REACT__MAX_TOOL_RESULT_CHARS", "2000")
        .with("REVEILLE_APPROVALS__TOOLS__RESERVE__GATE", "auto")
        .with("REVEILLE_APPROVALS__TOOLS__PAY__GATE", "auto")
}

/// Keeps the database from writing until it is dropped.
enum WriteLock {
    Sqlite(sqlx::SqliteConnection),
    Postgres(sqlx::PgConnection),
}

impl WriteLock {
    async fn take(source: &Source) -> WriteLock {
        match source {
            Source::Sqlite(file) => {
                let url = format!("sqlite://{}", file.display());
                let mut connection = sqlx::SqliteConnection::connect(&url).await.expect("the file");
                connection.execute("begin immediate").await.expect("a lock");
                WriteLock::Sqlite(connection)
            }
            Source::Postgres(url) => {
                let mut connection = sqlx::PgConnection::connect(url).await.expect("the database");
                connection.execute("begin; lock table turns, runs, queue in exclusive mode").await.expect("a lock");
                WriteLock::Postgres(connection)
            }
        }
    }

    /// Lets the database write again; nothing that a dead process has asked for is written.
    async fn release(self) {
        match self {
            WriteLock::Sqlite(connection) => connection.close().await.expect("closed"),
            WriteLock::Postgres(mut connection) => {
                let waiting = "select count(pg_terminate_backend(pid)) from pg_stat_activity
                                where datname = current_database() and usename = current_user
                                  and pid <> pg_backend_pid()";
                connection.execute(waiting).await.expect("ended");
                connection.close().await.expect("closed");
            }
        }
    }
}

/// Waits until this step is under way in the three runs, and what came before it is stored.
async fn until_under_way(stage: &FaultHarness, server: &TurnServer, step: TurnStep, ended: i64) {
    server.until_asked(step, &TOOLS).await;
    if step == TurnStep::Call {
        // of a tool that only reads after a while
        stage.until_number(INTENTS, ended + 3).await;
    }
}

/// Three runs, one for each tool, die in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &TurnServer, tasks: &[String], death: Death) {
    // every run before has ended with an answer, behind one call
    let ended = stage.source.number(ANSWERS).await.unwrap();
    server.begin_count();
    server.hold(match death {
        Death::In(step) | Death::Behind(step) => Some(step),
        Death::Answered | Death::Ended => None,
    });
    for task in tasks {
        stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    }
    match death {
        Death::In(step) => {
            until_under_way(stage, server, step, ended).await;
            stage.kill(0).await;
        }
        Death::Behind(step) => {
            until_under_way(stage, server, step, ended).await;
            let lock = WriteLock::take(&stage.source).await;
            server.hold(None);
            server.until_answered(step, &TOOLS).await;
            if step == TurnStep::Question {
                server.until_answered(TurnStep::Call, &["look"]).await;
            }
            pause(READING).await;
            stage.kill(0).await;
            lock.release().await;
        }
        Death::Answered => {
            stage.until_number(ANSWERS, ended + 3).await;
            stage.kill(0).await;
        }
        Death::Ended => {
            stage.ran(ended + 3).await;
            stage.kill(0).await;
        }
    }
    server.hold(None);
    stage.start(0).await;
    stage.ran(ended + 3).await;
}

async fn dies_everywhere(stage: FaultHarness, what: &str) {
    let server = TurnServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let mut tasks = Vec::new();
    for tool in TOOLS {
        let never = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
        tasks.push(stage.agent_with(&[tool, "read_data_file"], never).await);
    }
    for (death, calls, questions, is_unknown) in ROWS {
        die(&mut stage, &server, &tasks, death).await;
        let counts = server.counts();
        let each = |step: TurnStep| TOOLS.map(|tool| counts.asked(step, tool));
        assert_eq!(each(TurnStep::Call), calls, "{death:?}: calls\n{}", stage.logs());
        let asked = [each(TurnStep::Question), each(TurnStep::Result)];
        assert_eq!(asked, questions, "{death:?}: questions\n{}", stage.logs());
        let keys = counts.keys.iter().map(|(tool, keys)| (tool.as_str(), keys.len()));
        assert!(keys.clone().all(|(_, count)| count == 1), "{death:?}: {:?}", keys.collect::<BTreeMap<_, _>>());
        let outputs = stage.last_outputs(&tasks).await;
        let unknown = [false, false, is_unknown];
        let found: Vec<bool> = outputs.iter().map(|output| output.contains("outcome_unknown")).collect();
        assert_eq!(found, unknown, "{death:?}: {outputs:?}");
        // a result that is cut is sent as a text
        let plain = outputs.iter().map(|output| output.replace("\\\"", "\""));
        let done = plain.zip(TOOLS).filter(|(output, tool)| output.contains(&format!(r#""done": "{tool}""#)));
        assert_eq!(done.count(), 3 - usize::from(is_unknown), "{death:?}: {outputs:?}");
    }
    stage.must_hold(what).await;
    let files = [stage.source.number(REFERENCES).await.unwrap(), stage.source.number(FILES).await.unwrap()];
    assert_eq!(files, [ROWS.len() as i64; 2], "one file for each look, named by its result");
    assert_eq!(stage.source.number(ENTRIES).await.unwrap(), 0, "a result is missing, or stands there twice");
}

#[tokio::test]
async fn on_sqlite_a_turn_that_is_killed_at_any_write_repeats_and_loses_no_call() {
    dies_everywhere(FaultHarness::sqlite().await, "sqlite, kills at each write of a turn").await;
}

#[tokio::test]
async fn on_postgres_a_turn_that_is_killed_at_any_write_repeats_and_loses_no_call() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    dies_everywhere(stage, "postgres, kills at each write of a turn").await;
}
