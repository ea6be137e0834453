//! Data files: rows that say what they are, and their content in chunks of one size.
//!
//! A file and its chunks are written in one transaction, and a call that is carried out once more writes its file anew,
//! so a crash leaves either file or none. A file is read one chunk at a time. Files are given up by their last use:
//! those of a tenant that is full for its own new ones, and all that are old, or too many. A file of a run that is
//! suspended stays, and nothing but its own tenant's new files takes that of a run that is under way.

use chrono::{DateTime, TimeDelta, Utc};
use uuid::Uuid;

use crate::base::id::{Scope, Tenant, new_id};
use crate::domain::data_file::{DataFile, NewDataFile};
use crate::domain::quota::{ExceededQuota, Quota};
use crate::store::db::text::text;
use crate::store::sql::{CHOSEN, TENANT_LOCK, sql};
use crate::store::tx::Tx;
use crate::store::{Lease, Split, Store, StoreError};

/// Bytes of one chunk.
pub const CHUNK_BYTES: usize = 256 * 1024;
/// A use is recorded once in so many seconds.
const USE_SECONDS: i64 = 60;
/// Files of a tenant that are looked at together to make room.
const AT_ONCE: i64 = 200;
/// About as many bytes one transaction gives up: more there are where a tenant's limit was lowered.
const AT_ONCE_BYTES: i64 = 32 << 20;

const EVICTION: Split = Split {
    postgres: sql!("delete from data_files", CHOSEN.postgres, " returning bytes"),
    sqlite: sql!("delete from data_files", CHOSEN.sqlite, " returning bytes"),
};

/// The oldest of a tenant's own, as few as have so many bytes.
const OWN_OLDEST: &str = "
    select id from (
        select id, sum(bytes) over (order by last_used_at, id) - bytes as older
          from (select f.id, f.bytes, f.last_used_at from data_files f
                 where f.tenant_id {own} and not exists (select 1 from parked p where p.run_id = f.run_id)
                 order by f.last_used_at, f.id limit $3) oldest) counted
     where older < cast($2 as bigint)";

/// Postgres would leave a column that is `=` a value out of the order, and go through everybody's files.
const EVICT_OWN: Split = Split {
    postgres: sql!(EVICTION.postgres; "{ids}" = OWN_OLDEST; "{own}" = "= any (array[$1])"),
    sqlite: sql!(EVICTION.sqlite; "{ids}" = OWN_OLDEST; "{own}" = "= $1"),
};

/// The oldest of those that were used last before an instant, as few as have so many bytes.
const FORGET: Split = Split {
    postgres: sql!(sql!("delete from data_files", CHOSEN.postgres); "{ids}" = UNUSED_OLDEST),
    sqlite: sql!(sql!("delete from data_files", CHOSEN.sqlite); "{ids}" = UNUSED_OLDEST),
};
const UNUSED_OLDEST: &str = "
    select id from (
        select id, sum(bytes) over (order by last_used_at, id) - bytes as older
          from (select f.id, f.bytes, f.last_used_at from data_files f
                 where f.last_used_at < $1
                   and not exists (select 1 from parked p where p.run_id = f.run_id)
                   and not exists (select 1 from queue q where q.run_id = f.run_id)
                 order by f.last_used_at, f.id limit $3) oldest) counted
     where older < cast($2 as bigint)";

/// The oldest of all, as few as have so many bytes.
const EVICT: Split =
    Split { postgres: sql!(EVICTION.postgres; "{ids}" = OLDEST), sqlite: sql!(EVICTION.sqlite; "{ids}" = OLDEST) };
const OLDEST: &str = "
    select id from (
        select id, sum(bytes) over (order by last_used_at, id) - bytes as older
          from (select f.id, f.bytes, f.last_used_at from data_files f
                 where not exists (select 1 from parked p where p.run_id = f.run_id)
                   and not exists (select 1 from queue q where q.run_id = f.run_id)
                 order by f.last_used_at, f.id limit $2) oldest) counted
     where older < cast($1 as bigint)";

#[derive(sqlx_macros::FromRow)]
struct DataFileRow {
    id: Uuid,
    run_id: Uuid,
    tool: String,
    media_type: String,
    bytes: i64,
    summary: String,
    created_at: DateTime<Utc>,
    last_used_at: DateTime<Utc>,
}

impl DataFileRow {
    fn data_file(self) -> DataFile {
        let DataFileRow { id, run_id, tool, media_type, bytes, summary, created_at, last_used_at } = self;
        DataFile { id, run_id, tool, media_type, bytes, summary, created_at, last_used_at }
    }
}

