//! `kill -9` before and after each write of an agent's turn: no call whose result is stored is made again, none is
//! lost, and one that must not be made twice never is. Each call of a model or a tool is counted once, and paid once.
//!
//! The test stands between the writes: the model and the tools answer when it lets them, and a lock of its own keeps
//! the database from writing. Four runs die at once in each of these places: three with a tool of one kind each, and
//! one that calls a tool of each kind in one turn.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::json;

use super::harness::FaultHarness;
use super::turn_server::{TOKENS, TurnServer, TurnStep};
use super::write_lock::{HeldWrites, WriteLock};
use crate::support::postgres::Database;
use crate::support::servers;

/// The tools of each run: one that only reads, one that may be called again, one that must not, and one of each kind.
const TASKS: [&[&str]; 4] = [&["look"], &["reserve"], &["pay"], &["book", "peek", "send"]];
/// By these names the model of each run is counted.
const OFFERS: [&str; 4] = ["look", "reserve", "pay", "book+peek+send"];
const TOOLS: [&str; 6] = ["look", "reserve", "pay", "book", "peek", "send"];
/// Tools that must not be called again, in these runs and in those of other kills.
const UNREPEATABLE: [&str; 3] = ["pay", "send", "wire"];
/// After an answer that the service can't store yet, until it is killed: it is waiting by then, or has the answer yet
/// to read. Either is before the write.
pub const READING: Duration = Duration::from_millis(300);
const RUNNING: &str = "select count(*) from runs where state = 'running'";
/// Transcripts with another number of entries than a run that went well has: its beginning, the calls, a result for
/// each of them, the answer.
const ENTRIES: &str = "
    select count(*) from runs r
     where state = 'succeeded' and (select count(*) from turns t where t.run_id = r.id) <> 4 + r.tool_calls";
/// Results that name a data file.
const REFERENCES: &str = "select count(*) from turns where seq = 3 and cast(body as text) like '%[Data file %'";
/// Data files that are whole.
const FILES: &str = "select count(*) from data_files f
                      where f.bytes = (select sum(length(c.content)) from data_file_chunks c where c.file_id = f.id)";
const INTENTS: &str = "select count(*) from turns where seq = 2";
const RESULTS: &str = "select count(*) from turns where tool_record is not null";
const ANSWERS: &str = "select count(*) from turns where model is not null and tool_calls = 0";
/// Tokens that the tenant has spent of its budget.
const SPENT: &str = "
    select cast(coalesce(sum(d.tokens), 0) as bigint) from budget_days d
     where not exists (select 1 from tasks t where t.id = d.task_id)";
/// Reservations that are left, and tokens that are reserved.
const RESERVED: &str = "
    select (select count(*) from budget_reservations)
         + (select cast(coalesce(sum(reserved_tokens), 0) as bigint) from budget_days)";
/// Calls of models, and of tools, that are counted.
const USES: [&str; 2] = [
    "select cast(coalesce(sum(calls), 0) as bigint) from usage_days where kind = 'model'",
    "select cast(coalesce(sum(calls), 0) as bigint) from usage_days where kind = 'tool'",
];

/// A place in a run in which it dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The run has started, and its first call of a model is not reserved.
    Started,
    /// This step is under way: what came before it is stored. Of the run with several calls, the one that must not be
    /// made twice has its result stored, and the others are under way.
    In(TurnStep),
    /// This step has been answered, and nothing of it is stored but the data file of a result.
    Behind(TurnStep),
    /// The run has ended: its answer is stored with its end.
    Ended,
}

/// Where it dies, how often each tool is called in all, how often the model of each run is asked the first and the
/// second question, and whether nobody can know what became of a call of the run.
type Row = (Death, [usize; 6], [[usize; 4]; 2], [bool; 4]);

