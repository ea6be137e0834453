//! How many streams (server-sent events, WebSockets) are open: in all, and per address, token and tenant.
//!
//! A stream keeps its connection for as long as it likes, so streams may have a part of the connections only: probes,
//! link pages and requests have the rest. In memory only, per instance.

mod detached;

use std::collections::HashMap;
use std::net::IpAddr;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::http::State;
use crate::http::auth::Caller;
use crate::http::error::ApiError;
use crate::http::seats::origin;
use crate::http::server::Limits;
use crate::id::{Scope, Tenant};

pub use detached::detached;

/// When to ask again for a stream, where all are open.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Keys by which streams are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Key {
    All,
    Address(IpAddr),
    Token([u8; 32]),
    Tenant(Tenant),
}

impl Key {
    fn is_full(&self) -> ApiError {
        let detail = match self {
            Key::All => "all streams of this instance are open",
            Key::Address(_) => "this address has too many open streams; close one first",
            Key::Token(_) => "this token has too many open streams; close one first",
            Key::Tenant(_) => "the tenant has too many open streams; close one first",
        };
        ApiError::TooManyRequests { detail, retry_after: ASK_AGAIN }
    }
}

/// Counts the open streams of one instance.
#[derive(Debug, Clone)]
pub struct StreamLimiter {
    limits: Limits,
    open: Arc<Mutex<HashMap<Key, usize>>>,
}

/// Room for one stream, given back when it is dropped.
#[derive(Debug)]
pub struct Permit {
    keys: Vec<Key>,
    open: Arc<Mutex<HashMap<Key, usize>>>,
}

impl StreamLimiter {
    /// A limiter without open streams.
    pub fn new(limits: Limits) -> StreamLimiter {
        StreamLimiter { limits, open: Arc::default() }
    }

    /// Room for a stream of this caller, which tells what `scope` holds; its tenant may have so many.
    fn take(&self, caller: &Caller, scope: &Scope, of_tenant: usize) -> Result<Permit, ApiError> {
        let mut wanted = self.of_connection(caller.address);
        wanted.extend(self.of_caller(caller, scope, of_tenant));
        self.permit(wanted)
    }

    /// Room for a connection that becomes a stream before it is known whose it is.
    pub fn take_unknown(&self, address: Option<IpAddr>) -> Result<Permit, ApiError> {
        self.permit(self.of_connection(address))
    }

    fn take_known(&self, caller: &Caller, scope: &Scope, of_tenant: usize) -> Result<Permit, ApiError> {
        self.permit(self.of_caller(caller, scope, of_tenant))
    }

    fn of_connection(&self, address: Option<IpAddr>) -> Vec<(Key, usize)> {
        let address = address.map(|address| (Key::Address(origin(address)), self.limits.streams_per_address));
        [(Key::All, self.limits.streams)].into_iter().chain(address).collect()
    }

    /// A token has half of what its tenant has, so that no token closes the others out; an admin's acts for many tenants
    /// and has half of all.
    fn of_caller(&self, caller: &Caller, scope: &Scope, of_tenant: usize) -> Vec<(Key, usize)> {
        let most = match caller.scope {
            Scope::Every => self.limits.streams,
            Scope::Only(_) => of_tenant,
        };
        let token = (Key::Token(*caller.hash().as_bytes()), most.div_ceil(2));
        let tenant = match scope {
            Scope::Every => None,
            Scope::Only(tenant) => Some((Key::Tenant(tenant.clone()), of_tenant)),
        };
        [token].into_iter().chain(tenant).collect()
    }

    fn permit(&self, wanted: Vec<(Key, usize)>) -> Result<Permit, ApiError> {
        let mut open = self.open.lock().expect("stream lock");
        if let Some((full, _)) = wanted.iter().find(|(key, most)| open.get(key).is_some_and(|open| open >= most)) {
            return Err(full.is_full());
        }
        let keys: Vec<Key> = wanted.into_iter().map(|(key, _)| key).collect();
        for key in &keys {
            *open.entry(key.clone()).or_default() += 1;
        }
        Ok(Permit { keys, open: Arc::clone(&self.open) })
    }
}

