//! How much a server may write that nobody has asked for.
//!
//! A server is read for as long as it writes, and each message costs time on the threads of servers. So a connection
//! has a budget of bytes and of messages. Time adds to it, and so does each message that is sent to the server: the
//! longest answer to it fits. A server that writes more floods its connection, which is closed.

use std::sync::{Arc, Mutex};

use tokio::time::Instant;
use tokio_util::sync::CancellationToken;

/// Bytes of the longest answer to a message.
pub const ANSWER_BYTES: u64 = 8 * 1_024 * 1_024;
/// Most bytes that a server may write at once: 40 of the longest answers, more than it has calls at once.
pub const OUTPUT_BYTES: u64 = 320 * 1_024 * 1_024;
/// Most messages that it may write at once.
pub const OUTPUT_MESSAGES: u64 = 10_000;
/// Bytes that each second adds.
pub const OUTPUT_BYTES_PER_SECOND: u64 = 4 * 1_024 * 1_024;
/// Messages that each second adds.
pub const OUTPUT_MESSAGES_PER_SECOND: u64 = 500;

/// The budget of a connection. Cheap to clone: all clones are the one budget.
#[derive(Clone)]
pub struct OutputBudget(Arc<OutputState>);

struct OutputState {
    left: Mutex<OutputLeft>,
    /// Cancelled once more was written than there was left.
    flooded: CancellationToken,
}

struct OutputLeft {
    bytes: u64,
    messages: u64,
    /// Up to when time has added to both.
    until: Instant,
}

impl Default for OutputBudget {
    fn default() -> OutputBudget {
        OutputBudget::since(Instant::now())
    }
}

impl OutputBudget {
    fn since(now: Instant) -> OutputBudget {
        let left = OutputLeft { bytes: OUTPUT_BYTES, messages: OUTPUT_MESSAGES, until: now };
        OutputBudget(Arc::new(OutputState { left: Mutex::new(left), flooded: CancellationToken::new() }))
    }

    /// So many messages are sent to the server, and may be answered.
    pub fn grant(&self, messages: usize) {
        let messages = messages as u64;
        self.left().add(messages.saturating_mul(ANSWER_BYTES), messages);
    }

    /// The server has written this much; `false`: that is more than it may.
    pub fn spend(&self, bytes: usize, messages: usize) -> bool {
        self.spend_at(Instant::now(), bytes, messages)
    }

    fn spend_at(&self, now: Instant, bytes: usize, messages: usize) -> bool {
        let is_there = !self.has_flooded() && self.left().take(now, bytes as u64, messages as u64);
        if !is_there {
            self.0.flooded.cancel();
        }
        is_there
    }

    /// Whether the server has written more than it may.
    pub fn has_flooded(&self) -> bool {
        self.0.flooded.is_cancelled()
    }

    /// Returns once it has.
    pub async fn flooded(&self) {
        self.0.flooded.cancelled().await;
    }

    fn left(&self) -> std::sync::MutexGuard<'_, OutputLeft> {
        self.0.left.lock().expect("the lock of a budget")
    }
}

impl OutputLeft {
    fn add(&mut self, bytes: u64, messages: u64) {
        self.bytes = self.bytes.saturating_add(bytes).min(OUTPUT_BYTES);
        self.messages = self.messages.saturating_add(messages).min(OUTPUT_MESSAGES);
    }

    /// Takes this away; `false`: there is less.
    fn take(&mut self, now: Instant, bytes: u64, messages: u64) -> bool {
        let seconds = now.saturating_duration_since(self.until).as_secs();
        if seconds > 0 {
            self.until = now;
            let added = |each: u64| each.saturating_mul(seconds);
            self.add(added(OUTPUT_BYTES_PER_SECOND), added(OUTPUT_MESSAGES_PER_SECOND));
        }
        let left = (self.bytes.checked_sub(bytes), self.messages.checked_sub(messages));
        let (Some(bytes), Some(messages)) = left else { return false };
        (self.bytes, self.messages) = (bytes, messages);
        true
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    #[test]
    fn server_writes_as_much_as_it_may_and_has_flooded_with_one_byte_or_message_more() {
        for (bytes, messages) in [(OUTPUT_BYTES as usize, 0), (0, OUTPUT_MESSAGES as usize)] {
            let (now, more) = (Instant::now(), (usize::from(bytes > 0), usize::from(messages > 0)));
            let budget = OutputBudget::since(now);
            assert!(budget.spend_at(now, bytes, messages) && !budget.has_flooded());
            assert!(!budget.spend_at(now, more.0, more.1) && budget.has_flooded());
            assert!(!budget.spend_at(now + Duration::from_secs(3_600), 0, 0), "once flooded, it is over");
        }
    }

    #[test]
    fn time_adds_to_what_is_left_and_so_does_each_message_that_is_sent() {
        let now = Instant::now();
        let budget = OutputBudget::since(now);
        assert!(budget.spend_at(now, OUTPUT_BYTES as usize, OUTPUT_MESSAGES as usize));
        let second = now + Duration::from_secs(1);
        assert!(budget.spend_at(second, OUTPUT_BYTES_PER_SECOND as usize, OUTPUT_MESSAGES_PER_SECOND as usize));
        budget.grant(2);
        assert!(budget.spend_at(second, 2 * ANSWER_BYTES as usize, 2));
        assert!(!budget.spend_at(second, 1, 0));
    }

    #[test]
    fn budget_does_not_grow_beyond_its_most() {
        let now = Instant::now();
        let budget = OutputBudget::since(now);
        budget.grant(1_000_000);
        assert!(!budget.spend_at(now + Duration::from_secs(3_600), OUTPUT_BYTES as usize + 1, 0));
    }
}
