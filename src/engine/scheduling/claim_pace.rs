//! The pace of claims: while many runs are under way, those that become ready within a moment are claimed together.
//!
//! A run that becomes ready while few are under way is claimed at once. One that becomes ready just after a claim of a
//! busy instance waits for the next claim, a moment later: it takes those along that follow it, or fills the slots that
//! free meanwhile. So the number of claims goes by time, and not by runs.

use std::sync::Mutex;
use std::time::{Duration, Instant};

use crate::base::clock::pause;

/// The shortest time between two claims of a busy instance.
const GATHER_FOR: Duration = Duration::from_millis(2);
/// Runs under way from which on an instance is busy.
const BUSY: usize = 16;

/// The load of an instance that is about to claim.
#[derive(Debug, Clone, Copy)]
pub(super) struct ClaimLoad {
    /// Runs that it executes, whether they compute or wait.
    pub under_way: usize,
    /// Whether the last claim left runs that are ready, and there are slots for a whole batch of them.
    pub fills_batch: bool,
}

/// When the last claim was, and whether one waits for its moment.
#[derive(Default)]
pub(super) struct ClaimPace(Mutex<PaceState>);

#[derive(Default)]
struct PaceState {
    claimed: Option<Instant>,
    /// When the claim that waits is to be made.
    waits_until: Option<Instant>,
}

impl ClaimPace {
    /// Whether a claim is to be made now; it counts as made. If not, [`ClaimPace::wakeup`] tells when.
    pub(super) fn may_claim(&self, load: ClaimLoad, now: Instant) -> bool {
        let mut state = self.0.lock().expect("pace lock");
        let gathered = state.claimed.is_none_or(|claimed| now.saturating_duration_since(claimed) >= GATHER_FOR);
        if gathered || load.fills_batch || load.under_way < BUSY {
            *state = PaceState { claimed: Some(now), waits_until: None };
            return true;
        }
        state.waits_until = state.claimed.map(|claimed| claimed + GATHER_FOR);
        false
    }

    /// Returns when a claim that waits is to be made; never where none does.
    pub(super) async fn wakeup(&self) {
        let waits_until = self.0.lock().expect("pace lock").waits_until;
        match waits_until {
            Some(instant) => pause(instant.saturating_duration_since(Instant::now())).await,
            None => std::future::pending().await,
        }
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    const BUSY_LOAD: ClaimLoad = ClaimLoad { under_way: BUSY, fills_batch: false };

    /// How many claims are made of so many runs that become ready, or slots that free, one after another.
    fn claims(runs: u32, apart: Duration, load: ClaimLoad) -> usize {
        let (pace, begin) = (ClaimPace::default(), Instant::now());
        (0..runs).filter(|run| pace.may_claim(load, begin + apart * *run)).count()
    }

    #[test]
    fn busy_instance_claims_by_time_and_a_quiet_one_at_once() {
        let apart = Duration::from_micros(100);
        assert_eq!(claims(1_000, apart, BUSY_LOAD), 50);
        assert_eq!(claims(1_000, apart, ClaimLoad { under_way: BUSY - 1, ..BUSY_LOAD }), 1_000);
        assert_eq!(
            claims(1_000, apart, ClaimLoad { fills_batch: true, ..BUSY_LOAD }),
            1_000,
            "whole batches wait for nothing"
        );
        assert_eq!(claims(1_000, GATHER_FOR, BUSY_LOAD), 1_000, "nobody waits where runs come slowly");
    }

    #[tokio::test]
    async fn claim_that_waits_is_made_a_moment_later_and_no_other_is_waited_for() {
        let (pace, begin) = (ClaimPace::default(), Instant::now());
        assert!(pace.may_claim(BUSY_LOAD, begin));
        assert!(pace.wakeup().now_or_never().is_none(), "none waits");
        assert!(!pace.may_claim(BUSY_LOAD, begin));
        pace.wakeup().await;
        assert!(begin.elapsed() >= GATHER_FOR && pace.may_claim(BUSY_LOAD, Instant::now()));
        assert!(pace.wakeup().now_or_never().is_none(), "it is made");
    }
}
