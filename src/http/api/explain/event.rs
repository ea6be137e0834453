//! Why an event fired which tasks, and not others: its tenant's triggers that came close, with the part that failed.
//!
//! Judged anew by the tasks as they are now; runs and skips are those that were recorded.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use chrono::{DateTime, Utc};
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::{Scope, Tenant};
use crate::base::token::Permission;
use crate::domain::event::Event;
use crate::domain::run::{Run, RunState};
use crate::domain::task::TaskStatus;
use crate::domain::trigger::Trigger;
use crate::domain::trigger::event::Arrival;
use crate::domain::trigger::event::examine::{Effort, ExaminedPart, examine};
use crate::http::HttpState;
use crate::http::api::events::lookup::{find_event, owner};
use crate::http::api::explain::{skip_tally, why};
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::{Call, Id, Json, Query};
use crate::store::EventTask;

/// Event tasks that are looked at, and those of one page.
const LOOKED_AT: usize = 5_000;
const PAGE: usize = 500;
/// After this long an examination gives up its thread, to go on in its tenant's next turn; one filter is bounded by
/// itself.
const PIECE: Duration = Duration::from_millis(5);
/// Steps in which the filters of all of these are evaluated, and once more those that are taken apart. A step is about
/// a nanosecond.
const STEPS: u64 = 250_000_000;
/// Triggers that are told, and those of them whose filters are taken apart.
const TOLD: usize = 50;
const TAKEN_APART: usize = 10;
/// Bytes of the triggers that are told.
const BYTES: usize = 256 * 1024;

/// Why an event fired which tasks, and not others.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct EventExplanation {
    /// Id of the event.
    pub id: String,
    /// Source of the event.
    pub source: String,
    /// Type of the event.
    pub r#type: String,
    /// Tenant of the event.
    pub tenant_id: String,
    /// One sentence each.
    pub sentences: Vec<String>,
    /// The triggers that it matched or came close to (its source or its type fits), the closest first.
    pub triggers: Vec<ExaminedTrigger>,
    /// Event tasks that were looked at.
    pub examined_count: usize,
    /// Whether there are more of them, or more to tell.
    pub truncated: bool,
}

/// A trigger beside an event.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct ExaminedTrigger {
    /// Id of the task.
    pub task_id: Uuid,
    /// Name of the task.
    pub name: String,
    /// Whether the task fires.
    pub status: TaskStatus,
    /// Whether all parts hold now.
    pub matches: bool,
    /// The trigger's verdict, in a sentence.
    pub sentence: String,
    /// The run, or the record of the skip, that the event has with this task.
    #[schema(required)]
    pub run_id: Option<Uuid>,
    /// All parts, in the order in which they are asked.
    pub parts: Vec<ExaminedPart>,
}

/// A trigger while it is examined.
struct Candidate {
    task: EventTask,
    parts: Vec<ExaminedPart>,
}

/// Records of an event, by the task.
#[derive(Default)]
struct EventRecords {
    /// The run, or the record of the skip.
    own: HashMap<Uuid, (Uuid, RunState, Option<String>)>,
    /// Of a task without one: the tally among whose fires that of the event may be.
    tallies: HashMap<Uuid, Run>,
}

/// Explain an event
///
/// Which tasks it fired, and for each trigger that came close which part failed: source, type, a key of `filters`, the
/// `filter` with the values of its parts, `max_age`. The tasks are those of the event's tenant, as they are now.
#[utoipa::path(get, path = "/v1/events/{id}/explain", tag = "events", security(("bearer" = ["events:read"])),
    params(("id" = String, Path, description = "The id of the event, or as much of its beginning as no other has"),
        ("source" = Option<String>, Query, description = "Its source; else it may be of any"),
        ("tenant_id" = Option<String>, Query, description = "Tenant of the event; an admin token names it")),
    responses((status = 200, body = EventExplanation),
        (status = 409, body = ProblemDetails, content_type = "application/problem+json",
            description = "Several events have an id that begins so")))]
