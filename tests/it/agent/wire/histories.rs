//! Transcripts of every kind, as the strategy of a property test: several questions, turns that other models wrote, ids
//! that only their own provider takes, results of every length, calls that a crash has left open.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::*;
use reveille::domain::run::transcript::{ProviderMessage, ToolCall, TranscriptEntry, TranscriptMessage};
use reveille::domain::run::{ResultNotice, ResultNoticeKind, Usage};
use serde_json::{Value, json};

use super::fakes::Wire;
use crate::agent::harness::start;

/// A long thought.
const THOUGHT: &str = "The page before this one had no number on it, and the one before that had a number which is none of those that \
    were asked for. It may stand on the next page, or the list goes on elsewhere, so the whole of it has to be read again from its \
    beginning. Where nothing is found there, the archive is left, of which each year has a list of its own; the oldest of them were \
    written by hand, and nobody has ever put them in order. What was found so far is not enough to say anything of use, and an answer \
    that guesses would be worse than none. So the next page comes first, then the archive, year by year, and the answer last of all.";

/// The model that is asked.
pub const MODEL: &str = "model-7";

/// A transcript, in drafts.
#[derive(Debug, Clone)]
pub struct History {
    /// Questions that were answered, each with the turns on the way.
    pub answered: Vec<Vec<TurnDraft>>,
    /// Turns behind the last question.
    pub turns: Vec<TurnDraft>,
    /// So many results of the last turn are missing.
    pub open: usize,
}

#[derive(Debug, Clone)]
pub struct TurnDraft {
    /// The wire whose words are kept, and whether the model that is asked wrote them. `None`: they are not kept.
    kept: Option<(Wire, bool)>,
    says: Option<&'static str>,
    thinks: bool,
    calls: Vec<CallDraft>,
}

#[derive(Debug, Clone)]
struct CallDraft {
    id: IdKind,
    name: &'static str,
    arguments: Value,
    notice: Notice,
    result: String,
    is_error: bool,
    /// Whether it is known when the result came.
    is_dated: bool,
}

/// Words of the service before a result.
#[derive(Debug, Clone, Copy)]
enum Notice {
    Absent,
    Repetition,
    /// All of the result is in a data file.
    DataFile,
    /// A person has changed the arguments.
    Edited,
}

#[derive(Debug, Clone, Copy)]
enum IdKind {
    /// No other call has it.
    Unique,
    /// Given again in every turn.
    EachTurn,
    /// With characters that only some providers take.
    Odd,
    /// 60 characters.
    Long,
}

pub fn histories() -> impl Strategy<Value = History> {
    prop_oneof![histories_of(turn().boxed(), 0..9), histories_of(talkative_turn().boxed(), 6..14)]
}

fn histories_of(turn: BoxedStrategy<TurnDraft>, turns: std::ops::Range<usize>) -> impl Strategy<Value = History> {
    let answered = vec(vec(turn.clone(), 0..4), 0..3);
    (answered, vec(turn, turns), 0..4_usize).prop_map(|(answered, turns, open)| History { answered, turns, open })
}

/// A turn of which an extract leaves little.
fn talkative_turn() -> impl Strategy<Value = TurnDraft> {
    turn().prop_map(|turn| TurnDraft {
        kept: None,
        says: Some(THOUGHT),
        calls: turn.calls.into_iter().map(|call| CallDraft { result: "done".into(), ..call }).collect(),
        ..turn
    })
}

fn turn() -> impl Strategy<Value = TurnDraft> {
    let wire = prop::sample::select(Wire::ALL.to_vec());
    let kept = prop::option::of((wire, any::<bool>()));
    let says = prop::option::of(prop::sample::select(vec!["Let me look.", "Grüße, 早 😀", "\n"]));
    (kept, says, any::<bool>(), vec(call(), 1..5)).prop_map(|(kept, says, thinks, calls)| TurnDraft {
        kept,
        says,
        thinks,
        calls,
    })
}