const KNOWN: [bool; 4] = [false; 4];
const ROWS: [Row; 8] = [
    (Death::Started, [1; 6], [[1; 4], [1; 4]], KNOWN),
    (Death::In(TurnStep::Question), [1; 6], [[2; 4], [1; 4]], KNOWN),
    // a tool that only reads runs before anything is stored
    (Death::Behind(TurnStep::Question), [2, 1, 1, 1, 1, 1], [[2; 4], [1; 4]], KNOWN),
    (Death::In(TurnStep::Call), [2, 2, 1, 2, 2, 1], [[1; 4], [1; 4]], [false, false, true, false]),
    (Death::Behind(TurnStep::Call), [2, 2, 1, 2, 2, 1], [[1; 4], [1; 4]], [false, false, true, true]),
    (Death::In(TurnStep::Result), [1; 6], [[1; 4], [2; 4]], KNOWN),
    (Death::Behind(TurnStep::Result), [1; 6], [[1; 4], [2; 4]], KNOWN),
    (Death::Ended, [1; 6], [[1; 4], [1; 4]], KNOWN),
];

fn config(server: &TurnServer) -> String {
    let tool = |(name, method, category): (&str, &str, &str)| {
        let url = format!("{}/tools/{name}", server.url());
        format!(
            "[[tools]]\nname = \"{name}\"\ndescription = \"Does it.\"\ncategory = \"{category}\"\nconsequence = \"low\"\n\
             [tools.http]\nmethod = \"{method}\"\nurl = \"{url}\"\n"
        )
    };
    let tools = [
        ("look", "GET", "read"),
        ("reserve", "PUT", "side_effect"),
        ("pay", "POST", "side_effect"),
        ("book", "PUT", "side_effect"),
        ("peek", "GET", "read"),
        ("send", "POST", "side_effect"),
    ];
    tools.map(tool).concat() + "[budgets.tenant]\ntokens_per_day = 1000000000\n"
}

fn with_agent(stage: FaultHarness, server: &TurnServer) -> FaultHarness {
    stage
        .with_config(&config(server))
        // Postgres: writes that are held up keep two connections of those for quick statements, and a request for a run
        // needs one
        .with("REVEILLE_DATABASE__MAX_CONNECTIONS", "16")
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
        .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
        .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", server.url()))
        .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
        .with("REVEILLE_REACT__MAX_TOOL_RESULT_CHARS", "2000")
        .with("REVEILLE_APPROVALS__TOOLS__RESERVE__GATE", "auto")
        .with("REVEILLE_APPROVALS__TOOLS__PAY__GATE", "auto")
        .with("REVEILLE_APPROVALS__TOOLS__BOOK__GATE", "auto")
        .with("REVEILLE_APPROVALS__TOOLS__SEND__GATE", "auto")
}

/// The names by which requests of this step are counted, over all runs.
fn names(step: TurnStep) -> &'static [&'static str] {
    match step {
        TurnStep::Question | TurnStep::Result => &OFFERS,
        TurnStep::Call => &TOOLS,
    }
}

/// Waits until this step is under way in the runs, and what came before it is stored; `asked`: runs until now.
async fn until_under_way(stage: &FaultHarness, server: &TurnServer, step: TurnStep, asked: i64) {
    server.until_asked(step, names(step)).await;
    if step == TurnStep::Call {
        // of a tool that only reads after a while
        stage.until_number(INTENTS, asked).await;
    }
}

/// A run of each task dies in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &TurnServer, tasks: &[String], death: Death) {
    // every run before has ended with an answer
    let ended = stage.source.number(ANSWERS).await.unwrap();
    let (results, files) = (stage.source.number(RESULTS).await.unwrap(), stage.source.number(FILES).await.unwrap());
    let runs = tasks.len() as i64;
    let asked = ended + runs;
    server.begin_count();
    match death {
        Death::In(TurnStep::Call) => {
            let slow = TOOLS.iter().filter(|tool| **tool != "send").map(|tool| (TurnStep::Call, *tool));
            server.hold_each(&slow.collect::<Vec<_>>());
        }
        Death::In(step) | Death::Behind(step) => server.hold(Some(step)),
        Death::Started | Death::Ended => server.hold(None),
    }
    let mut lock = match death {
        Death::Started => Some(WriteLock::take(&stage.source, HeldWrites::Reservations).await),
        _ => None,
    };
    for task in tasks {
        stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    }
    match death {
        Death::Started => stage.until_number(RUNNING, runs).await,
        Death::In(step) => {
            until_under_way(stage, server, step, asked).await;
            if step == TurnStep::Call {
                stage.until_number(RESULTS, results + 1).await;
            }
        }
        Death::Behind(step) => {
            until_under_way(stage, server, step, asked).await;
            let held = if step == TurnStep::Call { HeldWrites::Results } else { HeldWrites::All };
            lock = Some(WriteLock::take(&stage.source, held).await);
            server.hold(None);
            server.until_answered(step, names(step)).await;
            match step {
                TurnStep::Question => server.until_answered(TurnStep::Call, &["look"]).await,
                TurnStep::Call => stage.until_number(FILES, files + 1).await,
                TurnStep::Result => {}
            }
            pause(READING).await;
        }
        Death::Ended => stage.ran(asked).await,
    }
    stage.kill(0).await;
    if let Some(lock) = lock {
        lock.release().await;
    }
    server.hold(None);
    stage.start(0).await;
    stage.ran(asked).await;
}

