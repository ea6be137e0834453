//! Row-level security: the tenant whose rows Postgres shows to a transaction. Sessions begin as the engine's, which
//! sees all: `*`. SQLite has none, so every statement names its tenant as well.

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
async fn set_rls_tenant(conn: &mut PgConnection, tenant: Option<&str>) -> Result<(), sqlx::Error> {
    if let Some(tenant) = tenant {
        sqlx::query("select set_config('reveille.tenant', $1, true)").bind(tenant).execute(conn).await?;
    }
    Ok(())
}

/// Begins a transaction that sees what belongs to a tenant alone, in one round trip: it takes no parameters, so the
/// tenant is written as an escaped string, which is read alike under each `standard_conforming_strings`.
pub(super) fn begin_confined(tenant: &str) -> String {
    let escaped = tenant.replace('\\', r"\\").replace('\'', "''");
    format!("begin; set local reveille.tenant = E'{escaped}'")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tenant_is_one_string_whatever_stands_in_it() {
        assert_eq!(begin_confined("a"), "begin; set local reveille.tenant = E'a'");
        assert_eq!(begin_confined(r"o'k\'; x"), r"begin; set local reveille.tenant = E'o''k\\''; x'");
    }
}
