//! Counts of runs that have not ended.

use crate::base::id::Scope;
use crate::store::{Store, StoreError};

/// In the words of the indexes: the queue has one of those that are ready, by tenant, and one of the few others.
const COUNT_OF_TENANT: &str = "
    select 'ready', count(*) from queue where tenant_id = $1 and state = 'ready' having count(*) > 0
     union all
    select state, count(*) from queue where state <> 'ready' and tenant_id = $1 group by state
     union all
    select 'parked', count(*) from parked where tenant_id = $1";
const COUNT_ALL: &str = "
    select state, count(*) from queue group by state
     union all
    select 'parked', count(*) from parked";

impl Store {
    /// How many runs wait, are claimed, and run now; and how many are parked.
    pub async fn count_runs(&self, scope: &Scope) -> Result<Vec<(String, i64)>, StoreError> {
        let mut read = self.db.read_unconfined(scope.tenant()).await?;
        Ok(match scope.tenant() {
            Some(tenant) => read.query(COUNT_OF_TENANT).bind(tenant).all().await?,
            None => read.query(COUNT_ALL).all().await?,
        })
    }
}
