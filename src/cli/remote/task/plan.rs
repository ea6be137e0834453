//! The plan of applying a folder, task by task, and how it is shown. Pure: nothing is asked, read or sent.

use serde_json::{Map, Value, json};

use super::export::owner_fields;
use super::shown::missing_in_events;
use crate::cli::screen::{cut, text_of};
use crate::cli::{Screen, Tone};
use crate::domain::task::DECIDED;

/// In a task's metadata: applied from a folder, under this label. Only such tasks are ever changed or deleted.
pub const LABEL: &str = "reveille_apply";
/// Longest value in a line of a diff, in characters.
const VALUE_LENGTH: usize = 100;

/// The step for one task.
#[derive(Debug, Clone, PartialEq)]
pub enum PlanStep {
    Create { key: String, body: Value },
    Update { key: String, id: String, patch: Value, differences: Vec<Difference> },
    Delete { key: String, id: String },
}

/// A field that is not as the file has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Difference {
    /// `trigger.cron`
    pub place: String,
    pub before: Option<Value>,
    pub after: Option<Value>,
}

/// Everything that applying would do, in the order in which it is done.
#[derive(Debug, Default)]
pub struct ApplyPlan {
    pub steps: Vec<PlanStep>,
    pub unchanged: usize,
    /// Keys of tasks whose file is gone, and that stay unless they are pruned.
    pub left: Vec<String>,
    /// Keys of tasks whose event triggers look for a field that no kept event has, each with that field.
    pub missing: Vec<(String, Value)>,
}

/// A new task of a file.
pub fn body(mut task: Map<String, Value>, key: &str, label: &str, tenant: Option<&str>) -> Value {
    task.entry("name").or_insert_with(|| json!(key));
    task.insert("key".into(), json!(key));
    if let Some(tenant) = tenant {
        task.insert("tenant_id".into(), json!(tenant));
    }
    let metadata = task.entry("metadata").or_insert_with(|| json!({}));
    if let Some(metadata) = metadata.as_object_mut() {
        metadata.insert(LABEL.into(), json!(label));
    }
    Value::Object(task)
}

/// The change that makes a stored task the one of its file: what the file does not say goes back to its default.
pub fn patch(body: &Value, version: &Value) -> Value {
    let mut patch = Map::new();
    for field in DECIDED.into_iter().filter(|field| !["tenant_id", "key"].contains(field)) {
        // null is told to nobody; an object that says nothing is the recipient's own order
        let default = if field == "output" { json!({}) } else { Value::Null };
        patch.insert(field.into(), body.get(field).cloned().unwrap_or(default));
    }
    patch.insert("version".into(), version.clone());
    Value::Object(patch)
}

/// The file of a stored task, if it was applied.
pub fn label_of(task: &Value) -> Option<&str> {
    task["metadata"][LABEL].as_str()
}

/// The differences between two tasks in the fields that their owner decides, down to single values.
pub fn differences(before: &Value, after: &Value) -> Vec<Difference> {
    let (before, after) = (Value::Object(owner_fields(before)), Value::Object(owner_fields(after)));
    let mut found = Vec::new();
    compare(String::new(), Some(&before), Some(&after), &mut found);
    found
}

fn compare(place: String, before: Option<&Value>, after: Option<&Value>, found: &mut Vec<Difference>) {
    match (before, after) {
        (before, after) if before == after => {}
        (Some(Value::Object(before)), Some(Value::Object(after))) => {
            let mut names: Vec<&String> = before.keys().chain(after.keys()).collect();
            names.sort();
            names.dedup();
            for name in names {
                let below = if place.is_empty() { name.clone() } else { format!("{place}.{name}") };
                compare(below, before.get(name), after.get(name), found);
            }
        }
        (before, after) => found.push(Difference { place, before: before.cloned(), after: after.cloned() }),
    }
}

