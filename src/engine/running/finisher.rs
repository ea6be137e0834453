//! Ends are written in batches of what is already waiting: no timer delays one, and a burst costs few commits.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::{Mutex, mpsc, oneshot};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::base::backoff::full_jitter;
use crate::base::clock;
use crate::domain::notification::{MessageKind, NewDelivery, NotifiedOutcome, RunNotification};
use crate::domain::run::{RunFault, RunState};
use crate::store::{Finish, Store, StoreError, with_timeout};

/// Ends written in one transaction.
const BATCH: usize = 500;
/// The first and the longest wait before a store that is away is asked again.
pub(in crate::engine) const BACK_OFF: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));
/// How long a store that is away is waited for when the service stops.
const LAST_WORDS: Duration = Duration::from_secs(5);
/// The fault of a run whose own end can't be stored.
const UNRECORDABLE: &str = "unrecordable";

struct FinishRequest {
    finish: Box<Finish>,
    /// Whether it was taken: the lease still stood.
    taken: oneshot::Sender<bool>,
}

/// The way to a recorded end. Cheap to clone.
#[derive(Clone)]
pub struct Finisher {
    store: Store,
    requests: mpsc::UnboundedSender<FinishRequest>,
    waiting: Arc<Mutex<mpsc::UnboundedReceiver<FinishRequest>>>,
}

impl Finisher {
    /// A finisher that writes ends in batches.
    pub fn new(store: Store) -> Finisher {
        let (requests, waiting) = mpsc::unbounded_channel();
        let waiting = Arc::new(Mutex::new(waiting));
        Finisher { store, requests, waiting }
    }

    /// Records an end; false where the lease was lost. A store that is away is waited for.
    pub async fn finish(&self, finish: Box<Finish>) -> bool {
        let (taken, answer) = oneshot::channel();
        if self.requests.send(FinishRequest { finish, taken }).is_err() {
            return false;
        }
        answer.await.unwrap_or(false)
    }

    /// Writes until `stop`, and then what is still waiting; a write that has begun is not cut off by the stop, unless
    /// the store stays away.
    pub fn run(&self, stop: CancellationToken) -> JoinHandle<()> {
        let finisher = self.clone();
        tokio::spawn(async move {
            let mut waiting = finisher.waiting.lock().await;
            let mut batch = Vec::new();
            while stop.run_until_cancelled(waiting.recv_many(&mut batch, BATCH)).await.is_some() {
                tokio::select! {
                    () = finisher.write(std::mem::take(&mut batch), 0) => {}
                    () = deadline_passed(&stop) => return,
                }
            }
            while let Ok(request) = waiting.try_recv() {
                batch.push(request);
            }
            if tokio::time::timeout(LAST_WORDS, finisher.write(batch, 0)).await.is_err() {
                tracing::warn!("the store is away; ends that were not recorded are found by the rescuer");
            }
        })
    }

    /// `tries`: how many were not answered. Any of them may have been committed.
    async fn write(&self, mut batch: Vec<FinishRequest>, mut tries: u32) {
        // those whose execution has gone are left out: nobody waits for the answer
        batch.retain(|request| !request.taken.is_closed());
        while !batch.is_empty() {
            let (ends, answers): (Vec<Finish>, Vec<_>) =
                batch.into_iter().map(|request| (*request.finish, request.taken)).unzip();
            let written = match tries {
                0 => with_timeout(self.store.finish_runs(&ends)).await,
                _ => with_timeout(self.store.finish_runs_again(&ends)).await,
            };
            let error = match written {
                Ok(lost) => {
                    for (end, taken) in ends.iter().zip(answers) {
                        let _ = taken.send(!lost.contains(&end.lease.run_id));
                    }
                    return;
                }
                Err(error) => error,
            };
            let again = ends.into_iter().map(Box::new).zip(answers);
            batch = again.map(|(finish, taken)| FinishRequest { finish, taken }).collect();
            match error {
                StoreError::Unavailable(error) | StoreError::TimedOut(error) => {
                    tries += 1;
                    tracing::warn!(%error, runs = batch.len(), "ends could not be recorded, trying again");
                    clock::pause(full_jitter(BACK_OFF.0, tries, BACK_OFF.1, fastrand::f64())).await;
                    batch.retain(|request| !request.taken.is_closed());
                }
                error if batch.len() == 1 => {
                    let run_id = batch[0].finish.lease.run_id;
                    tracing::error!(%run_id, %error, "an end can't be recorded");
                    match unrecordable(&batch[0].finish) {
                        Some(instead) => *batch[0].finish = instead,
                        None => return,
                    }
                }
                // one of them is at fault: alone, it does not hold up the others
                _ => {
                    for request in batch {
                        Box::pin(self.write(vec![request], tries)).await;
                    }
                    return;
                }
            }
        }
    }
}

/// Returns once a stop was asked for and the time for last words is over.
async fn deadline_passed(stop: &CancellationToken) {
    stop.cancelled().await;
    clock::pause(LAST_WORDS).await;
}

/// The failure that is recorded in the place of an end that the database does not take, so that the run ends at all;
/// `None` where it is one already.
fn unrecordable(finish: &Finish) -> Option<Finish> {
    if finish.error.as_ref().is_some_and(|fault| fault.code == UNRECORDABLE) {
        return None;
    }
    let failed = |tells: &RunNotification| RunNotification {
        outcome: NotifiedOutcome::Failure { code: UNRECORDABLE.into() },
        delivery: NewDelivery { kind: MessageKind::Failure, ..tells.delivery.clone() },
        ..tells.clone()
    };
    Some(Finish {
        state: RunState::Failed,
        reason: None,
        output: None,
        error: Some(RunFault::new(UNRECORDABLE, "what the run ended with could not be stored")),
        again: None,
        park: None,
        entries: vec![],
        deliveries: vec![],
        tells: finish.tells.as_ref().map(failed),
        ..finish.clone()
    })
}
