//! An approval as a list shows it.

use serde_json::Value;

use crate::http::ui::frame::text::beginning_of;

/// Fields of the API's answer that lists show; arguments and schemas, which may be long, are none of them.
const SHOWN: [&str; 22] = [
    "action_summary",
    "agent_name",
    "agreed",
    "batch_id",
    "category",
    "comment",
    "consequence",
    "created_at",
    "decided_at",
    "decided_by",
    "decided_via",
    "digest",
    "expires_at",
    "hold_until",
    "id",
    "kind",
    "required_approvers",
    "run_id",
    "status",
    "step",
    "task_id",
    "tenant_id",
];
/// Characters of a text that a list shows.
const CHARACTERS: usize = 300;

/// Leaves of an approval what its line shows.
pub fn shorten(approval: &mut Value) {
    let Some(fields) = approval.as_object_mut() else { return };
    fields.retain(|name, _| SHOWN.contains(&name.as_str()));
    for name in ["action_summary", "comment"] {
        if let Some(text) = fields.get(name).and_then(Value::as_str) {
            let text = Value::from(beginning_of(text, CHARACTERS).0);
            fields.insert(name.to_owned(), text);
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn line_has_no_arguments_and_the_beginnings_of_texts() {
        let mut approval = json!({ "id": "1", "details": { "text": "x" }, "parameters": {}, "comment": null,
            "action_summary": "é".repeat(CHARACTERS + 1) });
        shorten(&mut approval);
        assert_eq!(approval, json!({ "id": "1", "comment": null, "action_summary": "é".repeat(CHARACTERS) }));
    }
}
