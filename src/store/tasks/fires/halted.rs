//! Fires of tenants that are halted: they are recorded as skipped, with the halt as their reason.

use crate::domain::halt::Halts;
use crate::store::tasks::fires::FireBatch;

impl FireBatch {
    /// Skips what may not begin. It counts for `max_runs` as what is skipped for overlap does, and for no quota.
    pub(super) fn skip_halted(&mut self, halts: &Halts) {
        if halts.is_empty() {
            return;
        }
        let mut kept = Vec::with_capacity(self.runs.len());
        for ready in self.runs.drain(..) {
            match halts.halt_of(&ready.run.tenant_id) {
                None => kept.push(ready),
                Some(halt) => self.tallies.add(ready.run, halt.as_str()),
            }
        }
        self.runs = kept;
    }
}