impl ApplyPlan {
    /// Prints what would be done, one block for each task, and the sum.
    pub fn print(&self, screen: &mut Screen) -> std::io::Result<()> {
        for step in &self.steps {
            match step {
                PlanStep::Create { key, body } => {
                    screen.line(screen.tone(Tone::Good, format!("+ {}", single(key))))?;
                    for Difference { place, after, .. } in differences(&json!({}), body) {
                        if place != "key" {
                            screen.line(format!("    {place}: {}", shown(after.as_ref())))?;
                        }
                    }
                }
                PlanStep::Update { key, differences, .. } => {
                    screen.line(screen.tone(Tone::Notable, format!("~ {}", single(key))))?;
                    for difference in differences {
                        difference.print(screen)?;
                    }
                }
                PlanStep::Delete { key, .. } => screen.line(screen.tone(Tone::Bad, format!("- {}", single(key))))?,
            }
        }
        for key in &self.left {
            let line = format!("? {} has no file any more; --prune would delete it", single(key));
            screen.line(screen.tone(Tone::Faint, line))?;
        }
        for (key, missing) in &self.missing {
            let line = format!("! {}: {}", single(key), missing_in_events(missing).unwrap_or_default());
            screen.line(screen.tone(Tone::Notable, line))?;
        }
        let (create, update, delete) = self.counts();
        let unchanged = self.unchanged;
        screen.line(format!("{create} to create, {update} to update, {delete} to delete, {unchanged} unchanged"))
    }

    /// Keeps what the service says of the events of a task, when it says what it would make of it.
    pub fn note(&mut self, key: &str, tried: &Value) {
        self.missing.extend(tried.get("missing").map(|missing| (key.to_owned(), missing.clone())));
    }

    /// How many tasks are to be created, updated and deleted.
    pub fn counts(&self) -> (usize, usize, usize) {
        let count = |is: fn(&PlanStep) -> bool| self.steps.iter().filter(|step| is(step)).count();
        (
            count(|step| matches!(step, PlanStep::Create { .. })),
            count(|step| matches!(step, PlanStep::Update { .. })),
            count(|step| matches!(step, PlanStep::Delete { .. })),
        )
    }

    pub fn json(&self) -> Value {
        let keys = |of: fn(&PlanStep) -> Option<&String>| self.steps.iter().filter_map(of).collect::<Vec<_>>();
        let changes = |step: &PlanStep| match step {
            PlanStep::Update { key, differences, .. } => {
                let shown = |d: &Difference| json!({ "place": d.place, "before": d.before, "after": d.after });
                Some(json!({ "key": key, "differences": differences.iter().map(shown).collect::<Vec<_>>() }))
            }
            _ => None,
        };
        let mut plan = json!({
            "create": keys(|step| match step { PlanStep::Create { key, .. } => Some(key), _ => None }),
            "update": self.steps.iter().filter_map(changes).collect::<Vec<_>>(),
            "delete": keys(|step| match step { PlanStep::Delete { key, .. } => Some(key), _ => None }),
            "left": self.left,
            "unchanged": self.unchanged,
        });
        if !self.missing.is_empty() {
            plan["missing"] = Value::Object(self.missing.iter().cloned().collect());
        }
        plan
    }
}

impl Difference {
    fn print(&self, screen: &mut Screen) -> std::io::Result<()> {
        let place = &self.place;
        let lines = |value: &Option<Value>| match value {
            Some(Value::String(text)) if text.contains('\n') => Some(text.clone()),
            _ => None,
        };
        if lines(&self.before).or_else(|| lines(&self.after)).is_none() {
            let (before, after) = (shown(self.before.as_ref()), shown(self.after.as_ref()));
            return screen.line(format!("    {place}: {before} → {after}"));
        }
        screen.line(format!("    {place}:"))?;
        let texts = [&self.before, &self.after].map(|value| value.as_ref().map(text_of).unwrap_or_default());
        let [before, after] = texts.each_ref().map(|text| text.lines().collect::<Vec<_>>());
        let same = before.iter().zip(&after).take_while(|(a, b)| a == b).count();
        let least = before.len().min(after.len()) - same;
        let end = before.iter().rev().zip(after.iter().rev()).take(least).take_while(|(a, b)| a == b).count();
        for line in &before[same..before.len() - end] {
            screen.line(screen.tone(Tone::Bad, format!("      - {}", single(line))))?;
        }
        for line in &after[same..after.len() - end] {
            screen.line(screen.tone(Tone::Good, format!("      + {}", single(line))))?;
        }
        Ok(())
    }
}

