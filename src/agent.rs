//! The agent: a message goes in, an answer comes out, and what it took is in the transcript.
//!
//! Owns the way of a message (prepare, judge, loop, account) and the ports it needs. Reaches storage only through
//! [`AgentStore`] and [`crate::ports::tool::ToolHost`]. The transcript survives a crash: see `react.rs`.

mod answer;
pub mod budget;
mod calls;
pub mod checkpoint;
pub mod configured;
mod consent;
pub mod context;
pub mod gate;
mod loops;
mod prompt;
mod react;
mod request;
mod round;
pub mod ruling;
pub mod settings;
mod slot;
pub mod stop;
mod stream;
pub mod tool_offers;
pub mod verify;

use std::sync::Arc;
use std::time::Duration;

use crate::agent::answer::tool_absent;
use crate::agent::calls::ToolRunner;
use crate::agent::calls::delegation::check_schema;
use crate::agent::calls::result_cache::ResultCache;
use crate::agent::checkpoint::{Checkpoint, NewEntry, run_error};
use crate::agent::configured::agent_tool::AgentTool;
use crate::agent::consent::Consent;
use crate::agent::context::ContextWindow;
use crate::agent::context::active_skills::SkillScope;
use crate::agent::context::settings::ContextSettings;
use crate::agent::context::summary::{SummaryCache, SummaryWriter};
use crate::agent::context::view::ModelView;
use crate::agent::gate::pending_agents::{answer_message, result_message};
use crate::agent::gate::{Gate, GateRefusal};
use crate::agent::loops::LoopDetector;
use crate::agent::prompt::Prompt;
use crate::agent::prompt::memory::{has_heard_person, memory_of};
use crate::agent::react::{LoopEnd, ReactLoop};
use crate::agent::stream::StreamEmitter;
use crate::agent::tool_offers::ToolOffers;
use crate::agent::verify::{AnswerVerification, Verifiers};
use crate::base::compute::Compute;
use crate::domain::approval::Policy;
use crate::domain::memory::PersonWords;
use crate::domain::run::outcome::REASON_BUDGET;
use crate::domain::run::{RunError, TranscriptMessage};
use crate::ports::llm::Models;
use crate::ports::llm::fallback::Chain;
use crate::ports::skill::SkillLibrary;
use crate::ports::tool::builtin::memory::REMEMBER;
use crate::ports::tool::builtin::skills::USE_SKILL;
use crate::ports::tool::offer::NotOffered;
use crate::ports::tool::{ToolCatalog, ToolRegistry};

pub use answer::{AgentResponse, Suspension};
pub use checkpoint::agent_store::{AgentStore, AppendError, SummaryCost};
pub use checkpoint::transcript_slice::TranscriptSlice;
pub use configured::{AgentDefinition, CallingAgent};
pub use consent::of_step::{StepAdmission, StepCall};
pub use gate::pending_agents::{PendingAgents, PendingChecks, PendingVerdict};
pub use prompt::channel_limits::ChannelLimits;
pub use prompt::context_source::{ContextSource, ContextSources, SOURCE_CHARS};
pub use prompt::extraction::{ExtractedFact, ExtractionMaterial, MOST_EXTRACTED, MemorySettings, read_facts};
pub use request::{AgentOverrides, AgentRequest, ApprovalContext, CHAT, FROM_AGENT, STEP, StreamSink, TRIGGER};
pub use settings::Settings;
pub use slot::{RunSlot, SharedSlot, SlotTurn, TimedSlot, UncountedSlot, slot_turn, wait_without_slot};
pub use stop::{LoopStopReason, StopSignal};

