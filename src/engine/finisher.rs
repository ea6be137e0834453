//! Ends are written in batches of what is already waiting: no timer delays one, and a burst costs few commits.

use std::time::Duration;

use tokio::sync::{mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::clock;
use crate::retry::full_jitter;
use crate::store::{Finish, Store, StoreError};

/// Ends written in one transaction.
const BATCH: usize = 256;
/// The first and the longest wait before a store that is away is asked again.
const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

struct Request {
    finish: Finish,
    /// Whether it was taken: the lease still stood.
    taken: oneshot::Sender<bool>,
}

/// The way to a recorded end. Cheap to clone.
#[derive(Clone)]
pub struct Finisher {
    store: Store,
    requests: mpsc::UnboundedSender<Request>,
    waiting: std::sync::Arc<tokio::sync::Mutex<mpsc::UnboundedReceiver<Request>>>,
}

impl Finisher {
    pub fn new(store: Store) -> Finisher {
        let (requests, waiting) = mpsc::unbounded_channel();
        Finisher { store, requests, waiting: std::sync::Arc::new(tokio::sync::Mutex::new(waiting)) }
    }

    /// Records an end; false where the lease was lost. A store that is away is waited for: the caller gives up when
    /// its lease ends.
    pub async fn finish(&self, finish: Finish) -> bool {
        let (taken, answer) = oneshot::channel();
        if self.requests.send(Request { finish, taken }).is_err() {
            return false;
        }
        answer.await.unwrap_or(false)
    }

    /// Writes until `stop`, and then what is still waiting.
    pub(super) fn run(&self, stop: CancellationToken) -> JoinHandle<()> {
        let finisher = self.clone();
        tokio::spawn(async move {
            while !stop.is_cancelled() {
                tokio::select! {
                    () = finisher.write_waiting() => {}
                    () = stop.cancelled() => {}
                }
            }
        })
    }

    /// Waits for ends and writes all that are there in one batch.
    pub async fn write_waiting(&self) {
        let mut waiting = self.waiting.lock().await;
        let mut batch = Vec::new();
        waiting.recv_many(&mut batch, BATCH).await;
        drop(waiting);
        // those whose execution gave up are left out: their lease has ended
        batch.retain(|request: &Request| !request.taken.is_closed());
        self.write(batch).await;
    }

    async fn write(&self, mut batch: Vec<Request>) {
        let mut tries = 0;
        while !batch.is_empty() {
            let ends: Vec<Finish> = batch.iter().map(|request| request.finish.clone()).collect();
            match self.store.finish_runs(&ends).await {
                Ok(lost) => {
                    for request in batch {
                        let _ = request.taken.send(!lost.contains(&request.finish.lease.run_id));
                    }
                    return;
                }
                Err(StoreError::Unavailable(error)) => {
                    tries += 1;
                    tracing::warn!(%error, runs = batch.len(), "ends could not be recorded, trying again");
                    clock::pause(full_jitter(BACK_OFF.0, tries, BACK_OFF.1, fastrand::f64())).await;
                    batch.retain(|request| !request.taken.is_closed());
                }
                Err(error) if batch.len() == 1 => {
                    tracing::error!(run_id = %ends[0].lease.run_id, %error, "an end can't be recorded");
                    return;
                }
                // one of them is at fault: alone, it does not hold up the others
                Err(_) => {
                    for request in batch {
                        Box::pin(self.write(vec![request])).await;
                    }
                    return;
                }
            }
        }
    }
}