fn call() -> impl Strategy<Value = CallDraft> {
    let id = prop::sample::select(vec![IdKind::Unique, IdKind::EachTurn, IdKind::Odd, IdKind::Long]);
    let name = prop::sample::select(vec!["echo", "count", "ehco", "functions.echo", "mein Gerät"]);
    let arguments = prop::sample::select(vec![json!({}), json!({ "n": 1 }), json!("{broken"), json!([1])]);
    let result = prop_oneof![
        Just(String::new()),
        Just("done".to_owned()),
        (0..30_000_usize).prop_map(|length| "x".repeat(length)),
        (0..600_usize).prop_map(|lines| "a line of text, ö\n".repeat(lines)),
    ];
    let notice = prop::sample::select(vec![Notice::Absent, Notice::Repetition, Notice::DataFile, Notice::Edited]);
    (id, name, arguments, notice, result, any::<bool>(), any::<bool>()).prop_map(
        |(id, name, arguments, notice, result, is_error, is_dated)| CallDraft {
            id,
            name,
            arguments,
            notice,
            result,
            is_error,
            is_dated,
        },
    )
}

impl History {
    /// The last question.
    pub fn task(&self) -> String {
        format!("question {}", self.answered.len())
    }

    /// Words by which each notice is known that is to hold on.
    pub fn lasting(&self) -> Vec<String> {
        let messages = self.entries().into_iter().filter_map(|entry| match entry.message {
            TranscriptMessage::Tool { notices, .. } => Some(notices),
            _ => None,
        });
        let notices = messages.flatten().filter(|notice| notice.kind != ResultNoticeKind::Repetition);
        notices.map(|notice| notice.text.trim_end().to_owned()).collect()
    }

    pub fn entries(&self) -> Vec<TranscriptEntry> {
        let mut entries = Entries::default();
        entries.add(TranscriptMessage::system("of yesterday"));
        for (index, turns) in self.answered.iter().enumerate() {
            entries.add(TranscriptMessage::user(format!("question {index}")));
            turns.iter().for_each(|turn| entries.add_turn(turn, 0));
            entries.turn += 1;
            let text = Some(format!("answer {index}"));
            entries.add(TranscriptMessage::Assistant {
                text,
                tool_calls: vec![],
                provider_message: None,
                finish: None,
            });
        }
        entries.add(TranscriptMessage::user(self.task()));
        for (index, turn) in self.turns.iter().enumerate() {
            let is_last = index + 1 == self.turns.len();
            entries.add_turn(turn, if is_last { self.open } else { 0 });
        }
        entries.all
    }
}

#[derive(Default)]
struct Entries {
    all: Vec<TranscriptEntry>,
    turn: i64,
    /// Calls so far.
    calls: usize,
}

impl Entries {
    fn add(&mut self, message: TranscriptMessage) {
        let (seq, usage) = (self.all.len() as i64, Usage::default());
        let entry = TranscriptEntry { usage, ..TranscriptEntry::new(seq, self.turn, start(), message) };
        self.all.push(entry);
    }

    /// A turn with its results, of which the last `open` are missing.
    fn add_turn(&mut self, draft: &TurnDraft, open: usize) {
        self.turn += 1;
        // what a model writes that gets its own words back suits its provider
        let is_own = matches!(draft.kept, Some((_, true)));
        let calls: Vec<ToolCall> =
            draft.calls.iter().enumerate().map(|(at, call)| self.call(at, call, is_own)).collect();
        let text = draft.says.filter(|text| !text.trim().is_empty()).map(str::to_owned);
        self.add(TranscriptMessage::Assistant {
            text,
            tool_calls: calls.clone(),
            provider_message: draft.kept.map(|(wire, own)| kept(wire, own, draft, &calls)),
            finish: None,
        });
        for (draft, call) in draft.calls.iter().zip(&calls).take(calls.len().saturating_sub(open)) {
            self.add(TranscriptMessage::Tool {
                call_id: call.id.clone(),
                name: call.name.clone(),
                notices: self.notice(draft.notice).into_iter().collect(),
                content: draft.result.clone(),
                is_error: draft.is_error,
                reasons: vec![],
                fetched_at: draft.is_dated.then(start),
            });
        }
    }