/// Models, tools and settings of the agent, shared by all runs. Cheap to clone.
#[derive(Clone)]
pub struct Agent {
    /// Chains of models, by the names of the settings.
    pub models: Models,
    /// Tools that may be called.
    pub tools: Arc<ToolRegistry>,
    /// Where they come from; `None`: they do not change.
    pub catalog: Option<ToolCatalog>,
    /// The selections of them that were offered lately.
    pub offers: ToolOffers,
    /// The results that are kept of them.
    pub results: ResultCache,
    /// Configured agents that others may call; each is one of the tools, too.
    pub agents: Arc<Vec<Arc<AgentTool>>>,
    /// Skills that agents may use.
    pub skills: SkillLibrary,
    /// Settings of `[react]`.
    pub settings: Settings,
    /// Settings of `[context]`.
    pub context: ContextSettings,
    /// Facts are extracted from what was said, once its run has ended.
    pub extracts: bool,
    /// Summaries of conversations that were written lately.
    pub summaries: SummaryCache,
    /// Approval rules of the operator.
    pub policy: Policy,
    /// Computes what calls are judged by.
    pub compute: Compute,
    /// Checks before the first model call of a run.
    pub gate: Gate,
    /// Agents of an embedder that may wait for a message.
    pub pending: PendingChecks,
    /// Texts of an embedder for the instructions of runs.
    pub sources: ContextSources,
    /// Checks of an answer before anybody is told of it.
    pub verifiers: Verifiers,
}

/// Everything that is made before the first model call.
struct PreparedRequest<'a> {
    incoming: &'a AgentRequest,
    chain: Chain,
    window: ContextWindow,
    /// Names of the tools that may be called.
    callable: Vec<&'a str>,
    /// Of these, the ones that the model is offered.
    offered: Vec<&'a str>,
    skills: SkillScope,
    system: TranscriptMessage,
    /// Messages of earlier runs, where nothing was said in this one.
    history: Vec<TranscriptMessage>,
    checkpoint: Checkpoint,
    emitter: StreamEmitter,
}

impl Agent {
    /// An agent of these parts.
    pub fn new(
        models: Models,
        tools: Arc<ToolRegistry>,
        settings: Settings,
        policy: Policy,
        compute: Compute,
        gate: Gate,
    ) -> Agent {
        Agent {
            models,
            tools,
            catalog: None,
            offers: ToolOffers::default(),
            results: ResultCache::default(),
            agents: Arc::default(),
            skills: SkillLibrary::empty(),
            settings,
            context: ContextSettings::default(),
            extracts: false,
            summaries: SummaryCache::default(),
            policy,
            compute,
            gate,
            pending: PendingChecks::default(),
            sources: ContextSources::default(),
            verifiers: Verifiers::default(),
        }
    }

    /// The way of every message, whoever sent it. Where the run has a transcript already, goes on behind it.
    pub async fn handle_message(&self, incoming: &AgentRequest) -> Result<AgentResponse, RunError> {
        let mut prepared = self.prepare_context(incoming).await?;
        match self.should_process(&prepared).await {
            Ok(()) => {}
            Err(GateRefusal::Skip(reason)) => return Ok(AgentResponse::Refused { reason }),
            Err(GateRefusal::NotNow) => return Err(RunError::HandBack),
        }
        self.check_named_tools(&prepared)?;
        // an endpoint may be asked for it: nothing of a message that the gate refuses goes out
        let told = memory_of(incoming, &self.tools, &prepared.window, prepared.checkpoint.entries()).await;
        prepared.system.add_facts(told);
        check_schema(incoming, prepared.checkpoint.entries())?;
        if let Some(reason) = self.check_pending_agents(&mut prepared).await? {
            return Ok(AgentResponse::Refused { reason });
        }
        Ok(match self.react_loop(prepared).await? {
            LoopEnd::Answered(result) => {
                incoming.log_account(&result);
                incoming.note_content(&result.response).await;
                AgentResponse::Answered(result)
            }
            LoopEnd::Suspended(suspension) => AgentResponse::Suspended(suspension),
            // a run of which nothing has happened is not begun; a step belongs to one that has
            LoopEnd::Refused(_) if incoming.attribution.step.is_none() => {
                AgentResponse::Refused { reason: REASON_BUDGET.into() }
            }
            LoopEnd::Refused(fault) => return Err(RunError::Fail { fault }),
        })
    }

