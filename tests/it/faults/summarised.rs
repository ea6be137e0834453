//! `kill -9` around a summary: the run ends right, with the summary or without, no turn that is stored is asked for
//! again, and each call of a model that is on the record is paid once. What a dead process had asked for and not stored
//! is asked for again.

use reveille::base::clock::pause;
use serde_json::json;

use super::harness::FaultHarness;
use super::summary_server::{
    HeldRequests, LAST_TURN, PAGES, SUMMARISED_FROM, SUMMARISER, SummaryCounts, SummaryServer,
};
use super::turns::READING;
use super::write_lock::{HeldWrites, WriteLock};
use crate::support::postgres::Database;
use crate::support::servers;

const RUNS: &str = "select count(*) from runs";
/// Summaries on the record, and those of which it says that they could not be used.
const SUMMARIES: &str = "select count(*) from turns where cast(body as text) like '%summarised%'";
const UNUSABLE: &str = "select count(*) from turns where cast(body as text) like '%summary_unusable%'";
/// Reservations that are left, and tokens that are reserved.
const RESERVED: &str = "
    select (select count(*) from budget_reservations)
         + (select cast(coalesce(sum(reserved_tokens), 0) as bigint) from budget_days)";
/// Tokens of all entries, by themselves, in the sums of their runs, in the ledger of the tenant's days and in the usage
/// that is counted.
const TOKENS: [&str; 4] = [
    "select cast(sum(input_tokens + output_tokens) as bigint) from turns",
    "select cast(sum(input_tokens + output_tokens) as bigint) from runs",
    "select cast(coalesce(sum(d.tokens), 0) as bigint) from budget_days d
      where not exists (select 1 from tasks t where t.id = d.task_id)",
    "select cast(sum(input_tokens + output_tokens) as bigint) from usage_days where kind = 'model'",
];

/// A place in the life of a summary in which the service dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// It is reserved and asked for, beside the turn with which it was begun.
    UnderWay,
    /// It is written, and the turn beside it is under way: the process alone knows it.
    Written,
    /// It is about to be stored, with the result of the turn beside it.
    Storing,
    /// It is stored, and shown in the turn that is under way.
    Shown,
    /// It has no answer as the run ends, and the end is not stored: it is broken off once more.
    BrokenOff,
    /// The run has ended.
    Ended,
}

/// Where it dies, the turn that is asked for twice, how often the last page is read, and how often a summary is asked
/// for.
const ROWS: [(Death, Option<u64>, usize, usize); 6] = [
    (Death::UnderWay, Some(PAGES), 1, 2),
    (Death::Written, Some(PAGES), 1, 2),
    // a tool that only reads is called before the turn is stored
    (Death::Storing, Some(PAGES), 2, 2),
    (Death::Shown, Some(LAST_TURN), 1, 1),
    (Death::BrokenOff, Some(LAST_TURN), 1, 2),
    (Death::Ended, None, 1, 1),
];

fn config(server: &SummaryServer) -> String {
    let url = format!("{}/pages/{{{{ args.page }}}}", server.url());
    format!(
        "[[tools]]\nname = \"look\"\ndescription = \"Reads a page.\"\ncategory = \"read\"\nconsequence = \"low\"\n\
         parameters = {{ type = \"object\", required = [\"page\"], properties = {{ page = {{ type = \"integer\" }} }} }}\n\
         [tools.http]\nmethod = \"GET\"\nurl = \"{url}\"\n\
         [budgets.tenant]\ntokens_per_day = 1000000000\n"
    )
}

fn with_agent(stage: FaultHarness, server: &SummaryServer) -> FaultHarness {
    let model = |stage: FaultHarness, name: &str, model: &str| {
        let of = |key: &str| format!("REVEILLE_LLM__MODELS__{name}__{key}");
        stage
            .with(&of("PROVIDER"), "openai")
            .with(&of("MODEL"), model)
            .with(&of("BASE_URL"), &format!("{}/v1", server.url()))
            .with(&of("STREAM"), "false")
    };
    let stage = model(stage.with_config(&config(server)), "MAIN", "model-7");
    model(stage, "SMALL", SUMMARISER)
        .with("REVEILLE_DATABASE__MAX_CONNECTIONS", "16")
        .with("REVEILLE_CONTEXT__SUMMARY_MODEL", "small")
        .with("REVEILLE_CONTEXT__SUMMARISE_FROM_MESSAGES", SUMMARISED_FROM)
        .with("REVEILLE_CONTEXT__SUMMARY_TIMEOUT_SECONDS", "120")
        .with("REVEILLE_CONTEXT__SUMMARY_CACHE_HOURS", "0")
        .with("REVEILLE_CONTEXT__REFOCUS_EVERY_ROUNDS", "0")
        .with("REVEILLE_REACT__MAX_TURNS", "20")
}

async fn number(stage: &FaultHarness, query: &'static str) -> i64 {
    stage.source.number(query).await.unwrap()
}

fn turns(counts: &SummaryCounts, turn: u64) -> usize {
    counts.turns.get(&turn).copied().unwrap_or_default()
}

