//! `agent`: the loop of an agent as one step. Its conversation is in the run's transcript between the step's intent and
//! its result, so a crash goes on at its last finished turn.

use std::sync::{Arc, Mutex};

use futures::future::BoxFuture;
use serde_json::{Map, Value, json};
use tracing::Instrument;

use crate::agent::{
    AgentOverrides, AgentRequest, AgentResponse, AgentStore, AppendError, CallingAgent, Configured, SummaryCost,
};
use crate::base::invalid::did_you_mean;
use crate::base::metrics::trace;
use crate::base::template::Template;
use crate::domain::approval::ApprovalOverride;
use crate::domain::budget::CallBound;
use crate::domain::credential::references;
use crate::domain::run::{RunError, ToolAttribution, TranscriptEntry, TranscriptMessage, Usage};
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind, StepResult};
use crate::executor::pipeline::reading::{StepReader, given};
use crate::executor::pipeline::scope::{OWN_NAMES, StepScope};
use crate::executor::pipeline::steps::llm::model;
use crate::ports::tool::access::{ToolLimits, check_written};

/// Turns that may be asked for.
const TURNS: std::ops::RangeInclusive<u64> = 1..=100;
/// Turns of the agents of one run count on from these steps, so that the keys of their calls differ.
const TURNS_OF_A_STEP: i64 = 1_000;

struct AgentExecution {
    instruction: Template,
    wishes: AgentOverrides,
    /// The `[[agents]]` entry it comes from.
    name: Option<String>,
    /// Its say in what needs consent. Nobody can be asked in a step, so what it lets through runs, and what it does not
    /// is refused.
    agent: Option<CallingAgent>,
}

/// `{"instruction": …, "system_prompt"?, "model"?, "max_turns"?, "tools"?, "deny_tools"?, "credentials"?}`, or the `name` of a
/// configured one.
pub fn read(value: &Value, reading: &mut StepReader) -> Option<Box<dyn StepKind>> {
    let known = ["name", "instruction", "system_prompt", "model", "max_turns", "tools", "deny_tools", "credentials"];
    let fields = reading.object(value, &known)?;
    let name = reading.text(fields, "name");
    let configured = match &name {
        None => None,
        Some(name) => {
            let agents = &reading.parts.agents;
            let found = agents.iter().find(|agent| agent.name == *name);
            if found.is_none() {
                let hint = did_you_mean(name, agents.iter().map(|agent| agent.name.as_str()));
                reading.below("name").fault(format!("there is no agent `{name}` in [[agents]]{hint}"));
                return None;
            }
            found
        }
    };
    let own = configured.map(Configured::limits).unwrap_or_default();
    let wishes = AgentOverrides {
        system_prompt: reading.text(fields, "system_prompt").or(configured.map(|agent| agent.instruction.clone())),
        model: model(fields, reading).or(configured.and_then(|agent| agent.model.clone())),
        max_turns: reading
            .number(fields, "max_turns", TURNS)
            .map(|n| n as u32)
            .or(configured.and_then(|a| a.max_turns)),
        tools: Arc::new(ToolLimits {
            allow: tools(fields, "tools", reading).or(own.allow),
            deny: own.deny.into_iter().chain(tools(fields, "deny_tools", reading).unwrap_or_default()).collect(),
        }),
        credentials: given(fields, "credentials")
            .map(|list| references(list, &format!("{}/credentials", reading.pointer), reading.faults))
            .unwrap_or_default(),
    };
    reading.need(fields, "instruction")?;
    let instruction = reading.template(fields, "instruction")?;
    let agent = configured.map(Configured::calling);
    Some(Box::new(AgentExecution { instruction, wishes, name, agent }))
}

fn tools(fields: &Map<String, Value>, key: &str, reading: &mut StepReader) -> Option<Vec<String>> {
    let list = given(fields, key)?;
    let place = format!("{}/{key}", reading.pointer);
    let names: Vec<String> = reading.faults.read(list, &place)?;
    let known = reading.parts.tools().clone();
    check_written(&place, &names, known.names(), reading.faults);
    Some(names)
}

