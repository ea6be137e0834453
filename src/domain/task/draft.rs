//! Reading a task from the JSON that its owner wrote, whole or as a patch, with all that is wrong in one answer.
//!
//! Pure: the present and the known names are arguments. The caller decides about the tenant of a task: `tenant_id` is
//! passed over in here.

use chrono::{DateTime, Utc};
use serde_json::Value;

use crate::base::id::Tenant;
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::json::typed::field_names;
use crate::domain::task::fields::ListedFields;
use crate::domain::task::output::OutputShape;
use crate::domain::task::reader::DraftReader;
use crate::domain::task::{
    Action, DECIDED, DEFAULT_EXECUTOR, Draft, INSTRUCTION_LENGTH, KEY_LENGTH, MOST_NAMED, NAME_LENGTH, Output, Route,
    Spec, Task, TaskValidator, Urgency, named_by,
};
use crate::domain::trigger::Trigger;

/// Channels that a task may name.
const CHANNELS: usize = 20;
/// Fields that a task is answered with besides, and nobody sets.
const READ_ONLY: [&str; 10] = [
    "id",
    "status",
    "status_reason",
    "next_fire_at",
    "condition",
    "last_run",
    "run_count",
    "created_at",
    "updated_at",
    "missing",
];

impl Draft {
    /// Reads a new task of `tenant`; faults of the tenant are told with the rest. A field that is absent, or null, has
    /// its default.
    pub fn parse(
        tenant: Result<Tenant, ValidationErrors>,
        value: &Value,
        validator: &TaskValidator,
        now: DateTime<Utc>,
    ) -> Result<Draft, ValidationErrors> {
        let read = DraftReader::new(value, validator, now, &[]).and_then(|mut reader| {
            let key = reader.key(None);
            reader.task(None).map(|(name, spec)| (key, name, spec))
        });
        match (tenant, read) {
            (Ok(tenant), Ok((key, name, mut spec))) => {
                validator.check_poll(&tenant, &spec.trigger)?;
                (validator.seal)(&spec.executor, &tenant, &mut spec.action, None)?;
                Ok(Draft { tenant, key, name, spec })
            }
            (Err(mut faults), Err(more)) => {
                faults.0.extend(more.0);
                Err(faults)
            }
            (Err(faults), Ok(_)) | (Ok(_), Err(faults)) => Err(faults),
        }
    }

    /// Reads what is to change in a task. A field that is present replaces the whole field, null its default; an absent
    /// one is kept. `version`, which the patch may carry, is the caller's to compare.
    pub fn patch(
        task: &Task,
        value: &Value,
        validator: &TaskValidator,
        now: DateTime<Utc>,
    ) -> Result<Draft, ValidationErrors> {
        let tenant = Tenant::stored(&task.tenant_id).map_err(|why| ValidationErrors::one("/tenant_id", why))?;
        let mut reader = DraftReader::new(value, validator, now, &["version"])?;
        let key = reader.key(Some(task));
        let touched = reader.fields.contains_key("action");
        let (name, mut spec) = reader.task(Some(task))?;
        // what was allowed once and is no longer shows as a failing poll; it must not bar other edits
        if spec.trigger != task.spec.trigger {
            validator.check_poll(&tenant, &spec.trigger)?;
        }
        let before = (spec.executor == task.spec.executor).then_some(&task.spec.action);
        if touched || before.is_none() {
            (validator.seal)(&spec.executor, &tenant, &mut spec.action, before)?;
        }
        Ok(Draft { tenant, key, name, spec })
    }
}

