//! Fires of a batch held to what their tenants may have in this minute: those beyond it are recorded as skipped.

use std::collections::BTreeMap;

use crate::domain::quota::REASON_QUOTA;
use crate::store::tasks::fires::FireBatch;

impl FireBatch {
    /// How many fires of each tenant are to be recorded.
    pub(super) fn fires(&self) -> BTreeMap<String, usize> {
        let mut fires = BTreeMap::new();
        for ready in &self.runs {
            match fires.get_mut(&ready.run.tenant_id) {
                Some(count) => *count += 1,
                None => drop(fires.insert(ready.run.tenant_id.clone(), 1)),
            }
        }
        fires
    }

    /// Skips what is more than each tenant may have, the last of the batch first. It counts for `max_runs` as what is
    /// skipped for overlap does.
    pub(super) fn skip_over_quota(&mut self, mut allowed: BTreeMap<String, usize>) {
        if allowed.values().sum::<usize>() == self.runs.len() {
            return;
        }
        let mut kept = Vec::with_capacity(self.runs.len());
        for ready in self.runs.drain(..) {
            match allowed.get_mut(&ready.run.tenant_id) {
                Some(left) if *left > 0 => {
                    *left -= 1;
                    kept.push(ready);
                }
                _ => self.tallies.add(ready.run, REASON_QUOTA),
            }
        }
        self.runs = kept;
    }
}
