//! Intake of events from the bus, before they are recorded: read, and judged by the tasks that they concern.
//!
//! Reading an entry changes nothing but its lease. Tasks are compiled and events are judged on the threads for what
//! tenants write, in bounded pieces between which other tenants have their turn. Events whose judgement is cheap are
//! judged where they are read: those of a quiet tenant wait for no thread that others have.

use std::ops::ControlFlow;
use std::sync::{Arc, RwLock};
use std::time::Duration;

use crate::base::compute::{Compute, IN_PLACE};
use crate::base::expr::Language;
use crate::base::id::Tenant;
use crate::domain::task::change::FaultyPart;
use crate::domain::trigger::event::Arrival;
use crate::engine::events::matcher::backlog::TenantEvents;
use crate::engine::events::matcher::index::{CompiledTask, Index, UnreadableTask, compile};
use crate::engine::events::matcher::judging::{JudgedEvents, JudgingState};
use crate::engine::events::matcher::received::ReceivedEvent;
use crate::ports::bus::{Bus, BusEntry, BusError};
use crate::store::{EVENT_SHARDS, EventTask, SeenTask, Store, StoreError, event_shard};

/// Tasks that are read at once.
const PAGE: i64 = 1000;
/// Tasks that are compiled in one piece.
const COMPILED: usize = 20;

/// Reads, and knows the tasks.
pub struct Intake {
    store: Store,
    bus: Arc<dyn Bus>,
    compute: Compute,
    /// Twice as often as this an entry may come, then nobody tries any more.
    max_deliveries: u32,
    language: Language,
    index: Arc<RwLock<Index>>,
    /// One at a time reads a shard.
    reading: [tokio::sync::Mutex<()>; EVENT_SHARDS as usize],
}

/// Entries that were read together.
#[derive(Default)]
pub struct ReadBatch {
    pub taken: Vec<ReceivedEvent>,
    /// Can't be handled, and why; to be put among the dead letters.
    pub hopeless: Vec<(BusEntry, String)>,
}

/// Result of judging a tenant's events.
pub struct Judgement {
    pub tenant: Tenant,
    pub result: Result<JudgedEvents, UnjudgedEvents>,
}

/// Events that could not be judged.
pub struct UnjudgedEvents {
    pub events: Vec<ReceivedEvent>,
    pub error: StoreError,
}

impl ReadBatch {
    /// Number of entries that were read, the hopeless ones included.
    pub fn len(&self) -> usize {
        self.taken.len() + self.hopeless.len()
    }
}

impl Intake {
    /// Reads this bus. An entry that comes more than twice `max_deliveries` times is hopeless.
    pub fn new(store: Store, bus: Arc<dyn Bus>, compute: Compute, max_deliveries: u32) -> Intake {
        let (language, index) = (Language::default(), Arc::default());
        let reading = std::array::from_fn(|_| tokio::sync::Mutex::default());
        Intake { store, bus, compute, max_deliveries, language, index, reading }
    }

    /// Up to so many entries of tenants that are not `full`; waits up to `wait` for the first.
    pub async fn read(&self, full: &[Tenant], limit: usize, wait: Duration) -> Result<ReadBatch, BusError> {
        let mut batch = ReadBatch::default();
        for BusEntry { id, event, deliveries } in self.bus.read_except(full, limit, wait).await? {
            match event {
                // whoever tried has died over it
                Ok(event) if deliveries > 2 * self.max_deliveries => {
                    let why = format!("was taken on {deliveries} times, and nobody came to its end");
                    batch.hopeless.push((BusEntry { id, event: Ok(event), deliveries }, why));
                }
                Ok(event) => {
                    let arrival = Arc::new(Arrival::of_text(event));
                    batch.taken.push(ReceivedEvent { id, deliveries, arrival });
                }
                Err(unreadable) => {
                    let why = unreadable.why.clone();
                    batch.hopeless.push((BusEntry { id, event: Err(unreadable), deliveries }, why));
                }
            }
        }
        Ok(batch)
    }

    /// Judges events by the tasks as they are now, or were not long ago.
    pub async fn judge(self: Arc<Intake>, share: TenantEvents) -> Judgement {
        let TenantEvents { tenant, events, stale } = share;
        let result = match self.refresh(&tenant, stale).await {
            Err(error) => Err(UnjudgedEvents { events, error }),
            Ok(()) => self.judged(&tenant, events, stale.is_some()).await,
        };
        Judgement { tenant, result }
    }

