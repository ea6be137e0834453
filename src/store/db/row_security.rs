//! Row-level security: the tenant whose rows Postgres shows to a transaction. Sessions begin as the engine's, which sees
//! all: `*`. SQLite has none, so every statement names its tenant as well.

use sqlx::PgConnection;

use crate::store::db::Transaction;

impl Transaction {
    /// Tells Postgres for the rest of this transaction whose rows may be seen; `None` confines to nothing. Sessions
    /// start as the engine's: `*`.
    pub(in crate::store) async fn set_rls_tenant(&mut self, tenant: Option<&str>) -> Result<(), sqlx::Error> {
        match self {
            Transaction::Postgres(begun) => set_rls_tenant(begun, tenant).await,
            Transaction::Statement(_) | Transaction::Sqlite(_) => Ok(()),
        }
    }
}

/// For the rest of the transaction; `None` leaves it as the session is.
pub(super) async fn set_rls_tenant(conn: &mut PgConnection, tenant: Option<&str>) -> Result<(), sqlx::Error> {
    if let Some(tenant) = tenant {
        sqlx::query("select set_config('reveille.tenant', $1, true)").bind(tenant).execute(conn).await?;
    }
    Ok(())
}