pub async fn explain_event(
    Call(state, caller): Call,
    id: Id,
    mut query: Query,
) -> Result<Json<EventExplanation>, ApiError> {
    caller.may(Permission::EventsRead)?;
    let (source, named) = (query.text("source"), query.text("tenant_id"));
    query.done()?;
    let tenant = owner(&caller, named.as_deref())?;
    let event = find_event(&state, &tenant, source.as_deref(), &id.0).await?;
    // what follows tells of tasks
    caller.may(Permission::TasksRead)?;
    let looked = candidates(&state, &tenant, &event).await?;
    let tasks: Vec<Uuid> = looked.closest.iter().map(|candidate| candidate.task.task_id).collect();
    let records = records_of(&state, &Scope::Only(tenant), &event, tasks).await?;
    Ok(Json(explained(event, looked, &records)))
}

async fn records_of(
    state: &HttpState,
    scope: &Scope,
    event: &Event,
    mut tasks: Vec<Uuid>,
) -> Result<EventRecords, ApiError> {
    let own = state.store.runs_of_event(scope, event, &tasks).await?;
    tasks.retain(|task| !own.contains_key(task));
    let tallies = state.store.skip_tallies_of_event(scope, event, &tasks).await?;
    Ok(EventRecords { own, tallies })
}

/// Findings among the event tasks of a tenant.
struct EventFindings {
    /// The triggers that came close, the closest first, as far as they are told.
    closest: Vec<Candidate>,
    /// How many came close, and how many were looked at.
    close: usize,
    examined_count: usize,
    /// Whether there are more of them, or more to tell.
    truncated: bool,
}

/// Place in the event tasks of a tenant, which are read page by page as far as they are looked at.
struct TaskReading {
    /// The last task of the pages so far.
    after: Option<Uuid>,
    /// Tasks of the pages so far.
    count: usize,
    /// Whether there are more.
    more: bool,
}

impl TaskReading {
    fn new() -> TaskReading {
        TaskReading { after: None, count: 0, more: true }
    }

    /// How many tasks the next page has at most; `None` where there are no more, or enough were looked at.
    fn next_page(&self) -> Option<usize> {
        Some(PAGE.min(LOOKED_AT - self.count)).filter(|tasks| self.more && *tasks > 0)
    }

    /// The page of so many `tasks` among what was `read` for it: one task beyond the page says that there are more.
    fn take(&mut self, tasks: usize, mut read: Vec<EventTask>) -> Vec<EventTask> {
        self.more = read.len() > tasks;
        read.truncate(tasks);
        self.count += read.len();
        self.after = read.last().map(|task| task.task_id);
        read
    }
}

async fn candidates(state: &HttpState, tenant: &Tenant, event: &Event) -> Result<EventFindings, ApiError> {
    let mut looked = EventFindings { closest: Vec::new(), close: 0, examined_count: 0, truncated: false };
    let (arrival, now) = (Arc::new(Arrival::new(event.clone())), state.clock.now());
    let (mut reading, mut first) = (TaskReading::new(), Effort { steps: STEPS, with_parts: false });
    while let Some(tasks) = reading.next_page() {
        let read = state.store.event_tasks_of(tenant, reading.after, tasks as i64 + 1).await?;
        let page = reading.take(tasks, read);
        let (found, left) = examined(state, tenant, page, &arrival, now, first).await?;
        first = left;
        looked.close += found.len();
        looked.closest.extend(found);
        looked.closest.sort_by_key(failing_parts);
        looked.closest.truncate(TOLD);
    }
    looked.examined_count = reading.count;
    looked.truncated = reading.more || looked.close > looked.closest.len();
    let rest = looked.closest.split_off(looked.closest.len().min(TAKEN_APART));
    let again = looked.closest.drain(..).map(|candidate| candidate.task).collect();
    let apart = Effort { steps: STEPS, with_parts: true };
    looked.closest = examined(state, tenant, again, &arrival, now, apart).await?.0;
    looked.closest.extend(rest);
    Ok(looked)
}

/// How many parts of a trigger fail.
fn failing_parts(candidate: &Candidate) -> usize {
    candidate.parts.iter().filter(|part| !part.matched).count()
}

