//! The consequences of one poll: whether the condition fires, whether that is skipped, and when the next poll comes.
//!
//! The rules, for those who wonder:
//! - A condition that is true at its first poll fires. Then it has to be false once (with `reset`: while `reset` is
//!   true) before it fires again.
//! - At the first good poll `previous` is the value itself: nothing was different before, as far as is known.
//! - `on_change` takes the first poll as the one to compare with.
//! - A fire within the cooldown of another is recorded as skipped, and used up by that.
//! - A failing poll is no answer: it changes neither the verdict nor what is compared with. Time in which nothing was
//!   seen (failing polls, a pause, an outage of our own) does not count towards `hold_for`, nor does it end it.

use chrono::{DateTime, TimeDelta, Utc};
use serde_json::Value;

use crate::base::expr::{ExpressionError, MissingField};
use crate::domain::run::Cause;
use crate::domain::trigger::condition::FireOn;
use crate::domain::trigger::condition::question::{CompiledCondition, ConditionAnswers, ConditionSubject};
use crate::domain::trigger::condition::state::{
    ConditionFire, ConditionNotice, ConditionState, ConditionStep, PollFailures, PollFault, PollResult,
    REASON_COOLDOWN, Validators,
};

/// The longest wait after failing polls, where the interval is not longer itself.
const LONGEST_BACK_OFF: TimeDelta = TimeDelta::minutes(15);
/// A wait after a failing poll is longer by up to this share, so that what failed together is not asked together.
const SPREAD: f64 = 0.2;
/// A Retry-After longer than this is not believed.
const LONGEST_HINT: TimeDelta = TimeDelta::hours(24);

impl ConditionState {
    /// The step that follows from a poll at `now`. `random` lies in 0..1.
    pub fn on_poll(
        &self,
        question: &CompiledCondition,
        subject: &ConditionSubject,
        polled: Result<PollResult, PollFault>,
        now: DateTime<Utc>,
        random: f64,
    ) -> ConditionStep {
        let (value, validators) = match polled {
            Ok(PollResult::Value { value, validators }) => (value, validators),
            Ok(PollResult::Unchanged) => (self.value.clone(), self.validators.clone()),
            Err(fault) => return self.on_failure(question, fault, now, random),
        };
        match question.ask(&value, self.previous_value(&value), subject, now) {
            Ok(answers) => {
                let missing = self.missing(question, subject, &value, &answers, now);
                self.on_value(question, subject, value, validators, answers, now).with_notice(missing)
            }
            Err(error) => self.on_failure(question, of_expression(&error), now, random),
        }
    }

    fn on_value(
        &self,
        question: &CompiledCondition,
        subject: &ConditionSubject,
        value: Value,
        validators: Validators,
        answers: ConditionAnswers,
        now: DateTime<Utc>,
    ) -> ConditionStep {
        let held = self.true_for_at(question, answers.holds, now);
        let ripe = answers.holds && held >= question.hold_for;
        let fires = match question.fire {
            FireOn::OnTrue => ripe && !self.latched,
            FireOn::EveryTime => ripe,
            FireOn::OnChange => answers.holds && self.last_good_at.is_some() && self.watched != answers.watched,
        };
        let fire = fires.then(|| self.fire(question, &value, now));
        let runs = fire.as_ref().is_some_and(|fire| fire.skipped.is_none());
        let armed_again = !answers.holds && answers.reset.unwrap_or(true);
        let state = ConditionState {
            format: self.format,
            edges: self.edges + i64::from(fires),
            verdict: Some(answers.holds),
            since: if self.verdict == Some(answers.holds) { self.since } else { Some(now) },
            previous: self.previous_value(&value).clone(),
            value,
            validators,
            watched: answers.watched,
            last_poll_at: Some(now),
            last_good_at: Some(now),
            true_for_ms: held.num_milliseconds(),
            latched: question.fire == FireOn::OnTrue && (fires || (self.latched && !armed_again)),
            cooldown_until: match runs && question.cooldown > TimeDelta::zero() {
                true => Some(now + question.cooldown),
                false => self.cooldown_until,
            },
            failing: None,
            missing_notified: self.missing_notified,
        };
        let waits_for_hold = answers.holds && !ripe && !self.latched;
        let grid = question.after(subject.id, now);
        ConditionStep {
            next_poll_at: if waits_for_hold { grid.min(now + (question.hold_for - held)) } else { grid },
            state,
            fire,
            notice: self.failing.clone().filter(|failing| failing.notified).map(ConditionNotice::Recovered),
        }
    }

