//! Connections to one provider of models. One of HTTP/2 carries many calls, but a server allows so many on each and no more;
//! so that calls beyond wait for no other's answer, they go over further connections.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::ports::egress::OperatorClients;

/// Calls at once over one connection: as many as a server should allow at the least (RFC 9113, section 6.5.2).
const CALLS_OF_A_CONNECTION: usize = 100;

/// Clients of one provider; each keeps one connection where the provider speaks HTTP/2, and one for each call otherwise.
pub struct ModelConnections {
    clients: OperatorClients,
    lanes: Mutex<Vec<Lane>>,
}

struct Lane {
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
        ModelConnections { clients: OperatorClients::new(timeout), lanes: Mutex::default() }
    }

    /// A place for one call: on the first connection that has one, so that few are kept open.
    pub fn acquire(&self) -> ConnectionPlace {
        let mut lanes = self.lanes.lock().expect("lanes lock");
        let free = lanes.iter().position(|lane| lane.calls.load(Ordering::Acquire) < CALLS_OF_A_CONNECTION);
        let index = free.unwrap_or_else(|| {
            lanes.push(Lane { client: self.clients.client(), calls: Arc::default() });
            lanes.len() - 1
        });
        let lane = &lanes[index];
        // under the lock, so that two do not take the last place
        lane.calls.fetch_add(1, Ordering::AcqRel);
        ConnectionPlace { client: lane.client.clone(), calls: Arc::clone(&lane.calls) }
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
        let lanes = || connections.lanes.lock().unwrap().len();
        let mut places: Vec<ConnectionPlace> = (0..CALLS_OF_A_CONNECTION).map(|_| connections.acquire()).collect();
        assert_eq!(lanes(), 1);
        places.push(connections.acquire());
        assert_eq!(lanes(), 2);
        // one of the first connection ends: the next call takes its place
        places.remove(0);
        places.push(connections.acquire());
        let calls = |index: usize| connections.lanes.lock().unwrap()[index].calls.load(Ordering::Acquire);
        assert_eq!((lanes(), calls(0), calls(1)), (2, CALLS_OF_A_CONNECTION, 1));
    }
}
