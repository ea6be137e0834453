//! Judging the events of one tenant, a piece at a time: what each task makes of each event.
//!
//! Pure but for the clock by which a piece gives up its thread; where it does changes nothing of what comes out.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::base::id::Tenant;
use crate::domain::task::TaskStatus;
use crate::domain::trigger::event::{Arrival, EVENT_RUNS, EventVerdict, MissedEventField, reason};
use crate::engine::events::matcher::index::{Index, IndexedTask};
use crate::engine::events::matcher::missing::Miss;
use crate::engine::events::matcher::received::ReceivedEvent;
use crate::engine::events::matcher::slice::{Slice, WRITE};
use crate::store::{Match, event_shard};

/// After this long a piece gives up its thread, to go on in its next turn; one evaluation is bounded by itself.
const PIECE: Duration = Duration::from_millis(5);
/// Tasks that are asked before what was judged is recorded: the other events wait for the next turn of their tenant.
const ASKED: usize = 5_000;

/// Events of a tenant while they are judged.
pub struct JudgingState {
    tenant: Tenant,
    alone: bool,
    /// Those that are not judged; the first one may be judged in part.
    waiting: VecDeque<ReceivedEvent>,
    /// The tasks that the first one still has to be shown to; `None`: they are not looked up.
    candidates: Option<std::vec::IntoIter<Arc<IndexedTask>>>,
    /// Tasks that the first one fires.
    fires: usize,
    judged: Vec<ReceivedEvent>,
    matches: Vec<Match>,
    misses: Vec<Miss>,
    /// The version of the index at the first look.
    version: Option<i64>,
    asked: usize,
}

/// The events that were judged; and those that were not, because there was enough to record.
pub struct JudgedEvents {
    pub slice: Slice,
    pub rest: Vec<ReceivedEvent>,
    /// Fields that tasks looked for in vain, whose owners are to be told.
    pub misses: Vec<Miss>,
}

impl JudgingState {
    pub fn new(tenant: Tenant, events: Vec<ReceivedEvent>, alone: bool) -> JudgingState {
        JudgingState {
            tenant,
            alone,
            waiting: events.into(),
            candidates: None,
            fires: 0,
            judged: Vec::new(),
            matches: Vec::new(),
            misses: Vec::new(),
            version: None,
            asked: 0,
        }
    }

    /// Judges for a while.
    pub fn judge_slice(
        mut self,
        index: &RwLock<Index>,
        now: DateTime<Utc>,
    ) -> ControlFlow<Box<JudgedEvents>, JudgingState> {
        let begun = Instant::now();
        while let Some(taken) = self.waiting.front() {
            let arrival = Arc::clone(&taken.arrival);
            let mut candidates = match self.candidates.take() {
                Some(candidates) => candidates,
                None => self.look_up(index, &arrival),
            };
            for task in candidates.by_ref() {
                self.ask(&task, &arrival, now);
                if begun.elapsed() >= PIECE {
                    self.candidates = Some(candidates);
                    return ControlFlow::Continue(self);
                }
            }
            self.judged.extend(self.waiting.pop_front());
            self.fires = 0;
            if self.matches.len() >= WRITE || self.asked >= ASKED {
                break;
            }
        }
        let version = self.version.unwrap_or_default();
        let slice = Slice::new(self.tenant, self.judged, self.matches, version, self.alone);
        ControlFlow::Break(Box::new(JudgedEvents { slice, rest: self.waiting.into(), misses: self.misses }))
    }

    fn look_up(&mut self, index: &RwLock<Index>, arrival: &Arrival) -> std::vec::IntoIter<Arc<IndexedTask>> {
        let index = index.read().expect("the lock of the index");
        let known = index.version(event_shard(self.tenant.as_str())).unwrap_or(0);
        self.version.get_or_insert(known);
        index.candidates(&arrival.event).cloned().collect::<Vec<_>>().into_iter()
    }

    fn ask(&mut self, task: &Arc<IndexedTask>, arrival: &Arc<Arrival>, now: DateTime<Utc>) {
        self.asked += 1;
        let mut missed = None;
        let found = matched_noting(task, arrival, now, &mut missed);
        self.note(task, arrival, missed);
        let Some(mut found) = found else { return };
        if matches!(found.verdict, EventVerdict::Fires(_)) {
            self.fires += 1;
            if self.fires > EVENT_RUNS {
                found.verdict = EventVerdict::Skipped(reason::FAN_OUT.into());
            }
        }
        self.matches.push(found);
    }

