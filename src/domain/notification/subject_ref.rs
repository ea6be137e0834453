//! The subject of a delivery as data: the kind of a notice and its task, a credential and its issue, a batch of
//! questions, the instant of a digest, the address that a code proves.
//!
//! It is stored with the delivery. Whatever decides by the subject of a message decides by this: keys are only
//! compared, and subjects are only read by people. The run of a message stands in its own column, and so does its kind.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::domain::credential::{CredentialIssueKind, Reference};
use crate::domain::notification::{NoticeKind, dedupe};

/// The subject of a delivery, beside its run. A delivery without one tells of its run, or says what it says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case")]
pub enum SubjectRef {
    /// A notice about a task.
    Notice {
        /// The kind of the notice.
        notice: NoticeKind,
        /// The task that it is about.
        task_id: Uuid,
    },
    /// A credential that can't be used.
    Credential {
        /// Name of the credential.
        credential: Reference,
        /// The issue of the credential.
        issue: CredentialIssueKind,
        /// The task that came to it, if it is told for one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        task_id: Option<Uuid>,
        /// The stored credential, if it is told for all that come to it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        credential_id: Option<Uuid>,
    },
    /// Questions that are decided together; a question and a reminder alike.
    Questions {
        /// Their batch.
        batch_id: Uuid,
    },
    /// Messages that are told together.
    Digest {
        /// The instant at which the digest is due.
        due_at: DateTime<Utc>,
    },
    /// A code that proves an address.
    Code {
        /// Channel of the address.
        channel: String,
        /// The id that tells one code from the next.
        id: Uuid,
    },
}

impl SubjectRef {
    /// The subject and the key of the `n`th notice of a kind about a task.
    pub fn notice(notice: NoticeKind, task_id: Uuid, n: i64) -> (SubjectRef, String) {
        (SubjectRef::Notice { notice, task_id }, dedupe::notice(notice, task_id, n))
    }

    /// The subject and the key of a notice about a field that a task looks for in vain; `looked_for` tells one from the
    /// next: the expression, or the digest of a pipeline's steps.
    pub fn missing_field(task_id: Uuid, looked_for: &str) -> (SubjectRef, String) {
        SubjectRef::notice(NoticeKind::MissingField, task_id, crc32fast::hash(looked_for.as_bytes()).into())
    }

    /// The subject and the key of the `n`th notice to the owner of a task that lacks a credential.
    pub fn credential_missing(
        credential: &Reference,
        issue: CredentialIssueKind,
        task_id: Uuid,
        n: i64,
    ) -> (SubjectRef, String) {
        let credential = credential.clone();
        let about = SubjectRef::Credential { credential, issue, task_id: Some(task_id), credential_id: None };
        (about, dedupe::notice(NoticeKind::Credential, task_id, n))
    }

    /// The kind of notice that it is the subject of, if it is one's.
    pub fn notice_kind(&self) -> Option<NoticeKind> {
        match self {
            SubjectRef::Notice { notice, .. } => Some(*notice),
            SubjectRef::Credential { .. } => Some(NoticeKind::Credential),
            SubjectRef::Questions { .. } | SubjectRef::Digest { .. } | SubjectRef::Code { .. } => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn subject_refs_are_written_as_the_upgrade_writes_them() {
        let id = Uuid::from_u128(0x42);
        let work = Reference::parse("google/work").unwrap();
        let (about, key) = SubjectRef::notice(NoticeKind::PollFailing, id, 7);
        assert_eq!(key, "notice:poll_failing:00000000-0000-0000-0000-000000000042:7");
        let (lacking, lacking_key) = SubjectRef::credential_missing(&work, CredentialIssueKind::NeedsConsent, id, 2);
        assert_eq!(lacking_key, "notice:credential:00000000-0000-0000-0000-000000000042:2");
        assert_eq!(
            (about.notice_kind(), lacking.notice_kind()),
            (Some(NoticeKind::PollFailing), Some(NoticeKind::Credential))
        );
        let cases = [
            (about, json!({ "type": "notice", "notice": "poll_failing", "task_id": id })),
            (
                lacking,
                json!({ "type": "credential", "credential": "google/work", "issue": "needs_consent", "task_id": id }),
            ),
            (SubjectRef::Questions { batch_id: id }, json!({ "type": "questions", "batch_id": id })),
            (
                SubjectRef::Digest { due_at: DateTime::UNIX_EPOCH },
                json!({ "type": "digest", "due_at": "1970-01-01T00:00:00Z" }),
            ),
            (SubjectRef::Code { channel: "sms".into(), id }, json!({ "type": "code", "channel": "sms", "id": id })),
        ];
        for (about, written) in cases {
            assert_eq!(serde_json::to_value(&about).unwrap(), written);
            assert_eq!(serde_json::from_value::<SubjectRef>(written).unwrap(), about);
        }
    }

    #[test]
    fn every_word_of_a_notice_reads_back() {
        for kind in NoticeKind::ALL {
            assert_eq!(NoticeKind::parse(kind.as_str()), Some(kind));
            assert_eq!(serde_json::to_value(kind).unwrap(), kind.as_str());
        }
    }
}
