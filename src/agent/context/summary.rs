//! Summaries of long conversations, which a model writes beside the turns. The next turn is shown one that is done.
//!
//! Delays no turn, and what it fails at changes nothing: a conversation is extracted and trimmed as without it. Its
//! cost is bounded for each tenant and hour, and counts in the budgets of the run. Summaries are kept by the text that
//! they are of, and lost with the process. One that is under way ends with the execution, and counts as the worst that
//! it may have come to, as does one that takes too long: its model may have been paid.

use std::sync::{Arc, Mutex, OnceLock};
use std::time::Duration;

use futures::FutureExt;
use serde_json::json;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::agent::budget::worst_usage;
use crate::agent::checkpoint::{Checkpoint, NewEntry};
use crate::agent::context::compaction_before;
use crate::agent::context::cut::{beginning, cut_short};
use crate::agent::context::settings::{ContextSettings, Strategy};
use crate::agent::context::shown::ShownMessage;
use crate::agent::{AgentStore, SummaryCost};
use crate::base::clock::Clock;
use crate::base::collections::bounded_cache::{BoundedCache, CacheLimit};
use crate::base::compute::Compute;
use crate::base::template::untrusted::{RULE, fenced};
use crate::domain::approval::proposal::canonical_hash;
use crate::domain::budget::Spend;
use crate::domain::run::transcript::{Compaction, CompactionKind, ModelCall, SUMMARY_UNUSABLE};
use crate::domain::run::{TranscriptMessage, Usage};
use crate::ports::llm::fallback::{Chain, ModelCompletion};
use crate::ports::llm::{ModelRequest, OfferedTools, StopReason, ToolChoice};

/// A summary takes the place of at least this part of the messages from which on there is one.
const SHARE: usize = 4;
/// Turns of the model that are not summarised.
const RECENT_TURNS: usize = 5;
/// Longest text that is summarised, in characters: of a longer one the end.
const LONGEST: usize = 60_000;
/// Errors that a summary names, the last ones, and how long each is, in characters.
const ERRORS: usize = 20;
const ERROR: usize = 300;
/// Summaries of all tenants that are kept.
const KEPT: CacheLimit = CacheLimit { entries: 1_000, bytes: 4 << 20 };

/// The instruction to the model that writes a summary.
const INSTRUCTION: &str = "You summarise the earlier part of a conversation between a user, an assistant and its tools, for the assistant who goes on with it. \
     Write at most 300 words of plain text: what the user wants, which tools were called and what came of it (names, ids, numbers and \
     places of data exactly as they are), what was decided and why, and what is still to be done. Where it begins with an earlier summary, \
     keep what that says and still matters. Leave out greetings and thoughts. Add nothing of your own.";

/// Summaries that were written lately. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct SummaryCache(Arc<Mutex<BoundedCache<String, CachedSummary>>>);

struct CachedSummary {
    text: Arc<str>,
    /// On the clock of the engine.
    until: Duration,
}

impl Default for SummaryCache {
    fn default() -> SummaryCache {
        SummaryCache(Arc::new(Mutex::new(BoundedCache::new(KEPT))))
    }
}

impl SummaryCache {
    fn get(&self, key: &String, now: Duration) -> Option<String> {
        let mut cache = self.0.lock().expect("summaries lock");
        cache.get(key).filter(|kept| now < kept.until).map(|kept| kept.text.to_string())
    }

    fn keep(&self, key: String, text: &str, until: Duration) {
        let bytes = size_of::<CachedSummary>() + key.len() + text.len();
        self.0.lock().expect("summaries lock").put(key, CachedSummary { text: text.into(), until }, bytes);
    }
}

/// The summaries of one execution.
pub struct SummaryWriter {
    /// Settings of `[context]`.
    pub settings: ContextSettings,
    /// Summaries that are known.
    pub cache: SummaryCache,
    /// `None`: there is no model for them.
    pub chain: Option<Arc<Chain>>,
    /// The store of the run, which knows its budgets.
    pub store: Arc<dyn AgentStore>,
    /// Time of the engine.
    pub clock: Clock,
    /// Counts the tokens of a summary's request.
    pub compute: Compute,
    /// The tenant that owns the run.
    pub tenant: String,
    /// The summary that is being written.
    pub under_way: Option<SummaryUnderWay>,
    /// One has failed, and none is tried again.
    pub has_failed: bool,
}

