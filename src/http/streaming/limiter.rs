//! How many streams (server-sent events, WebSockets) are open: in all, and per address, token and tenant.
//!
//! A stream keeps its connection for as long as it likes, so streams may have a part of the connections only: probes,
//! link pages and requests have the rest. Per instance.

mod detached;

use std::net::IpAddr;
use std::time::Duration;

use crate::base::id::{Scope, Tenant};
use crate::base::limiter::{self, ConcurrencyLimiter, Limit, LimitReached};
use crate::domain::quota::{ExceededQuota, Quota};
use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::request::AuthenticatedCaller;
use crate::http::server::ServerLimits;
use crate::http::server::connection_limiter::origin;

pub use detached::detached;

/// When to ask again for a stream, where all are open.
const ASK_AGAIN: Duration = Duration::from_secs(5);

/// Keys by which streams are counted.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum StreamKey {
    /// A client's address, by [`origin`].
    Address(IpAddr),
    /// A token, by its hash.
    Token([u8; 32]),
    /// A tenant whose rows are told of.
    Tenant(Tenant),
}

/// Counts the open streams of one instance.
#[derive(Debug, Clone)]
pub struct StreamLimiter {
    limits: ServerLimits,
    open: ConcurrencyLimiter<StreamKey>,
}

/// Room for one stream, given back when it is dropped.
pub type StreamPermit = limiter::Permit<StreamKey>;

impl StreamLimiter {
    /// A limiter without open streams.
    pub fn new(limits: ServerLimits) -> StreamLimiter {
        StreamLimiter { limits, open: ConcurrencyLimiter::new(limits.streams) }
    }

    /// Room for a stream of this caller, which tells what `scope` holds; its tenant may have so many.
    fn acquire(&self, caller: &AuthenticatedCaller, scope: &Scope, of_tenant: usize) -> Result<StreamPermit, ApiError> {
        let keys = self.of_address(caller.address).into_iter().chain(self.of_caller(caller, scope, of_tenant));
        self.open.acquire(keys).map_err(|reached| self.refuse(reached, of_tenant))
    }

    /// Room for a connection that becomes a stream before it is known whose it is.
    pub fn acquire_unidentified(&self, address: Option<IpAddr>) -> Result<StreamPermit, ApiError> {
        self.open.acquire(self.of_address(address)).map_err(|reached| self.refuse(reached, usize::MAX))
    }

    /// Streams that tell of this tenant and are open on this instance.
    pub fn open_of(&self, tenant: &Tenant) -> usize {
        self.open.in_use(&StreamKey::Tenant(tenant.clone()))
    }

    fn acquire_identified(
        &self,
        caller: &AuthenticatedCaller,
        scope: &Scope,
        of_tenant: usize,
    ) -> Result<StreamPermit, ApiError> {
        let keys = self.of_caller(caller, scope, of_tenant);
        self.open.acquire_of_keys(keys).map_err(|reached| self.refuse(reached, of_tenant))
    }

    /// The answer where there is no room. A tenant that has as many as its quota is told of the quota.
    fn refuse(&self, reached: LimitReached<StreamKey>, of_tenant: usize) -> ApiError {
        let detail = match reached {
            LimitReached::All => "all streams of this instance are open",
            LimitReached::Key(StreamKey::Address(_)) => "this address has too many open streams; close one first",
            LimitReached::Key(StreamKey::Token(_)) => "this token has too many open streams; close one first",
            LimitReached::Key(StreamKey::Tenant(tenant)) => {
                return ApiError::QuotaExceeded(Box::new(ExceededQuota {
                    quota: Quota::Streams,
                    limit: of_tenant as u64,
                    // one may have been closed meanwhile
                    usage: self.open_of(&tenant).max(of_tenant) as u64,
                    tenant: tenant.as_str().to_owned(),
                    retry_after: ASK_AGAIN,
                }));
            }
        };
        ApiError::TooManyRequests { detail, retry_after: ASK_AGAIN }
    }

    fn of_address(&self, address: Option<IpAddr>) -> Option<(StreamKey, Limit)> {
        address.map(|address| (StreamKey::Address(origin(address)), Limit::Fixed(self.limits.streams_per_address)))
    }

