//! The proposal that a person is shown and agrees to, and its hash.

use aws_lc_rs::digest::{SHA256, digest as hash};
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::words::is_default;
use crate::domain::approval::{ApprovalChoice, Category, Consequence, FieldFault, OnExpiry, QuestionKind, ReasonCode};

/// The longest undo window that a tool may declare, in seconds.
pub const LONGEST_UNDO: u64 = 24 * 3600;

/// Which call of which run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ProposalIdentity<'a> {
    /// The tenant that owns the run.
    pub tenant: &'a str,
    /// The run that proposes the call.
    pub run_id: Uuid,
    /// The model's turn within the run.
    pub turn: i64,
    /// The model's id of the call.
    pub call_id: &'a str,
}

/// All that is shown of a call, and all that decides how it is asked about. Stored as it is, whole.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Proposal {
    /// Kind of the question.
    #[serde(default, skip_serializing_if = "is_default")]
    pub kind: QuestionKind,
    /// Name of the tool.
    pub tool: String,
    /// Version of the tool's definition.
    pub version: String,
    /// SHA-256 of the tool's definition, hexadecimal: another definition is another act.
    pub definition: String,
    /// The effect of the call, in a sentence made from the tool's own words and the arguments, never from the model's.
    pub summary: String,
    /// The description in the tool's definition.
    pub description: String,
    /// Arguments of the call, whole.
    pub arguments: Value,
    /// JSON Schema of the arguments.
    pub parameters: Value,
    /// Fields that are missing or invalid. Empty: summary and description are told as they are.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub lacks: Vec<FieldFault>,
    /// Category in the tool's definition.
    pub category: Category,
    /// Consequence in the tool's definition.
    pub consequence: Consequence,
    /// Why it is asked about: each rule that had a part in it, in order.
    pub reasons: Vec<String>,
    /// Reasons that the page shows. Empty: the question was stored before reasons were.
    #[serde(default)]
    pub reason_codes: Vec<ReasonCode>,
    /// The decisions that a person may take.
    pub options: Vec<ApprovalChoice>,
    /// The person may change the arguments.
    pub allow_modification: bool,
    /// `trigger` or `chat`.
    pub source: String,
    /// The agents through which the call came, outermost first.
    #[serde(default)]
    pub delegation_chain: Vec<String>,
    /// The step of a pipeline whose agent asks, with the place in its list where it is one of `for_each`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub step: Option<String>,
    /// The fate of the run when nobody answers.
    #[serde(default)]
    pub on_expiry: OnExpiry,
    /// How many people have to agree; 0: nobody is asked, the call is only held for `undo_seconds`.
    pub approvers: u32,
    /// The person who asked for the run and may not answer.
    #[serde(default)]
    pub excluded_approver: Option<String>,
    /// Text that the person has to type on the page, for calls that can't be undone.
    #[serde(default)]
    pub confirmation: Option<String>,
    /// For how long after it was agreed to the call may still be stopped, in seconds.
    #[serde(default)]
    pub undo_seconds: Option<u64>,
    /// Finding of the tool's read-only check at the time of the question.
    #[serde(default)]
    pub precheck: Option<Value>,
    /// How long there is to answer, in seconds.
    pub timeout_seconds: u64,
}

/// SHA-256 over the canonical JSON (RFC 8785) of what will run, in hexadecimal: `docs/keys.md`, "Approvals".
pub fn digest(of: &ProposalIdentity, tool: &str, version: &str, definition: &str, arguments: &Value) -> String {
    canonical_hash(&json!({
        "tenant": of.tenant, "run": of.run_id, "turn": of.turn, "call": of.call_id,
        "tool": tool, "version": version, "definition": definition, "arguments": arguments,
    }))
}

/// SHA-256 over canonical JSON (RFC 8785), in hexadecimal, of the value as it is stored: the databases take no NUL and
/// keep U+FFFD in its place, and what was hashed before it was stored has to have the same hash when it is read.
pub fn canonical_hash(value: &Value) -> String {
    let canonical = |value| serde_json_canonicalizer::to_string(value).expect("a JSON value is JSON");
    let mut text = canonical(value);
    // a backslash of the value itself looks like it, too; then this changes nothing
    if text.contains("\\u0000") {
        text = canonical(&without_nul(value));
    }
    hex::encode(hash(&SHA256, text.as_bytes()))
}