    async fn prepare_context<'a>(&'a self, incoming: &'a AgentRequest) -> Result<PreparedRequest<'a>, RunError> {
        let chain = self.chain(incoming, None)?;
        let checkpoint = Checkpoint::load(incoming.store.clone(), incoming.clock.clone()).await?;
        // of a run that has begun the message was let through, and the loop measures the whole
        if checkpoint.is_empty() {
            chain.measure_text(&incoming.text, &self.compute).await;
        }
        let window = ContextWindow::new(&self.settings, &self.context, chain.counter(), chain.context_token_limit());
        let overrides = &incoming.overrides;
        let (mut callable, mut offered) = (Vec::new(), Vec::new());
        for tool in self.tools.definitions() {
            let offer = self.tools.offer(Some(incoming.tenant.as_str()), &overrides.tools, tool);
            if offer.map_or_else(NotOffered::may_be_called, |()| true) {
                callable.push(tool.name.as_str());
            }
            if offer.is_ok() {
                offered.push(tool.name.as_str());
            }
        }
        let skills = SkillScope::new(self.skills.current(), incoming.skills.clone());
        let catalogue = skills.catalogue().filter(|_| offered.contains(&USE_SKILL));
        let added = self.sources.texts(incoming.gate_message(), &incoming.clock).await;
        let prompt = Prompt {
            persona: incoming.overrides.system_prompt.as_deref().unwrap_or(&self.settings.system_prompt),
            added: &added,
            now: incoming.clock.now(),
            timezone: incoming.timezone,
            locale: incoming.locale.as_deref(),
            tools: &offered,
            skills: catalogue.as_deref(),
            channel: incoming.carrier(),
            is_called: incoming.delegation.is_some(),
        };
        let system = TranscriptMessage::system(prompt.text());
        let history = match incoming.continues && checkpoint.is_empty() {
            true => incoming.store.earlier().await.map_err(run_error)?,
            false => Vec::new(),
        };
        let emitter = StreamEmitter::new(incoming.sink.clone());
        Ok(PreparedRequest { incoming, chain, window, callable, offered, skills, system, history, checkpoint, emitter })
    }

    /// Whether the message may go to the model at all: one check after the other. A run that has begun goes on.
    async fn should_process(&self, prepared: &PreparedRequest<'_>) -> Result<(), GateRefusal> {
        let (incoming, text) = (prepared.incoming, &prepared.incoming.text);
        if !prepared.checkpoint.is_empty() {
            return Ok(());
        }
        if text.trim().is_empty() {
            return Err(GateRefusal::Skip("empty_message".into()));
        }
        if prepared.window.overflows_with(text) {
            return Err(GateRefusal::Skip("message_too_long".into()));
        }
        self.gate.admit(incoming.gate_message(), &incoming.clock).await
    }

    /// Fails where the message needs a tool that its MCP server has not listed, or that waits to be accepted: without
    /// it the model would answer all the same. Behind an answer no tool is needed.
    fn check_named_tools(&self, prepared: &PreparedRequest<'_>) -> Result<(), RunError> {
        let PreparedRequest { incoming, checkpoint, .. } = prepared;
        match self.tools.named_but_absent(incoming.tenant.as_str(), &incoming.overrides.tools) {
            Some((tool, absence)) if checkpoint.answer().is_none() => Err(tool_absent(tool, absence)),
            Some(_) | None => Ok(()),
        }
    }

    /// Where an agent waited for the message, its answer is that of the run, and the loop finds it on the record; a
    /// result of it stands before the message. Answers the reason for which the message is refused.
    async fn check_pending_agents(&self, prepared: &mut PreparedRequest<'_>) -> Result<Option<String>, RunError> {
        let PreparedRequest { incoming, window, system, history, checkpoint, .. } = prepared;
        if !checkpoint.is_empty() || incoming.delegation.is_some() {
            return Ok(None);
        }
        let (result, answer) = match self.pending.take(incoming.gate_message(), &incoming.clock).await? {
            PendingVerdict::Continue => return Ok(None),
            PendingVerdict::Refuse(reason) => return Ok(Some(reason)),
            PendingVerdict::Answer(text) => (None, Some(NewEntry::plain(answer_message(text)))),
            PendingVerdict::Done(result) => (Some(result_message(&window.cut_result(&result))), None),
        };
        let before = std::mem::take(history).into_iter().chain(result);
        checkpoint.add(incoming.first_turn, incoming.initial_entries(system.clone(), before));
        checkpoint.add(incoming.first_turn + 1, answer.into_iter().collect());
        checkpoint.flush().await.map(|()| None)
    }

