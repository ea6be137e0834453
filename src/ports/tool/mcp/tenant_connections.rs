//! The connections of single tenants with one server. Where a tenant's own credential goes along, a session of the
//! server belongs to that tenant, and no call of another goes over it.

use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use lru::LruCache;
use tokio::runtime::Handle;
use tokio::sync::OwnedMutexGuard;

use crate::base::id::Tenant;
use crate::ports::tool::mcp::connection::McpConnection;
use crate::ports::tool::mcp::fault::McpFault;

/// Tenants with a connection to one server at once. The one that called longest ago has to connect anew.
pub const TENANT_CONNECTIONS: usize = 64;

/// The connection of a tenant. It is locked while one is being made, so that one connects and others wait.
type TenantSlot = Arc<tokio::sync::Mutex<Option<Arc<McpConnection>>>>;
type HeldSlot = OwnedMutexGuard<Option<Arc<McpConnection>>>;

/// The connections of tenants with one server.
pub struct TenantConnections {
    server: String,
    slots: Mutex<LruCache<Tenant, UsedSlot>>,
}

struct UsedSlot {
    slot: TenantSlot,
    used: Instant,
}

impl TenantConnections {
    /// None yet, with the server of this name.
    pub fn new(server: &str) -> TenantConnections {
        let most = NonZeroUsize::new(TENANT_CONNECTIONS).expect("more than none");
        TenantConnections { server: server.to_owned(), slots: Mutex::new(LruCache::new(most)) }
    }

    /// The tenant's connection, which `open` makes where there is none. One that is begun is finished on the runtime,
    /// though nobody waits for it any more: the next call has it.
    ///
    /// # Errors
    /// Why none can be made.
    pub async fn get(
        &self,
        tenant: &Tenant,
        runtime: &Handle,
        open: impl Future<Output = Result<Arc<McpConnection>, McpFault>> + Send + 'static,
    ) -> Result<Arc<McpConnection>, McpFault> {
        // the caller waits here: of calls that have given up none makes a connection behind the one that is made
        let held = self.slot(tenant).lock_owned().await;
        if let Some(connection) = held.as_ref().filter(|connection| !connection.is_closed()) {
            return Ok(Arc::clone(connection));
        }
        match runtime.spawn(fill(held, open)).await {
            Ok(filled) => filled,
            Err(error) => Err(McpFault::Away { server: self.server.clone(), why: error.to_string() }),
        }
    }

    /// Ends the connections over which nothing was called for so long. Calls under way go on.
    pub fn sweep(&self, idle: Duration) {
        let mut slots = self.slots();
        while let Some((_, oldest)) = slots.peek_lru()
            && oldest.used.elapsed() >= idle
        {
            slots.pop_lru();
        }
    }

    /// Forgets all connections, and returns those that there are.
    pub fn take_all(&self) -> Vec<Arc<McpConnection>> {
        let mut slots = self.slots();
        let mut taken = Vec::new();
        while let Some((_, used)) = slots.pop_lru() {
            // one that is being made is dropped by whoever makes it
            taken.extend(used.slot.try_lock().ok().and_then(|held| held.clone()));
        }
        taken
    }

    /// The slot of a tenant, which is used now.
    fn slot(&self, tenant: &Tenant) -> TenantSlot {
        let mut slots = self.slots();
        let used = slots.get_or_insert_mut(tenant.clone(), || UsedSlot { slot: Arc::default(), used: Instant::now() });
        used.used = Instant::now();
        Arc::clone(&used.slot)
    }

    fn slots(&self) -> MutexGuard<'_, LruCache<Tenant, UsedSlot>> {
        self.slots.lock().expect("the lock of tenants' connections")
    }
}

/// Makes the connection of a slot, which is held meanwhile.
async fn fill(
    mut held: HeldSlot,
    open: impl Future<Output = Result<Arc<McpConnection>, McpFault>>,
) -> Result<Arc<McpConnection>, McpFault> {
    let opened = open.await?;
    *held = Some(Arc::clone(&opened));
    Ok(opened)
}

#[cfg(test)]
mod tests {
    use std::pin::pin;
    use std::sync::atomic::{AtomicBool, Ordering};

    use futures::FutureExt;
    use tokio::sync::oneshot;

    use super::*;
    use crate::ports::tool::mcp::connection::ServerEra;
    use crate::ports::tool::mcp::connection::fixture::OldServer;

    fn tenant(name: &str) -> Tenant {
        Tenant::new(name).unwrap()
    }

    /// Its server stays where it is.
    async fn opened() -> Result<Arc<McpConnection>, McpFault> {
        Ok(Arc::new(OldServer::connected(ServerEra::Legacy).await.1))
    }

