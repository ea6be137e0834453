//! Due claims: one queue per tenant, served round-robin.

use std::collections::{HashMap, VecDeque};

use crate::store::RunClaim;

/// Due claims, queued per tenant.
#[derive(Default)]
pub(super) struct ClaimQueues {
    pub(super) queues: HashMap<u32, VecDeque<RunClaim>>,
    /// Tenants with claims that were not skipped, in the order of their turns.
    pub(super) order: VecDeque<u32>,
    /// Tenants that had all the slots that they may have.
    pub(super) skipped: Vec<u32>,
    pub(super) len: usize,
}

impl ClaimQueues {
    pub(super) fn push(&mut self, claim: RunClaim) {
        let queue = self.queues.entry(claim.tenant_hash).or_default();
        if queue.is_empty() {
            self.order.push_back(claim.tenant_hash);
        }
        queue.push_back(claim);
        self.len += 1;
    }

    /// The next claim of a tenant that may have another slot.
    pub(super) fn pop(&mut self, may: &mut impl FnMut(u32) -> bool) -> Option<RunClaim> {
        let tenant = loop {
            let tenant = self.order.pop_front()?;
            if may(tenant) {
                break tenant;
            }
            self.skipped.push(tenant);
        };
        let queue = self.queues.get_mut(&tenant)?;
        let claim = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        self.len -= 1;
        Some(claim)
    }

    /// Gives skipped tenants their turn again.
    pub(super) fn requeue_skipped(&mut self) {
        self.order.extend(self.skipped.drain(..));
    }

    /// Claims of tenants that were not skipped.
    pub(super) fn startable(&self) -> usize {
        self.len - self.skipped.iter().map(|tenant| self.queues[tenant].len()).sum::<usize>()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&RunClaim) -> bool) {
        if self.len == 0 {
            return;
        }
        self.queues.values_mut().for_each(|queue| queue.retain(&keep));
        self.queues.retain(|_, queue| !queue.is_empty());
        let queues = &self.queues;
        self.order.retain(|tenant| queues.contains_key(tenant));
        self.skipped.retain(|tenant| queues.contains_key(tenant));
        self.len = self.queues.values().map(VecDeque::len).sum();
    }
}