/// A summary that is being written. It is broken off as this is dropped.
pub struct SummaryUnderWay {
    /// The entries that it stands for.
    replaces: Compaction,
    /// Errors among them.
    errors: Vec<String>,
    /// Its usage at worst, once it is about to be reserved: it may have been asked for from then on.
    at_worst: Arc<OnceLock<Usage>>,
    task: JoinSet<WrittenSummary>,
}

/// The outcome of a summary.
enum WrittenSummary {
    Done {
        text: String,
        usage: Usage,
        model_call: Option<ModelCall>,
    },
    /// It has cost so much, and is not used.
    Unusable(Usage, Option<ModelCall>),
    /// Nothing was asked.
    Refused,
}

impl SummaryWriter {
    /// Begins a summary of a conversation of so many messages, where one is due. `turn`: what a turn may come to.
    pub fn begin(&mut self, messages: usize, checkpoint: &Checkpoint, turn: impl FnOnce() -> Spend) {
        if !self.is_due(messages) {
            return;
        }
        let (Some(chain), Some(part)) = (self.chain.clone(), EarlierPart::of(&checkpoint.shown())) else { return };
        // many calls of the last turns are no reason to write a summary with each turn
        if part.messages < self.settings.summarise_from_messages / SHARE {
            return;
        }
        let key = canonical_hash(&json!([self.tenant, part.text]));
        let kept = self.cache.get(&key, self.clock.elapsed());
        let at_worst = Arc::<OnceLock<Usage>>::default();
        let work = SummaryWork {
            request: self.request(&part.text),
            chain,
            turn: if self.store.is_budgeted() { turn() } else { Spend::default() },
            store: Arc::clone(&self.store),
            clock: self.clock.clone(),
            compute: self.compute.clone(),
            cache: self.cache.clone(),
            key,
            settings: self.settings.clone(),
            at_worst: Arc::clone(&at_worst),
        };
        let mut task = JoinSet::new();
        match kept {
            Some(text) => {
                task.spawn(async { WrittenSummary::Done { text, usage: Usage::default(), model_call: None } });
            }
            None => {
                task.spawn(work.write().in_current_span());
            }
        }
        self.under_way = Some(SummaryUnderWay { replaces: part.replaces, errors: part.errors, at_worst, task });
    }

    /// The entry that counts a summary which is broken off now; `None`: none is under way, or its model was not asked.
    pub fn break_off(&mut self) -> Option<NewEntry> {
        let usage = self.under_way.take()?.at_worst.get().copied()?;
        Some(NewEntry { usage, ..NewEntry::plain(TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() }) })
    }

    /// The entry of a summary that is done; `None`: none is, or it came to nothing.
    pub fn take(&mut self) -> Option<NewEntry> {
        let written = self.under_way.as_mut()?.task.join_next().now_or_never()?;
        let SummaryUnderWay { replaces, errors, .. } = self.under_way.take()?;
        let (message, usage, model_call) = match written {
            Some(Ok(WrittenSummary::Done { text, usage, model_call })) => {
                let by = CompactionKind::Summarised { summary: text, errors };
                (TranscriptMessage::Compaction(Compaction { by, ..replaces }), usage, model_call)
            }
            Some(Ok(WrittenSummary::Unusable(usage, model_call))) => {
                self.has_failed = true;
                (TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() }, usage, model_call)
            }
            Some(Ok(WrittenSummary::Refused)) | Some(Err(_)) | None => {
                self.has_failed = true;
                return None;
            }
        };
        Some(NewEntry { message, usage, duration_ms: None, model_call, tool_record: None })
    }

    fn is_due(&self, messages: usize) -> bool {
        let from = self.settings.summarise_from_messages;
        let wanted = from > 0 && messages >= from && self.settings.strategy == Strategy::Extract;
        wanted && self.under_way.is_none() && !self.has_failed
    }

    fn request(&self, text: &str) -> ModelRequest {
        let instruction = TranscriptMessage::system(format!("{INSTRUCTION}\n\n{RULE}"));
        ModelRequest {
            messages: vec![instruction, TranscriptMessage::user(fenced("conversation", text))],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::None,
            max_tokens: Some(self.settings.summary_max_tokens),
            temperature: None,
        }
    }
}

/// The part of a conversation that is summarised.
struct EarlierPart {
    replaces: Compaction,
    /// How many messages it has beside an earlier summary.
    messages: usize,
    text: String,
    errors: Vec<String>,
}