/// Those of these tasks that came close, examined where tenants' expressions are computed, and what is left of the
/// effort.
async fn examined(
    state: &HttpState,
    tenant: &Tenant,
    tasks: Vec<EventTask>,
    arrival: &Arc<Arrival>,
    now: DateTime<Utc>,
    effort: Effort,
) -> Result<(Vec<Candidate>, Effort), ApiError> {
    let mut examination = Examination { waiting: tasks.into(), close: Vec::new(), effort };
    while !examination.waiting.is_empty() {
        let arrival = Arc::clone(arrival);
        examination = state.compute_for(tenant.as_str(), move || examination.go_on(&arrival, now)).await?;
    }
    Ok((examination.close, examination.effort))
}

/// Event tasks while they are examined beside an event.
struct Examination {
    waiting: VecDeque<EventTask>,
    close: Vec<Candidate>,
    effort: Effort,
}

impl Examination {
    /// Examines for a while.
    fn go_on(mut self, arrival: &Arrival, now: DateTime<Utc>) -> Examination {
        let begun = Instant::now();
        while let Some(task) = self.waiting.pop_front() {
            let Ok(Trigger::Event(trigger)) = serde_json::from_value(task.trigger.clone()) else { continue };
            let subject = (task.task_id, task.name.as_str(), &task.metadata);
            let parts = examine(&trigger, subject, arrival, now, &mut self.effort);
            let fits = |name: &str| parts.iter().any(|part| part.part == name && part.matched);
            if fits("source") || fits("event_type") {
                self.close.push(Candidate { task, parts });
            }
            if begun.elapsed() >= PIECE {
                break;
            }
        }
        self
    }
}

/// Composes what there is to say.
fn explained(event: Event, looked: EventFindings, records: &EventRecords) -> EventExplanation {
    let EventFindings { closest, close, examined_count, mut truncated } = looked;
    let mut triggers: Vec<ExaminedTrigger> = Vec::new();
    let mut bytes = 0;
    for candidate in closest {
        let trigger = to_response(candidate, records);
        bytes += serde_json::to_string(&trigger).map_or(0, |text| text.len());
        if bytes > BYTES {
            truncated = true;
            break;
        }
        triggers.push(trigger);
    }
    let fired = triggers.iter().filter(|trigger| trigger.run_id.is_some()).count();
    let matching = triggers.iter().filter(|trigger| trigger.matches).count();
    let sentences = vec![
        match (fired, matching) {
            (0, 0) => "It matches no trigger.".into(),
            (0, matching) => {
                format!("It matches {matching} of the triggers as they are now, and has no record with them.")
            }
            (fired, _) if close > triggers.len() => {
                format!("It has a record with {fired} of the {} tasks that are told.", triggers.len())
            }
            (fired, _) => format!("It has a record with {fired} of the tasks."),
        },
        format!("Of {examined_count} event tasks, {close} wait for its source or its type."),
    ];
    EventExplanation {
        id: event.id,
        source: event.source,
        r#type: event.kind,
        tenant_id: event.tenant.to_string(),
        sentences,
        triggers,
        examined_count,
        truncated,
    }
}

