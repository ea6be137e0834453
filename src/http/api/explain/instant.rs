//! Explanation of one instant of a task: "why not at 08:00 today?". [`explained`] is a function over what was read.

use chrono::{DateTime, SecondsFormat, TimeDelta, Utc};
use chrono_tz::Tz;
use serde::Serialize;
use uuid::Uuid;

use crate::base::compute::Compute;
use crate::base::invalid::ValidationErrors;
use crate::domain::run::Run;
use crate::domain::task::{Task, TaskStatus};
use crate::domain::trigger::Trigger;
use crate::domain::trigger::policy::{DstFold, DstGap};
use crate::domain::trigger::zone::{WallClock, parse_instant, shown_in};
use crate::http::api::explain::{rfc3339, skip_tally, why};
use crate::http::error::ApiError;
use crate::store::SurroundingRuns;

/// Longest text of an instant, in characters.
const TEXT: usize = 64;
/// The instant before is looked for this far back.
const BACK: TimeDelta = TimeDelta::days(366);

/// An instant as the world and as the task's zone have it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct NextInstant {
    /// The instant, in UTC.
    pub at: DateTime<Utc>,
    /// The instant on a wall clock there, with its offset.
    #[schema(example = "2027-03-01T08:00:00+08:00")]
    pub local: String,
    /// Zone of the task.
    #[schema(example = "Asia/Shanghai")]
    pub timezone: String,
}

/// Outcome of an instant.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum InstantOutcome {
    /// It has a run.
    Run,
    /// It is recorded as skipped.
    Skipped,
    /// Another run stands for it.
    Coalesced,
    /// The trigger leaves it out.
    Excluded,
    /// The trigger does not have it.
    NoInstant,
    /// The task was not active by its present trigger.
    NotActive,
    /// The task was not there.
    BeforeCreation,
    /// It lies ahead.
    Ahead,
    /// Nothing is recorded of it.
    NoRecord,
}

/// Explanation of one instant of a task.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct InstantExplanation {
    /// The instant that was asked about.
    #[serde(flatten)]
    pub instant: NextInstant,
    /// Outcome of the instant.
    pub outcome: InstantOutcome,
    /// One sentence each.
    pub sentences: Vec<String>,
    /// The run, or the record of the skip.
    #[schema(required)]
    pub run_id: Option<Uuid>,
    /// The nearest instants of the trigger; `null`: there is none, or none within a year before.
    #[schema(required)]
    pub before: Option<NextInstant>,
    /// The next instant of the schedule after it.
    #[schema(required)]
    pub after: Option<NextInstant>,
}

/// An instant as the trigger sees it.
#[derive(Debug, Clone, Copy, Default)]
pub struct TriggerInstant {
    /// The schedule has this instant.
    pub is_instant: bool,
    /// The instant is excluded.
    pub is_excluded: bool,
    /// The instant of the schedule before it.
    pub before: Option<DateTime<Utc>>,
    /// The instant of the schedule after it.
    pub after: Option<DateTime<Utc>>,
}

/// Facts that were read about an instant.
pub struct InstantFacts<'a> {
    /// The task.
    pub task: &'a Task,
    /// The instant that was asked about.
    pub at: DateTime<Utc>,
    /// The instant as the trigger sees it.
    pub place: TriggerInstant,
    /// Records of the task around the instant.
    pub recorded: &'a SurroundingRuns,
    /// The present.
    pub now: DateTime<Utc>,
}

/// Reads an instant as RFC 3339, or as local time of the task's zone.
pub fn read(text: &str, task: &Task) -> Result<DateTime<Utc>, ApiError> {
    if text.chars().count() > TEXT {
        return Err(ApiError::Query(ValidationErrors::one("/at", format!("must be at most {TEXT} characters"))));
    }
    let wall = WallClock::new(zone(task).1, DstGap::default(), DstFold::default());
    parse_instant(text, &wall).map_err(|why| ApiError::Query(ValidationErrors::one("/at", why)))
}