    /// For how long it has been seen to be true. Between two good polls that follow each other it counts as true.
    fn true_for_at(&self, question: &CompiledCondition, holds: bool, now: DateTime<Utc>) -> TimeDelta {
        if !holds || self.verdict != Some(true) {
            return TimeDelta::zero();
        }
        let unseen = question.every * 2 + question.time_limit;
        let since_last = self.last_good_at.map_or(TimeDelta::zero(), |last| now - last);
        let counts = self.failing.is_none() && since_last <= unseen;
        self.true_for() + if counts { since_last.max(TimeDelta::zero()) } else { TimeDelta::zero() }
    }

    fn fire(&self, question: &CompiledCondition, value: &Value, now: DateTime<Utc>) -> ConditionFire {
        let cools_down = self.cooldown_until.is_some_and(|until| now < until);
        ConditionFire {
            number: self.edges + 1,
            skipped: cools_down.then_some(REASON_COOLDOWN),
            cause: Cause::Condition {
                expression: question.shown().text().to_owned(),
                value: value.clone(),
                previous: self.previous_value(value).clone(),
            },
        }
    }

    /// The field that the owner is to be told of: the first that is not there, unless one was told.
    fn missing(
        &self,
        question: &CompiledCondition,
        subject: &ConditionSubject,
        value: &Value,
        answers: &ConditionAnswers,
        now: DateTime<Utc>,
    ) -> Option<MissingField> {
        let missed = answers.missed.as_ref().filter(|_| !self.missing_notified)?;
        Some(question.missing_field(missed, value, self.previous_value(value), subject, now))
    }

    /// The value of `previous` beside a value.
    fn previous_value<'a>(&'a self, value: &'a Value) -> &'a Value {
        if self.last_good_at.is_some() { &self.value } else { value }
    }

    fn on_failure(
        &self,
        question: &CompiledCondition,
        fault: PollFault,
        now: DateTime<Utc>,
        random: f64,
    ) -> ConditionStep {
        let (since, before, notified) = match &self.failing {
            Some(failing) => (failing.since, failing.count, failing.notified),
            None => (now, 0, false),
        };
        let count = before.saturating_add(1);
        let wait = back_off(question.every, count, random).max(retry_after(&fault));
        let notifies = !notified && count >= question.notice_after;
        let failing = PollFailures { since, count, error: fault, notified: notified || notifies };
        ConditionStep {
            state: ConditionState { failing: Some(failing.clone()), last_poll_at: Some(now), ..self.clone() },
            fire: None,
            next_poll_at: now + wait,
            notice: notifies.then_some(ConditionNotice::Failing(failing)),
        }
    }
}

impl ConditionStep {
    /// With the notice of a missing field, where no other is told with this poll: then with the next.
    fn with_notice(mut self, missing: Option<MissingField>) -> ConditionStep {
        if let (Some(missing), None) = (missing, &self.notice) {
            self.notice = Some(ConditionNotice::Missing(missing));
            self.state.missing_notified = true;
        }
        self
    }
}

/// The interval, doubled with each failing poll, up to a quarter of an hour or the interval itself.
fn back_off(every: TimeDelta, count: u32, random: f64) -> TimeDelta {
    let doubled = every.checked_mul(1_i32.checked_shl(count.saturating_sub(1).min(30)).unwrap_or(i32::MAX));
    let longest = LONGEST_BACK_OFF.max(every);
    let wait = doubled.map_or(longest, |doubled| doubled.min(longest));
    wait + TimeDelta::milliseconds((wait.num_milliseconds() as f64 * SPREAD * random.clamp(0.0, 1.0)) as i64)
}

fn retry_after(fault: &PollFault) -> TimeDelta {
    let asked = fault.retry_after.and_then(|asked| TimeDelta::from_std(asked).ok());
    asked.unwrap_or_default().min(LONGEST_HINT)
}

fn of_expression(error: &ExpressionError) -> PollFault {
    PollFault::new("expression", error.to_string())
}

#[cfg(test)]
mod tests {
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::base::expr::Language;
    use crate::domain::trigger::condition::Condition;

    fn start() -> DateTime<Utc> {
        "2027-03-01T08:00:00Z".parse().unwrap()
    }

    fn subject() -> ConditionSubject {
        ConditionSubject { id: Uuid::from_u128(7), name: "a task".into(), metadata: Default::default() }
    }

