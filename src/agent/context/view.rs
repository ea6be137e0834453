//! The conversation of one execution as its model is shown it, kept from turn to turn.
//!
//! Begins with the system message of today, not that of a first attempt. Each shortening is a compaction in the
//! transcript, so that another execution begins with the same conversation.

use crate::agent::checkpoint::{Checkpoint, NewEntry};
use crate::agent::context::ContextWindow;
use crate::agent::context::active_skills::hidden_instructions;
use crate::agent::context::shown::ShownMessage;
use crate::base::compute::Compute;
use crate::domain::run::TranscriptMessage;
use crate::domain::run::transcript::Compaction;
use crate::ports::llm::OfferedTools;
use crate::ports::llm::fallback::Chain;

/// The messages that a request brings.
pub struct ModelView {
    /// Limits of the conversation.
    pub window: ContextWindow,
    system: TranscriptMessage,
    messages: Vec<TranscriptMessage>,
}

impl ModelView {
    /// The conversation behind this system message, as far as it has come.
    pub fn new(window: ContextWindow, system: TranscriptMessage, checkpoint: &Checkpoint) -> ModelView {
        let mut view = ModelView { window, system, messages: Vec::new() };
        view.read(checkpoint);
        view
    }

    /// Adds what was said last.
    pub fn extend(&mut self, messages: impl IntoIterator<Item = TranscriptMessage>) {
        self.messages.extend(messages);
    }

    /// Whether so much is in the window that results are brief.
    pub fn shows_briefly(&self, tools: &OfferedTools) -> bool {
        self.window.shows_briefly(&self.messages, tools)
    }

    /// Whether it is one message, beside the instructions of the agent: nothing makes it shorter.
    pub fn is_one_message(&self) -> bool {
        let is_said = |message: &&TranscriptMessage| !matches!(message, TranscriptMessage::System { .. });
        self.messages.iter().filter(is_said).count() <= 1
    }

    /// Before a call: shortens the conversation until it fits, as it is counted by now.
    pub async fn fit(&mut self, checkpoint: &mut Checkpoint, chain: &Chain, tools: &OfferedTools, compute: &Compute) {
        chain.measure(&self.messages, tools, compute).await;
        self.window = self.window.counted_by(chain.counter());
        if !self.window.is_full(&self.messages, tools) {
            return;
        }
        let compactions = self.window.guard(self.shown(checkpoint), tools);
        self.compact(checkpoint, compactions);
        chain.measure(&self.messages, tools, compute).await;
    }

    /// Shortens a conversation that the model found too long, from this step on. Answers the step to go on with;
    /// `None`: nothing is left to do.
    pub fn recover(&mut self, checkpoint: &mut Checkpoint, step: u32) -> Option<u32> {
        let (compaction, next) = self.window.recover(&self.shown(checkpoint), step)?;
        self.compact(checkpoint, vec![compaction]);
        Some(next)
    }

    /// Lends the messages to one request, with one that stands in it alone: a run that waits for its model keeps them
    /// once.
    pub fn lend(&mut self, ephemeral: Option<TranscriptMessage>) -> Vec<TranscriptMessage> {
        let mut messages = std::mem::take(&mut self.messages);
        messages.extend(ephemeral);
        messages
    }

    /// Takes back what was lent.
    pub fn take_back(&mut self, mut messages: Vec<TranscriptMessage>, had_ephemeral: bool) {
        messages.truncate(messages.len() - usize::from(had_ephemeral));
        self.messages = messages;
    }

    /// Shows a summary from here on, or counts what one has cost.
    pub fn summarise(&mut self, checkpoint: &mut Checkpoint, entry: NewEntry) {
        checkpoint.add(checkpoint.turn(), vec![entry]);
        self.read(checkpoint);
    }

    fn compact(&mut self, checkpoint: &mut Checkpoint, compactions: Vec<Compaction>) {
        if compactions.is_empty() {
            return;
        }
        for compaction in &compactions {
            tracing::info!(from = compaction.from, to = compaction.to, by = ?compaction.by, "conversation shortened");
        }
        let entries = compactions.into_iter().map(TranscriptMessage::Compaction).map(NewEntry::plain).collect();
        checkpoint.add(checkpoint.turn(), entries);
        self.read(checkpoint);
    }

    fn read(&mut self, checkpoint: &Checkpoint) {
        self.messages = self.shown(checkpoint).into_iter().map(ShownMessage::into_message).collect();
    }

    /// The conversation, with the number of the entry that each message comes from. Behind the instructions of the
    /// agent stand those of its active skills that are shown no more.
    fn shown(&self, checkpoint: &Checkpoint) -> Vec<ShownMessage> {
        let said: Vec<ShownMessage> = checkpoint.shown().into_iter().filter(|message| !message.is_system()).collect();
        let skills = hidden_instructions(checkpoint.entries(), &said).map(ShownMessage::instructions);
        std::iter::once(ShownMessage::verbatim(0, self.system.clone())).chain(skills).chain(said).collect()
    }
}