fn without_nul(value: &Value) -> Value {
    let clean = |text: &str| text.replace('\0', "\u{FFFD}");
    match value {
        Value::String(text) => Value::String(clean(text)),
        Value::Array(items) => items.iter().map(without_nul).collect(),
        Value::Object(fields) => {
            Value::Object(fields.iter().map(|(name, value)| (clean(name), without_nul(value))).collect())
        }
        other => other.clone(),
    }
}

impl Proposal {
    /// Whether it asks for what the call lacks, and not for consent to it.
    pub fn is_input(&self) -> bool {
        self.kind == QuestionKind::Input
    }

    /// The digest of this call with these arguments.
    pub fn digest(&self, of: &ProposalIdentity, arguments: &Value) -> String {
        digest(of, &self.tool, &self.version, &self.definition, arguments)
    }

    /// For how long the call is held before it runs; `None`: not at all.
    pub fn undo_window(&self) -> Option<TimeDelta> {
        undo_window(self.undo_seconds)
    }

    /// Whether the rules let the call through, so that nobody has to agree and it is only held.
    pub fn is_auto_approved(&self) -> bool {
        self.approvers == 0
    }
}

/// The time of an undo window, in whole seconds; one of 0 is none.
pub fn undo_window(seconds: Option<u64>) -> Option<TimeDelta> {
    let seconds = seconds.filter(|seconds| *seconds > 0)?.min(LONGEST_UNDO);
    TimeDelta::try_seconds(seconds as i64)
}

#[cfg(test)]
mod tests {
    use super::*;

    const CALL: ProposalIdentity =
        ProposalIdentity { tenant: "ann", run_id: Uuid::from_u128(7), turn: 2, call_id: "call_1" };

    #[test]
    fn digest_is_that_of_canonical_json() {
        // python3: hashlib.sha256(json.dumps({...}, sort_keys=True, separators=(",", ":")).encode()).hexdigest()
        let arguments = json!({ "to": "ann", "amount": 100 });
        assert_eq!(
            canonical_hash(&json!({ "b": [1, "x"], "a": null })),
            "c22cb7b0353770e2b38094af641143ebf008ddf2d1f2dedb9d875996fcf245fa"
        );
        let one = digest(&CALL, "send", "1.0.0", "d", &arguments);
        assert_eq!(one, digest(&CALL, "send", "1.0.0", "d", &json!({ "amount": 100.0, "to": "ann" })), "one number");
    }

    #[test]
    fn hash_is_that_of_what_the_databases_keep_of_a_nul() {
        let hashed = |arguments: Value| digest(&CALL, "send", "1.0.0", "d", &arguments);
        let sent = hashed(json!({ "to\0": ["a\0b", 1], "path": "C:\\u0000" }));
        assert_eq!(sent, hashed(json!({ "to\u{FFFD}": ["a\u{FFFD}b", 1], "path": "C:\\u0000" })));
        assert_ne!(sent, hashed(json!({ "to\u{FFFD}": ["a\u{FFFD}b", 1], "path": "C:\u{FFFD}" })));
    }

    #[test]
    fn whatever_is_different_makes_another_digest() {
        let arguments = json!({ "to": "ann" });
        let one = digest(&CALL, "send", "1.0.0", "d", &arguments);
        let others = [
            digest(&ProposalIdentity { tenant: "bob", ..CALL }, "send", "1.0.0", "d", &arguments),
            digest(&ProposalIdentity { run_id: Uuid::from_u128(8), ..CALL }, "send", "1.0.0", "d", &arguments),
            digest(&ProposalIdentity { turn: 3, ..CALL }, "send", "1.0.0", "d", &arguments),
            digest(&ProposalIdentity { call_id: "call_2", ..CALL }, "send", "1.0.0", "d", &arguments),
            digest(&CALL, "sent", "1.0.0", "d", &arguments),
            digest(&CALL, "send", "1.0.1", "d", &arguments),
            digest(&CALL, "send", "1.0.0", "e", &arguments),
            digest(&CALL, "send", "1.0.0", "d", &json!({ "to": "bob" })),
        ];
        assert!(others.iter().all(|other| *other != one && other.len() == 64));
    }
}
