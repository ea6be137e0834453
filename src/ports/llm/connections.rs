//! Connections to one provider of models. One of HTTP/2 carries many calls, but a server allows so many on each and no
//! more; so that calls beyond wait for no other's answer, they go over further connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::ports::egress::OperatorClients;

/// Calls at once over one connection: as many as a server should allow at the least (RFC 9113, section 6.5.2).
const CALLS_OF_A_CONNECTION: usize = 100;

/// Clients of one provider; each keeps one connection where the provider speaks HTTP/2, and one for each call
/// otherwise.
pub struct ModelConnections {
    clients: OperatorClients,
    shared: Mutex<Vec<SharedClient>>,
}

struct SharedClient {
    client: reqwest::Client,
    /// Calls under way.
    calls: Arc<AtomicUsize>,
}

/// One call's place on a connection, until it is dropped.
pub struct ConnectionPlace {
    /// Sends the call.
    pub client: reqwest::Client,
    calls: Arc<AtomicUsize>,
}

impl ModelConnections {
    /// No connection is made before the first call. `timeout` bounds a whole call, its answer included.
    pub fn new(timeout: Duration) -> ModelConnections {
        ModelConnections { clients: OperatorClients::new(timeout), shared: Mutex::default() }
    }

    /// A place for one call: on the first connection that has one, so that few are kept open.
    pub fn acquire(&self) -> ConnectionPlace {
        let mut shared = self.shared.lock().expect("clients lock");
        let free = shared.iter().position(|client| client.calls.load(Ordering::Acquire) < CALLS_OF_A_CONNECTION);
        let index = free.unwrap_or_else(|| {
            shared.push(SharedClient { client: self.clients.client(), calls: Arc::default() });
            shared.len() - 1
        });
        let client = &shared[index];
        // under the lock, so that two do not take the last place
        client.calls.fetch_add(1, Ordering::AcqRel);
        ConnectionPlace { client: client.client.clone(), calls: Arc::clone(&client.calls) }
    }
}

impl Drop for ConnectionPlace {
    fn drop(&mut self) {
        self.calls.fetch_sub(1, Ordering::AcqRel);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_fill_one_connection_before_the_next_and_give_their_places_back() {
        let connections = ModelConnections::new(Duration::from_secs(1));
        let shared = || connections.shared.lock().unwrap().len();
        let mut places: Vec<ConnectionPlace> = (0..CALLS_OF_A_CONNECTION).map(|_| connections.acquire()).collect();
        assert_eq!(shared(), 1);
        places.push(connections.acquire());
        assert_eq!(shared(), 2);
        // one of the first connection ends: the next call takes its place
        places.remove(0);
        places.push(connections.acquire());
        let calls = |index: usize| connections.shared.lock().unwrap()[index].calls.load(Ordering::Acquire);
        assert_eq!((shared(), calls(0), calls(1)), (2, CALLS_OF_A_CONNECTION, 1));
    }
}
