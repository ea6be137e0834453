//! Options of a trigger, in sentences that name the option: conditions of a fire, exclusions, and the overlap of runs.

use chrono::{DateTime, Utc};

use crate::domain::task::{Task, TaskStatus};
use crate::domain::trigger::condition::{Condition, ConditionState, FireOn};
use crate::domain::trigger::event::{Debounce, EventTrigger, HELD_EVENTS};
use crate::domain::trigger::interval::parse_length;
use crate::domain::trigger::{CatchUp, DstFold, DstGap, OnResume, Overlap, Schedule, Trigger};
use crate::http::api::explain::rfc3339;

/// Exclusions that are named.
const NAMED: usize = 5;
/// Longest value that is shown, in characters.
const VALUE: usize = 200;
/// How late a fire may start where the schedule says nothing.
const CATCH_UP_WINDOW: &str = "1h";

/// Sentences about a task, and conditions before it fires.
#[derive(Debug, Default)]
pub struct RuleExplanation {
    /// Sentences about the task.
    pub sentences: Vec<String>,
    /// Conditions before it fires.
    pub needs: Vec<String>,
}

impl RuleExplanation {
    fn say(&mut self, sentence: impl Into<String>) {
        self.sentences.push(sentence.into());
    }

    fn need(&mut self, sentence: impl Into<String>) {
        self.needs.push(sentence.into());
    }
}

/// All that the trigger of a task decides.
pub fn of(task: &Task, condition: Option<&ConditionState>, now: DateTime<Utc>, explanation: &mut RuleExplanation) {
    match &task.spec.trigger {
        Trigger::Schedule(schedule) => of_schedule(schedule, task.status, explanation),
        Trigger::Event(event) => of_event(event, task.status, explanation),
        Trigger::Condition(wanted) => {
            let state = condition.cloned().unwrap_or_default();
            of_condition(wanted, &state, task.status, now, explanation);
        }
        Trigger::Chat(_) => explanation.say("Each message of a person is answered by a run."),
    }
    if task.status != TaskStatus::Completed {
        of_overlap(&task.spec.trigger, explanation);
    }
}

fn of_schedule(schedule: &Schedule, status: TaskStatus, explanation: &mut RuleExplanation) {
    if let Some(start) = &schedule.start_at {
        explanation.say(format!("Nothing fires before {start} (`start_at`)."));
    }
    if let Some(end) = &schedule.end_at {
        explanation.say(format!("Nothing fires after {end} (`end_at`)."));
    }
    if !schedule.exclude.is_empty() {
        let named: Vec<String> = schedule.exclude.iter().take(NAMED).map(|out| format!("`{out}`")).collect();
        let more = match schedule.exclude.len().saturating_sub(NAMED) {
            0 => String::new(),
            more => format!(" and {more} more"),
        };
        explanation.say(format!("Nothing fires at {}{more} (`exclude`).", named.join(", ")));
    }
    if let Some(jitter) = &schedule.jitter {
        explanation.say(format!(
            "A fire comes up to {jitter} after its instant, so that not all tasks fire at once (`jitter`)."
        ));
    }
    if schedule.dst_gap == DstGap::Skip {
        explanation.say("A wall time that the clock jumps over does not fire (`dst_gap`: skip).");
    }
    if schedule.dst_fold == DstFold::Both {
        explanation.say("A wall time that the clock shows twice fires twice (`dst_fold`: both).");
    }
    let late = schedule.catch_up_window.as_deref().unwrap_or(CATCH_UP_WINDOW);
    explanation.say(match schedule.catch_up {
        CatchUp::Latest => format!(
            "For all instants that are missed one run is made, unless the newest is more than {late} late (`catch_up`: latest, `catch_up_window`)."
        ),
        CatchUp::All => format!(
            "Instants that are missed have a run each, but for those more than {late} late (`catch_up`: all, `catch_up_window`)."
        ),
        CatchUp::Skip => "Instants that are missed do not run (`catch_up`: skip).".into(),
    });
    if status == TaskStatus::Paused {
        explanation.say(match schedule.on_resume {
            OnResume::Skip => "Instants that fall due until it is resumed are not caught up (`on_resume`: skip).",
            OnResume::CatchUp => {
                "Instants that fall due until it is resumed count as missed, and are caught up then (`on_resume`: catch_up)."
            }
        });
    }
}