impl Drop for Permit {
    fn drop(&mut self) {
        let mut open = self.open.lock().expect("stream lock");
        for key in &self.keys {
            match open.get_mut(key) {
                Some(count) if *count > 1 => *count -= 1,
                _ => drop(open.remove(key)),
            }
        }
    }
}

/// Room for a stream of this caller, which tells what `scope` holds.
pub async fn open(state: &State, caller: &Caller, scope: &Scope) -> Result<Permit, ApiError> {
    state.streams.take(caller, scope, of_tenant(state, scope).await?)
}

/// Room for the stream of a connection that has its own: [`StreamLimiter::take_unknown`].
pub async fn open_known(state: &State, caller: &Caller, scope: &Scope) -> Result<Permit, ApiError> {
    state.streams.take_known(caller, scope, of_tenant(state, scope).await?)
}

/// How many streams the tenant of the scope may have, by its quota.
async fn of_tenant(state: &State, scope: &Scope) -> Result<usize, ApiError> {
    match scope.tenant() {
        None => Ok(state.limits.streams),
        Some(tenant) => Ok(usize::try_from(state.store.quotas_of(tenant).await?.streams).unwrap_or(usize::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> StreamLimiter {
        StreamLimiter::new(Limits { streams: 8, streams_per_address: 6, ..Limits::default() })
    }

    fn caller(token: &str, tenant: &str, address: [u8; 4]) -> Caller {
        Caller::of_test(token, Scope::Only(Tenant::new(tenant).unwrap()), address.into())
    }

    fn take(limiter: &StreamLimiter, caller: &Caller, count: usize) -> (Vec<Permit>, Option<String>) {
        let mut permits = Vec::new();
        for _ in 0..count {
            match limiter.take(caller, &caller.scope, 4) {
                Ok(permit) => permits.push(permit),
                Err(refused) => return (permits, Some(refused.into_problem().detail)),
            }
        }
        (permits, None)
    }

    #[test]
    fn token_has_half_of_its_tenant_and_a_tenant_never_all() {
        let limiter = limiter();
        let (first, why) = take(&limiter, &caller("a", "ann", [10, 0, 0, 1]), 9);
        assert_eq!((first.len(), why.unwrap().as_str()), (2, "this token has too many open streams; close one first"));
        let (second, _) = take(&limiter, &caller("b", "ann", [10, 0, 0, 1]), 9);
        let (third, why) = take(&limiter, &caller("c", "ann", [10, 0, 0, 1]), 9);
        assert_eq!((second.len(), third.len()), (2, 0));
        assert_eq!(why.unwrap(), "the tenant has too many open streams; close one first");
        let (others, why) = take(&limiter, &caller("d", "bob", [10, 0, 0, 1]), 9);
        assert_eq!(
            (others.len(), why.unwrap().as_str()),
            (2, "this address has too many open streams; close one first")
        );
        drop((first, second, others));
        assert!(limiter.open.lock().unwrap().is_empty(), "what has no streams is forgotten");
    }

    #[test]
    fn streams_never_take_all_connections_of_an_instance_or_of_an_address() {
        let limits = Limits::default();
        assert!(limits.streams < limits.connections && limits.streams_per_address < limits.connections_per_address);
        let limiter = limiter();
        let permits: Vec<Permit> = (0..8).map(|n| limiter.take_unknown(Some([10, 0, 0, n].into())).unwrap()).collect();
        let refused = limiter.take_unknown(Some([10, 0, 0, 9].into())).unwrap_err();
        assert_eq!(refused.into_problem().detail, "all streams of this instance are open");
        drop(permits);
        assert!(limiter.take_unknown(None).is_ok());
    }

    #[test]
    fn admin_has_half_of_all_streams_and_counts_for_the_tenant_that_it_follows() {
        let limiter = limiter();
        let admin = Caller::of_test("admin", Scope::Every, [10, 0, 0, 1].into());
        let ann = Scope::Only(Tenant::new("ann").unwrap());
        let held: Vec<_> = (0..4).map(|_| limiter.take(&admin, &ann, 4).unwrap()).collect();
        assert!(limiter.take(&admin, &Scope::Every, 8).is_err());
        assert!(limiter.take(&caller("a", "ann", [10, 0, 0, 2]), &ann, 4).is_err());
        drop(held);
    }
}