    /// A token has half of what its tenant has, so that no token closes the others out; an admin's acts for many
    /// tenants and has half of all. The tenant is first: where both have as many as they may, the quota is what is told
    /// of.
    fn of_caller(
        &self,
        caller: &AuthenticatedCaller,
        scope: &Scope,
        of_tenant: usize,
    ) -> impl Iterator<Item = (StreamKey, Limit)> + use<> {
        let most = match caller.scope {
            Scope::Every => self.limits.streams,
            Scope::Only(_) => of_tenant,
        };
        let token = (StreamKey::Token(*caller.hash().as_bytes()), Limit::Fixed(most.div_ceil(2)));
        let tenant = match scope {
            Scope::Every => None,
            Scope::Only(tenant) => Some((StreamKey::Tenant(tenant.clone()), Limit::Fixed(of_tenant))),
        };
        tenant.into_iter().chain([token])
    }
}

/// Room for a stream of this caller, which tells what `scope` holds.
pub async fn acquire_stream(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    scope: &Scope,
) -> Result<StreamPermit, ApiError> {
    counted(state, state.streams.acquire(caller, scope, of_tenant(state, scope).await?))
}

/// Room for the stream of a connection that has its own: [`StreamLimiter::acquire_unidentified`].
pub async fn acquire_known_stream(
    state: &HttpState,
    caller: &AuthenticatedCaller,
    scope: &Scope,
) -> Result<StreamPermit, ApiError> {
    counted(state, state.streams.acquire_identified(caller, scope, of_tenant(state, scope).await?))
}

/// Counts a refusal by the quota among those of the other quotas.
fn counted(state: &HttpState, acquired: Result<StreamPermit, ApiError>) -> Result<StreamPermit, ApiError> {
    if let Err(ApiError::QuotaExceeded(over)) = &acquired {
        state.store.count_refusal(over.quota);
    }
    acquired
}

/// How many streams the tenant of the scope may have, by its quota.
async fn of_tenant(state: &HttpState, scope: &Scope) -> Result<usize, ApiError> {
    match scope.tenant() {
        None => Ok(state.limits.streams),
        Some(tenant) => Ok(usize::try_from(state.store.quotas_of(tenant).await?.streams).unwrap_or(usize::MAX)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limiter() -> StreamLimiter {
        StreamLimiter::new(ServerLimits { streams: 8, streams_per_address: 6, ..ServerLimits::default() })
    }

    fn caller(token: &str, tenant: &str, address: [u8; 4]) -> AuthenticatedCaller {
        AuthenticatedCaller::of_test(token, Scope::Only(Tenant::new(tenant).unwrap()), address.into())
    }

    fn take(
        limiter: &StreamLimiter,
        caller: &AuthenticatedCaller,
        count: usize,
    ) -> (Vec<StreamPermit>, Option<String>) {
        let mut permits = Vec::new();
        for _ in 0..count {
            match limiter.acquire(caller, &caller.scope, 4) {
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
        let quota = "the quota `streams` is 4, and 4 are used: close streams that nobody reads, or ask the operator for \
                     more";
        assert_eq!(why.unwrap(), quota);
        assert_eq!(limiter.open_of(&Tenant::new("ann").unwrap()), 4);
        let (others, why) = take(&limiter, &caller("d", "bob", [10, 0, 0, 1]), 9);
        assert_eq!(
            (others.len(), why.unwrap().as_str()),
            (2, "this address has too many open streams; close one first")
        );
        drop((first, second, others));
        assert!(limiter.open.is_idle(), "what has no streams is forgotten");
    }

    #[test]
    fn streams_never_take_all_connections_of_an_instance_or_of_an_address() {
        let limits = ServerLimits::default();
        assert!(limits.streams < limits.connections && limits.streams_per_address < limits.connections_per_address);
        let limiter = limiter();
        let permits: Vec<StreamPermit> =
            (0..8).map(|n| limiter.acquire_unidentified(Some([10, 0, 0, n].into())).unwrap()).collect();
        let refused = limiter.acquire_unidentified(Some([10, 0, 0, 9].into())).unwrap_err();
        assert_eq!(refused.into_problem().detail, "all streams of this instance are open");
        drop(permits);
        assert!(limiter.acquire_unidentified(None).is_ok());
    }

    #[test]
    fn admin_has_half_of_all_streams_and_counts_for_the_tenant_that_it_follows() {
        let limiter = limiter();
        let admin = AuthenticatedCaller::of_test("admin", Scope::Every, [10, 0, 0, 1].into());
        let ann = Scope::Only(Tenant::new("ann").unwrap());
        let held: Vec<_> = (0..4).map(|_| limiter.acquire(&admin, &ann, 4).unwrap()).collect();
        assert!(limiter.acquire(&admin, &Scope::Every, 8).is_err());
        assert!(limiter.acquire(&caller("a", "ann", [10, 0, 0, 2]), &ann, 4).is_err());
        drop(held);
    }
}