    fn notice(&self, notice: Notice) -> Option<ResultNotice> {
        let seq = self.all.len();
        let (kind, text) = match notice {
            Notice::Absent => return None,
            Notice::Repetition => (ResultNoticeKind::Repetition, "[Repetition] Go another way.\n\n".into()),
            Notice::DataFile => (
                ResultNoticeKind::DataFile,
                format!(
                    "[Data file 00000000-0000-0000-0000-{seq:012}: all 9 bytes of this result, text/plain. Read parts of it \
                     with read_data_file.]\n\n"
                ),
            ),
            Notice::Edited => {
                (ResultNoticeKind::Edited, format!("The user changed the arguments before approving: [{seq}]\n\n"))
            }
        };
        Some(ResultNotice { kind, text })
    }

    fn call(&mut self, at: usize, draft: &CallDraft, is_own: bool) -> ToolCall {
        self.calls += 1;
        let id = match draft.id {
            IdKind::EachTurn if !is_own => format!("call_{at}"),
            IdKind::Odd if !is_own => format!("functions.{}:{at}", draft.name),
            IdKind::Long if !is_own => format!("{:060}", self.calls),
            _ => format!("toolu_{}", self.calls),
        };
        match is_own {
            true => ToolCall::new(id, "echo", json!({ "n": 1 })),
            false => ToolCall::new(id, draft.name, draft.arguments.clone()),
        }
    }
}

/// The message as its provider wrote it.
fn kept(wire: Wire, is_own: bool, draft: &TurnDraft, calls: &[ToolCall]) -> Arc<ProviderMessage> {
    let raw = match wire {
        Wire::Chat => chat(draft, calls),
        Wire::Responses => responses(draft, calls),
        Wire::Anthropic => anthropic(draft, calls),
    };
    let model = if is_own { MODEL } else { "model-8" };
    Arc::new(ProviderMessage { wire: wire.provider().into(), model: model.into(), address: None, raw: raw.to_string() })
}

fn chat(draft: &TurnDraft, calls: &[ToolCall]) -> Value {
    let call = |call: &ToolCall| {
        let function = json!({ "name": call.name, "arguments": call.args.to_string() });
        json!({ "id": call.id, "type": "function", "function": function })
    };
    let calls: Vec<Value> = calls.iter().map(call).collect();
    let mut message = json!({ "role": "assistant", "content": draft.says, "tool_calls": calls });
    if draft.thinks {
        message["reasoning_content"] = json!("hm");
    }
    message
}

fn responses(draft: &TurnDraft, calls: &[ToolCall]) -> Value {
    let reasoning = json!({ "type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "c2ln" });
    let message = draft.says.filter(|text| !text.trim().is_empty()).map(|text| {
        let content = json!([{ "type": "output_text", "text": text, "annotations": [], "logprobs": [] }]);
        json!({ "type": "message", "id": "msg_1", "status": "completed", "role": "assistant", "content": content })
    });
    let call = |call: &ToolCall| {
        json!({ "type": "function_call", "id": "fc_1", "call_id": call.id, "name": call.name,
                "arguments": call.args.to_string(), "status": "completed" })
    };
    draft.thinks.then_some(reasoning).into_iter().chain(message).chain(calls.iter().map(call)).collect()
}

fn anthropic(draft: &TurnDraft, calls: &[ToolCall]) -> Value {
    let thinking = json!({ "type": "thinking", "thinking": "hm", "signature": "c2ln" });
    // the provider writes empty texts, too
    let text = draft.says.map(|text| json!({ "type": "text", "text": text }));
    let call = |call: &ToolCall| json!({ "type": "tool_use", "id": call.id, "name": call.name, "input": call.args });
    draft.thinks.then_some(thinking).into_iter().chain(text).chain(calls.iter().map(call)).collect()
}
