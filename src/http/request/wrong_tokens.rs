//! Addresses that send wrong tokens, and tokens that were right: guessing costs the guesser, and nobody else.
//!
//! An address that has sent too many wrong tokens within a minute is refused without asking the database, unless its
//! token has been right before. Per instance, and bounded.

use std::net::IpAddr;
use std::num::NonZeroUsize;
use std::sync::Mutex;
use std::time::Duration;

use lru::LruCache;

use crate::base::limiter::{RateLimiter, Window};
use crate::base::token::TokenHash;
use crate::http::server::connection_limiter::origin;

/// How long wrong tokens are remembered, from the first of a row.
const WINDOW: Duration = Duration::from_secs(60);
/// Addresses and tokens that are remembered at most.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(10_000).unwrap();

/// The memory.
#[derive(Debug)]
pub struct WrongTokens {
    limit: u32,
    seen: Mutex<WrongTokenCount>,
}

#[derive(Debug)]
struct WrongTokenCount {
    wrong: RateLimiter<IpAddr, Window>,
    right: LruCache<[u8; 32], ()>,
}

impl WrongTokens {
    /// Remembers nothing yet; `limit` wrong tokens a minute are borne.
    pub fn new(limit: u32) -> WrongTokens {
        let seen = WrongTokenCount { wrong: RateLimiter::new(REMEMBERED.get()), right: LruCache::new(REMEMBERED) };
        WrongTokens { limit, seen: Mutex::new(seen) }
    }

    /// How long the sender has to wait at `now` (a clock's `elapsed`) before this token is looked at; `None`: not.
    pub fn wait(&self, address: IpAddr, token: &TokenHash, now: Duration) -> Option<Duration> {
        let seen = self.seen.lock().expect("token lock");
        let left = seen.wrong.get(&origin(address))?.wait(self.limit, now)?;
        (!seen.right.contains(token.as_bytes())).then_some(left)
    }

    /// A token of this address was wrong.
    pub fn record_failure(&self, address: IpAddr, now: Duration) {
        let mut seen = self.seen.lock().expect("token lock");
        seen.wrong.forget_all_if_full(now);
        seen.wrong.update(origin(address), now, || Window::new(WINDOW), |window| window.count(now));
    }

    /// A token was right.
    pub fn record_success(&self, token: &TokenHash) {
        self.seen.lock().expect("token lock").right.put(*token.as_bytes(), ());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn guesser_waits_for_the_rest_of_the_minute_and_a_known_token_does_not() {
        let memory = WrongTokens::new(2);
        let (guesser, other) = ([192, 0, 2, 1].into(), [192, 0, 2, 2].into());
        let (guess, known) = (TokenHash::of("guess"), TokenHash::of("known"));
        let at = Duration::from_secs;
        memory.record_success(&known);
        memory.record_failure(guesser, at(0));
        assert_eq!(memory.wait(guesser, &guess, at(1)), None);
        memory.record_failure(guesser, at(1));
        assert_eq!(memory.wait(guesser, &guess, at(2)), Some(at(58)));
        assert_eq!(memory.wait(guesser, &known, at(2)), None);
        assert_eq!(memory.wait(other, &guess, at(2)), None);
        assert_eq!(memory.wait(guesser, &guess, at(60)), None);
        memory.record_failure(guesser, at(60));
        assert_eq!(memory.wait(guesser, &guess, at(61)), None, "a new minute begins a new count");
    }
}
