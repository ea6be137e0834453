//! The places of the notifier and of the watcher: how many attempts, or polls, go on at the same time, and that nobody
//! takes them all.
//!
//! What may be taken follows what is left: a channel may have three times as many places as are free, a tenant half as
//! many. So whoever hangs stops taking long before nothing is left, and the next one finds room, and so on. Nobody's
//! number has to be known beforehand. Counts of this process only; a restart begins with all places free.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use tokio::sync::Notify;

/// Places for one kind of work. Cheap to clone; all clones share them. One tenant alone has at most a third of them, one
/// channel three quarters.
#[derive(Clone)]
pub struct Places(Arc<Shared>);

struct Shared {
    all: usize,
    taken: Mutex<Taken>,
    freed: Notify,
}

#[derive(Default)]
struct Taken {
    all: usize,
    channels: HashMap<String, usize>,
    tenants: HashMap<String, usize>,
}

/// Scope in which no place is left for now.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Full {
    Channel,
    Tenant,
}

/// A place that is taken; dropping it frees it.
pub struct Seat {
    places: Places,
    channel: Option<String>,
    tenant: String,
}

impl Places {
    pub fn new(all: usize) -> Places {
        Places(Arc::new(Shared { all: all.max(1), taken: Mutex::default(), freed: Notify::new() }))
    }

    /// How many are free.
    pub fn free(&self) -> usize {
        self.0.all - self.0.taken.lock().expect("places").all
    }

    /// Takes one for a delivery of this channel and tenant.
    pub fn take(&self, channel: &str, tenant: &str) -> Result<Seat, Full> {
        self.take_for(Some(channel), tenant)
    }

    /// Takes one for a tenant, whatever for.
    pub fn take_any(&self, tenant: &str) -> Result<Seat, Full> {
        self.take_for(None, tenant)
    }

    fn take_for(&self, channel: Option<&str>, tenant: &str) -> Result<Seat, Full> {
        let mut taken = self.0.taken.lock().expect("places");
        let free = self.0.all - taken.all;
        if channel.is_some_and(|channel| taken.channels.get(channel).copied().unwrap_or(0) >= 3 * free) {
            return Err(Full::Channel);
        }
        if 2 * taken.tenants.get(tenant).copied().unwrap_or(0) >= free {
            return Err(Full::Tenant);
        }
        taken.all += 1;
        if let Some(channel) = channel {
            *taken.channels.entry(channel.to_owned()).or_default() += 1;
        }
        *taken.tenants.entry(tenant.to_owned()).or_default() += 1;
        Ok(Seat { places: self.clone(), channel: channel.map(str::to_owned), tenant: tenant.to_owned() })
    }

    /// Until a place is freed; at once where one was since this was waited for last.
    pub async fn freed(&self) {
        self.0.freed.notified().await;
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        let mut taken = self.places.0.taken.lock().expect("places");
        taken.all -= 1;
        let Taken { channels, tenants, .. } = &mut *taken;
        let channel = self.channel.as_ref().map(|channel| (channels, channel));
        for (counts, name) in channel.into_iter().chain([(tenants, &self.tenant)]) {
            if let Some(count) = counts.get_mut(name) {
                *count -= 1;
                if *count == 0 {
                    counts.remove(name);
                }
            }
        }
        drop(taken);
        self.places.0.freed.notify_one();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Takes all that it can.
    fn hog(places: &Places, channel: &str, tenant: &str) -> Vec<Seat> {
        std::iter::from_fn(|| places.take(channel, tenant).ok()).collect()
    }

    #[test]
    fn one_tenant_has_a_third_and_the_next_ones_always_find_room() {
        let places = Places::new(96);
        let held: Vec<Vec<Seat>> =
            ["a", "b", "c", "d", "e"].map(|tenant| hog(&places, "webhook", tenant)).into_iter().collect();
        assert_eq!(held.iter().map(Vec::len).collect::<Vec<_>>(), [32, 22, 14, 4, 0]);
        assert_eq!(places.take("webhook", "e").err(), Some(Full::Channel));
        assert_eq!(places.take("email", "a").err(), Some(Full::Tenant), "by whatever channel");
        let mail = hog(&places, "email", "e");
        assert_eq!((mail.len(), places.free()), (8, 16));
    }

    #[test]
    fn one_channel_has_three_quarters_and_the_next_ones_always_find_room() {
        let places = Places::new(96);
        let take = |channel: &str| {
            let seats = (0..200).map_while(|tenant| places.take(channel, &format!("{channel} {tenant}")).ok());
            seats.collect::<Vec<Seat>>()
        };
        let held = ["webhook", "email", "sms", "push"].map(take);
        assert_eq!(held.each_ref().map(Vec::len), [72, 18, 5, 1]);
    }

    #[test]
    fn two_tenants_with_polls_that_hang_leave_room_to_a_third() {
        let places = Places::new(64);
        let hog = |tenant: &str| std::iter::from_fn(|| places.take_any(tenant).ok()).collect::<Vec<Seat>>();
        let held = ["a", "b", "c", "d"].map(hog);
        assert_eq!(held.each_ref().map(Vec::len), [22, 14, 10, 6]);
    }

    #[tokio::test]
    async fn a_place_that_is_freed_is_told_of_and_nothing_is_kept_of_it() {
        let places = Places::new(96);
        let seats = hog(&places, "webhook", "a");
        drop(seats);
        places.freed().await;
        let taken = places.0.taken.lock().unwrap();
        assert_eq!((taken.all, taken.channels.len(), taken.tenants.len()), (0, 0, 0));
    }
}
