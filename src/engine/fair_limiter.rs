//! The permits of the notifier and of the watcher: how many attempts, or polls, go on at the same time, and that nobody
//! takes them all.
//!
//! What may be taken follows what is left: a channel may have three times as many permits as are free, a tenant half as
//! many. So whoever hangs stops taking long before nothing is left, and the next one finds room, and so on. Nobody's
//! number has to be known beforehand.

use crate::base::limiter::{self, ConcurrencyLimiter, Limit, LimitReached};

/// A channel's part: at most three quarters of all, where no other one is there.
const OF_CHANNEL: Limit = Limit::OfFree { times: 3, per: 1 };
/// A tenant's part: at most a third of all, where no other one is there.
const OF_TENANT: Limit = Limit::OfFree { times: 1, per: 2 };

/// Permits for one kind of work. Cheap to clone; all clones share them.
#[derive(Clone)]
pub struct FairLimiter(ConcurrencyLimiter<Key>);

/// Keys by which permits are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Key {
    Channel(String),
    Tenant(String),
}

/// Scope in which no permit is left for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum FullScope {
    Channel,
    Tenant,
}

/// A permit that is held; dropping it gives it back.
pub type FairPermit = limiter::Permit<Key>;

impl FairLimiter {
    /// A limiter of so many attempts at once, one at least.
    pub fn new(all: usize) -> FairLimiter {
        FairLimiter(ConcurrencyLimiter::new(all.max(1)))
    }

    /// How many are free.
    pub fn available(&self) -> usize {
        self.0.available()
    }

    /// Takes one for a delivery of this channel and tenant.
    pub fn acquire(&self, channel: &str, tenant: &str) -> Result<FairPermit, FullScope> {
        let channel = (Key::Channel(channel.to_owned()), OF_CHANNEL);
        let tenant = (Key::Tenant(tenant.to_owned()), OF_TENANT);
        self.0.acquire([channel, tenant]).map_err(|reached| match reached {
            LimitReached::All | LimitReached::Key(Key::Channel(_)) => FullScope::Channel,
            LimitReached::Key(Key::Tenant(_)) => FullScope::Tenant,
        })
    }

    /// Takes one for a tenant, whatever for.
    pub fn acquire_any(&self, tenant: &str) -> Result<FairPermit, FullScope> {
        self.0.acquire([(Key::Tenant(tenant.to_owned()), OF_TENANT)]).map_err(|_| FullScope::Tenant)
    }

    /// Until a permit is given back; at once where one was since this was waited for last.
    pub async fn released(&self) {
        self.0.released().await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that it can.
    fn acquire_all(limiter: &FairLimiter, channel: &str, tenant: &str) -> Vec<FairPermit> {
        std::iter::from_fn(|| limiter.acquire(channel, tenant).ok()).collect()
    }

    #[test]
    fn one_tenant_has_a_third_and_the_next_ones_always_find_room() {
        let limiter = FairLimiter::new(96);
        let permits: Vec<Vec<FairPermit>> =
            ["a", "b", "c", "d", "e"].map(|tenant| acquire_all(&limiter, "webhook", tenant)).into_iter().collect();
        assert_eq!(permits.iter().map(Vec::len).collect::<Vec<_>>(), [32, 22, 14, 4, 0]);
        assert_eq!(limiter.acquire("webhook", "e").err(), Some(FullScope::Channel));
        assert_eq!(limiter.acquire("email", "a").err(), Some(FullScope::Tenant), "by whatever channel");
        let mail = acquire_all(&limiter, "email", "e");
        assert_eq!((mail.len(), limiter.available()), (8, 16));
    }

    #[test]
    fn one_channel_has_three_quarters_and_the_next_ones_always_find_room() {
        let limiter = FairLimiter::new(96);
        let take = |channel: &str| {
            let permits = (0..200).map_while(|tenant| limiter.acquire(channel, &format!("{channel} {tenant}")).ok());
            permits.collect::<Vec<FairPermit>>()
        };
        let permits = ["webhook", "email", "sms", "push"].map(take);
        assert_eq!(permits.each_ref().map(Vec::len), [72, 18, 5, 1]);
    }

    #[test]
    fn two_tenants_with_polls_that_hang_leave_room_to_a_third() {
        let limiter = FairLimiter::new(64);
        let acquire_all =
            |tenant: &str| std::iter::from_fn(|| limiter.acquire_any(tenant).ok()).collect::<Vec<FairPermit>>();
        let permits = ["a", "b", "c", "d"].map(acquire_all);
        assert_eq!(permits.each_ref().map(Vec::len), [22, 14, 10, 6]);
    }

    #[tokio::test]
    async fn permit_that_is_given_back_is_told_of_and_nothing_is_kept_of_it() {
        let limiter = FairLimiter::new(96);
        let permits = acquire_all(&limiter, "webhook", "a");
        drop(permits);
        limiter.released().await;
        assert!(limiter.available() == 96 && limiter.0.is_idle());
    }
}