fn shown(value: Option<&Value>) -> String {
    value.map_or("(none)".into(), |value| cut(&value.to_string(), VALUE_LENGTH))
}

/// Replaces control characters, so that the text of a file can't move the cursor.
fn single(text: &str) -> String {
    text.chars().map(|c| if c.is_control() { ' ' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    fn printed(plan: &ApplyPlan) -> String {
        let page = TextPage::default();
        plan.print(&mut Screen::plain(page.clone())).unwrap();
        page.text()
    }

    #[test]
    fn plan_names_differences_down_to_single_values() {
        let stored = json!({
            "name": "Mail", "trigger": { "type": "schedule", "cron": "0 8 * * *", "exclude": ["2026-12-25"] },
            "max_runs": 3, "version": 4, "status": "paused",
        });
        let file = json!({ "name": "Mail", "trigger": { "type": "schedule", "cron": "0 9 * * *" }, "output": null });
        let found = differences(&stored, &file);
        let place = |place: &str, before: Value, after: Value| Difference {
            place: place.into(),
            before: Some(before).filter(|value| *value != json!("-")),
            after: Some(after).filter(|value| *value != json!("-")),
        };
        assert_eq!(
            found,
            [
                place("max_runs", json!(3), json!("-")),
                place("output", json!("-"), Value::Null),
                place("trigger.cron", json!("0 8 * * *"), json!("0 9 * * *")),
                place("trigger.exclude", json!(["2026-12-25"]), json!("-")),
            ]
        );
        assert_eq!(differences(&stored, &stored), []);
    }

    #[test]
    fn plan_reads_like_a_diff() {
        let before = json!({ "action": { "instruction": "Read my mail.\nBe short.\nThank you." }, "max_runs": 1 });
        let after =
            json!({ "action": { "instruction": "Read my mail.\nBe long.\nAnd kind.\nThank you." }, "max_runs": 2 });
        let plan = ApplyPlan {
            steps: vec![
                PlanStep::Create {
                    key: "a/new".into(),
                    body: json!({ "key": "a/new", "name": "N", "metadata": { "x": 1 } }),
                },
                PlanStep::Update {
                    key: "b".into(),
                    id: "1".into(),
                    patch: json!({}),
                    differences: differences(&before, &after),
                },
                PlanStep::Delete { key: "c\u{1b}[2J".into(), id: "2".into() },
            ],
            unchanged: 4,
            left: vec!["d".into()],
            missing: vec![("b".into(), json!({ "expression": "event.data.x == 1", "field": "event.data.x" }))],
        };
        assert_eq!(
            printed(&plan),
            "+ a/new\n    metadata: {\"x\":1}\n    name: \"N\"\n\
             ~ b\n    action.instruction:\n      - Be short.\n      + Be long.\n      + And kind.\n    max_runs: 1 → 2\n\
             - c [2J\n? d has no file any more; --prune would delete it\n\
             ! b: none of the newest events has `event.data.x`\n\
             1 to create, 1 to update, 1 to delete, 4 unchanged\n"
        );
    }

    #[test]
    fn fields_absent_from_a_file_go_back_to_their_defaults() {
        let file = json!({ "trigger": { "type": "schedule", "cron": "@daily" } });
        let task = body(file.as_object().unwrap().clone(), "a/b", "home", Some("ann"));
        assert_eq!(
            task,
            json!({
                "trigger": { "type": "schedule", "cron": "@daily" }, "name": "a/b", "key": "a/b", "tenant_id": "ann",
                "metadata": { LABEL: "home" },
            })
        );
        assert_eq!(
            patch(&task, &json!(7)),
            json!({
                "name": "a/b", "trigger": { "type": "schedule", "cron": "@daily" }, "executor": null, "action": null,
                "output": {}, "notify": null, "max_runs": null, "timeout_seconds": null, "retry": null,
                "pause_after_failures": null, "metadata": { LABEL: "home" }, "version": 7,
            })
        );
    }
}
