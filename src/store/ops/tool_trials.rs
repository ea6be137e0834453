//! Trials of tools on the record.

use serde_json::Value;
use uuid::Uuid;

use crate::base::json::length::bytes_of;
use crate::store::ops::audit::{AuditAction, ENTRY_BYTES, write_audit};
use crate::store::{Store, StoreError};

impl Store {
    /// Records that a tool is about to be tried with what belongs to a tenant. A trial may be repeated at will, so its
    /// entry counts as stored bytes of the tenant.
    ///
    /// # Errors
    /// `Quota`: the tenant has stored all that it may.
    pub async fn record_tool_trial(&self, tenant: &str, by: &str, body: Value) -> Result<(), StoreError> {
        self.admit_bytes(tenant, bytes_of(&body) + ENTRY_BYTES).await?;
        let now = self.clock.now();
        let mut write = self.db.write_unconfined(Some(tenant)).await?;
        write.set_rls_tenant(Some(tenant)).await?;
        let act = AuditAction {
            tenant,
            actor: by,
            via: "api",
            action: "tool.called",
            subject_type: "tool",
            subject_id: Uuid::nil(),
            body,
        };
        write_audit(&mut write.tx(), act, now).await?;
        write.commit().await?;
        Ok(())
    }
}
