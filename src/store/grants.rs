//! Standing grants: what a person allowed for good, narrowly. Each use is counted once, whatever is repeated.

use chrono::{DateTime, Utc};
use serde_json::Value;
use uuid::Uuid;

use crate::id::Scope;
use crate::store::{Store, StoreError};

/// "Always allow this": one tool of one task with these arguments.
#[derive(Debug, Clone, PartialEq)]
pub struct Grant {
    pub id: Uuid,
    pub tenant_id: String,
    pub task_id: Uuid,
    pub tool: String,
    /// The epoch of the task for which it was given: an edit ends it.
    pub epoch: i64,
    /// Arguments that a call must have with exactly these values; others are free.
    pub arguments: Value,
    /// The hash of the tool's definition.
    pub definition: String,
    /// `None`: as often as it likes.
    pub uses_left: Option<i64>,
    pub created_at: DateTime<Utc>,
    pub created_by: String,
    pub expires_at: DateTime<Utc>,
    pub revoked_at: Option<DateTime<Utc>>,
    pub revoked_by: Option<String>,
}

/// A call that may be covered by a grant.
#[derive(Debug, Clone, Copy)]
pub struct GrantUse<'a> {
    pub tenant: &'a str,
    pub task_id: Uuid,
    pub run_id: Uuid,
    pub turn: i64,
    pub call_id: &'a str,
    pub tool: &'a str,
    pub definition: &'a str,
    pub arguments: &'a Value,
}

impl Store {
    pub async fn create_grant(&self, _scope: &Scope, _grant: &Grant) -> Result<(), StoreError> {
        Err(StoreError::NotFound)
    }

    /// Newest first, after `before`.
    pub async fn list_grants(
        &self,
        _scope: &Scope,
        _task_id: Option<Uuid>,
        _before: Option<Uuid>,
        _limit: i64,
    ) -> Result<Vec<Grant>, StoreError> {
        Ok(Vec::new())
    }

    pub async fn get_grant(&self, _scope: &Scope, _id: Uuid) -> Result<Grant, StoreError> {
        Err(StoreError::NotFound)
    }

    /// Ends a grant; one that has ended stays as it is.
    pub async fn revoke_grant(&self, _scope: &Scope, _id: Uuid, _by: &str) -> Result<Grant, StoreError> {
        Err(StoreError::NotFound)
    }

    /// The grant that covers a call, its use counted; the same call again is the same use.
    pub async fn use_grant(&self, _call: &GrantUse<'_>) -> Result<Option<Uuid>, StoreError> {
        Ok(None)
    }
}