    async fn unopened() -> Result<Arc<McpConnection>, McpFault> {
        panic!("there is a connection already")
    }

    async fn connection_of(connections: &TenantConnections, name: &str) -> Arc<McpConnection> {
        connections.get(&tenant(name), &Handle::current(), opened()).await.unwrap()
    }

    /// The connection that there is.
    async fn kept(connections: &TenantConnections, name: &str) -> Option<Arc<McpConnection>> {
        connections.get(&tenant(name), &Handle::current(), unopened()).await.ok()
    }

    #[tokio::test]
    async fn tenant_keeps_its_connection_and_another_has_its_own() {
        let connections = TenantConnections::new("github");
        let (ann, ben) = (connection_of(&connections, "ann").await, connection_of(&connections, "ben").await);
        assert!(!Arc::ptr_eq(&ann, &ben));
        assert!(Arc::ptr_eq(&ann, &kept(&connections, "ann").await.unwrap()));
    }

    #[tokio::test]
    async fn connection_that_has_closed_is_replaced_and_a_failure_is_not_kept() {
        let connections = TenantConnections::new("github");
        let (server, first) = OldServer::connected(ServerEra::Legacy).await;
        let first = connections.get(&tenant("ann"), &Handle::current(), async { Ok(Arc::new(first)) }).await.unwrap();
        server.stop();
        first.closed().await;
        let fault = McpFault::Unauthorized { server: "github".into() };
        let refused = fault.clone();
        let failed = connections.get(&tenant("ann"), &Handle::current(), async { Err(refused) }).await;
        assert_eq!(failed.err(), Some(fault));
        assert!(!connection_of(&connections, "ann").await.is_closed());
    }

    #[tokio::test]
    async fn tenants_up_to_the_most_keep_their_connections_and_one_beyond_takes_the_place_of_the_oldest() {
        let connections = TenantConnections::new("github");
        for number in 0..TENANT_CONNECTIONS {
            connection_of(&connections, &format!("tenant-{number}")).await;
        }
        assert!(kept(&connections, "tenant-0").await.is_some());
        connection_of(&connections, "one-more").await;
        assert!(kept(&connections, "tenant-0").await.is_some(), "it was used since");
        assert!(kept(&connections, "tenant-1").await.is_none());
    }

    #[tokio::test]
    async fn connection_that_nobody_waits_for_any_more_is_there_for_the_next_call() {
        let connections = TenantConnections::new("github");
        let (begin, begun) = oneshot::channel::<()>();
        let slow = async move {
            begun.await.unwrap();
            opened().await
        };
        {
            let ann = tenant("ann");
            let runtime = Handle::current();
            let mut first = pin!(connections.get(&ann, &runtime, slow));
            assert!((&mut first).now_or_never().is_none());
        }
        begin.send(()).unwrap();
        assert!(kept(&connections, "ann").await.is_some());
    }

    #[tokio::test]
    async fn call_that_has_given_up_makes_no_connection_behind_one_that_failed() {
        let connections = TenantConnections::new("github");
        let (begin, begun) = oneshot::channel::<()>();
        let failing = async move {
            begun.await.unwrap();
            Err::<Arc<McpConnection>, _>(McpFault::Unauthorized { server: "github".into() })
        };
        let has_begun = Arc::new(AtomicBool::new(false));
        let second_has_begun = Arc::clone(&has_begun);
        let late = async move {
            second_has_begun.store(true, Ordering::Relaxed);
            opened().await
        };
        {
            let (ann, runtime) = (tenant("ann"), Handle::current());
            let mut first = pin!(connections.get(&ann, &runtime, failing));
            assert!((&mut first).now_or_never().is_none());
            let mut second = pin!(connections.get(&ann, &runtime, late));
            assert!((&mut second).now_or_never().is_none());
        }
        begin.send(()).unwrap();
        connection_of(&connections, "ann").await;
        assert!(!has_begun.load(Ordering::Relaxed));
    }

    #[tokio::test]
    async fn unused_connection_is_ended_and_a_used_one_is_not() {
        let connections = TenantConnections::new("github");
        connection_of(&connections, "ann").await;
        connections.sweep(Duration::from_secs(60));
        assert!(kept(&connections, "ann").await.is_some());
        connections.sweep(Duration::ZERO);
        assert!(kept(&connections, "ann").await.is_none());
    }

    #[tokio::test]
    async fn all_connections_are_taken_once() {
        let connections = TenantConnections::new("github");
        connection_of(&connections, "ann").await;
        connection_of(&connections, "ben").await;
        assert_eq!((connections.take_all().len(), connections.take_all().len()), (2, 0));
    }
}