    fn question(more: Value) -> CompiledCondition {
        let mut fields = json!({
            "poll": {"redis": {"source": "s", "key": "k"}}, "interval": "1m", "expression": "value < 500",
        });
        fields.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
        if fields["expression"].is_null() {
            fields.as_object_mut().unwrap().remove("expression");
        }
        let condition: Condition = serde_json::from_value(fields).unwrap();
        condition.compile(&Language::default()).unwrap()
    }

    fn seen(value: Value) -> Result<PollResult, PollFault> {
        Ok(PollResult::Value { value, validators: Validators::default() })
    }

    fn gone() -> Result<PollResult, PollFault> {
        Err(PollFault::new("connect", "nobody there"))
    }

    /// Polls these values a minute apart, `null` for a failing poll, the state stored and read back between them, and
    /// draws what came of each: `.` nothing, `F` a fire, `s` a skipped one, `x` failing, `!` the owner is told, `+`
    /// told that it is well.
    fn script(more: Value, values: &[Value]) -> String {
        let question = question(more);
        let (mut drawn, mut stored, mut edges) = (String::new(), Value::Null, 0);
        for (minute, value) in values.iter().enumerate() {
            let now = start() + TimeDelta::minutes(minute as i64);
            let state = ConditionState::read(&stored, edges);
            let polled = if value.is_null() { gone() } else { seen(value.clone()) };
            let step = state.on_poll(&question, &subject(), polled, now, 0.0);
            match &step.fire {
                None if step.state.failing.is_some() => drawn.push('x'),
                None => drawn.push('.'),
                Some(fire) => {
                    assert_eq!(fire.number, edges + 1, "numbers follow each other");
                    drawn.push(if fire.skipped.is_some() { 's' } else { 'F' });
                }
            }
            match step.notice {
                Some(ConditionNotice::Failing(_)) => drawn.push('!'),
                Some(ConditionNotice::Recovered(_)) => drawn.push('+'),
                Some(ConditionNotice::Missing(_)) | None => {}
            }
            edges = step.state.edges;
            stored = serde_json::to_value(&step.state).unwrap();
        }
        drawn
    }

    fn prices(list: &[i64]) -> Vec<Value> {
        list.iter().map(|price| if *price < 0 { Value::Null } else { json!(price) }).collect()
    }

    #[test]
    fn edge_fires_once_until_it_was_false_again() {
        assert_eq!(script(json!({}), &prices(&[600, 499, 480, 510, 490, 489])), ".F..F.");
        assert_eq!(script(json!({}), &prices(&[400, 400])), "F.", "what is true at first fires");
    }

    #[test]
    fn level_fires_each_time() {
        assert_eq!(script(json!({"fire": "every_time"}), &prices(&[600, 499, 480, 510, 490])), ".FF.F");
    }

    #[test]
    fn change_is_one_from_the_poll_before() {
        let change = json!({"fire": "on_change", "expression": null, "watch": "value / 100"});
        assert_eq!(script(change, &prices(&[601, 699, 700, 700, 600])), "..F.F");
        let filtered = json!({"fire": "on_change"});
        assert_eq!(script(filtered, &prices(&[600, 601, 400, 401, 401])), "..FF.");
        let missing = json!({"fire": "on_change", "expression": null, "watch": "value.a"});
        assert_eq!(
            script(missing, &[json!({}), json!({"a": 1}), json!({"a": 1}), json!({})]),
            ".F.F",
            "absent is null"
        );
    }

    #[test]
    fn edge_with_reset_needs_the_reset_threshold_first() {
        let hysteresis = json!({"reset": "value > 550"});
        assert_eq!(script(hysteresis, &prices(&[600, 499, 510, 490, 560, 510, 499])), ".F....F");
    }

    #[test]
    fn flapping_value_does_not_hold_and_one_that_stays_fires_when_it_has_held() {
        let hold = json!({"hold_for": "2m"});
        assert_eq!(script(hold.clone(), &prices(&[400, 600, 400, 400, 400, 400, 600, 400])), "....F...");
        let level = json!({"hold_for": "2m", "fire": "every_time"});
        assert_eq!(script(level, &prices(&[400, 400, 400, 400, 600, 400])), "..FF..");
    }

