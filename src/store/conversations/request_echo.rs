//! The parts of a request in the form of Open Responses that the response repeats whenever it is read. They stand with
//! the run that the request has begun; most runs have none.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::domain::conversation::RequestEcho;
use crate::store::tx::Tx;
use crate::store::{Store, StoreError};

/// Notes what the response of a run repeats, in the transaction that records the run.
pub(in crate::store) async fn note_echo(tx: &mut Tx<'_>, run: Uuid, echo: RequestEcho) -> Result<(), StoreError> {
    if echo != RequestEcho::default() {
        let note = tx.query("update runs set in_background = $2, previous_run = $3 where id = $1");
        note.bind(run).bind(echo.background).bind(echo.previous).execute().await?;
    }
    Ok(())
}

impl Store {
    /// The parts of its request that the response of a run repeats.
    ///
    /// # Errors
    /// `NotFound`: there is no such run in the scope.
    pub async fn request_echo(&self, scope: &Scope, run_id: Uuid) -> Result<RequestEcho, StoreError> {
        let mut read = self.db.read_in(scope).await?;
        let found: Option<(Option<bool>, Option<Uuid>)> = read
            .query("select in_background, previous_run from runs where id = $1 and ($2 is null or tenant_id = $2)")
            .bind(run_id)
            .bind(scope.tenant())
            .optional()
            .await?;
        read.end().await?;
        let (background, previous) = found.ok_or(StoreError::NotFound)?;
        Ok(RequestEcho { background: background.unwrap_or_default(), previous })
    }
}