    /// The agent of this name, if it may be called.
    fn called(&self, name: &str) -> Option<&AgentTool> {
        self.agents.iter().find(|agent| agent.name() == name).map(Arc::as_ref)
    }

    /// The models that answer; `skill`: the one that a skill asks for, if there is such a one.
    fn chain(&self, incoming: &AgentRequest, skill: Option<&str>) -> Result<Chain, RunError> {
        let of_skill = skill.filter(|name| self.models.has(Some(name)));
        let model = of_skill.or(incoming.overrides.model.as_deref());
        let chain = self.models.chain(model, incoming.tenant.as_str()).ok_or_else(|| match model {
            Some(name) => RunError::fail("unknown_model", format!("there is no model `{name}` in [llm.models]")),
            None => RunError::fail("llm_not_configured", "no model is configured; set [llm.models.main]"),
        })?;
        Ok(if incoming.store.is_budgeted() { chain.budgeted() } else { chain })
    }

    fn summary_writer(&self, incoming: &AgentRequest) -> SummaryWriter {
        let model = self.context.summary_model.as_deref().or(incoming.overrides.model.as_deref());
        let chain = self.models.chain(model, incoming.tenant.as_str());
        SummaryWriter {
            settings: self.context.clone(),
            cache: self.summaries.clone(),
            chain: chain.map(|chain| Arc::new(chain.budgeted().without_thinking())),
            store: incoming.store.clone(),
            clock: incoming.clock.clone(),
            compute: self.compute.clone(),
            tenant: incoming.tenant.as_str().to_owned(),
            under_way: None,
            has_failed: false,
        }
    }

    async fn react_loop(&self, prepared: PreparedRequest<'_>) -> Result<LoopEnd, RunError> {
        let PreparedRequest {
            incoming,
            chain,
            window,
            callable,
            offered,
            skills,
            system,
            history,
            mut checkpoint,
            emitter,
        } = prepared;
        if checkpoint.is_empty() {
            checkpoint.add(incoming.first_turn, incoming.initial_entries(system.clone(), history));
        }
        let caller = ToolRunner {
            agent: self,
            incoming,
            tools: &self.tools,
            limits: &incoming.overrides.tools,
            callable: &callable,
            offered: &offered,
            tenant: &incoming.tenant,
            run_id: incoming.run_id,
            attribution: &incoming.attribution,
            timezone: incoming.timezone,
            host: &incoming.host,
            clock: &incoming.clock,
            stop: &incoming.stop,
            words: PersonWords::default(),
            used_secrets: &incoming.used_secrets,
            time_limit: Duration::from_secs(self.settings.tool_execution_timeout),
            results: &self.results,
            window,
            usual_level: self.settings.output_level,
            emitter: &emitter,
            compute: &self.compute,
            consent: Consent::of_request(self, incoming),
        };
        let mut react = ReactLoop {
            chain,
            caller,
            offered: self.offers.select(&self.tools, &offered),
            // of those before, none was active
            stack: skills.stack(&[]),
            skills,
            view: ModelView::new(window, system, &checkpoint),
            summaries: self.summary_writer(incoming),
            refocus_every: self.context.refocus_every_rounds,
            loops: LoopDetector::behind(self.settings.loop_repetitions, checkpoint.finished_turns()),
            checkpoint,
            first_turn: incoming.first_turn,
            max_turns: i64::from(incoming.overrides.max_turns.unwrap_or(self.settings.max_turns)),
            max_recoveries: self.settings.max_overflow_recovery_attempts,
            stop: &incoming.stop,
            slot: &*incoming.slot,
            verification: incoming.delegation.is_none().then(|| AnswerVerification {
                verifiers: &self.verifiers,
                compute: &self.compute,
                clock: &incoming.clock,
                tenant: incoming.tenant.as_str(),
                channel: incoming.carrier(),
            }),
            clock: &incoming.clock,
            emitter: &emitter,
        };
        let end = react.run().await?;
        if self.extracts && offered.contains(&REMEMBER) && has_heard_person(incoming, react.checkpoint.entries()) {
            incoming.store.allow_extraction();
        }
        Ok(end)
    }
}