fn of_event(event: &EventTrigger, status: TaskStatus, explanation: &mut RuleExplanation) {
    let any = |pattern: &Option<String>| pattern.clone().unwrap_or_else(|| "*".into());
    explanation.say(format!(
        "It waits for events of `{}` with the type `{}`.",
        any(&event.source),
        any(&event.event_type)
    ));
    let mut wanted = vec!["An event comes whose source and type match".to_owned()];
    wanted.extend(event.filters.iter().map(|(key, value)| format!("whose `{key}` is, or has in it, {value}")));
    wanted.extend(event.filter.iter().map(|filter| format!("for which `{filter}` is true")));
    explanation.need(format!("{}.", wanted.join(", ")));
    explanation.say("Events that do not match leave no record with it; the log of events has them.");
    if let Some(age) = &event.max_age {
        explanation.say(format!("An event that happened more than {age} before is recorded as `too_old` (`max_age`)."));
    }
    if let Some(dedup) = &event.dedup {
        explanation.say(format!(
            "Of events with the same `{}` within {} the first one fires; the others are recorded as `duplicate` (`dedup`).",
            dedup.key, dedup.window
        ));
    }
    if let Some(throttle) = &event.throttle {
        explanation.say(format!(
            "It fires at most {} times in {}{}; what comes beyond is recorded as `throttled` (`throttle`).",
            throttle.limit,
            throttle.per,
            for_each(throttle.key.as_ref())
        ));
    }
    if let Some(debounce) = &event.debounce {
        explanation.need(format!(
            "After it no event{} comes for {} (`debounce`).",
            of_same(debounce.key.as_ref()),
            debounce.quiet
        ));
        explanation.say(format!("It fires {} after the first event at the latest (`debounce`).", longest(debounce)));
    }
    if let Some(batch) = &event.batch {
        explanation.need(format!(
            "{} events{} have come, or {} have passed since the first (`batch`).",
            batch.size,
            of_same(batch.key.as_ref()),
            batch.wait
        ));
    }
    if status == TaskStatus::Paused {
        explanation.say(match event.buffer_while_paused {
            true => format!(
                "Events that come meanwhile are buffered, {HELD_EVENTS} at most, and run when it is resumed (`buffer_while_paused`)."
            ),
            false => "Events that come meanwhile are not kept for it (`buffer_while_paused`: false).".into(),
        });
    }
}

fn longest(debounce: &Debounce) -> String {
    debounce.max_wait.clone().unwrap_or_else(|| format!("ten times {}", debounce.quiet))
}

fn for_each(key: Option<&String>) -> String {
    key.map_or(String::new(), |key| format!(" for each `{key}`"))
}

fn of_same(key: Option<&String>) -> String {
    key.map_or(String::new(), |key| format!(" with the same `{key}`"))
}

fn of_condition(
    condition: &Condition,
    state: &ConditionState,
    status: TaskStatus,
    now: DateTime<Utc>,
    explanation: &mut RuleExplanation,
) {
    of_polls(condition, state, explanation);
    of_verdict(condition, state, explanation);
    if let Some(start) = condition.start_at {
        explanation.say(format!("It is not polled before {} (`start_at`).", rfc3339(start)));
    }
    if let Some(end) = condition.end_at {
        explanation.say(format!("It is not polled after {} (`end_at`).", rfc3339(end)));
    }
    if let Some(cooldown) = &condition.cooldown {
        explanation.say(format!("For {cooldown} after a fire further ones are recorded as skipped (`cooldown`)."));
    }
    if status != TaskStatus::Active {
        return;
    }
    match condition.fire {
        FireOn::OnTrue => of_edge(condition, state, explanation),
        FireOn::EveryTime => of_level(condition, state, explanation),
        FireOn::OnChange => of_change(condition, state, explanation),
    }
    if let Some(until) = state.cooldown_until.filter(|until| *until > now) {
        explanation.need(format!("The cooldown ends at {}; a fire before is recorded as skipped.", rfc3339(until)));
    }
}

fn of_polls(condition: &Condition, state: &ConditionState, explanation: &mut RuleExplanation) {
    let every = &condition.interval;
    match state.last_poll_at {
        None => explanation.say(format!("It has not been polled yet; it is every {every}.")),
        Some(at) => explanation.say(format!("It was polled last at {}; it is every {every}.", rfc3339(at))),
    }
    let Some(failing) = &state.failing else { return };
    explanation.say(format!(
        "The last {} polls failed, since {}: {} ({}). A poll that fails is never taken for false.",
        failing.count,
        rfc3339(failing.since),
        failing.error.message.trim_end_matches('.'),
        failing.error.kind
    ));
    explanation.say(match failing.notified {
        true => "Its owner was told of it.".into(),
        false => format!(
            "Its owner is told after {} failing polls in a row (`failure_notice_after`).",
            condition.failure_notice_after
        ),
    });
    explanation.need("The polled source answers again.");
}

