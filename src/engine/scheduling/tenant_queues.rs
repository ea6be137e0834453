//! One queue per tenant, served round-robin.

use std::collections::{HashMap, VecDeque};

/// Items that wait, queued per tenant.
pub(super) struct TenantQueues<T> {
    queues: HashMap<u32, VecDeque<T>>,
    /// Tenants with items that were not skipped, in the order of their turns.
    order: VecDeque<u32>,
    /// Tenants that had all that they may have.
    skipped: Vec<u32>,
    len: usize,
}

impl<T> Default for TenantQueues<T> {
    fn default() -> TenantQueues<T> {
        TenantQueues { queues: HashMap::new(), order: VecDeque::new(), skipped: Vec::new(), len: 0 }
    }
}

impl<T> TenantQueues<T> {
    pub(super) fn push(&mut self, tenant_hash: u32, item: T) {
        let queue = self.queues.entry(tenant_hash).or_default();
        if queue.is_empty() {
            self.order.push_back(tenant_hash);
        }
        queue.push_back(item);
        self.len += 1;
    }

    /// The next item of a tenant that may have another.
    pub(super) fn pop(&mut self, may: &mut impl FnMut(u32) -> bool) -> Option<T> {
        let tenant = loop {
            let tenant = self.order.pop_front()?;
            if may(tenant) {
                break tenant;
            }
            self.skipped.push(tenant);
        };
        let queue = self.queues.get_mut(&tenant)?;
        let item = queue.pop_front()?;
        if queue.is_empty() {
            self.queues.remove(&tenant);
        } else {
            self.order.push_back(tenant);
        }
        self.len -= 1;
        Some(item)
    }

    /// Gives skipped tenants their turn again.
    pub(super) fn requeue_skipped(&mut self) {
        self.order.extend(self.skipped.drain(..));
    }

    /// Whether tenants were skipped.
    pub(super) fn has_skipped(&self) -> bool {
        !self.skipped.is_empty()
    }

    /// Number of items.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    /// The first item of the tenant whose turn it is.
    pub(super) fn front(&self) -> Option<&T> {
        self.order.front().and_then(|tenant| self.queues[tenant].front())
    }

    /// Items of tenants that were not skipped.
    pub(super) fn startable(&self) -> usize {
        self.len - self.skipped.iter().map(|tenant| self.queues[tenant].len()).sum::<usize>()
    }

    pub(super) fn retain(&mut self, keep: impl Fn(&T) -> bool) {
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