impl AgentExecution {
    async fn run(&self, act: &StepAction<'_>) -> Result<StepResult, StepError> {
        let (instruction, steps) = (self.instruction.clone(), self.steps(act.scope));
        let text = act.compute(steps, move |scope| Ok(instruction.prompt(&scope.template, &OWN_NAMES)?)).await?;
        let world = act.world;
        let metadata = [
            ("source", json!("pipeline")),
            ("run_id", json!(world.run_id)),
            ("task_id", json!(world.task_id)),
            ("step", json!(act.step)),
        ];
        let transcript = StepTranscript::new(world.store.clone(), act.step);
        let incoming = AgentRequest {
            tenant: world.tenant.clone(),
            run_id: world.run_id,
            attribution: ToolAttribution { agent: self.name.clone(), step: Some(act.place()), turn: 0 },
            text,
            metadata: metadata.into_iter().map(|(key, value)| (key.to_owned(), value)).collect(),
            continues: false,
            wishes: self.wishes.clone(),
            first_turn: act.position * TURNS_OF_A_STEP,
            timezone: world.timezone,
            channel: world.channel.clone(),
            agent: self.agent.clone(),
            asking: None,
            host: world.host.clone(),
            store: Arc::new(transcript),
            stop: world.stop.clone(),
            slot: world.slot.clone(),
            sink: world.sink.clone(),
            clock: world.clock.clone(),
            known: world.known.clone(),
        };
        let span = trace::invoke_agent(self.name.as_deref().unwrap_or("agent"));
        match world.parts.agent.handle_message(&incoming).instrument(span.clone()).await {
            // what it used is in its own entries
            Ok(AgentResponse::Answered(result)) => Ok(StepResult::plain(json!(result.response))),
            Ok(AgentResponse::Refused { reason }) => Err(StepFault::new("refused", reason).into()),
            Ok(AgentResponse::Suspended(_)) => unreachable!("nobody can be asked here"),
            Err(error) => {
                trace::fail(&span, error.code());
                Err(error.into())
            }
        }
    }
}

impl StepKind for AgentExecution {
    fn effect(&self) -> Effect {
        Effect::Repeatable
    }

    fn steps(&self, scope: &StepScope) -> u64 {
        self.instruction.steps(&scope.template)
    }

    fn shown(&self, scope: &StepScope) -> Result<Value, StepFault> {
        let instruction = self.instruction.prompt(&scope.template, &OWN_NAMES)?;
        let AgentOverrides { model, max_turns, tools, .. } = &self.wishes;
        Ok(json!({
            "name": self.name, "instruction": instruction, "model": model, "max_turns": max_turns, "tools": tools.allow,
            "deny_tools": tools.deny,
        }))
    }

    fn perform<'a>(&'a self, act: &'a StepAction<'a>) -> BoxFuture<'a, Result<StepResult, StepError>> {
        Box::pin(self.run(act))
    }
}

/// The part of a run's transcript that is one agent's conversation: what is said between a step's first intent and its
/// result. It counts its entries from 0.
struct StepTranscript {
    store: Arc<dyn AgentStore>,
    step: String,
    numbers: Mutex<EntryNumbers>,
}

/// The numbers in the run of an agent's entries.
#[derive(Debug, Clone, Default)]
struct EntryNumbers {
    /// Of the entries that were there when the transcript was read.
    read: Vec<i64>,
    /// Of the next one; those behind it follow without a gap.
    next: i64,
}

impl StepTranscript {
    fn new(store: Arc<dyn AgentStore>, step: &str) -> StepTranscript {
        StepTranscript { store, step: step.to_owned(), numbers: Mutex::default() }
    }

    /// The entries with their numbers in the run.
    fn numbered_in_run(&self, entries: Vec<TranscriptEntry>) -> Vec<TranscriptEntry> {
        let numbers = self.numbers.lock().expect("numbers lock").clone();
        entries.into_iter().map(|entry| renumbered(entry, |own| numbers.in_run(own))).collect()
    }
}

impl EntryNumbers {
    fn in_run(&self, own: i64) -> i64 {
        let index = usize::try_from(own).unwrap_or_default();
        self.read.get(index).copied().unwrap_or(self.next + own - self.read.len() as i64)
    }

    fn of_own(&self, in_run: i64) -> i64 {
        self.read.partition_point(|number| *number < in_run) as i64
    }
}