    #[test]
    fn hold_ends_on_time_though_the_interval_is_longer() {
        let question = question(json!({"interval": "1h", "hold_for": "10m"}));
        let step = ConditionState::default().on_poll(&question, &subject(), seen(json!(1)), start(), 0.0);
        assert_eq!((step.fire, step.next_poll_at), (None, start() + TimeDelta::minutes(10)));
        let later = step.state.on_poll(&question, &subject(), seen(json!(1)), step.next_poll_at, 0.0);
        assert_eq!(later.fire.map(|fire| fire.number), Some(1));
        assert!(later.next_poll_at >= step.next_poll_at + TimeDelta::minutes(30), "back to the interval");
    }

    #[test]
    fn time_in_which_nothing_was_seen_neither_counts_nor_ends_a_hold() {
        let hold = json!({"hold_for": "3m", "failure_notice_after": 9});
        // one minute seen, three unseen, then two more
        assert_eq!(script(hold.clone(), &prices(&[400, 400, -1, -1, 400, 400, 400])), "..xx..F");
        let question = question(hold);
        let once = ConditionState::default().on_poll(&question, &subject(), seen(json!(1)), start(), 0.0).state;
        let paused = once.on_poll(&question, &subject(), seen(json!(1)), start() + TimeDelta::hours(5), 0.0);
        assert_eq!(
            (paused.fire, paused.state.true_for_ms),
            (None, 0),
            "five hours of pause are not five hours of truth"
        );
    }

    #[test]
    fn fire_within_a_cooldown_is_recorded_as_skipped_and_used_up() {
        let cooldown = json!({"cooldown": "3m"});
        assert_eq!(script(cooldown, &prices(&[400, 600, 400, 400, 400, 600, 400])), "F.s...F");
        let level = json!({"cooldown": "3m", "fire": "every_time"});
        assert_eq!(script(level, &prices(&[400, 400, 400, 400, 400])), "FssFs");
    }

    #[test]
    fn failing_poll_is_never_false_and_never_an_edge() {
        assert_eq!(
            script(json!({"failure_notice_after": 9}), &prices(&[400, -1, -1, 400, -1, 600, -1, 400])),
            "Fxx.x.xF"
        );
        let change = json!({"fire": "on_change", "expression": null, "failure_notice_after": 9});
        assert_eq!(script(change, &prices(&[1, -1, 1, -1, 2])), ".x.xF");
    }

    #[test]
    fn owner_is_told_once_after_so_many_and_once_when_it_is_well_again() {
        let twice = json!({"failure_notice_after": 2});
        assert_eq!(script(twice, &prices(&[600, -1, 600, -1, -1, -1, -1, 600, 600, -1, -1])), ".x.xx!xx.+.xx!");
    }

    #[test]
    fn expression_error_is_a_failing_poll_and_a_missing_value_is_no_match() {
        let wrong = [json!(600), json!("cheap"), json!(600)];
        assert_eq!(script(json!({}), &wrong), ".x.");
        let missing = json!({"expression": "value.price < 500"});
        assert_eq!(script(missing, &[json!({"price": 400}), json!({}), json!({"price": 400})]), "F.F");
        let step = ConditionState::default().on_poll(&question(json!({})), &subject(), seen(json!("x")), start(), 0.0);
        assert_eq!(step.state.failing.unwrap().error.kind, "expression");
    }

    #[test]
    fn missing_field_is_told_at_the_first_good_poll_without_it_and_never_again() {
        let told = |more: Value, values: &[Value]| {
            let (question, mut state, mut told) = (question(more), ConditionState::default(), Vec::new());
            for (minute, value) in values.iter().enumerate() {
                let now = start() + TimeDelta::minutes(minute as i64);
                let stored = serde_json::to_value(&state).unwrap();
                let polled = if value.is_null() { gone() } else { seen(value.clone()) };
                let step = ConditionState::read(&stored, state.edges).on_poll(&question, &subject(), polled, now, 0.0);
                if let Some(ConditionNotice::Missing(missing)) = step.notice {
                    told.push((minute, missing.field, missing.did_you_mean));
                }
                state = step.state;
            }
            told
        };
        let price = |name: &str| json!({ name: 400 });
        let price_of = json!({"expression": "value.price < 500", "failure_notice_after": 1});
        let field = |minute, field: &str, near: Option<&str>| vec![(minute, field.to_owned(), near.map(str::to_owned))];
        let first = [price("prize"), price("prize"), price("price"), price("prize")];
        assert_eq!(told(price_of.clone(), &first), field(0, "value.price", Some("prize")));
        assert_eq!(told(price_of.clone(), &[price("price"), price("other")]), field(1, "value.price", None));
        // that it is well again is told first
        assert_eq!(told(price_of, &[json!(null), price("x"), price("x")]), field(2, "value.price", None));
        let change = json!({"fire": "on_change", "expression": null, "watch": "value.status"});
        assert_eq!(told(change, &[json!({"state": 1}), json!({"state": 2})]), field(0, "value.status", Some("state")));
        let reset = json!({"expression": "value.a < 1", "reset": "value.b > 3"});
        assert_eq!(told(reset, &[json!({"a": 5, "long": 1})]), field(0, "value.b", Some("a")));
        let guarded = json!({"expression": "has(value.price) && value.price < 500"});
        assert_eq!(told(guarded, &[price("prize"), price("prize")]), []);
    }

