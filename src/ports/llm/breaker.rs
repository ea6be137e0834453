//! A circuit breaker for each model: one that keeps failing is asked last for a while.

use std::sync::Mutex;
use std::time::Duration;

/// Failed calls in a row after which a model is passed over.
const FAILURES: u32 = 5;
/// How long it is passed over before one call tries it again.
const PAUSE: Duration = Duration::from_secs(30);

/// The breaker of one model, which all calls of an instance share.
#[derive(Debug, Default)]
pub struct ModelBreaker(Mutex<BreakerState>);

#[derive(Debug, Default)]
struct BreakerState {
    /// Failed calls since the last answer.
    failures: u32,
    /// The instant until which the model is passed over, since the start of the clock.
    open_until: Option<Duration>,
}

impl ModelBreaker {
    /// Whether the model is asked in its turn. Once the pause is over, one call is let through, and the others wait for
    /// what becomes of it.
    pub fn allows(&self, now: Duration) -> bool {
        let mut state = self.0.lock().expect("breaker lock");
        match state.open_until {
            Some(until) if now < until => false,
            Some(_) => {
                state.open_until = Some(now + PAUSE);
                true
            }
            None => true,
        }
    }

    /// Notes an answer.
    pub fn succeeded(&self) {
        *self.0.lock().expect("breaker lock") = BreakerState::default();
    }

    /// Notes a call that has failed, repetitions included.
    pub fn failed(&self, now: Duration) {
        let mut state = self.0.lock().expect("breaker lock");
        state.failures = state.failures.saturating_add(1);
        if state.failures >= FAILURES {
            state.open_until = Some(now + PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn model_that_keeps_failing_is_passed_over_until_one_call_has_tried_it() {
        let breaker = ModelBreaker::default();
        let second = Duration::from_secs;
        for _ in 1..FAILURES {
            breaker.failed(second(1));
            assert!(breaker.allows(second(1)));
        }
        breaker.failed(second(1));
        assert!(!breaker.allows(second(1)) && !breaker.allows(second(30)));
        assert!(breaker.allows(second(31)), "one call tries it");
        assert!(!breaker.allows(second(31)), "and no other meanwhile");
        breaker.failed(second(32));
        assert!(!breaker.allows(second(61)) && breaker.allows(second(62)));
        breaker.succeeded();
        breaker.failed(second(63));
        assert!(breaker.allows(second(63)), "an answer begins the count anew");
    }
}
