//! Calls that another model made, with ids and names that every provider takes.
//!
//! An id is its provider's own, and each provider has rules for the ids that it is sent: Anthropic takes letters,
//! digits, `_` and `-`, and each id once in a conversation; OpenAI takes 40 characters in chat completions and 64 in
//! responses. So a conversation that goes on with another model may bring along ids for which its provider refuses it.
//! Those get another id for the request; the transcript keeps what the model wrote.
//!
//! Messages that go back as their model wrote them keep their ids.

use std::borrow::Cow;
use std::collections::{HashMap, HashSet};

use crate::domain::run::portable_name;
use crate::domain::run::transcript::{ToolCall, TranscriptMessage};
use crate::ports::llm::provider_message::MessageAuthor;

/// Longest id that every provider takes, in characters.
const LONGEST_ID: usize = 40;

/// The messages as this model can be sent them; copied where an id or a name has to change.
pub fn portable_calls<'a>(messages: &'a [TranscriptMessage], author: &MessageAuthor) -> Cow<'a, [TranscriptMessage]> {
    let mut portable = Cow::Borrowed(messages);
    let mut ids = PortableIds::beside(messages, author);
    for (index, message) in messages.iter().enumerate() {
        let changed = match message {
            TranscriptMessage::Assistant { tool_calls, .. } => {
                let is_own = author.message_of(message).is_some();
                ids.begin_turn(if is_own { &[] } else { tool_calls });
                (!is_own).then(|| ids.call_message(message)).flatten()
            }
            TranscriptMessage::Tool { .. } => ids.result_message(message),
            _ => None,
        };
        if let Some(changed) = changed {
            portable.to_mut()[index] = changed;
        }
    }
    portable
}

/// The ids of a conversation, as far as it has come.
struct PortableIds<'a> {
    taken: HashSet<Cow<'a, str>>,
    /// Ids of the last turn that are sent in another form.
    changed: HashMap<&'a str, String>,
    /// The number of the last id that was made.
    made: usize,
}

