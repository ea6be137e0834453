//! The long texts of a task, each as far as its page has room for it: the draft has all of them.

use std::borrow::Cow;

use serde_json::{Value, json};

/// Bytes that a page shows of the instruction, of a step, and of a document.
const TEXT_BYTES: usize = 4_096;
/// Bytes that it shows of all steps together.
const STEPS_BYTES: usize = 16_384;

/// Shortens the work of a task, as `action_view` has it, and answers its documents as texts: `{trigger, metadata,
/// value, settings, is_cut}`; `value` is the one that its condition saw last, and `is_cut` says whether any text goes
/// on.
pub fn long_texts(task: &Value, action: &mut Value) -> Value {
    let mut texts = LongTexts::default();
    action["instruction"] = texts.shown(&action["instruction"].take(), TEXT_BYTES);
    let mut room = STEPS_BYTES;
    for step in action["steps"].as_array_mut().into_iter().flatten() {
        for part in ["work", "rules"] {
            let shown = texts.shown(&step[part].take(), room.min(TEXT_BYTES));
            room = room.saturating_sub(shown.as_str().map_or(0, str::len));
            step[part] = shown;
        }
    }
    let [trigger, metadata, value, settings] =
        [&task["trigger"], &task["metadata"], &task["condition"]["value"], &action["settings"]]
            .map(|document| texts.shown(document, TEXT_BYTES));
    json!({
        "trigger": trigger,
        "metadata": metadata,
        "value": value,
        "settings": settings,
        "is_cut": texts.is_cut,
    })
}

#[derive(Debug, Default)]
struct LongTexts {
    is_cut: bool,
}

impl LongTexts {
    /// A text, or JSON over several lines, `most` bytes of it at most; null of what is not there.
    fn shown(&mut self, value: &Value, most: usize) -> Value {
        let whole = match value {
            Value::Null => return Value::Null,
            Value::String(text) => Cow::Borrowed(text.as_str()),
            value => Cow::Owned(serde_json::to_string_pretty(value).unwrap_or_default()),
        };
        if whole.len() <= most {
            return whole.into();
        }
        self.is_cut = true;
        format!("{}…", &whole[..whole.floor_char_boundary(most)]).into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_whole_at_its_bound_and_cut_one_byte_beyond_it() {
        let of = |bytes: usize| {
            let mut action = json!({ "instruction": "x".repeat(bytes), "steps": [], "settings": null });
            let texts = long_texts(&json!({ "trigger": { "type": "event" } }), &mut action);
            (action["instruction"].as_str().unwrap().chars().count(), texts)
        };
        let (longest, texts) = of(TEXT_BYTES);
        assert_eq!((longest, &texts["is_cut"]), (TEXT_BYTES, &json!(false)));
        assert_eq!((&texts["trigger"], &texts["metadata"]), (&json!("{\n  \"type\": \"event\"\n}"), &Value::Null));
        let (longer, texts) = of(TEXT_BYTES + 1);
        assert_eq!((longer, &texts["is_cut"]), (TEXT_BYTES + 1, &json!(true)), "an ellipsis stands for the rest");
    }

    #[test]
    fn steps_have_so_much_room_together_and_each_is_told() {
        let step = json!({ "name": "s", "kind": "http", "work": "x".repeat(TEXT_BYTES), "rules": null });
        let steps = |count: usize| {
            let mut action = json!({ "instruction": "", "steps": vec![step.clone(); count], "settings": null });
            let is_cut = long_texts(&Value::Null, &mut action)["is_cut"].clone();
            let steps = action["steps"].as_array().unwrap();
            let bytes: usize = steps.iter().map(|step| step["work"].as_str().unwrap().len()).sum();
            (is_cut, steps.len(), bytes)
        };
        let most = STEPS_BYTES / TEXT_BYTES;
        assert_eq!(steps(most), (json!(false), most, STEPS_BYTES));
        assert_eq!(steps(most + 1), (json!(true), most + 1, STEPS_BYTES + "…".len()));
    }
}