/// Tells the value of the last good poll, and the result of the expression.
fn of_verdict(condition: &Condition, state: &ConditionState, explanation: &mut RuleExplanation) {
    let Some(verdict) = state.verdict else { return };
    let saw = format!("the last good poll saw {}", cut(&state.value));
    match &condition.expression {
        Some(expression) => {
            let since = state.since.map_or(String::new(), |at| format!(" since {}", rfc3339(at)));
            explanation.say(format!("`{expression}` is {verdict}{since}; {saw}."));
        }
        None => explanation.say(format!("{}.", saw.replacen("the", "The", 1))),
    }
    if let (FireOn::OnChange, Some(watch)) = (condition.fire, &condition.watch) {
        explanation.say(format!("`{watch}` was {} then (`watch`).", cut(&state.watched)));
    }
}

/// It fires when the expression becomes true, and again after it was reset.
fn of_edge(condition: &Condition, state: &ConditionState, explanation: &mut RuleExplanation) {
    let asks = asked(condition);
    match (&condition.reset, state.latched) {
        (Some(reset), true) => explanation.need(format!(
            "A poll finds `{reset}` true and `{asks}` false: it has fired for this time (`reset`). Then `{asks}` becomes true again."
        )),
        (None, true) if state.verdict == Some(true) => {
            explanation.need(format!("`{asks}` becomes false, and then true again: it has fired for this time."));
        }
        (reset, _) => {
            if let Some(reset) = reset {
                explanation.say(format!("After a fire a poll has to find `{reset}` true and `{asks}` false before it fires again (`reset`)."));
            }
            of_level(condition, state, explanation);
        }
    }
}

/// It fires while the expression is true, or was true for long enough.
fn of_level(condition: &Condition, state: &ConditionState, explanation: &mut RuleExplanation) {
    let asks = asked(condition);
    if condition.fire == FireOn::EveryTime {
        explanation.say(format!("It fires at each poll at which `{asks}` is true (`fire`: every_time)."));
    }
    let held = condition.hold_for.as_deref().and_then(|long| parse_length(long).ok());
    match (state.verdict == Some(true), &condition.hold_for) {
        (true, None) => {}
        (true, Some(_)) if held.is_some_and(|long| state.true_for_ms >= long.num_milliseconds()) => {}
        (false, None) => explanation.need(format!("`{asks}` becomes true.")),
        (false, Some(long)) => {
            explanation.need(format!("`{asks}` becomes true, and stays true for {long} (`hold_for`)."))
        }
        (true, Some(long)) => explanation
            .need(format!("It stays true for {long}; so far it was for {} s (`hold_for`).", state.true_for_ms / 1000)),
    }
}

/// It fires when the watched value is another than at the poll before.
fn of_change(condition: &Condition, state: &ConditionState, explanation: &mut RuleExplanation) {
    let watched = condition.watch.as_ref().map_or("The polled value".into(), |watch| format!("`{watch}`"));
    let holds = condition.expression.as_ref().map_or(String::new(), |asks| format!(", and `{asks}` is true then"));
    match state.last_good_at {
        None => explanation.need(format!(
            "A good poll sees what later ones are compared with; {} is another after that{holds} (`fire`: on_change).",
            watched.replacen("What", "what", 1)
        )),
        Some(_) => {
            explanation.need(format!("{watched} is another than at the last good poll{holds} (`fire`: on_change)."))
        }
    }
}

fn asked(condition: &Condition) -> &str {
    condition.expression.as_deref().unwrap_or("true")
}

fn of_overlap(trigger: &Trigger, explanation: &mut RuleExplanation) {
    let (rule, overlap_counts_waiting) = (trigger.overlap(), trigger.overlap_counts_waiting());
    let becomes = match rule {
        Overlap::Skip => "is skipped while another run of it is executed",
        Overlap::QueueOne => "waits behind the one that is executed, and a further one is skipped",
        Overlap::QueueAll => "waits behind the one that is executed, however many there are",
        Overlap::Allow => "is executed beside others of it",
        Overlap::CancelPrevious => "ends the one that is executed",
    };
    let counts = match (rule, overlap_counts_waiting) {
        (Overlap::Allow, _) => "",
        (_, true) => "; a run that waits for a person or a report counts as executed (`overlap_counts_waiting`)",
        (_, false) => "; a run that waits for a person or a report does not count",
    };
    explanation.say(format!("A run of it {becomes} (`overlap`: {}){counts}.", rule.as_str()));
}