fn to_response(Candidate { task, parts }: Candidate, records: &EventRecords) -> ExaminedTrigger {
    let matches = parts.iter().all(|part| part.matched);
    let record = records.own.get(&task.task_id);
    let tally = records.tallies.get(&task.task_id).and_then(|tally| Some((tally, tally.tallied_fires()?)));
    let failed: Vec<&str> = parts.iter().filter(|part| !part.matched).map(|part| part.part.as_str()).collect();
    let sentence = match (record, tally) {
        (Some((run, RunState::Skipped, reason)), _) => {
            let reason =
                reason.as_deref().map_or(String::new(), |reason| format!(" {}", why(RunState::Skipped, reason)));
            format!("It is recorded as skipped ({run}).{reason}")
        }
        (Some((run, state, _)), _) => format!("It made the run {run}, which is {}.", state.as_str()),
        (None, _) if !matches => format!("It does not match: {}.", failed.join(", ")),
        (None, Some((tally, fires))) => skip_tally::probable(tally, fires),
        (None, None) if task.status == TaskStatus::Paused => "It matches, and the task is paused.".into(),
        (None, None) => {
            "It matches, and has no record: it waits in a window, is not handled yet, was skipped together with others, or the \
             task is newer."
                .into()
        }
    };
    ExaminedTrigger {
        task_id: task.task_id,
        name: task.name,
        status: task.status,
        matches,
        sentence,
        run_id: record.map(|(run, ..)| *run),
        parts,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;

    /// A filter whose evaluation may take millions of steps, and ends at its first elements.
    const COSTLY: &str = "event.data.l.all(a, event.data.l.all(b, a != b))";

    fn task(number: usize, trigger: Value) -> EventTask {
        EventTask {
            task_id: Uuid::from_u128(number as u128),
            tenant_id: "ann".into(),
            name: "a task".into(),
            metadata: Map::new(),
            epoch: 0,
            status: TaskStatus::Active,
            trigger,
            max_runs: None,
        }
    }

    fn event() -> Event {
        let event = json!({ "specversion": "1.0", "id": "1", "source": "shop", "type": "order", "tenantid": "ann",
            "data": { "l": vec![0; 100] } });
        Event::try_from(event).unwrap()
    }

    #[test]
    fn event_tasks_are_looked_at_up_to_their_number_and_one_beyond_it_is_told() {
        let looked_at = |stored: usize| {
            let tasks: Vec<EventTask> = (0..stored).map(|number| task(number, json!({}))).collect();
            let mut reading = TaskReading::new();
            while let Some(page) = reading.next_page() {
                let from = reading.after.map_or(0, |last| last.as_u128() as usize + 1);
                let read = tasks[from..].iter().take(page + 1).cloned().collect();
                assert!(reading.take(page, read).len() <= PAGE);
            }
            (reading.count, reading.more)
        };
        for stored in [0, 1, PAGE, PAGE + 1, LOOKED_AT - 1, LOOKED_AT] {
            assert_eq!(looked_at(stored), (stored, false));
        }
        assert_eq!(looked_at(LOOKED_AT + 1), (LOOKED_AT, true));
    }

    #[test]
    fn filters_are_evaluated_up_to_the_steps_of_all_and_the_next_one_is_not() {
        let (arrival, now) = (Arrival::new(event()), "2027-03-01T08:00:00Z".parse().unwrap());
        let examined = |count: usize| {
            let trigger = json!({ "type": "event", "source": "shop", "filter": COSTLY });
            let waiting = (0..count).map(|number| task(number, trigger.clone())).collect();
            let effort = Effort { steps: STEPS, with_parts: false };
            let mut examination = Examination { waiting, close: Vec::new(), effort };
            while !examination.waiting.is_empty() {
                examination = examination.go_on(&arrival, now);
            }
            assert_eq!(examination.close.len(), count, "those that are not evaluated are told all the same");
            examination
        };
        let evaluated = |examination: &Examination| {
            let parts = examination.close.iter().flat_map(|candidate| &candidate.parts);
            parts.filter(|part| part.detail == format!("`{COSTLY}` is false")).count()
        };
        let each = STEPS - examined(1).effort.steps;
        let most = (STEPS / each) as usize;
        assert!((2..100).contains(&most), "{most} of {each} steps");
        let all = examined(most);
        assert_eq!((evaluated(&all), all.effort.steps), (most, STEPS % each));
        let beyond = examined(most + 1);
        assert_eq!(evaluated(&beyond), most);
        let last = beyond.close.last().and_then(|candidate| candidate.parts.last()).unwrap();
        assert_eq!(last.detail, format!("`{COSTLY}` is not evaluated: too much work"));
    }

    #[test]
    fn triggers_are_told_in_their_bytes_and_the_last_is_left_out_one_byte_beyond_them() {
        let candidate = |length: usize| {
            let part = ExaminedPart { part: "source".into(), matched: false, detail: "x".repeat(length) };
            Candidate { task: task(1, json!({})), parts: vec![part] }
        };
        let bytes = |length: usize| {
            let trigger = to_response(candidate(length), &EventRecords::default());
            serde_json::to_string(&trigger).unwrap().len()
        };
        let told = |last: usize| {
            let closest = vec![candidate(BYTES / 2), candidate(last)];
            let looked = EventFindings { closest, close: 2, examined_count: 2, truncated: false };
            let answer = explained(event(), looked, &EventRecords::default());
            (answer.triggers.len(), answer.truncated)
        };
        let room = BYTES - bytes(BYTES / 2) - bytes(0);
        assert_eq!(told(room), (2, false));
        assert_eq!(told(room + 1), (1, true));
    }
}