    /// Keeps the first field that an active task misses.
    fn note(&mut self, task: &Arc<IndexedTask>, arrival: &Arrival, missed: Option<MissedEventField>) {
        let Some(missed) = missed.filter(|_| task.status == TaskStatus::Active) else { return };
        if !task.told.swap(true, Ordering::Relaxed) {
            let field = task.matcher.missing_field(&missed, arrival);
            self.misses.push(Miss { task: Arc::clone(task), field });
        }
    }
}

/// The match of one task with an event; `None` where it does not concern the task. A fault of one task, even a panic of
/// its expression, stays its own.
pub fn matched(task: &IndexedTask, arrival: &Arc<Arrival>, now: DateTime<Utc>) -> Option<Match> {
    matched_noting(task, arrival, now, &mut None)
}

fn matched_noting(
    task: &IndexedTask,
    arrival: &Arc<Arrival>,
    now: DateTime<Utc>,
    missed: &mut Option<MissedEventField>,
) -> Option<Match> {
    let judged = catch_unwind(AssertUnwindSafe(|| task.matcher.judge_noting(arrival, now, missed)));
    let verdict = judged.unwrap_or_else(|_| EventVerdict::Skipped("filter_error: it panicked".into()));
    if verdict == EventVerdict::No {
        return None;
    }
    arrival.prepare();
    Some(Match {
        task_id: task.task_id,
        epoch: task.epoch,
        status: task.status,
        buffer_while_paused: task.buffer_while_paused,
        max_runs: task.max_runs,
        arrival: Arc::clone(arrival),
        verdict,
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, json};
    use uuid::Uuid;

    use super::*;
    use crate::base::expr::Language;
    use crate::domain::event::Event;
    use crate::engine::events::matcher::index::compile;
    use crate::store::{EventTask, EventTaskChanges};

    fn index_of(tasks: usize) -> RwLock<Index> {
        let task = |number: usize| EventTask {
            task_id: Uuid::from_u128(number as u128),
            tenant_id: "a".into(),
            name: "t".into(),
            metadata: Map::new(),
            epoch: 1,
            status: TaskStatus::Active,
            trigger: json!({ "type": "event", "source": "shop" }),
            max_runs: None,
        };
        let live: Vec<EventTask> = (0..tasks).map(task).collect();
        let compiled = compile(&live, &Language::default()).into_iter().flat_map(Result::ok).collect();
        let changes = EventTaskChanges { anew: false, live, gone: Vec::new(), version: 9, more: false };
        let mut index = Index::default();
        index.take_in(event_shard("a"), &changes, compiled);
        RwLock::new(index)
    }

    fn events(count: usize) -> Vec<ReceivedEvent> {
        let event = |id: usize| json!({ "specversion": "1.0", "id": id.to_string(), "source": "shop", "type": "t", "tenantid": "a" });
        let taken = |id: usize| ReceivedEvent {
            id: id.to_string(),
            deliveries: 1,
            arrival: Arc::new(Arrival::new(Event::try_from(event(id)).unwrap())),
        };
        (0..count).map(taken).collect()
    }

    fn judged(index: &RwLock<Index>, events: Vec<ReceivedEvent>) -> JudgedEvents {
        let mut judging = JudgingState::new(Tenant::new("a").unwrap(), events, false);
        loop {
            match judging.judge_slice(index, "2027-03-01T08:00:00Z".parse().unwrap()) {
                ControlFlow::Continue(rest) => judging = rest,
                ControlFlow::Break(judged) => return *judged,
            }
        }
    }

    #[test]
    fn fan_out_beyond_the_limit_is_recorded_as_skipped() {
        let judged = judged(&index_of(EVENT_RUNS + 2), events(1));
        let skipped = EventVerdict::Skipped("fan_out".into());
        let count = judged.slice.matches.iter().filter(|matched| matched.verdict == skipped).count();
        assert_eq!((judged.slice.matches.len(), count), (EVENT_RUNS + 2, 2));
    }

    #[test]
    fn flood_is_judged_in_parts_of_whole_events() {
        let judged = judged(&index_of(30), events(100));
        assert_eq!((judged.slice.events.len(), judged.slice.matches.len()), (17, 510));
        assert_eq!(judged.rest.iter().map(|taken| taken.id.as_str()).collect::<Vec<_>>()[..2], ["17", "18"]);
        assert_eq!((judged.rest.len(), judged.slice.version), (83, 9));
    }
}