/// Asks the trigger, where tenants' rules are computed.
pub async fn locate(compute: &Compute, task: &Task, at: DateTime<Utc>) -> TriggerInstant {
    let (trigger, id, anchor) = (task.spec.trigger.clone(), task.id, task.anchor_at);
    let asked = compute.run(&task.tenant_id, move || {
        let Trigger::Schedule(_) = &trigger else { return TriggerInstant::default() };
        let own = trigger.instant(id, anchor, at).ok().flatten();
        TriggerInstant {
            is_instant: own.is_some(),
            is_excluded: own.is_some_and(|(_, excluded)| excluded),
            before: trigger.last_before(anchor, at, at - BACK).ok().flatten(),
            after: trigger.preview(at, anchor, 1).ok().and_then(|next| next.instants.first().copied()),
        }
    });
    asked.await.unwrap_or_default()
}

/// Composes what there is to say.
pub fn explained(facts: &InstantFacts) -> InstantExplanation {
    let InstantFacts { task, at, place, recorded, now } = facts;
    let (name, clock) = zone(task);
    let local = |at: DateTime<Utc>| shown(at, name, clock);
    let covering = recorded.covering.as_ref().filter(|run| stands_for_instant(run, facts));
    let known = recorded.at.as_ref().or(covering);
    let (outcome, sentence) = match known {
        Some(run) => of_record(run, *at),
        None => of_rules(facts),
    };
    let mut sentences = vec![sentence];
    if outcome == InstantOutcome::NoInstant {
        sentences.push(neighbours(place));
        sentences.extend(nearest(recorded, place));
    }
    if known.is_none()
        && let Some(tally) = &recorded.covering
        && let Some(fires) = tally.tallied_fires()
    {
        sentences.push(skip_tally::beside(tally, fires));
    }
    if outcome != InstantOutcome::BeforeCreation && *at < task.active_since && *at < *now {
        sentences.push(format!(
            "Its trigger is what it is, and it is active, since {}: before, it was paused or disabled, or had another.",
            rfc3339(task.active_since)
        ));
    }
    InstantExplanation {
        instant: local(*at),
        outcome,
        sentences,
        run_id: known.map(|run| run.id),
        before: place.before.map(local),
        after: place.after.map(local),
    }
}

/// Whether a record that covers the instant stands for it. A tally covers what lies between its fires, too: it stands
/// for instants of the present trigger, and for those of an earlier one, of which nothing is known any more.
fn stands_for_instant(run: &Run, InstantFacts { task, at, place, .. }: &InstantFacts) -> bool {
    let is_scheduled = matches!(task.spec.trigger, Trigger::Schedule(_));
    let was_due = is_scheduled && (*at < task.active_since || place.is_instant && !place.is_excluded);
    run.tallied_fires().is_none() || was_due
}

fn of_record(run: &Run, at: DateTime<Utc>) -> (InstantOutcome, String) {
    let reason = run.reason.as_deref().map_or(String::new(), |reason| format!(" {}", why(run.state, reason)));
    let range = run.missed.as_ref().filter(|missed| missed.from != missed.to);
    let whole = range.map_or(String::new(), |missed| match run.tallied_fires() {
        Some(fires) => format!(", as one of {}", skip_tally::told(fires)),
        None => format!(", as one of those from {} to {}", rfc3339(missed.from), rfc3339(missed.to)),
    });
    match run.state.as_str() {
        "skipped" => {
            let outcome = match run.reason.as_deref() {
                Some("excluded") => InstantOutcome::Excluded,
                _ => InstantOutcome::Skipped,
            };
            (outcome, format!("It is recorded as skipped{whole}.{reason}"))
        }
        state if run.scheduled_for == at => {
            (InstantOutcome::Run, format!("It has the run {}, which is {state}.{reason}", run.id))
        }
        state => {
            let sentence = format!(
                "It was missed{whole}; the run {} for {} stands for it, and is {state}.{reason}",
                run.id,
                rfc3339(run.scheduled_for)
            );
            (InstantOutcome::Coalesced, sentence)
        }
    }
}