impl Store {
    /// Keeps a file of a tenant, whose files have at most `limit` bytes: as many of them are given up as make room for
    /// it, the one that was not used for the longest time first. Answers its id.
    ///
    /// # Errors
    /// The file is not kept then, and no other is given up while the tenant is within its limit. [`StoreError::Quota`]:
    /// there is no room for it. [`StoreError::LeaseLost`]: the run that makes it under this lease goes on elsewhere,
    /// and may have made it already.
    pub async fn keep_data_file(
        &self,
        tenant: &Tenant,
        file: &NewDataFile,
        limit: u64,
        lease: Option<Lease>,
    ) -> Result<Uuid, StoreError> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        loop {
            if let Some(id) = self.write_data_file(tenant, file, limit, lease).await? {
                return Ok(id);
            }
        }
    }

    /// One transaction of [`Store::keep_data_file`]; `None`: it has given up as many files as one may, and another
    /// follows.
    async fn write_data_file(
        &self,
        tenant: &Tenant,
        file: &NewDataFile,
        limit: i64,
        lease: Option<Lease>,
    ) -> Result<Option<Uuid>, StoreError> {
        let (scope, now) = (Scope::Only(tenant.clone()), self.clock.now());
        let (id, bytes) = (new_id(now), file.content.len() as i64);
        let mut write = self.db.write(&scope).await?;
        let tx = &mut write.tx();
        tx.query(IN_TURN).bind(tenant.as_str()).execute().await?;
        if let Some(lease) = lease {
            let held: Option<i64> = tx.query(HELD).bind(lease.run_id).bind(lease.token).optional_scalar().await?;
            if held.is_none() {
                self.counts.fenced("data_file", 1);
                return Err(StoreError::LeaseLost);
            }
        }
        let stored: i64 = tx.query(OWN_BYTES).bind(tenant.as_str()).scalar().await?;
        if bytes <= limit && stored - limit > AT_ONCE_BYTES {
            let freed = evict_own(tx, tenant, AT_ONCE_BYTES).await?;
            if !freed.is_empty() {
                write.commit().await?;
                self.counts.data_files_removed("quota", freed.len() as u64);
                return Ok(None);
            }
        }
        let replaced: Option<i64> =
            tx.query(REPLACE).bind(text(&file.call_key)).bind(tenant.as_str()).optional_scalar().await?;
        let stored = stored - replaced.unwrap_or_default();
        let given_up = self.refusal(make_room(tx, tenant, stored, bytes, limit).await)?;
        tx.query(
            "insert into data_files (id, tenant_id, run_id, call_key, tool, media_type, bytes, summary, created_at,
                                     last_used_at)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $9)",
        )
        .bind(id)
        .bind(tenant.as_str())
        .bind(file.run_id)
        .bind(text(&file.call_key))
        .bind(text(&file.tool))
        .bind(text(&file.media_type))
        .bind(bytes)
        .bind(text(&file.summary))
        .bind(now)
        .execute()
        .await?;
        for (number, chunk) in (0_i64..).zip(file.content.as_bytes().chunks(CHUNK_BYTES)) {
            tx.query("insert into data_file_chunks (file_id, number, tenant_id, content) values ($1, $2, $3, $4)")
                .bind(id)
                .bind(number)
                .bind(tenant.as_str())
                .bind(chunk)
                .execute()
                .await?;
        }
        write.commit().await?;
        self.counts.data_files_removed("quota", given_up);
        self.counts.data_file_written(bytes);
        Ok(Some(id))
    }

    /// A file of a tenant, which is used now; `None`: there is none, or not any more. The record of its use may be
    /// 60 s old: pages of one file are read one after the other.
    pub async fn use_data_file(&self, tenant: &Tenant, id: Uuid) -> Result<Option<DataFile>, StoreError> {
        let (scope, now) = (Scope::Only(tenant.clone()), self.clock.now());
        let mut read = self.db.read_in(&scope).await?;
        let row: Option<DataFileRow> = read.query(DATA_FILE).bind(id).bind(tenant.as_str()).optional().await?;
        read.end().await?;
        let Some(row) = row else { return Ok(None) };
        if now - row.last_used_at < TimeDelta::seconds(USE_SECONDS) {
            return Ok(Some(row.data_file()));
        }
        let mut write = self.db.write(&scope).await?;
        let used = write
            .query("update data_files set last_used_at = $3 where id = $1 and tenant_id = $2")
            .bind(id)
            .bind(tenant.as_str())
            .bind(now)
            .execute()
            .await?;
        write.commit().await?;
        Ok((used > 0).then(|| DataFileRow { last_used_at: now, ..row }.data_file()))
    }

    /// The chunk of a file of a tenant that has this number, from 0; `None`: there is none, or not any more.
    pub async fn data_file_chunk(&self, tenant: &Tenant, id: Uuid, number: i64) -> Result<Option<Vec<u8>>, StoreError> {
        let mut read = self.db.read_in(&Scope::Only(tenant.clone())).await?;
        let chunk = read
            .query("select content from data_file_chunks where file_id = $1 and number = $2 and tenant_id = $3")
            .bind(id)
            .bind(number)
            .bind(tenant.as_str())
            .optional_scalar()
            .await?;
        read.end().await?;
        Ok(chunk)
    }

    /// Gives files up that were used last before `before`, the one that was not used for the longest time first, until
    /// `bytes` are free, at most `limit` of them, unless their run is suspended or under way; answers how many.
    pub async fn forget_data_files(&self, before: DateTime<Utc>, bytes: u64, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let forgotten = write.query(FORGET).bind(before).bind(bytes as i64).bind(limit).execute().await?;
        write.commit().await?;
        self.counts.data_files_removed("age", forgotten);
        Ok(forgotten)
    }

    /// Bytes of the files of all tenants.
    pub async fn data_file_bytes(&self) -> Result<u64, StoreError> {
        let bytes: i64 = self
            .db
            .read()
            .await?
            .query("select cast(coalesce(sum(bytes), 0) as bigint) from data_files")
            .scalar()
            .await?;
        Ok(bytes.max(0) as u64)
    }

    /// Gives files up until `bytes` are free, the one that was not used for the longest time first, at most `limit` of
    /// them, unless their run is suspended or under way; answers how many bytes they had.
    pub async fn evict_data_files(&self, bytes: u64, limit: i64) -> Result<u64, StoreError> {
        let mut write = self.db.write(&Scope::Every).await?;
        let freed: Vec<i64> = write.query(EVICT).bind(bytes as i64).bind(limit).scalars().await?;
        write.commit().await?;
        self.counts.data_files_removed("size", freed.len() as u64);
        Ok(freed.iter().sum::<i64>().max(0) as u64)
    }
}