impl<'a> DraftReader<'a> {
    fn new(
        value: &'a Value,
        validator: &'a TaskValidator,
        now: DateTime<Utc>,
        more: &[&str],
    ) -> Result<DraftReader<'a>, ValidationErrors> {
        let Some(fields) = value.as_object() else {
            return Err(ValidationErrors::one("", "a task is a JSON object"));
        };
        let mut faults = ValidationErrors::new();
        let written = fields.keys().map(String::as_str);
        for field in written.filter(|f| !DECIDED.contains(f) && !more.contains(f)).take(NAMED) {
            let message = match field {
                "status" => "can't be set; pause and resume have addresses of their own".to_owned(),
                read_only if READ_ONLY.contains(&read_only) => "can't be set".to_owned(),
                unknown => format!("unknown field{}", did_you_mean(unknown, DECIDED)),
            };
            faults.add(format!("/{}", escape(field)), message);
        }
        Ok(DraftReader { fields, validator, now, faults })
    }

    /// The whole task, field by field; `before` is what it was, if it was.
    fn task(mut self, before: Option<&Task>) -> Result<(String, Spec), ValidationErrors> {
        let was = before.map(|task| &task.spec);
        let name = self.field("name", DraftReader::name, before.map(|task| &task.name), None);
        let trigger = match before.filter(|task| self.keeps_trigger(task)) {
            Some(task) => Some(task.spec.trigger.clone()),
            None => self.field("trigger", DraftReader::trigger, was.map(|s| &s.trigger), None),
        };
        let executor =
            self.field("executor", DraftReader::text, was.map(|s| &s.executor), Some(DEFAULT_EXECUTOR.into()));
        let action = self.field("action", DraftReader::action, was.map(|s| &s.action), Some(Action::default()));
        self.check(before.is_none(), executor.as_deref(), action.as_ref());
        if let (Some(trigger), Some(action)) = (&trigger, &action)
            && action.continues()
            && trigger.may_overlap()
        {
            let message = "`continue` is for runs of which one follows the other; give the trigger an `overlap` other than \
                           `allow`, such as `queue_all`";
            self.faults.add("/action/config/conversation", message);
        }
        let output = self.output(was.map(|s| &s.output));
        let listed = ListedFields::read(&mut self, was);
        let spec = listed.spec(trigger, executor, action, output);
        if let Some(spec) = &spec {
            self.bound_names(spec, was);
        }
        match name.zip(spec) {
            Some(read) if self.faults.is_empty() => Ok(read),
            _ => Err(self.faults),
        }
    }

    /// Adds a fault where a task names more credentials and tools than it may, unless it did so before.
    fn bound_names(&mut self, spec: &Spec, was: Option<&Spec>) {
        let is_kept = was.is_some_and(|was| (&was.trigger, &was.action) == (&spec.trigger, &spec.action));
        let named = if is_kept { 0 } else { named_by(spec).len() };
        if named > MOST_NAMED {
            let message = format!("names {named} credentials and tools, at most {MOST_NAMED} together");
            self.faults.add("/action", message);
        }
    }

    fn name(&mut self, at: &str, value: &Value) -> Option<String> {
        let name = self.text(at, value)?;
        let count = name.chars().count();
        if name.trim().is_empty() || count > NAME_LENGTH {
            self.faults.add(at, format!("must have 1 to {NAME_LENGTH} characters, has {count}"));
            return None;
        }
        if name.chars().any(char::is_control) {
            self.faults.add(at, "must not contain control characters");
            return None;
        }
        Some(name)
    }

    /// The stable key: given with a new task, and then as it is. A fault is added where it can't be read.
    fn key(&mut self, before: Option<&Task>) -> Option<String> {
        let at = "/key";
        let was = before.and_then(|task| task.key.clone());
        let written = match self.fields.get("key") {
            None => return was,
            Some(Value::Null) => None,
            Some(value) => Some(self.text(at, value)?),
        };
        let count = written.as_deref().map(|key| key.chars().count());
        if before.is_some() && written != was {
            self.faults.add(at, "can't be changed: files know the task by it");
        } else if count.is_some_and(|count| !(1..=KEY_LENGTH).contains(&count)) {
            self.faults.add(at, format!("must have 1 to {KEY_LENGTH} characters"));
        } else if written.as_deref().is_some_and(|key| key.chars().any(char::is_control)) {
            self.faults.add(at, "must not contain control characters");
        }
        written
    }

    fn trigger(&mut self, at: &str, value: &Value) -> Option<Trigger> {
        Trigger::parse(value, at, self.now, &mut self.faults)
    }

    fn action(&mut self, at: &str, value: &Value) -> Option<Action> {
        let action: Action = self.faults.read(value, at)?;
        let count = action.instruction.chars().count();
        if count > INSTRUCTION_LENGTH {
            let message = format!("must have at most {INSTRUCTION_LENGTH} characters, has {count}");
            self.faults.add(format!("{at}/instruction"), message);
            return None;
        }
        Some(action)
    }

    /// Whether the trigger that is written is the one that is stored: it is not judged anew, so that one whose instant
    /// has passed may be sent back with the rest.
    fn keeps_trigger(&self, task: &Task) -> bool {
        let written = self.fields.get("trigger").filter(|value| !value.is_null());
        let read = |value| Trigger::parse(value, "/trigger", task.created_at, &mut ValidationErrors::new());
        written.and_then(read).is_some_and(|trigger| trigger == task.spec.trigger)
    }

    /// Adds the executor's faults of an action, where both could be read and one of them is new.
    fn check(&mut self, new: bool, executor: Option<&str>, action: Option<&Action>) {
        let touched = new || self.fields.contains_key("executor") || self.fields.contains_key("action");
        if let (true, Some(executor), Some(action)) = (touched, executor, action) {
            match self.fields.contains_key("action") || new {
                true => (self.validator.check)(executor, action, &mut self.faults),
                // a stored action is judged in the form that its owner knows
                false => (self.validator.check)(executor, &action.public(), &mut self.faults),
            }
        }
    }

    /// Null is told to nobody; an object without a channel, to the recipient's own order.
    fn output(&mut self, was: Option<&Output>) -> Option<Output> {
        let Some(value) = self.fields.get("output") else { return Some(was.cloned().unwrap_or_default()) };
        let Some(fields) = value.as_object() else {
            if value.is_null() {
                return Some(Output::nobody());
            }
            self.faults.add("/output", "must be null or an object, such as {\"channel\": \"email\"}");
            return None;
        };
        let before = self.faults.0.len();
        let known = field_names::<OutputShape>();
        for field in unknown_fields(fields, known) {
            let message = format!("unknown field{}", did_you_mean(field, known.iter().copied()));
            self.faults.add(format!("/output/{}", escape(field)), message);
        }
        let urgency = fields.get("urgency").filter(|value| !value.is_null());
        let urgency = urgency.and_then(|value| self.faults.read::<Urgency>(value, "/output/urgency"));
        let channels = match fields.get("channel").filter(|value| !value.is_null()) {
            None => {
                let route = Route::RecipientOrder;
                return (self.faults.0.len() == before).then_some(Output { route, urgency });
            }
            Some(Value::Array(names)) => {
                names.iter().enumerate().map(|(i, name)| (format!("/output/channel/{i}"), name)).collect()
            }
            Some(name) => vec![("/output/channel".to_owned(), name)],
        };
        let names = self.channels(channels);
        (self.faults.0.len() == before).then_some(Output { route: Route::Channels(names), urgency })
    }

    fn channels(&mut self, written: Vec<(String, &Value)>) -> Vec<String> {
        let mut names: Vec<String> = Vec::new();
        if written.is_empty() {
            self.faults.add("/output/channel", "must name at least one channel");
        }
        if written.len() > CHANNELS {
            self.faults.add("/output/channel", format!("must name at most {CHANNELS} channels"));
            return names;
        }
        for (at, value) in written {
            let Some(name) = self.text(&at, value) else { continue };
            let known = || self.validator.channels.iter().map(String::as_str);
            if !known().any(|channel| channel == name) {
                let list = known().collect::<Vec<_>>().join(", ");
                let list =
                    if list.is_empty() { "none is configured".to_owned() } else { format!("configured: {list}") };
                let message = format!("unknown channel `{name}` ({list}){}", did_you_mean(&name, known()));
                self.faults.add(at, message);
            } else if names.contains(&name) {
                self.faults.add(at, format!("`{name}` is named twice"));
            } else {
                names.push(name);
            }
        }
        names
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use proptest::prelude::*;
    use proptest::test_runner::RngSeed;
    use serde_json::json;

    use super::*;

    fn validator() -> TaskValidator {
        TaskValidator {
            channels: vec!["email".into()],
            check: Arc::new(|_, _, _| {}),
            poll: Arc::new(|_, _, _, _| {}),
            seal: Arc::new(|_, _, _, _| Ok(())),
        }
    }

    fn now() -> DateTime<Utc> {
        DateTime::from_timestamp(1_795_219_200, 0).unwrap()
    }

    /// Any JSON that is not too deep; some of it nearly right.
    fn anything() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<i64>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            "\\PC{0,12}".prop_map(Value::from),
            prop::sample::select(vec!["schedule", "0 8 * * *", "5m", "PT1H", "email", "UTC", "2026-12-24T15:00:00"])
                .prop_map(Value::from),
        ];
        leaf.prop_recursive(3, 24, 6, |inner| {
            let key = prop_oneof![
                prop::sample::select(DECIDED.to_vec()).prop_map(str::to_owned),
                prop::sample::select(vec!["type", "cron", "interval", "at", "rrule", "channel", "max_attempts"])
                    .prop_map(str::to_owned),
                "\\PC{0,6}",
            ];
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..4).prop_map(Value::from),
                prop::collection::btree_map(key, inner, 0..8).prop_map(|map| Value::Object(map.into_iter().collect())),
            ]
        })
    }

    #[test]
    fn task_names_as_many_credentials_and_tools_as_it_may_and_no_more() {
        let read = |credentials: usize, tools: usize| {
            let named: Vec<String> = (0..credentials).map(|n| format!("shop/{n}")).collect();
            let called: Vec<Value> = (0..tools).map(|n| json!({ "tool": { "name": format!("t{n}") } })).collect();
            // what stands in a value is written down as well
            let value = json!([{ "agent": { "credentials": named } }, called]);
            let config = json!({ "steps": [{ "name": "s", "store": { "name": "a", "value": value } }] });
            let draft = json!({
                "name": "x", "trigger": { "type": "schedule", "interval": "5m" }, "action": { "instruction": "x", "config": config },
            });
            let read = Draft::parse(Ok(Tenant::new("ann").unwrap()), &draft, &validator(), now());
            read.map(drop).map_err(|faults| (faults.0[0].pointer.clone(), faults.0[0].message.clone()))
        };
        assert_eq!((read(MOST_NAMED, 0), read(200, 100)), (Ok(()), Ok(())));
        let fault = Err(("/action".to_owned(), "names 301 credentials and tools, at most 300 together".to_owned()));
        assert_eq!((read(MOST_NAMED + 1, 0), read(200, 101)), (fault.clone(), fault));
    }

    #[test]
    fn task_names_as_many_channels_as_it_may_and_no_more() {
        let names: Vec<String> = (0..=CHANNELS).map(|n| format!("channel {n}")).collect();
        let validator = TaskValidator { channels: names.clone(), ..validator() };
        let read = |count: usize| {
            let draft = json!({
                "name": "x", "trigger": { "type": "schedule", "interval": "5m" }, "output": { "channel": names[..count] },
            });
            let read = Draft::parse(Ok(Tenant::new("ann").unwrap()), &draft, &validator, now());
            read.map(drop).map_err(|faults| (faults.0[0].pointer.clone(), faults.0[0].message.clone()))
        };
        assert_eq!(read(CHANNELS), Ok(()));
        assert_eq!(read(CHANNELS + 1), Err(("/output/channel".into(), "must name at most 20 channels".into())));
    }

    proptest! {
        #![proptest_config(ProptestConfig {
            cases: 4_000,
            rng_seed: RngSeed::Fixed(20_261_123),
            failure_persistence: None,
            ..ProptestConfig::default()
        })]

        #[test]
        fn no_field_of_any_kind_brings_a_draft_down(field in prop::sample::select(DECIDED.to_vec()), value in anything()) {
            let mut draft = json!({ "name": "x", "trigger": { "type": "schedule", "interval": "5m" } });
            draft[field] = value;
            let read = Draft::parse(Ok(Tenant::new("ann").unwrap()), &draft, &validator(), now());
            match read {
                // what was read can be stored, read back, and is the same
                Ok(draft) => {
                    let stored = serde_json::to_value(&draft.spec).unwrap();
                    prop_assert_eq!(serde_json::from_value::<Spec>(stored).unwrap(), draft.spec);
                }
                Err(faults) => {
                    prop_assert!(!faults.is_empty());
                    let at = format!("/{field}");
                    prop_assert!(faults.0.iter().all(|fault| fault.pointer.starts_with(&at)), "{faults:?}");
                }
            }
        }

        #[test]
        fn no_document_of_any_kind_brings_a_draft_down(value in anything()) {
            let read = Draft::parse(Err(ValidationErrors::one("/tenant_id", "is missing")), &value, &validator(), now());
            prop_assert!(read.unwrap_err().0.iter().any(|fault| fault.pointer == "/tenant_id"));
        }
    }
}