impl EarlierPart {
    /// All but questions and the last turns, an earlier summary whole and of the rest the end. `None`: there is nothing
    /// else.
    fn of(shown: &[ShownMessage]) -> Option<EarlierPart> {
        let turns: Vec<usize> = (0..shown.len()).filter(|&index| shown[index].is_answer()).collect();
        let start = *turns.get(turns.len().checked_sub(RECENT_TURNS)?)?;
        let by = CompactionKind::Summarised { summary: String::new(), errors: vec![] };
        let replaces = compaction_before(shown, start, |index| shown[index].is_question(), by)?;
        let before = || shown[..start].iter().filter(|message| !message.is_system());
        let (earlier, rest): (Vec<_>, Vec<_>) = before().partition(|message| message.is_summary());
        let parts =
            |messages: &[&ShownMessage]| messages.iter().flat_map(|message| message.parts()).collect::<Vec<_>>();
        let short: Vec<String> = parts(&rest).into_iter().map(|part| cut_short(&part).unwrap_or(part)).collect();
        let text = [parts(&earlier), vec![last(&short.join("\n"), LONGEST)]].concat().join("\n");
        let errors: Vec<String> = before().flat_map(ShownMessage::errors).collect();
        let errors = errors[errors.len().saturating_sub(ERRORS)..].iter();
        Some(EarlierPart {
            messages: rest.iter().filter(|message| !message.is_question() && !message.is_lasting_notices()).count(),
            text,
            errors: errors.map(|error| beginning(error, ERROR)).collect(),
            replaces,
        })
    }
}

/// The end of a text.
fn last(text: &str, limit: usize) -> String {
    let over = text.chars().count().saturating_sub(limit);
    text.chars().skip(over).collect()
}

/// One summary that is to be written, without anybody who waits for it.
struct SummaryWork {
    request: ModelRequest,
    chain: Arc<Chain>,
    turn: Spend,
    store: Arc<dyn AgentStore>,
    clock: Clock,
    compute: Compute,
    cache: SummaryCache,
    key: String,
    settings: ContextSettings,
    at_worst: Arc<OnceLock<Usage>>,
}

impl SummaryWork {
    /// Measures, reserves, asks within the time limit, settles.
    async fn write(self) -> WrittenSummary {
        let bound = self.chain.measured_worst_case(&self.request, &self.compute).await;
        let most = bound.most;
        let at_worst = *self.at_worst.get_or_init(|| worst_usage(most, self.settings.summary_max_tokens));
        let cost = SummaryCost { bound, turn: self.turn, hourly_micros: self.settings.hourly_micros() };
        if !self.store.reserve_summary(cost).await {
            return WrittenSummary::Refused;
        }
        let limit = Duration::from_secs(self.settings.summary_timeout_seconds);
        let completed = tokio::select! {
            biased;
            completed = self.chain.complete(&self.request, &|_| {}) => Some(completed),
            () = self.clock.sleep(limit) => None,
        };
        let Some(completed) = completed else {
            tracing::info!("no summary in time, the conversation is shortened without it");
            return WrittenSummary::Unusable(at_worst, None);
        };
        let Ok(ModelCompletion { answer, model, cost_micros }) = completed else {
            tracing::info!("no summary, the conversation is shortened without it");
            let usage = Usage { turns: 0, ..self.chain.take_unusable() };
            self.store.give_summary_back((most.cost_micros - usage.cost_micros).max(0)).await;
            return WrittenSummary::Unusable(usage, None);
        };
        let usage = Usage {
            turns: 0,
            tool_calls: 0,
            input_tokens: answer.tokens.input,
            output_tokens: answer.tokens.output,
            cost_micros,
        };
        let charge = Spend::of(usage).or_worst(most);
        self.store.give_summary_back((most.cost_micros - charge.cost_micros).max(0)).await;
        let model_call = Some(ModelCall { model, tokens: answer.tokens });
        match answer.text.filter(|text| answer.stop == StopReason::Done && !text.trim().is_empty()) {
            Some(text) => {
                let kept_until = self.clock.elapsed() + self.settings.summary_lifetime();
                self.cache.keep(self.key, &text, kept_until);
                WrittenSummary::Done { text, usage, model_call }
            }
            None => {
                tracing::info!(stop = ?answer.stop, "no usable summary, the conversation is shortened without it");
                WrittenSummary::Unusable(usage, model_call)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use futures::future::BoxFuture;

    use super::*;
    use crate::agent::AppendError;
    use crate::agent::context::shown::compacted;
    use crate::domain::run::TranscriptEntry;
    use crate::ports::llm::fallback::{ChainLink, RetryWait};
    use crate::ports::llm::scripted::{Scenario, ScriptedModel};
    use crate::ports::llm::tokens::encoders::Encoders;
    use crate::ports::llm::{OwnEncoder, OwnModel, TokenEncoder};

    struct Characters;

    impl TokenEncoder for Characters {
        fn count(&self, text: &str) -> usize {
            text.chars().count()
        }
    }

    /// Refuses each summary, and writes down what it may come to.
    #[derive(Default)]
    struct RefusingStore(Mutex<Vec<Spend>>);

    impl AgentStore for RefusingStore {
        fn load(&self) -> BoxFuture<'_, Result<Vec<TranscriptEntry>, AppendError>> {
            Box::pin(std::future::ready(Ok(Vec::new())))
        }

        fn append(&self, _: Vec<TranscriptEntry>) -> BoxFuture<'_, Result<(), AppendError>> {
            Box::pin(std::future::ready(Ok(())))
        }

        fn defer(&self, _: Vec<TranscriptEntry>) {}

        fn reserve_summary(&self, cost: SummaryCost) -> BoxFuture<'_, bool> {
            self.0.lock().unwrap().push(cost.bound.most);
            Box::pin(std::future::ready(false))
        }
    }

