//! Whether tokens of open streams are good, as it was a moment ago: streams ask again and again, and those of one token
//! are told by one look-up. A request looks its token up by itself.

use std::collections::HashMap;
use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::token::TokenHash;

/// How long a look-up is good for the streams of its token, from when it began: so much later at most do they end with
/// it.
const GOOD_FOR: Duration = Duration::from_millis(500);

/// The look-ups of the last moment.
#[derive(Debug, Default)]
pub(in crate::http) struct TokenChecks(Mutex<HashMap<[u8; 32], (Instant, bool)>>);

impl TokenChecks {
    /// Whether the token was good a moment ago; `None`: it was not looked up since.
    pub(in crate::http) fn recent(&self, token: &TokenHash) -> Option<bool> {
        let checks = self.0.lock().expect("token checks lock");
        let (began, is_good) = checks.get(token.as_bytes())?;
        (began.elapsed() < GOOD_FOR).then_some(*is_good)
    }

    /// Notes a look-up that began at this instant, and forgets those that are too old. One that was slow takes the
    /// place of none that began after it.
    pub(in crate::http) fn note(&self, token: &TokenHash, began: Instant, is_good: bool) {
        let mut checks = self.0.lock().expect("token checks lock");
        checks.retain(|_, (began, _)| began.elapsed() < GOOD_FOR);
        let last = checks.entry(*token.as_bytes()).or_insert((began, is_good));
        if last.0 <= began {
            *last = (began, is_good);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn look_up_is_good_for_a_moment_and_then_forgotten() {
        let (checks, ann, bob) = (TokenChecks::default(), TokenHash::of("ann"), TokenHash::of("bob"));
        assert_eq!(checks.recent(&ann), None);
        let now = Instant::now();
        checks.note(&ann, now, true);
        checks.note(&bob, now, false);
        assert_eq!((checks.recent(&ann), checks.recent(&bob)), (Some(true), Some(false)));
        let long_ago = Instant::now() - GOOD_FOR;
        checks.0.lock().unwrap().values_mut().for_each(|(began, _)| *began = long_ago);
        assert_eq!(checks.recent(&ann), None);
        checks.note(&bob, Instant::now(), true);
        assert_eq!(checks.0.lock().unwrap().len(), 1, "nothing is kept of a stream that has ended");
    }

    #[test]
    fn look_up_that_was_slow_hides_none_that_began_after_it() {
        let (checks, ann) = (TokenChecks::default(), TokenHash::of("ann"));
        let before = Instant::now();
        checks.note(&ann, Instant::now(), false);
        checks.note(&ann, before - Duration::from_nanos(1), true);
        assert_eq!(checks.recent(&ann), Some(false), "it was revoked meanwhile");
        checks.note(&ann, before - GOOD_FOR, true);
        assert_eq!(checks.recent(&ann), Some(false));
    }
}