    async fn judged(
        &self,
        tenant: &Tenant,
        events: Vec<ReceivedEvent>,
        alone: bool,
    ) -> Result<JudgedEvents, UnjudgedEvents> {
        let judging = JudgingState::new(tenant.clone(), events, alone);
        let (index, clock) = (Arc::clone(&self.index), self.store.clock().clone());
        let begin = move || judging.judge_in_place(&index, clock.now());
        let mut piece = self.compute.run_if_costly(tenant.as_str(), IN_PLACE, begin).await;
        loop {
            let judging = match piece {
                Ok(ControlFlow::Continue(judging)) => judging,
                Ok(ControlFlow::Break(judged)) => return Ok(*judged),
                // the events went with it, and come again from the bus
                Err(panicked) => {
                    return Err(UnjudgedEvents {
                        events: Vec::new(),
                        error: StoreError::Corrupt(panicked.to_string()),
                    });
                }
            };
            let (index, clock) = (Arc::clone(&self.index), self.store.clock().clone());
            piece = self.compute.run(tenant.as_str(), move || judging.judge_slice(&index, clock.now())).await;
        }
    }

    /// Reads the tasks of a tenant's shard if they were never asked for, or are no newer than `stale`.
    async fn refresh(&self, tenant: &Tenant, stale: Option<i64>) -> Result<(), StoreError> {
        let shard = event_shard(tenant.as_str());
        if self.is_current(shard, stale) {
            return Ok(());
        }
        let _turn = self.reading[shard as usize].lock().await;
        if self.is_current(shard, stale) {
            return Ok(());
        }
        let mut goes_on = false;
        loop {
            let known = self.index.read().expect("the lock of the index").version(shard).unwrap_or(0);
            let changes = self.store.event_tasks(shard, known, PAGE, goes_on).await?;
            goes_on = true;
            let (compiled, unreadable) = self.compile(&changes.live).await;
            // before the index knows of it: who fails here reads them again
            self.disable(unreadable).await?;
            self.index.write().expect("the lock of the index").take_in(shard, &changes, compiled);
            if !changes.more {
                return Ok(());
            }
        }
    }

    fn is_current(&self, shard: i32, stale: Option<i64>) -> bool {
        let known = self.index.read().expect("the lock of the index").version(shard);
        known.is_some_and(|known| stale.is_none_or(|stale| known > stale))
    }

    /// Compiles tasks in small pieces, each in the turn of its tenant. A task that panics is unreadable.
    async fn compile(&self, tasks: &[EventTask]) -> (Vec<CompiledTask>, Vec<UnreadableTask>) {
        let (mut compiled, mut unreadable) = (Vec::with_capacity(tasks.len()), Vec::new());
        for of_tenant in tasks.chunk_by(|a, b| a.tenant_id == b.tenant_id) {
            for some in of_tenant.chunks(COMPILED) {
                let (piece, language) = (some.to_vec(), self.language.clone());
                match self.compute.run(&some[0].tenant_id, move || compile(&piece, &language)).await {
                    Ok(piece) => piece.into_iter().for_each(|task| match task {
                        Ok(task) => compiled.push(task),
                        Err(task) => unreadable.push(task),
                    }),
                    // each task contains its own panic: this is the end of the process
                    Err(panicked) => tracing::error!(%panicked, "event tasks can't be compiled"),
                }
            }
        }
        (compiled, unreadable)
    }

    /// Disables tasks whose triggers can't be read, with the reason: an expression may exceed a bound that is younger.
    /// Their owners are told. Only a store that is away keeps the others from going on.
    async fn disable(&self, unreadable: Vec<UnreadableTask>) -> Result<(), StoreError> {
        for UnreadableTask { task_id, epoch, why } in unreadable {
            match self.store.disable_task(task_id, SeenTask::Epoch(epoch), FaultyPart::Trigger, &why).await {
                Ok(true) => tracing::error!(%task_id, why, "the trigger of a task can't be read, it is disabled"),
                Ok(false) => {}
                Err(error @ (StoreError::Unavailable(_) | StoreError::TimedOut(_))) => return Err(error),
                Err(error) => tracing::error!(%task_id, why, %error, "a task that can't be read can't be disabled"),
            }
        }
        Ok(())
    }
}