    #[tokio::test]
    async fn summary_is_reserved_as_an_encoder_has_counted_its_request() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let scenario = Scenario::from_toml("[[steps]]\ntext = 'In short.'").unwrap();
        let own = OwnModel { name: "main".into(), model: Arc::new(ScriptedModel::new(scenario, clock.clone())) };
        let encoder = OwnEncoder { models: "main".into(), encoder: Arc::new(Characters) };
        let link = ChainLink::of_embedder(&own, (&Encoders::default(), &[encoder]));
        let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
        let (store, at_worst) = (Arc::new(RefusingStore::default()), Arc::<OnceLock<Usage>>::default());
        let work = SummaryWork {
            request: ModelRequest {
                messages: vec![TranscriptMessage::user("x".repeat(8_000))],
                tools: OfferedTools::default(),
                tool_choice: ToolChoice::None,
                max_tokens: Some(50),
                temperature: None,
            },
            chain: Arc::new(Chain::new(vec![Arc::new(link)], "ann", retry, clock.clone())),
            turn: Spend::default(),
            store: store.clone(),
            clock,
            compute: Compute::new(1),
            cache: SummaryCache::default(),
            key: String::new(),
            settings: ContextSettings { summary_max_tokens: 50, ..ContextSettings::default() },
            at_worst: Arc::clone(&at_worst),
        };
        assert!(matches!(work.write().await, WrittenSummary::Refused));
        let reserved = store.0.lock().unwrap().clone();
        let [most] = &reserved[..] else { panic!("it is reserved once: {reserved:?}") };
        assert_eq!(most.tokens, 8_054, "a character a token, the frame, and the answer");
        let at_worst = at_worst.get().expect("it was about to be reserved");
        assert_eq!((at_worst.input_tokens, at_worst.output_tokens), (8_004, 50));
    }

    fn answer(text: String) -> TranscriptMessage {
        TranscriptMessage::Assistant { text: Some(text), tool_calls: vec![], provider_message: None, finish: None }
    }

    #[test]
    fn earlier_summary_is_whole_in_the_text_of_the_next_one_however_long_the_rest_is() {
        let said = |seq: i64, text: String| ShownMessage::verbatim(seq, answer(text));
        let earlier = format!("begin {} end", "x".repeat(3_000));
        let by = CompactionKind::Summarised { summary: earlier.clone(), errors: vec!["Error of look: torn".into()] };
        let shown = compacted(vec![said(1, "old".into())], &Compaction { from: 1, to: 1, pinned: vec![], by });
        let more = (2..1_000).map(|seq| said(seq, "y ".repeat(100)));
        let shown: Vec<ShownMessage> = shown.into_iter().chain(more).collect();
        let part = EarlierPart::of(&shown).unwrap();
        assert!(part.text.starts_with(&format!("{earlier}\nError of look: torn\n")), "{}", &part.text[..90]);
        assert_eq!(part.messages, 998 - RECENT_TURNS, "the earlier summary is none of them");
        assert_eq!(part.errors, ["Error of look: torn"]);
        let rest = part.text.chars().count() - earlier.len();
        assert!((LONGEST..LONGEST + 100).contains(&rest), "{rest}");
    }
}
