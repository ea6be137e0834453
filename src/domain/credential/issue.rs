//! Issues of a credential that its owner alone can mend, and the tasks that can't go on meanwhile.
//!
//! It is made by the door through which credentials leave, and by nobody else: what a foreign runtime or a model says
//! of credentials is a word like any other.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::domain::credential::{CredentialStatus, Reference};

/// A credential that is not there, or is of no use.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct CredentialIssue {
    /// `service`, or `service/account`.
    #[schema(value_type = String, example = "google/work")]
    pub credential: Reference,
    /// The kind of issue.
    pub kind: CredentialIssueKind,
    /// Of one that was refused: when it was sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_at: Option<DateTime<Utc>>,
}

/// Kinds of issues.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum CredentialIssueKind {
    /// It was never saved, or was deleted.
    Missing,
    /// Its provider renews it no more.
    NeedsConsent,
    /// It was sent, and the other side does not take it.
    Refused,
}

impl CredentialIssue {
    /// Whether the document under the name now is worth another try: it can be used, and is not the refused one.
    pub fn is_resolved_by(&self, status: CredentialStatus, updated_at: DateTime<Utc>) -> bool {
        status == CredentialStatus::Active && self.sent_at.is_none_or(|sent| updated_at > sent)
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn credential_saved_since_its_refusal_is_worth_another_try() {
        let at = |text: &str| -> DateTime<Utc> { text.parse().unwrap() };
        let credential = Reference::parse("google/work").unwrap();
        let issue = |kind, sent_at: Option<&str>| CredentialIssue {
            credential: credential.clone(),
            kind,
            sent_at: sent_at.map(at),
        };
        let saved = at("2027-03-01T08:00:01Z");
        let resolved = |issue: CredentialIssue, status| issue.is_resolved_by(status, saved);
        assert!(resolved(issue(CredentialIssueKind::Missing, None), CredentialStatus::Active));
        assert!(!resolved(issue(CredentialIssueKind::NeedsConsent, None), CredentialStatus::NeedsConsent));
        assert!(resolved(issue(CredentialIssueKind::Refused, Some("2027-03-01T08:00:00Z")), CredentialStatus::Active));
        assert!(!resolved(issue(CredentialIssueKind::Refused, Some("2027-03-01T08:00:01Z")), CredentialStatus::Active));
    }

    #[test]
    fn issue_names_its_credential_as_one_text() {
        let credential = Reference::parse("google/work").unwrap();
        let issue = CredentialIssue { credential, kind: CredentialIssueKind::Missing, sent_at: None };
        let written = json!({ "credential": "google/work", "kind": "missing" });
        assert_eq!(serde_json::to_value(&issue).unwrap(), written);
        assert_eq!(serde_json::from_value::<CredentialIssue>(written).unwrap(), issue);
    }
}
