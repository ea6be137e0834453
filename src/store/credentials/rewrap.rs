//! Credentials under other master keys than the first, and putting them under it. The document itself is not touched;
//! a row that was written meanwhile is left as it is, because whoever wrote it used the first key.

use uuid::Uuid;

use crate::store::credentials::row::{self, CredentialRow};
use crate::store::{Store, StoreError, StoredCredential};

impl Store {
    /// Credentials whose data key is not wrapped with this master key, in the order of their ids, after `after`.
    pub async fn credentials_not_under(
        &self,
        key_id: &str,
        after: Option<Uuid>,
        limit: i64,
    ) -> Result<Vec<StoredCredential>, StoreError> {
        let rows: Vec<CredentialRow> = on_read!(self.db, |conn| {
            sqlx::query_as(NOT_UNDER).bind(key_id).bind(after.unwrap_or_default()).bind(limit).fetch_all(conn).await?
        });
        rows.into_iter().map(CredentialRow::stored).collect()
    }

    /// Puts the data key of a credential under another master key, unless the document was written since it was read.
    /// It stays the same version and generation. Answers whether it did.
    pub async fn rewrap_credential(
        &self,
        read: &StoredCredential,
        sealed: &str,
        key_id: &str,
    ) -> Result<bool, StoreError> {
        let written = on_write!(self.db, |conn| {
            sqlx::query("update credentials set sealed = $3, key_id = $4 where id = $1 and sealed = $2")
                .bind(read.credential.id)
                .bind(&read.sealed)
                .bind(sealed)
                .bind(key_id)
                .execute(&mut *conn)
                .await?
                .rows_affected()
        });
        Ok(written == 1)
    }
}

const NOT_UNDER: &str =
    concat!("select ", row::columns!(), " from credentials where key_id <> $1 and id > $2 order by id limit $3");