/// The output of a run that died shows a result of each of these tools. Where the outcome of a call is unknown it says
/// so, and shows none of those that must not be called again.
pub fn assert_results(death: &impl Debug, output: &str, tools: &[&str], is_unknown: bool) {
    assert_eq!(output.contains("outcome_unknown"), is_unknown, "{death:?}: {tools:?}: {output}");
    // a result that is cut, or the answer of an agent, is sent as a text
    let plain = output.replace("\\\"", "\"");
    for tool in tools {
        let is_lost = is_unknown && UNREPEATABLE.contains(tool);
        let is_done = plain.contains(&format!(r#""done": "{tool}""#));
        assert_eq!(is_done, !is_lost, "{death:?}: {tool}: {output}");
    }
}

async fn dies_everywhere(stage: FaultHarness, what: &str) {
    let server = TurnServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let mut tasks = Vec::new();
    for tools in TASKS {
        let never = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
        let offered: Vec<&str> = tools.iter().copied().chain(["read_data_file"]).collect();
        tasks.push(stage.agent_with(&offered, never).await);
    }
    let rounds = servers::drill_turns();
    for (death, calls, questions, unknown) in std::iter::repeat_n(ROWS, rounds).flatten() {
        die(&mut stage, &server, &tasks, death).await;
        let counts = server.counts();
        let made = TOOLS.map(|tool| counts.asked(TurnStep::Call, tool));
        assert_eq!(made, calls, "{death:?}: calls\n{}", stage.logs());
        let each = |step: TurnStep| OFFERS.map(|offer| counts.asked(step, offer));
        let asked = [each(TurnStep::Question), each(TurnStep::Result)];
        assert_eq!(asked, questions, "{death:?}: questions\n{}", stage.logs());
        let keys = counts.keys.iter().map(|(tool, keys)| (tool.as_str(), keys.len()));
        assert!(keys.clone().all(|(_, count)| count == 1), "{death:?}: {:?}", keys.collect::<BTreeMap<_, _>>());
        let outputs = stage.last_outputs(&tasks).await;
        for ((output, tools), is_unknown) in outputs.iter().zip(TASKS).zip(unknown) {
            assert_results(&death, output, tools, is_unknown);
        }
    }
    stage.must_hold(what).await;
    let rows = (ROWS.len() * rounds) as i64;
    let files = [stage.source.number(REFERENCES).await.unwrap(), stage.source.number(FILES).await.unwrap()];
    assert_eq!(files, [rows; 2], "one file for each look, named by its result");
    assert_eq!(stage.source.number(ENTRIES).await.unwrap(), 0, "a result is missing, or stands there twice");
    let answers = 2 * rows * TASKS.len() as i64;
    let uses = [stage.source.number(USES[0]).await.unwrap(), stage.source.number(USES[1]).await.unwrap()];
    assert_eq!(uses, [answers, rows * TOOLS.len() as i64], "calls of models and of tools are counted once");
    let spent = [stage.source.number(SPENT).await.unwrap(), stage.source.number(RESERVED).await.unwrap()];
    assert_eq!(spent, [answers * TOKENS, 0], "each answer is paid once, and nothing stays reserved");
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