    #[test]
    fn waits_double_up_to_a_quarter_of_an_hour_and_what_was_asked_for_is_the_least() {
        let waits = |every: i64, random: f64| {
            [1, 2, 3, 5, 40].map(|count| back_off(TimeDelta::minutes(every), count, random).num_seconds())
        };
        assert_eq!(waits(1, 0.0), [60, 120, 240, 900, 900]);
        assert_eq!(waits(1, 1.0), [72, 144, 288, 1080, 1080]);
        assert_eq!(waits(60, 0.0), [3600; 5]);
        let asked = |seconds| {
            let retry_after = Some(std::time::Duration::from_secs(seconds));
            let fault = PollFault { retry_after, ..PollFault::new("http_429", "") };
            let step = ConditionState::default().on_poll(&question(json!({})), &subject(), Err(fault), start(), 0.0);
            (step.next_poll_at - start()).num_seconds()
        };
        assert_eq!([asked(5), asked(700), asked(1_000_000)], [60, 700, 86_400]);
    }

    #[test]
    fn previous_is_the_value_itself_at_the_first_good_poll() {
        let question = question(json!({"expression": "value < 500 && previous >= value"}));
        let failed = Err(PollFault::new("timeout", ""));
        let failing = ConditionState::default().on_poll(&question, &subject(), failed, start(), 0.0).state;
        let step = failing.on_poll(&question, &subject(), seen(json!(400)), start(), 0.0);
        let fire = step.fire.expect("it is true at once");
        let Cause::Condition { value, previous, .. } = fire.cause else { panic!("a condition") };
        assert_eq!([value, previous, step.state.previous.clone()], [400, 400, 400].map(|price| json!(price)));
        let anew = step.state.reset().on_poll(&question, &subject(), seen(json!(300)), start(), 0.0);
        assert_eq!(anew.state.previous, json!(300), "another question is begun anew");
        let next = step.state.on_poll(&question, &subject(), seen(json!(450)), start(), 0.0);
        assert_eq!((next.state.previous, next.state.verdict), (json!(400), Some(false)));
    }

    #[test]
    fn unchanged_answer_is_the_value_of_before() {
        let question = question(json!({"fire": "every_time"}));
        let first = ConditionState::default().on_poll(&question, &subject(), seen(json!(400)), start(), 0.0).state;
        let step =
            first.on_poll(&question, &subject(), Ok(PollResult::Unchanged), start() + TimeDelta::minutes(1), 0.0);
        let cause = Cause::Condition { expression: "value < 500".into(), value: json!(400), previous: json!(400) };
        assert_eq!(step.fire, Some(ConditionFire { number: 2, skipped: None, cause }));
    }

    #[test]
    fn state_of_another_format_is_begun_anew_but_keeps_counting() {
        let other = json!({"format": 99, "verdict": true});
        assert_eq!(ConditionState::read(&other, 4), ConditionState { edges: 4, ..ConditionState::default() });
    }

    #[test]
    fn expressions_see_the_value_before_the_task_and_the_time() {
        let question = question(json!({
            "expression": "previous != null && value > previous * 2 && task.name == 'a task' && now > timestamp('2027-01-01T00:00:00Z')",
        }));
        let first = ConditionState::default().on_poll(&question, &subject(), seen(json!(10)), start(), 0.0);
        assert_eq!(first.fire, None);
        let second = first.state.on_poll(&question, &subject(), seen(json!(21)), start() + TimeDelta::minutes(1), 0.0);
        assert_eq!(second.fire.map(|fire| fire.number), Some(1));
    }
}
