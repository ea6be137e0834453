//! Judging the events of one tenant, a piece at a time: what each task makes of each event.
//!
//! What is cheap is judged at once, by the steps that it takes at most; the rest on a computing thread, in the turn of
//! the tenant. Pure but for the clock by which a piece gives up its thread; where it does changes nothing of what comes
//! out.

use std::collections::VecDeque;
use std::ops::ControlFlow;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::Ordering;
use std::sync::{Arc, RwLock};
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};

use crate::base::compute::{IN_PLACE, steps_to_parse};
use crate::base::id::Tenant;
use crate::domain::event::written::WrittenEvent;
use crate::domain::task::TaskStatus;
use crate::domain::trigger::event::{Arrival, EVENT_RUNS, EventVerdict, MissedEventField, reason};
use crate::engine::events::matcher::index::{Index, IndexedTask};
use crate::engine::events::matcher::missing::Miss;
use crate::engine::events::matcher::received::ReceivedEvent;
use crate::engine::events::matcher::slice::{Slice, WRITE, WRITE_BYTES};
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
    /// Bytes of the causes of the judged events.
    bytes: usize,
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
    /// Events of a tenant of which none is judged; `alone`: they are written with no other slice.
    pub fn new(tenant: Tenant, events: Vec<ReceivedEvent>, alone: bool) -> JudgingState {
        JudgingState {
            tenant,
            alone,
            waiting: events.into(),
            candidates: None,
            fires: 0,
            judged: Vec::new(),
            matches: Vec::new(),
            bytes: 0,
            misses: Vec::new(),
            version: None,
            asked: 0,
        }
    }

    /// Judges as far as that takes no more steps than may be taken in place. The rest is for a computing thread, by
    /// [`JudgingState::judge_slice`].
    pub fn judge_in_place(
        mut self,
        index: &RwLock<Index>,
        now: DateTime<Utc>,
    ) -> ControlFlow<Box<JudgedEvents>, JudgingState> {
        let mut left = IN_PLACE;
        while let Some(taken) = self.waiting.front() {
            let arrival = Arc::clone(&taken.arrival);
            let Some(rest) = left.checked_sub(steps_of_event(index, &arrival.event)) else {
                return ControlFlow::Continue(self);
            };
            left = rest;
            let mut candidates = self.look_up(index, &arrival);
            while let Some(task) = candidates.as_slice().first().cloned() {
                let steps = task.matcher.judging_steps(&arrival, left);
                let mut missed = None;
                let found = (steps <= left).then(|| matched_noting(&task, &arrival, now, &mut missed));
                // to name a field that is missing takes more than an evaluation
                let (Some(found), false) = (found, missed.is_some() && is_to_be_told(&task)) else {
                    self.candidates = Some(candidates);
                    return ControlFlow::Continue(self);
                };
                left -= steps;
                candidates.next();
                self.add_match(found);
            }
            if self.end_event(&arrival) {
                break;
            }
        }
        ControlFlow::Break(self.into_judged())
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
                let mut missed = None;
                let found = matched_noting(&task, &arrival, now, &mut missed);
                self.note(&task, &arrival, missed);
                self.add_match(found);
                if begun.elapsed() >= PIECE {
                    self.candidates = Some(candidates);
                    return ControlFlow::Continue(self);
                }
            }
            if self.end_event(&arrival) {
                break;
            }
        }
        ControlFlow::Break(self.into_judged())
    }

    /// All tasks have judged the first event. Answers whether there is enough to be recorded.
    fn end_event(&mut self, arrival: &Arrival) -> bool {
        // from here on it waits as texts: its own, and its cause where it has one
        arrival.forget_read();
        self.bytes += arrival.bytes() - arrival.event.bytes();
        self.judged.extend(self.waiting.pop_front());
        self.fires = 0;
        self.matches.len() >= WRITE || self.bytes >= WRITE_BYTES || self.asked >= ASKED
    }

    fn into_judged(self) -> Box<JudgedEvents> {
        let version = self.version.unwrap_or_default();
        let slice = Slice::new(self.tenant, self.judged, self.matches, version, self.alone);
        Box::new(JudgedEvents { slice, rest: self.waiting.into(), misses: self.misses })
    }

    fn look_up(&mut self, index: &RwLock<Index>, arrival: &Arrival) -> std::vec::IntoIter<Arc<IndexedTask>> {
        let index = index.read().expect("the lock of the index");
        let known = index.version(event_shard(self.tenant.as_str())).unwrap_or(0);
        self.version.get_or_insert(known);
        index.candidates(&arrival.event).cloned().collect::<Vec<_>>().into_iter()
    }

    /// Takes in what a task was found to make of the first event.
    fn add_match(&mut self, found: Option<Match>) {
        self.asked += 1;
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

/// Whether the owner of a task is yet to be told of a field that its expressions look for in vain.
fn is_to_be_told(task: &IndexedTask) -> bool {
    task.status == TaskStatus::Active && !task.told.load(Ordering::Relaxed)
}

/// The steps that it takes at most to find the tasks of an event, to read it, and to write the cause of its runs.
fn steps_of_event(index: &RwLock<Index>, event: &WrittenEvent) -> u64 {
    let look_up = index.read().expect("the lock of the index").steps_to_look_up(event);
    // read, converted for expressions, and written
    look_up.saturating_add(steps_to_parse(3 * event.bytes()))
}

/// The match of one task with an event; `None` where it does not concern the task. A fault of one task, even a panic of
/// its expression, stays its own.
pub fn matched(task: &IndexedTask, arrival: &Arc<Arrival>, now: DateTime<Utc>) -> Option<Match> {
    let found = matched_noting(task, arrival, now, &mut None);
    arrival.forget_read();
    found
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
    use crate::domain::trigger::event::MatchPath;
    use crate::engine::events::matcher::index::compile;
    use crate::store::{EventTask, EventTaskChanges};

    fn index_of(tasks: usize) -> RwLock<Index> {
        index_with(vec![json!({ "type": "event", "source": "shop" }); tasks], &Language::default())
    }

    fn index_with(triggers: Vec<serde_json::Value>, language: &Language) -> RwLock<Index> {
        let task = |(number, trigger): (usize, serde_json::Value)| EventTask {
            task_id: Uuid::from_u128(number as u128),
            tenant_id: "a".into(),
            name: "t".into(),
            metadata: Map::new(),
            epoch: 1,
            status: TaskStatus::Active,
            trigger,
            max_runs: None,
        };
        let live: Vec<EventTask> = triggers.into_iter().enumerate().map(task).collect();
        let compiled = compile(&live, language).into_iter().flat_map(Result::ok).collect();
        let changes = EventTaskChanges { anew: false, live, gone: Vec::new(), version: 9, more: false };
        let mut index = Index::default();
        index.take_in(event_shard("a"), &changes, compiled);
        RwLock::new(index)
    }

    fn events(count: usize) -> Vec<ReceivedEvent> {
        let event = |id: usize| json!({ "specversion": "1.0", "id": id.to_string(), "source": "shop", "type": "t", "tenantid": "a" });
        (0..count).map(|id| received(id, event(id))).collect()
    }

    fn received(id: usize, event: serde_json::Value) -> ReceivedEvent {
        let event = WrittenEvent::of(&Event::try_from(event).unwrap());
        ReceivedEvent { id: id.to_string(), deliveries: 1, arrival: Arc::new(Arrival::of_text(event)) }
    }

    fn now() -> DateTime<Utc> {
        "2027-03-01T08:00:00Z".parse().unwrap()
    }

    fn judged(index: &RwLock<Index>, events: Vec<ReceivedEvent>) -> JudgedEvents {
        judged_on(index, JudgingState::new(Tenant::new("a").unwrap(), events, false))
    }

    /// The rest, judged as on a computing thread.
    fn judged_on(index: &RwLock<Index>, mut judging: JudgingState) -> JudgedEvents {
        loop {
            match judging.judge_slice(index, now()) {
                ControlFlow::Continue(rest) => judging = rest,
                ControlFlow::Break(judged) => return *judged,
            }
        }
    }

    /// Answers of events that are judged in place; an error has the rest, which a computing thread judges.
    fn in_place(index: &RwLock<Index>, events: Vec<ReceivedEvent>) -> Result<JudgedEvents, Box<JudgingState>> {
        match JudgingState::new(Tenant::new("a").unwrap(), events, false).judge_in_place(index, now()) {
            ControlFlow::Break(judged) => Ok(*judged),
            ControlFlow::Continue(rest) => Err(Box::new(rest)),
        }
    }

    /// The tasks that were found to match, in order.
    fn tasks(judged: &JudgedEvents) -> Vec<Uuid> {
        judged.slice.matches.iter().map(|found| found.task_id).collect()
    }

    #[test]
    fn cheap_events_of_a_tenant_with_few_tasks_are_judged_in_place() {
        let filter = json!({ "type": "event", "source": "shop", "filter": "event.id != '1'" });
        let index = index_with(vec![json!({ "type": "event", "source": "shop" }), filter], &Language::default());
        let Ok(judged) = in_place(&index, events(3)) else { panic!("no thread is needed") };
        let [first, second] = [0, 1].map(Uuid::from_u128);
        assert_eq!(tasks(&judged), [first, second, first, first, second]);
        assert_eq!((judged.slice.events.len(), judged.slice.version, judged.rest.len()), (3, 9, 0));
        assert!(judged.slice.events.iter().all(|taken| !taken.arrival.is_read()));
    }

    #[test]
    fn events_that_take_more_than_may_be_taken_in_place_go_on_where_they_were_left() {
        let index = index_of(EVENT_RUNS);
        let Err(rest) = in_place(&index, events(2)) else { panic!("a thousand tasks take a thread") };
        let asked = rest.asked;
        assert!(asked > 0 && asked < EVENT_RUNS, "{asked} in place");
        let judged = judged_on(&index, *rest);
        assert_eq!(tasks(&judged), (0..EVENT_RUNS as u128).map(Uuid::from_u128).collect::<Vec<_>>(), "each once");
        assert_eq!((judged.slice.events.len(), judged.rest.len()), (1, 1));
    }

    #[test]
    fn dear_filter_and_long_event_leave_everything_to_a_thread() {
        let dear = json!({ "type": "event", "source": "shop", "filter": "event.data.t.matches('a')" });
        let index = index_with(vec![dear], &Language::default());
        assert!(in_place(&index, events(1)).is_err_and(|rest| rest.asked == 0));
        let long = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "t", "tenantid": "a",
                           "data": "x".repeat(16_384) });
        assert!(in_place(&index_of(1), vec![received(1, long)]).is_err_and(|rest| rest.asked == 0));
    }

    #[test]
    fn missing_field_is_told_once_and_not_in_place() {
        let slip = json!({ "type": "event", "source": "shop", "filter": "event.data.totl > 5" });
        let index = index_with(vec![slip], &Language::default());
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "t", "tenantid": "a",
                            "data": { "total": 7 } });
        let Err(rest) = in_place(&index, vec![received(1, event.clone())]) else { panic!("its owner is to be told") };
        assert_eq!(judged_on(&index, *rest).misses.len(), 1);
        let Ok(judged) = in_place(&index, vec![received(2, event)]) else { panic!("its owner was told") };
        assert_eq!((judged.misses.len(), judged.slice.matches.len(), judged.slice.events.len()), (0, 0, 1));
    }

    #[test]
    fn fan_out_beyond_the_limit_is_recorded_as_skipped() {
        let judged = judged(&index_of(EVENT_RUNS + 2), events(1));
        let skipped = EventVerdict::Skipped("fan_out".into());
        let count = judged.slice.matches.iter().filter(|matched| matched.verdict == skipped).count();
        assert_eq!((judged.slice.matches.len(), count), (EVENT_RUNS + 2, 2));
    }

    #[test]
    fn judged_events_wait_as_texts_and_long_ones_are_judged_up_to_the_bytes_of_a_write() {
        let event = |id: usize| {
            json!({ "specversion": "1.0", "id": id.to_string(), "source": "shop", "type": "t", "tenantid": "a",
                    "data": vec![0; 100_000] })
        };
        let judged = judged(&index_of(1), (0..30).map(|id| received(id, event(id))).collect());
        let causes: Vec<usize> = judged.slice.matches.iter().map(|found| found.arrival.cause().get().len()).collect();
        let (last, before) = causes.split_last().unwrap();
        let bytes: usize = before.iter().sum();
        assert!(bytes < WRITE_BYTES && bytes + last >= WRITE_BYTES, "{causes:?}");
        assert_eq!(judged.slice.events.len() + judged.rest.len(), 30);
        let mut all = judged.slice.events.iter().chain(&judged.rest);
        assert!(all.all(|taken| !taken.arrival.is_read()));
    }

    #[test]
    fn tasks_with_more_expressions_than_are_kept_are_judged_right_within_the_bound() {
        let trigger = |number: usize| {
            json!({ "type": "event", "source": "shop", "filter": format!("event.data.n == {number}"),
                    "dedup": { "key": format!("event.data.n + {number}"), "window": "1h" } })
        };
        let triggers: Vec<_> = (0..20).map(trigger).collect();
        let whole = Language::default();
        drop(index_with(triggers.clone(), &whole));
        let most = whole.kept_bytes() / 5;
        let language = Language::keeping(2 * most, most);
        let index = index_with(triggers, &language);
        let within = |kept: usize| kept > most / 2 && kept <= most;
        assert!(within(language.kept_bytes()), "{most}");
        let event = |id: usize| {
            json!({ "specversion": "1.0", "id": id.to_string(), "source": "shop", "type": "t", "tenantid": "a",
                    "data": { "n": id } })
        };
        let judged = judged(&index, (0..20).map(|id| received(id, event(id))).collect());
        assert!(within(language.kept_bytes()), "{most}");
        let fired = |(number, found): (usize, &Match)| {
            let EventVerdict::Fires(MatchPath { dedup: Some((key, _)), .. }) = &found.verdict else { return false };
            found.task_id == Uuid::from_u128(number as u128) && *key == (2 * number).to_string()
        };
        assert_eq!(judged.slice.matches.len(), 20);
        assert!(judged.slice.matches.iter().enumerate().all(fired));
    }

    #[test]
    fn equal_expressions_of_many_tasks_are_kept_once() {
        let kept = |tasks: usize| {
            let trigger = json!({ "type": "event", "source": "shop", "filter": "event.data.n == 7" });
            let language = Language::default();
            drop(index_with(vec![trigger; tasks], &language));
            language.kept_bytes()
        };
        assert!(kept(1) > 0);
        assert_eq!(kept(1), kept(100));
    }

    #[test]
    fn flood_is_judged_in_parts_of_whole_events() {
        let judged = judged(&index_of(30), events(100));
        assert_eq!((judged.slice.events.len(), judged.slice.matches.len()), (17, 510));
        assert_eq!(judged.rest.iter().map(|taken| taken.id.as_str()).collect::<Vec<_>>()[..2], ["17", "18"]);
        assert_eq!((judged.rest.len(), judged.slice.version), (83, 9));
    }
}