fn of_rules(InstantFacts { task, at, place, recorded, now }: &InstantFacts) -> (InstantOutcome, String) {
    let kind = match &task.spec.trigger {
        Trigger::Schedule(_) => None,
        Trigger::Event(_) => Some("events"),
        Trigger::Condition(_) => Some("a condition"),
        Trigger::Chat(_) => Some("messages"),
    };
    if *at < task.created_at {
        let sentence = format!("The task was not there: it was created at {}.", rfc3339(task.created_at));
        return (InstantOutcome::BeforeCreation, sentence);
    }
    if let Some(kind) = kind {
        let last = recorded.before.as_ref().map_or("it had no run before".into(), |run| {
            format!("its last run before, for {}, is {}", rfc3339(run.scheduled_for), run.state.as_str())
        });
        return (
            InstantOutcome::NoInstant,
            format!("The task goes by {kind}, and has no instants of its own; {last}."),
        );
    }
    if !place.is_instant {
        return (InstantOutcome::NoInstant, "It is no instant of the task's trigger.".into());
    }
    if place.is_excluded {
        return (
            InstantOutcome::Excluded,
            "It is an instant of the task's trigger that its `exclude` leaves out.".into(),
        );
    }
    if at > now {
        let sentence = match task.status {
            TaskStatus::Active => {
                "It lies ahead: the task fires then, if it is active and its trigger is the same.".into()
            }
            status => format!("It lies ahead; the task is {} now, and would not fire.", status.as_str()),
        };
        return (InstantOutcome::Ahead, sentence);
    }
    if *at < task.active_since {
        return (InstantOutcome::NotActive, "Nothing was due: the task was not active by this trigger then.".into());
    }
    if task.status != TaskStatus::Active {
        let reason = task.status_reason.as_deref().map_or(String::new(), |reason| format!(" ({reason})"));
        let sentence = format!("Nothing is recorded: the task is {}{reason}.", task.status.as_str());
        return (InstantOutcome::NotActive, sentence);
    }
    let sentence = match task.next_fire_at.filter(|next| next <= now) {
        Some(next) => format!("It is due, and not recorded yet; the task waits since {}.", rfc3339(next)),
        None => "Nothing is recorded of it: its record was forgotten, or deleted.".into(),
    };
    (InstantOutcome::NoRecord, sentence)
}

fn neighbours(place: &TriggerInstant) -> String {
    match (place.before, place.after) {
        (Some(before), Some(after)) => {
            format!("The instant before it is {}, the one after it {}.", rfc3339(before), rfc3339(after))
        }
        (None, Some(after)) => format!("The first instant after it is {}.", rfc3339(after)),
        (Some(before), None) => format!("The last instant before it is {}.", rfc3339(before)),
        (None, None) => "There is none near it.".into(),
    }
}

/// Outcomes of the instants beside it.
fn nearest(recorded: &SurroundingRuns, place: &TriggerInstant) -> Vec<String> {
    let beside = [(&recorded.before, place.before), (&recorded.after, place.after)];
    let known = beside.into_iter().filter_map(|(run, at)| {
        let run = run.as_ref().filter(|run| Some(run.scheduled_for) == at)?;
        let reason = run.reason.as_deref().map_or(String::new(), |reason| format!(" {}", why(run.state, reason)));
        Some(format!("For {} there is the run {}, which is {}.{reason}", rfc3339(at?), run.id, run.state.as_str()))
    });
    known.collect()
}

fn zone(task: &Task) -> (&str, Tz) {
    let name = match &task.spec.trigger {
        Trigger::Schedule(schedule) => schedule.timezone.as_deref(),
        _ => None,
    };
    let name = name.unwrap_or("UTC");
    (name, name.parse().unwrap_or(Tz::UTC))
}

/// The instant in a zone of this name.
pub fn shown(at: DateTime<Utc>, zone: &str, clock: Tz) -> NextInstant {
    let local = shown_in(at, clock).to_rfc3339_opts(SecondsFormat::Secs, false);
    NextInstant { at, local, timezone: zone.to_owned() }
}
