//! The proposal that a person is shown and agrees to, and its hash.

use aws_lc_rs::digest::{SHA256, digest as hash};
use chrono::TimeDelta;
use serde::{Deserialize, Serialize};
use serde_json::{Value, json};
use uuid::Uuid;

use crate::base::words::is_default;
use crate::domain::approval::{
    ApprovalChoice, Category, Consequence, FieldFault, OnExpiry, QuestionKind, ReasonCode, ServerQuestion,
};

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
    /// The question of an MCP server in the middle of the call; `None`: no server asks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerQuestion>,
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

/// Canonical JSON (RFC 8785) of the value as it is stored: the databases take no NUL and keep U+FFFD in its place, and
/// what was hashed before it was stored has to have the same hash when it is read.
pub fn canonical_text(value: &Value) -> String {
    let canonical = |value| serde_json_canonicalizer::to_string(value).expect("a JSON value is JSON");
    let text = canonical(value);
    // a backslash of the value itself looks like it, too; then this changes nothing
    match text.contains("\\u0000") {
        true => canonical(&without_nul(value)),
        false => text,
    }
}

/// SHA-256 over [`canonical_text`], in hexadecimal.
pub fn canonical_hash(value: &Value) -> String {
    text_hash(&canonical_text(value))
}

/// SHA-256 over a text, in hexadecimal.
pub fn text_hash(text: &str) -> String {
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

    /// Whether an MCP server asks in the middle of the call.
    pub fn is_of_server(&self) -> bool {
        self.server.is_some()
    }

    /// Whether a person may decide so. A server may always be told no, which is in no stored `options`.
    pub fn offers(&self, choice: ApprovalChoice) -> bool {
        match choice {
            ApprovalChoice::Decline => self.is_of_server(),
            choice => self.options.contains(&choice),
        }
    }

    /// The digest of this call with these arguments. The question of a server is part of what was shown.
    pub fn digest(&self, of: &ProposalIdentity, arguments: &Value) -> String {
        let definition = match &self.server {
            Some(server) => &format!("{}|{}", self.definition, canonical_hash(&json!(server))),
            None => &self.definition,
        };
        digest(of, &self.tool, &self.version, definition, arguments)
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
    use crate::domain::approval::{Approval, ApprovalStatus, ServerAnswer, test_question};

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
    fn hash_is_that_of_the_canonical_text_without_nul() {
        let value = json!({ "b": ["x\0", 100.0], "a": "\\u0000" });
        let text = canonical_text(&value);
        assert_eq!(text, "{\"a\":\"\\\\u0000\",\"b\":[\"x\u{FFFD}\",100]}");
        assert_eq!(text_hash(&text), canonical_hash(&value));
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

    /// A question about a call that a server asks in this round, with these words.
    fn of_server(message: &str, round: u32) -> Approval {
        let now = "2027-03-01T08:00:00Z".parse().expect("an instant");
        let asked = test_question("Deploy?", now, now);
        let server = json!({
            "server": "github",
            "parts": [{ "key": "sure", "message": message, "mode": "form",
                        "fields": [{ "name": "sure", "field": "sure" }] }],
            "continuation": { "kind": "continue", "round": round, "request_state": "cw==" },
        });
        let server = serde_json::from_value(server).expect("a question");
        let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
        let proposal = Proposal { kind: QuestionKind::Input, server: Some(server), options, ..asked.proposal.clone() };
        let digest = proposal.digest(&asked.identity(), &proposal.arguments);
        Approval { proposal, digest, ..asked }
    }

    #[test]
    fn digest_of_a_server_question_is_that_of_its_words_and_its_round() {
        let asked = of_server("Deploy to prod?", 1);
        let plain = Proposal { server: None, ..asked.proposal.clone() };
        let digests = [
            asked.digest.clone(),
            of_server("Deploy to test?", 1).digest,
            of_server("Deploy to prod?", 2).digest,
            plain.digest(&asked.identity(), &plain.arguments),
        ];
        let distinct: std::collections::BTreeSet<&String> = digests.iter().collect();
        assert_eq!(distinct.len(), digests.len(), "{digests:?}");
        let read: Proposal = serde_json::from_value(json!(asked.proposal)).expect("a proposal");
        assert_eq!(read.digest(&asked.identity(), &read.arguments), asked.digest, "as it is read back");
    }

    #[test]
    fn server_may_be_told_no_and_nobody_else_and_no_is_in_no_stored_options() {
        let asked = of_server("Deploy?", 1);
        let plain = Proposal { server: None, ..asked.proposal.clone() };
        let offered = |proposal: &Proposal| {
            use ApprovalChoice::{Approve, Cancel, Decline, Edit};
            [Approve, Edit, Cancel, Decline].map(|choice| proposal.offers(choice))
        };
        assert_eq!(offered(&asked.proposal), [false, true, true, true]);
        assert_eq!(offered(&plain), [false, true, true, false]);
        assert_eq!(json!(asked.proposal)["options"], json!(["edit", "cancel"]));
    }

    #[test]
    fn server_gets_an_answer_only_by_a_decision_that_lets_the_call_go_on() {
        let asked = of_server("Deploy?", 1);
        let given = json!({ "sure": true });
        let answer = |status: ApprovalStatus, modifications: Option<Value>| {
            Approval { status, modifications, ..asked.clone() }.server_answer()
        };
        assert_eq!(answer(ApprovalStatus::Edited, Some(given.clone())), Some(ServerAnswer::Accept(given.clone())));
        assert_eq!(answer(ApprovalStatus::Approved, None), Some(ServerAnswer::Decline));
        for status in [ApprovalStatus::Pending, ApprovalStatus::Cancelled, ApprovalStatus::Expired] {
            assert_eq!(answer(status, None), None, "{status:?}");
        }
        let plain = Proposal { server: None, ..asked.proposal.clone() };
        let edited = Approval { proposal: plain, status: ApprovalStatus::Edited, modifications: Some(given), ..asked };
        assert_eq!(edited.server_answer(), None, "no server has asked");
    }
}