const DATA_FILE: &str = "
    select id, run_id, tool, media_type, bytes, summary, created_at, last_used_at
      from data_files where id = $1 and tenant_id = $2";

/// Files of one tenant are written one after the other: so the counted files stay the stored ones.
const IN_TURN: Split =
    Split { postgres: sql!(TENANT_LOCK.postgres; "{lock}" = "reveille_data_files"), sqlite: TENANT_LOCK.sqlite };

/// The lease, until the end of the transaction.
const HELD: Split = Split {
    postgres: "select lease_token from queue where run_id = $1 and lease_token = $2 and state = 'started' for share",
    sqlite: "select lease_token from queue where run_id = $1 and lease_token = $2 and state = 'started'",
};

/// Bytes of the files of a tenant.
const OWN_BYTES: &str = "select cast(coalesce(sum(bytes), 0) as bigint) from data_files where tenant_id = $1";

/// Takes away the file that a call has made before.
const REPLACE: &str = "delete from data_files where call_key = $1 and tenant_id = $2 returning bytes";

/// In a transaction: gives up the oldest files of a tenant, as few as have so many bytes, and no more than are looked
/// at together; answers how many bytes each had. Those of suspended runs stay.
async fn evict_own(tx: &mut Tx<'_>, tenant: &Tenant, bytes: i64) -> Result<Vec<i64>, StoreError> {
    Ok(tx.query(EVICT_OWN).bind(tenant.as_str()).bind(bytes).bind(AT_ONCE).scalars().await?)
}

/// In a transaction: gives files of a tenant up, whose files have `stored` bytes, until there is room for so many bytes
/// more; answers how many.
async fn make_room(tx: &mut Tx<'_>, tenant: &Tenant, stored: i64, bytes: i64, limit: i64) -> Result<u64, StoreError> {
    let no_room = |usage: i64| {
        StoreError::Quota(Box::new(ExceededQuota {
            tenant: tenant.as_str().to_owned(),
            quota: Quota::DataFileBytes,
            limit: limit as u64,
            usage: usage.max(0) as u64,
            retry_after: ExceededQuota::AMOUNT,
        }))
    };
    if bytes > limit {
        return Err(no_room(0));
    }
    let (mut excess, mut given_up) = (stored + bytes - limit, 0);
    while excess > 0 {
        let freed = evict_own(tx, tenant, excess).await?;
        if freed.is_empty() {
            return Err(no_room(stored));
        }
        excess -= freed.iter().sum::<i64>();
        given_up += freed.len() as u64;
    }
    Ok(given_up)
}