impl<'a> PortableIds<'a> {
    /// Knows the ids that stay as the model itself wrote them.
    fn beside(messages: &'a [TranscriptMessage], author: &MessageAuthor) -> PortableIds<'a> {
        let own = messages.iter().filter(|message| author.message_of(message).is_some());
        let taken = own.flat_map(TranscriptMessage::tool_calls).map(|call| Cow::Borrowed(call.id.as_str())).collect();
        PortableIds { taken, changed: HashMap::new(), made: 0 }
    }

    /// Goes on with the calls of the next turn, whose ids may change.
    fn begin_turn(&mut self, calls: &'a [ToolCall]) {
        self.changed.clear();
        let mut stays = |id: &&'a str| is_portable(id) && self.taken.insert(Cow::Borrowed(*id));
        let change: Vec<&str> = calls.iter().map(|call| call.id.as_str()).filter(|id| !stays(id)).collect();
        for id in change {
            let unused = self.unused();
            self.changed.insert(id, unused);
        }
    }

    fn unused(&mut self) -> String {
        loop {
            self.made += 1;
            let id = format!("call_{}", self.made);
            if self.taken.insert(Cow::Owned(id.clone())) {
                return id;
            }
        }
    }

    /// A message with its calls as they are sent; `None`: they stay as they are.
    fn call_message(&self, message: &TranscriptMessage) -> Option<TranscriptMessage> {
        let has_portable_name = |call: &ToolCall| matches!(portable_name(&call.name), Cow::Borrowed(_));
        let stays = |call: &ToolCall| !self.changed.contains_key(call.id.as_str()) && has_portable_name(call);
        if message.tool_calls().iter().all(stays) {
            return None;
        }
        let mut message = message.clone();
        if let TranscriptMessage::Assistant { tool_calls, .. } = &mut message {
            for call in tool_calls {
                call.name = portable_name(&call.name).into_owned();
                if let Some(id) = self.changed.get(call.id.as_str()) {
                    call.id.clone_from(id);
                }
            }
        }
        Some(message)
    }

    /// A result with the id of its call; `None`: it stays as it is.
    fn result_message(&self, message: &TranscriptMessage) -> Option<TranscriptMessage> {
        let TranscriptMessage::Tool { call_id, .. } = message else { return None };
        let id = self.changed.get(call_id.as_str())?;
        let mut message = message.clone();
        if let TranscriptMessage::Tool { call_id, .. } = &mut message {
            call_id.clone_from(id);
        }
        Some(message)
    }
}

fn is_portable(id: &str) -> bool {
    let fits = |letter: char| letter.is_ascii_alphanumeric() || letter == '_' || letter == '-';
    (1..=LONGEST_ID).contains(&id.len()) && id.chars().all(fits)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::domain::run::ProviderMessage;

    /// A turn with these calls and their results; `model`: the one whose own words are kept.
    fn turn(model: Option<&str>, calls: &[(&str, &str)]) -> Vec<TranscriptMessage> {
        let own =
            |model: &str| ProviderMessage { wire: "w".into(), model: model.into(), address: None, raw: "{}".into() };
        let said = TranscriptMessage::Assistant {
            text: None,
            tool_calls: calls.iter().map(|(id, name)| ToolCall::new(*id, *name, json!({}))).collect(),
            provider_message: model.map(own).map(Arc::new),
            finish: None,
        };
        let result = |(id, name): &(&str, &str)| TranscriptMessage::Tool {
            call_id: (*id).into(),
            name: (*name).into(),
            notices: vec![],
            content: "read".into(),
            is_error: false,
            reasons: vec![],
            fetched_at: None,
        };
        std::iter::once(said).chain(calls.iter().map(result)).collect()
    }

    fn author() -> MessageAuthor {
        MessageAuthor { wire: "w", model: "m".into(), address: None }
    }

    /// Ids and names of the calls, and the ids of the results.
    fn sent(messages: &[TranscriptMessage]) -> Vec<String> {
        let portable = portable_calls(messages, &author());
        let words = portable.iter().flat_map(|message| match message {
            TranscriptMessage::Tool { call_id, .. } => vec![format!("= {call_id}")],
            other => other.tool_calls().iter().map(|call| format!("{} {}", call.id, call.name)).collect(),
        });
        words.collect()
    }

    #[test]
    fn ids_that_every_provider_takes_stay_and_nothing_is_copied() {
        let messages = [turn(None, &[("toolu_01-a", "read"), ("c2", "read")]), turn(None, &[("c3", "read")])].concat();
        assert!(matches!(portable_calls(&messages, &author()), Cow::Borrowed(_)));
    }

    #[test]
    fn odd_ids_and_names_of_another_model_change_with_their_results() {
        let long = "c".repeat(41);
        let messages = turn(Some("n"), &[("functions.read:0", "read"), (&long, "my tool.é"), ("call_1", "read")]);
        let expected = ["call_2 read", "call_3 my_tool___", "call_1 read", "= call_2", "= call_3", "= call_1"];
        assert_eq!(sent(&messages), expected);
    }

    #[test]
    fn id_that_comes_again_gets_another_one() {
        let messages = [turn(None, &[("c1", "read")]), turn(None, &[("c1", "read")])].concat();
        assert_eq!(sent(&messages), ["c1 read", "= c1", "call_1 read", "= call_1"]);
    }

    #[test]
    fn own_words_of_the_model_keep_their_ids_and_others_make_way() {
        let messages = [
            turn(None, &[("call_1", "read"), ("a:0", "read")]),
            turn(Some("m"), &[("call_1", "read"), ("own:0", "read")]),
            turn(Some("m"), &[("call_1", "read")]),
        ]
        .concat();
        let expected = [
            "call_2 read",
            "call_3 read",
            "= call_2",
            "= call_3",
            "call_1 read",
            "own:0 read",
            "= call_1",
            "= own:0",
            "call_1 read",
            "= call_1",
        ];
        assert_eq!(sent(&messages), expected);
    }
}