/// Waits until the service has had time to read a summary that was answered.
async fn until_written(server: &SummaryServer) {
    server.until("a summary is answered", |counts| counts.summaries_answered > 0).await;
    pause(READING).await;
}

/// A run dies in this place with the service, which then starts again.
async fn die(stage: &mut FaultHarness, server: &SummaryServer, task: &str, death: Death) {
    let ended = number(stage, RUNS).await + 1;
    server.begin_count();
    let last_page = HeldRequests { turn: Some(PAGES), summaries: false };
    let last_turn = HeldRequests { turn: Some(LAST_TURN), summaries: false };
    server.hold(match death {
        Death::UnderWay => HeldRequests { summaries: true, ..last_page },
        Death::Written | Death::Storing => last_page,
        Death::Shown => last_turn,
        Death::BrokenOff => HeldRequests { summaries: true, ..last_turn },
        Death::Ended => HeldRequests::default(),
    });
    let summaries = number(stage, SUMMARIES).await;
    stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
    let mut lock = None;
    match death {
        Death::UnderWay => {
            server.until("both are asked for", |counts| turns(counts, PAGES) == 1 && counts.summaries == 1).await;
        }
        Death::Written => until_written(server).await,
        Death::Storing => {
            until_written(server).await;
            lock = Some(WriteLock::take(&stage.source, HeldWrites::All).await);
            server.hold(HeldRequests::default());
            server.until("the last page is read", |counts| counts.pages.contains_key(&PAGES)).await;
            // it is answered after as long a time
            pause(2 * READING).await;
        }
        Death::Shown => {
            server.until("the answer is asked for", |counts| turns(counts, LAST_TURN) == 1).await;
            assert_eq!(number(stage, SUMMARIES).await, summaries + 1, "it is stored before it is shown");
        }
        Death::BrokenOff => {
            server.until("the answer is asked for", |counts| turns(counts, LAST_TURN) == 1).await;
            lock = Some(WriteLock::take(&stage.source, HeldWrites::Ends).await);
            server.hold(HeldRequests { turn: None, summaries: true });
            server.until("there is an answer", |counts| counts.turns_answered.contains_key(&LAST_TURN)).await;
            pause(READING).await;
        }
        Death::Ended => stage.ran(ended).await,
    }
    stage.kill(0).await;
    if let Some(lock) = lock {
        lock.release().await;
    }
    if matches!(death, Death::BrokenOff) {
        server.hold(HeldRequests { summaries: true, ..last_turn });
    }
    stage.start(0).await;
    if matches!(death, Death::BrokenOff) {
        server.until("both are asked for again", |counts| turns(counts, LAST_TURN) == 2 && counts.summaries == 2).await;
        server.hold(HeldRequests { turn: None, summaries: true });
    } else {
        server.hold(HeldRequests::default());
    }
    stage.ran(ended).await;
}

async fn dies_everywhere(stage: FaultHarness, place: &str) {
    let server = SummaryServer::start().await;
    let mut stage = with_agent(stage, &server);
    stage.start(0).await;
    let never = json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
    let task = stage.agent_with(&["look"], never).await;
    for (death, again, last_pages, summaries) in std::iter::repeat_n(ROWS, servers::drill_turns()).flatten() {
        let before = [number(&stage, SUMMARIES).await, number(&stage, UNUSABLE).await];
        die(&mut stage, &server, &task, death).await;
        let counts = server.counts();
        for turn in 1..=LAST_TURN {
            let expected = if again == Some(turn) { 2 } else { 1 };
            assert_eq!(turns(&counts, turn), expected, "{death:?}: turn {turn}: {counts:?}\n{}", stage.logs());
        }
        for page in 1..=PAGES {
            let expected = if page == PAGES { last_pages } else { 1 };
            assert_eq!(counts.pages.get(&page), Some(&expected), "{death:?}: page {page}: {counts:?}");
        }
        assert_eq!(counts.summaries, summaries, "{death:?}: {counts:?}\n{}", stage.logs());
        let is_broken_off = matches!(death, Death::BrokenOff);
        let recorded = [number(&stage, SUMMARIES).await - before[0], number(&stage, UNUSABLE).await - before[1]];
        assert_eq!(recorded, if is_broken_off { [0, 1] } else { [1, 0] }, "{death:?}: one entry of the summary");
        let outputs = stage.last_outputs(std::slice::from_ref(&task)).await;
        assert_eq!(outputs, [format!("All is read, summary: {}", !is_broken_off)], "{death:?}");
        let mut sums = Vec::new();
        for query in TOKENS {
            sums.push(number(&stage, query).await);
        }
        assert_eq!(sums, [sums[0]; 4], "{death:?}: what is on the record is paid and counted once");
        assert_eq!(number(&stage, RESERVED).await, 0, "{death:?}: nothing stays reserved");
    }
    stage.must_hold(place).await;
}

#[tokio::test]
async fn on_sqlite_a_run_with_a_summary_ends_right_wherever_the_service_is_killed() {
    dies_everywhere(FaultHarness::sqlite().await, "sqlite, kills around a summary").await;
}

#[tokio::test]
async fn on_postgres_a_run_with_a_summary_ends_right_wherever_the_service_is_killed() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    dies_everywhere(stage, "postgres, kills around a summary").await;
}