/// A value as text, of a length that a sentence bears.
fn cut(value: &serde_json::Value) -> String {
    let text = value.to_string();
    match text.char_indices().nth(VALUE) {
        Some((at, _)) => format!("{}…", &text[..at]),
        None => text,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::*;
    use crate::domain::trigger::condition::{HttpPoll, PollSpec};
    use crate::domain::trigger::event::{BatchOptions, Dedup, Throttle};
    use crate::domain::trigger::{OnResume, When};

    /// Every option is said, but for those that others are said by.
    fn names_every_option(trigger: &impl serde::Serialize, explanation: &RuleExplanation, others: &[&str]) {
        let options = serde_json::to_value(trigger).unwrap();
        let all = explanation.sentences.iter().chain(&explanation.needs).cloned().collect::<Vec<_>>().join("\n");
        for option in options.as_object().unwrap().keys().filter(|option| !others.contains(&option.as_str())) {
            assert!(all.contains(&format!("`{option}`")), "{option} is not in:\n{all}");
        }
    }

    fn paused(trigger: &Trigger) -> RuleExplanation {
        let mut explanation = RuleExplanation::default();
        match trigger {
            Trigger::Schedule(schedule) => of_schedule(schedule, TaskStatus::Paused, &mut explanation),
            Trigger::Event(event) => of_event(event, TaskStatus::Paused, &mut explanation),
            Trigger::Condition(_) | Trigger::Chat(_) => unreachable!("conditions have cases of their own"),
        }
        of_overlap(trigger, &mut explanation);
        explanation
    }

    #[test]
    fn every_option_of_a_schedule_is_said() {
        let schedule = Schedule {
            when: When::Cron("0 8 * * *".into()),
            timezone: Some("Europe/Berlin".into()),
            start_at: Some("2027-01-01".into()),
            end_at: Some("2028-01-01".into()),
            jitter: Some("30s".into()),
            exclude: (1..=7).map(|day| format!("2027-12-0{day}")).collect(),
            catch_up: CatchUp::All,
            catch_up_window: Some("2h".into()),
            overlap: Overlap::QueueAll,
            dst_gap: DstGap::Skip,
            dst_fold: DstFold::Both,
            on_resume: OnResume::CatchUp,
            overlap_counts_waiting: true,
        };
        let explanation = paused(&Trigger::Schedule(schedule.clone()));
        // when it fires is said by its instants, in its zone
        names_every_option(&schedule, &explanation, &["cron", "timezone"]);
        assert!(
            explanation.sentences.iter().any(|sentence| sentence.contains("`2027-12-05` and 2 more")),
            "{explanation:?}"
        );
    }

    #[test]
    fn every_option_of_an_event_trigger_is_said() {
        let key = || Some("event.data.id".to_owned());
        let mut event = EventTrigger {
            source: Some("shop".into()),
            event_type: Some("order.*".into()),
            filters: Map::from_iter([("from".to_owned(), json!("amazon"))]),
            filter: Some("event.data.total > 100".into()),
            debounce: Some(Debounce { quiet: "30s".into(), max_wait: Some("5m".into()), key: key() }),
            batch: None,
            throttle: Some(Throttle { limit: 5, per: "1m".into(), key: key() }),
            dedup: Some(Dedup { key: "event.data.no".into(), window: "P1D".into() }),
            max_age: Some("1h".into()),
            buffer_while_paused: true,
            overlap: Overlap::CancelPrevious,
            overlap_counts_waiting: true,
        };
        let explanation = paused(&Trigger::Event(Box::new(event.clone())));
        names_every_option(&event, &explanation, &["source", "event_type", "filters", "filter"]);
        assert!(
            explanation.needs.iter().any(|need| need.contains("no event with the same `event.data.id` comes for 30s"))
        );
        event.debounce = None;
        event.batch = Some(BatchOptions { size: 10, wait: "5m".into(), key: key() });
        let explanation = paused(&Trigger::Event(Box::new(event.clone())));
        names_every_option(&event, &explanation, &["source", "event_type", "filters", "filter"]);
    }

    fn condition() -> Condition {
        let http = HttpPoll {
            url: "https://api.example.org".into(),
            method: Default::default(),
            headers: Default::default(),
            credential: None,
        };
        Condition {
            poll: PollSpec::Http(http),
            interval: "1m".into(),
            expression: Some("value.price < 500".into()),
            fire: FireOn::OnTrue,
            watch: None,
            reset: Some("value.price > 550".into()),
            hold_for: Some("10m".into()),
            cooldown: Some("6h".into()),
            timeout: Some("5s".into()),
            failure_notice_after: 3,
            start_at: Some(now()),
            end_at: Some(now()),
            overlap: Overlap::QueueOne,
            overlap_counts_waiting: true,
        }
    }

    fn now() -> DateTime<Utc> {
        "2027-03-01T08:00:00Z".parse().unwrap()
    }

    /// A good poll that saw `value`.
    fn polled(verdict: bool, latched: bool, value: Value) -> ConditionState {
        let at = Some(now());
        ConditionState {
            verdict: Some(verdict),
            since: at,
            value,
            last_poll_at: at,
            last_good_at: at,
            latched,
            ..ConditionState::default()
        }
    }

    fn needs(condition: &Condition, state: &ConditionState) -> Vec<String> {
        let mut explanation = RuleExplanation::default();
        of_condition(condition, state, TaskStatus::Active, now(), &mut explanation);
        explanation.needs
    }

    #[test]
    fn every_option_of_a_condition_is_said() {
        use crate::domain::trigger::condition::{PollFailures, PollFault};

        let wanted = condition();
        let failing =
            PollFailures { since: now(), count: 1, error: PollFault::new("timeout", "too late"), notified: false };
        let state = ConditionState { failing: Some(failing), ..polled(true, false, json!({"price": 400})) };
        let mut explanation = RuleExplanation::default();
        of_condition(&wanted, &state, TaskStatus::Active, now(), &mut explanation);
        of_overlap(&Trigger::Condition(wanted.clone()), &mut explanation);
        // the poll is what failed, the interval is in the sentence of the last poll
        names_every_option(&wanted, &explanation, &["poll", "interval", "expression", "fire", "timeout"]);
        let watching = Condition { fire: FireOn::OnChange, watch: Some("value.status".into()), ..wanted };
        let mut explanation = RuleExplanation::default();
        of_condition(&watching, &state, TaskStatus::Active, now(), &mut explanation);
        for option in ["`fire`", "`watch`"] {
            assert!(
                explanation.sentences.iter().chain(&explanation.needs).any(|line| line.contains(option)),
                "{option}: {explanation:?}"
            );
        }
    }

    #[test]
    fn spent_condition_needs_its_reset_and_is_not_called_due() {
        let plain = Condition { hold_for: None, reset: None, ..condition() };
        let reset = Condition { hold_for: None, ..condition() };
        let between = polled(false, true, json!({"price": 520}));
        assert_eq!(
            needs(&reset, &between),
            [
                "A poll finds `value.price > 550` true and `value.price < 500` false: it has fired for this time (`reset`). \
              Then `value.price < 500` becomes true again."
            ]
        );
        assert_eq!(needs(&reset, &polled(true, true, json!({"price": 400}))).len(), 1);
        assert_eq!(
            needs(&plain, &polled(true, true, json!({"price": 400}))),
            ["`value.price < 500` becomes false, and then true again: it has fired for this time."]
        );
        assert_eq!(needs(&plain, &polled(false, false, json!({"price": 600}))), ["`value.price < 500` becomes true."]);
    }

    #[test]
    fn condition_that_fires_on_change_needs_a_change_though_its_expression_is_true() {
        let change = Condition {
            fire: FireOn::OnChange,
            expression: None,
            watch: Some("value.status".into()),
            reset: None,
            hold_for: None,
            ..condition()
        };
        assert_eq!(
            needs(&change, &polled(true, false, json!({"status": "open"}))),
            ["`value.status` is another than at the last good poll (`fire`: on_change)."]
        );
        let filtered = Condition { expression: Some("value.open".into()), ..change };
        assert!(needs(&filtered, &polled(true, false, json!({})))[0].contains("and `value.open` is true then"));
        assert!(needs(&filtered, &ConditionState::default())[0].contains("what later ones are compared with"));
    }

    #[test]
    fn level_that_has_held_long_enough_needs_nothing_more() {
        let level = Condition { fire: FireOn::EveryTime, reset: None, ..condition() };
        let held = |minutes: i64| ConditionState { true_for_ms: minutes * 60_000, ..polled(true, false, json!({})) };
        assert_eq!(needs(&level, &held(4)), ["It stays true for 10m; so far it was for 240 s (`hold_for`)."]);
        assert!(needs(&level, &held(10)).is_empty());
    }
}
