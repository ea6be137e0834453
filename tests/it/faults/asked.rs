//! `kill -9` around the question of an MCP server in the middle of a call: the server gets a person's answer at most
//! once, and exactly once where nothing of that had begun.

use std::time::Instant;

use reveille::base::clock::pause;
use serde_json::{Value, json};

use super::approved::question;
use super::harness::{FaultHarness, PATIENCE};
use super::turn_server::{TurnServer, TurnStep};
use super::write_lock::{HeldWrites, WriteLock};
use crate::support::mcp::McpFixture;
use crate::support::postgres::Database;
use crate::support::servers;

/// The one tool, and its name for the model.
const TOOL: &str = "one.confirm";
const OFFERED: &str = "one__confirm";
const QUESTIONS: &str = "select count(*) from approvals";
const WAITING: &str = "select count(*) from runs where state = 'waiting_for_input'";

/// A place in the life of such a call in which the service dies.
#[derive(Debug, Clone, Copy)]
enum Death {
    /// The server has asked, and its question is not stored.
    BeforeQuestion,
    /// The question is stored, and nobody has answered.
    Waiting,
    /// The server has the answer, and its result is not stored.
    Begun,
    /// The result is on its way to the model.
    Told,
}

impl Death {
    /// Whether nobody can know what became of the call.
    fn is_unknown(self) -> bool {
        matches!(self, Death::BeforeQuestion | Death::Begun)
    }

    /// How often a person is asked, and the server answered.
    fn questions(self) -> usize {
        if matches!(self, Death::BeforeQuestion) { 0 } else { 1 }
    }
}

/// A service, the model of its agents, and the server that asks.
struct AskedStage {
    stage: FaultHarness,
    model: TurnServer,
    fixture: McpFixture,
    /// Runs so far.
    runs: i64,
    /// Questions so far, and requests to the server that carry an answer.
    answers: usize,
}

impl AskedStage {
    async fn new(stage: FaultHarness) -> AskedStage {
        let (model, fixture) = (TurnServer::start().await, McpFixture::new());
        let config = format!(
            "[[mcp_servers]]\nname = \"one\"\ncommand = {}\n[approvals.tools.\"{TOOL}\"]\ngate = \"auto\"\n",
            json!(fixture.command())
        );
        let mut stage = stage
            .with_config(&config)
            .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
            .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "model-7")
            .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", &format!("{}/v1", model.url()))
            .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false");
        stage.start(0).await;
        AskedStage { stage, model, fixture, runs: 0, answers: 0 }
    }

    /// The requests that the server has got, each with the answer in it.
    fn requests(&self) -> Vec<Value> {
        let calls = self.fixture.journal().into_iter().filter(|line| line.get("confirm").is_some());
        calls.map(|line| line["answer"].clone()).collect()
    }

    /// Waits until the server has got so many requests more than `before`.
    async fn until_requested(&self, before: usize, more: usize) {
        let begun = Instant::now();
        while self.requests().len() < before + more {
            assert!(begun.elapsed() < PATIENCE, "the server is not asked\n{}", self.stage.logs());
            pause(std::time::Duration::from_millis(20)).await;
        }
    }

    async fn until_waiting(&self) {
        self.stage.until_number(QUESTIONS, self.answers as i64 + 1).await;
        self.stage.until_number(WAITING, 1).await;
    }

    /// A person answers.
    async fn answer(&self) {
        let question = question(&self.stage, TOOL).await;
        let path = format!("/v1/runs/{}/input", question["run_id"].as_str().expect("its run"));
        self.stage.post(&path, &json!({ "fields": { "sure": true } })).await;
    }

    async fn reborn(&mut self, lock: Option<WriteLock>) {
        self.stage.kill(0).await;
        if let Some(lock) = lock {
            lock.release().await;
        }
        self.model.hold(None);
        self.stage.start(0).await;
    }

    /// A run of the task dies in this place with the service, which then starts again.
    async fn die(&mut self, task: &str, death: Death) {
        let before = self.requests().len();
        self.model.begin_count();
        if matches!(death, Death::BeforeQuestion) {
            self.model.hold(Some(TurnStep::Question));
        }
        self.stage.post(&format!("/v1/tasks/{task}/run"), &json!({})).await;
        match death {
            Death::BeforeQuestion => {
                self.model.until_asked(TurnStep::Question, &[OFFERED]).await;
                let lock = WriteLock::take(&self.stage.source, HeldWrites::Ends).await;
                self.model.hold(None);
                self.until_requested(before, 1).await;
                self.reborn(Some(lock)).await;
            }
            Death::Waiting => {
                self.until_waiting().await;
                self.reborn(None).await;
                self.answer().await;
            }
            Death::Begun => {
                self.until_waiting().await;
                let lock = WriteLock::take(&self.stage.source, HeldWrites::Results).await;
                self.answer().await;
                self.until_requested(before, 2).await;
                self.reborn(Some(lock)).await;
            }
            Death::Told => {
                self.until_waiting().await;
                self.model.hold(Some(TurnStep::Result));
                self.answer().await;
                self.model.until_asked(TurnStep::Result, &[OFFERED]).await;
                self.reborn(None).await;
            }
        }
        self.runs += 1;
        self.answers += death.questions();
        self.stage.ran(self.runs).await;
        self.check(task, death, before).await;
    }

    async fn check(&self, task: &str, death: Death, before: usize) {
        let answered = json!({ "sure": true });
        let expected: Vec<Value> = [Value::Null].into_iter().chain(vec![answered; death.questions()]).collect();
        assert_eq!(self.requests()[before..], expected, "{death:?}\n{}", self.stage.logs());
        let questions = self.stage.source.number(QUESTIONS).await.unwrap();
        assert_eq!(questions, self.answers as i64, "{death:?}: a person is asked once");
        let output = self.stage.last_outputs(&[task.to_owned()]).await.remove(0);
        assert_eq!(output.contains("outcome_unknown"), death.is_unknown(), "{death:?}: {output}");
        assert_eq!(output.contains("deployed to prod"), !death.is_unknown(), "{death:?}: {output}");
    }
}

async fn dies_everywhere(stage: FaultHarness, place: &str) {
    let mut asked = AskedStage::new(stage).await;
    let never = || json!({ "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" });
    let task = asked.stage.agent_with(&[TOOL], never()).await;
    let step = asked.stage.agent_step_with(&[TOOL], never()).await;
    for _ in 0..servers::drill_turns() {
        for death in [Death::BeforeQuestion, Death::Waiting, Death::Begun, Death::Told] {
            asked.die(&task, death).await;
        }
        // the agent of a step waits like any other
        asked.die(&step, Death::Waiting).await;
    }
    asked.stage.must_hold(place).await;
}

#[tokio::test]
async fn on_sqlite_a_server_gets_an_answer_at_most_once_wherever_the_service_is_killed() {
    dies_everywhere(FaultHarness::sqlite().await, "sqlite, kills around the question of a server").await;
}

#[tokio::test]
async fn on_postgres_a_server_gets_an_answer_at_most_once_wherever_the_service_is_killed() {
    let database = Database::empty().await;
    let stage = FaultHarness::postgres(1, &database.url, &database.url).await;
    dies_everywhere(stage, "postgres, kills around the question of a server").await;
}
