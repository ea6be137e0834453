//! Planning anew under other zone rules: what a task waits for when the clock of its zone has changed.
//!
//! An instant that has fired keeps its identity, which is its instant, and is not fired again: neither the instant nor
//! the wall time that it stood for. One that has not fired is not lost: the next instant is that of the wall time after
//! the last one that fired, even where the new rules put it before the present.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::invalid::FieldError;
use crate::domain::trigger::NextFire;
use crate::domain::trigger::schedule::Schedule;
use crate::domain::trigger::timetable::{TICK, Timetable};
use crate::domain::trigger::zone::{LocalInstants, ZoneTable};

/// Instants that have fired and are passed over, at most: a day of every second has fewer.
const MOST_PASSED: usize = 90_000;

/// The instant that a task waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PendingFire {
    /// The task, for its jitter.
    pub task_id: Uuid,
    /// Where intervals are counted from.
    pub anchor: DateTime<Utc>,
    /// Nothing fires before it.
    pub active_since: DateTime<Utc>,
    /// The first nominal instant that has not been considered.
    pub nominal: DateTime<Utc>,
}

impl Schedule {
    /// The task's next instant by the rules of `new`, where it waits for `pending` by those of `old`. `None`: its
    /// schedule has ended.
    pub fn replan(
        &self,
        pending: &PendingFire,
        old: &ZoneTable,
        new: &ZoneTable,
    ) -> Result<Option<NextFire>, FieldError> {
        let (old, new) = (self.compile_under(old, pending.anchor)?, self.compile_under(new, pending.anchor)?);
        Ok(new.replanned(&old, pending).map(|nominal| new.with_run_at(pending.task_id, nominal)))
    }
}

impl Timetable {
    /// The next instant by these rules.
    fn replanned(&self, old: &Timetable, pending: &PendingFire) -> Option<DateTime<Utc>> {
        if self.is_once() {
            return self.next_after(DateTime::<Utc>::MIN_UTC);
        }
        let last = old.last_before(pending.nominal, pending.active_since);
        match last {
            None => self.next_after(pending.active_since),
            Some(last) if self.goes_by_elapsed_time() => self.next_after(last),
            Some(last) => {
                let again = self.map_instant(old, last).max(pending.active_since);
                let has_fired = |instant: DateTime<Utc>| instant <= last && old.fires_at(instant);
                let mut next = self.next_after(again);
                for _ in 0..MOST_PASSED {
                    match next {
                        Some(instant) if has_fired(instant) => next = self.next_after(instant),
                        _ => return next,
                    }
                }
                self.next_after(last)
            }
        }
    }

    /// Where the wall time stands by these rules that stood at `instant` by the old ones.
    fn map_instant(&self, old: &Timetable, instant: DateTime<Utc>) -> DateTime<Utc> {
        let local = old.wall().wall_time(instant);
        match self.wall().resolve(local) {
            LocalInstants::Once(at) | LocalInstants::Never { after: at, .. } => at,
            LocalInstants::Twice { first, second, .. } => match old.wall().resolve(local) {
                LocalInstants::Twice { first: was_first, .. } if was_first == instant => first,
                _ => second,
            },
        }
    }

    fn fires_at(&self, instant: DateTime<Utc>) -> bool {
        self.next_after(instant - TICK) == Some(instant)
    }
}