impl AgentStore for StepTranscript {
    fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
        Box::pin(async {
            let all = self.store.load().await?;
            let own = own(&all, &self.step);
            let read = own.iter().map(|entry| entry.seq).collect();
            let numbers = EntryNumbers { read, next: all.last().map_or(0, |last| last.seq + 1) };
            *self.numbers.lock().expect("numbers lock") = numbers.clone();
            Ok(own.into_iter().map(|entry| renumbered(entry, |number| numbers.of_own(number))).collect())
        })
    }

    fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
        self.store.append(self.numbered_in_run(entries))
    }

    fn append_and_reserve(
        &self,
        entries: Vec<TranscriptEntry>,
        turn: i64,
        bound: CallBound,
    ) -> BoxFuture<'_, Result<bool, AppendError>> {
        self.store.append_and_reserve(self.numbered_in_run(entries), turn, bound)
    }

    fn defer(&self, entries: Vec<TranscriptEntry>) {
        self.store.defer(self.numbered_in_run(entries));
    }

    fn is_budgeted(&self) -> bool {
        self.store.is_budgeted()
    }

    fn reserve(&self, turn: i64, bound: CallBound) -> BoxFuture<'_, Result<(), RunError>> {
        self.store.reserve(turn, bound)
    }

    fn note_cut(&self, usage: Usage) {
        self.store.note_cut(usage);
    }

    fn overrides<'a>(
        &'a self,
        agent: Option<&'a str>,
        tool: &'a str,
    ) -> BoxFuture<'a, Result<Vec<ApprovalOverride>, AppendError>> {
        self.store.overrides(agent, tool)
    }

    fn reserve_summary(&self, cost: SummaryCost) -> BoxFuture<'_, bool> {
        self.store.reserve_summary(cost)
    }

    fn give_summary_back(&self, micros: i64) -> BoxFuture<'_, ()> {
        self.store.give_summary_back(micros)
    }
}

fn renumbered(entry: TranscriptEntry, number: impl Fn(i64) -> i64) -> TranscriptEntry {
    TranscriptEntry { seq: number(entry.seq), message: entry.message.renumbered(number), ..entry }
}

/// The agent's entries since the step's first intent.
fn own(all: &[TranscriptEntry], step: &str) -> Vec<TranscriptEntry> {
    let begins =
        |entry: &TranscriptEntry| matches!(&entry.message, TranscriptMessage::Step { name, .. } if name == step);
    let from = all.iter().position(begins).unwrap_or(all.len());
    all[from..].iter().filter(|entry| !entry.message.is_of_ledger()).cloned().collect()
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::domain::run::transcript::{Compaction, CompactionKind, LEDGER};

    fn entry(seq: i64, message: TranscriptMessage) -> TranscriptEntry {
        let (at, usage) = (DateTime::UNIX_EPOCH, Usage::default());
        TranscriptEntry { seq, turn: 0, at, message, usage, duration_ms: None, model_call: None, tool_record: None }
    }

    fn compaction(from: i64, to: i64, pinned: &[i64]) -> TranscriptMessage {
        TranscriptMessage::Compaction(Compaction { from, to, pinned: pinned.to_vec(), by: CompactionKind::Dropped })
    }

    #[derive(Default)]
    struct Entries(Mutex<Vec<TranscriptEntry>>);

    impl AgentStore for Entries {
        fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
            Box::pin(async { Ok(self.0.lock().unwrap().clone()) })
        }

        fn append(&self, entries: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
            self.0.lock().unwrap().extend(entries);
            Box::pin(std::future::ready(Ok(())))
        }

        fn defer(&self, _: Vec<TranscriptEntry>) {}
    }

    #[tokio::test]
    async fn compaction_names_entries_of_the_run_there_and_the_agent_s_own_to_the_agent() {
        let intent = || TranscriptMessage::Step { name: "ask".into(), index: None, ledger: LEDGER };
        let said = TranscriptMessage::user;
        let other = TranscriptMessage::Step { name: "other".into(), index: None, ledger: LEDGER };
        let messages = [other, intent(), said("a"), said("b"), intent(), said("c")];
        let entries = (0..).zip(messages).map(|(seq, message)| entry(seq, message)).collect();
        let store = Arc::new(Entries(Mutex::new(entries)));
        let transcript = StepTranscript::new(store.clone(), "ask");
        let seqs = |entries: &[TranscriptEntry]| entries.iter().map(|entry| entry.seq).collect::<Vec<_>>();
        assert_eq!(seqs(&transcript.load().await.unwrap()), [0, 1, 2]);

        transcript.append(vec![entry(3, said("d")), entry(4, compaction(1, 3, &[2]))]).await.unwrap();
        let stored = store.0.lock().unwrap()[6..].to_vec();
        assert_eq!(stored, [entry(6, said("d")), entry(7, compaction(3, 6, &[5]))]);
        let again = StepTranscript::new(store, "ask").load().await.unwrap();
        assert_eq!(again[3..], [entry(3, said("d")), entry(4, compaction(1, 3, &[2]))]);
    }
}
