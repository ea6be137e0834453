//! How often one token may send messages. A client in a loop is held up here, before its messages are read.

use std::sync::Mutex;
use std::time::Duration;

use crate::base::limiter::{RateLimiter, Window};
use crate::base::token::TokenHash;

/// Messages of one token within a minute.
pub const REQUESTS_PER_MINUTE: u32 = 600;

/// Length of the window, from its first message on.
const WINDOW: Duration = Duration::from_secs(60);
/// Tokens that are remembered at most.
const REMEMBERED: usize = 10_000;

/// The messages of each token within its minute. Per instance, and bounded.
#[derive(Debug)]
pub struct McpRate(Mutex<RateLimiter<[u8; 32], Window>>);

impl Default for McpRate {
    fn default() -> McpRate {
        McpRate(Mutex::new(RateLimiter::new(REMEMBERED)))
    }
}

impl McpRate {
    /// Counts a message of this token at `now` (a clock's `elapsed`); or how long its sender has to wait.
    pub fn wait(&self, token: &TokenHash, now: Duration) -> Option<Duration> {
        let mut sent = self.0.lock().expect("the lock of the rate");
        sent.forget_all_if_full(now);
        sent.update(
            *token.as_bytes(),
            now,
            || Window::new(WINDOW),
            |window| {
                let left = window.wait(REQUESTS_PER_MINUTE, now);
                if left.is_none() {
                    window.count(now);
                }
                left
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn token_is_answered_at_its_rate_and_refused_one_beyond_it() {
        let (rate, at) = (McpRate::default(), Duration::from_secs);
        let (loud, quiet) = (TokenHash::of("loud"), TokenHash::of("quiet"));
        for _ in 0..REQUESTS_PER_MINUTE {
            assert_eq!(rate.wait(&loud, at(10)), None);
        }
        assert_eq!(rate.wait(&loud, at(11)), Some(at(59)));
        assert_eq!(rate.wait(&quiet, at(11)), None, "another token");
        assert_eq!(rate.wait(&loud, at(69)), Some(at(1)), "a message that is refused does not count");
        assert_eq!(rate.wait(&loud, at(70)), None, "the next minute");
    }
}
