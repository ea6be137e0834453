//! The scan of rows that were stored on PostgreSQL before bytes were counted. It counts them a bounded piece at a time,
//! table by table, in the order of their keys. `stored_byte_scans` holds the position in each table, so the scan goes
//! on there after a restart. Each instance takes a table that no other instance is scanning.
//!
//! An uncounted row has zero in `stored_bytes`. It is counted under its lock, in the transaction that adds its bytes to
//! those of the tenant, so it counts once, whatever is written or deleted meanwhile. The scan does not wait for rows
//! that others have locked: it goes through their piece again.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::store::db::{Db, fault};
use crate::store::{Store, StoreError};

/// A table whose rows count for tenants.
struct CountedTable {
    name: &'static str,
    /// The columns of its key and their types.
    key: &'static [(&'static str, &'static str)],
    /// Parts of a row that count, as in the migration that began to count the table: 0024 or 0056. Migration 0057
    /// counts more parts of rows of `runs`; older rows are counted without those.
    parts: &'static [&'static str],
    /// The condition under which a row counts. All other rows keep zero.
    counts: &'static str,
    /// A table and a column that lead to the tenant of a row: the column holds the id of a row of that table, which has
    /// the tenant. `None`: the row itself has it.
    owner: Option<(&'static str, &'static str)>,
}

const ID: &[(&str, &str)] = &[("id", "uuid")];

/// A table whose rows all count, each for the tenant in it.
const fn of_tenant(name: &'static str, parts: &'static [&'static str]) -> CountedTable {
    CountedTable { name, key: ID, parts, counts: "true", owner: None }
}

const TABLES: [CountedTable; 14] = [
    of_tenant("tasks", &["spec"]),
    of_tenant("runs", &["input", "cause", "output", "error"]),
    CountedTable {
        key: &[("run_id", "uuid"), ("seq", "bigint")],
        owner: Some(("runs", "run_id")),
        ..of_tenant("turns", &["body", "provider_message"])
    },
    CountedTable { key: &[("seq", "bigint")], ..of_tenant("events", &["body"]) },
    CountedTable {
        key: &[("task_id", "uuid"), ("event_key", "text")],
        owner: Some(("tasks", "task_id")),
        ..of_tenant("window_events", &["body"])
    },
    of_tenant("dead_letters", &["body"]),
    of_tenant("deliveries", &["body"]),
    of_tenant("credentials", &["sealed"]),
    CountedTable { key: &[("task_id", "uuid"), ("name", "text")], ..of_tenant("task_state", &["value"]) },
    of_tenant("approvals", &["proposal", "modifications"]),
    of_tenant("facts", &["text", "folded"]),
    CountedTable { key: &[("fact_id", "uuid"), ("version", "bigint")], ..of_tenant("fact_versions", &["text"]) },
    CountedTable { key: &[("tenant_id", "text"), ("fact_id", "uuid")], ..of_tenant("fact_vectors", &["vector"]) },
    CountedTable {
        counts: "t.action in ('credential.put', 'fact.added', 'fact.corrected', 'override.set', 'recipient.deleted',
                              'tool.called')",
        ..of_tenant("audit", &["id", "tenant_id", "at", "actor", "via", "action", "subject_type", "subject_id", "body"])
    },
];

impl Store {
    /// Goes through the next `limit` rows of a table and counts the uncounted ones; answers whether there is more to go
    /// through.
    pub async fn count_older_rows(&self, limit: i64) -> Result<bool, StoreError> {
        match &self.db {
            Db::Postgres { pool, .. } => {
                let mut write = pool.acquire().await?.begin(None).await?;
                fault()?;
                let scan: Option<(String, Option<String>)> =
                    sqlx::query_as(NEXT_SCAN).fetch_optional(&mut *write).await?;
                if let Some((name, position)) = scan {
                    let table = TABLES.iter().find(|table| table.name == name);
                    let table =
                        table.ok_or_else(|| StoreError::Corrupt(format!("no bytes are counted in `{name}`")))?;
                    table.scan(&mut write, position.as_deref(), limit).await?;
                }
                let left = "select exists (select 1 from stored_byte_scans)";
                let is_left = sqlx::query_scalar(left).fetch_one(&mut *write).await?;
                write.commit().await?;
                fault()?;
                Ok(is_left)
            }
            Db::Sqlite { .. } => Ok(false),
        }
    }
}

const NEXT_SCAN: &str =
    "select table_name, position from stored_byte_scans order by table_name limit 1 for update skip locked";

impl CountedTable {
    /// Goes through the `limit` rows behind a position, and stores the new position.
    async fn scan(&self, conn: &mut PgConnection, after: Option<&str>, limit: i64) -> Result<(), sqlx::Error> {
        let page: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(self.page(after))).bind(after).bind(limit).fetch_all(&mut *conn).await?;
        let Some(last) = page.last() else { return self.end(conn).await };
        sqlx::query(AssertSqlSafe(self.count(after))).bind(after).bind(last).execute(&mut *conn).await?;
        // rows are left where others had locked them
        let is_left: bool = sqlx::query_scalar(AssertSqlSafe(self.uncounted_exists(after)))
            .bind(after)
            .bind(last)
            .fetch_one(&mut *conn)
            .await?;
        if is_left {
            return Ok(());
        }
        if (page.len() as i64) < limit {
            return self.end(conn).await;
        }
        sqlx::query("update stored_byte_scans set position = $2 where table_name = $1")
            .bind(self.name)
            .bind(last)
            .execute(&mut *conn)
            .await?;
        Ok(())
    }

    /// Ends the scan of this table: nothing is left in it.
    async fn end(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::query("delete from stored_byte_scans where table_name = $1").bind(self.name).execute(conn).await?;
        Ok(())
    }

    /// The statement that reads the positions of the next $2 rows behind $1.
    fn page(&self, after: Option<&str>) -> String {
        let texts: Vec<String> = self.key.iter().map(|(column, _)| format!("{column}::text")).collect();
        let (texts, columns, behind) = (texts.join(", "), self.columns(""), self.after_condition(after, ""));
        let name = self.name;
        format!("select jsonb_build_array({texts})::text from {name} where {behind} order by {columns} limit $2")
    }

    /// The statement that counts the uncounted rows behind $1 and up to $2, except those that others have locked.
    fn count(&self, after: Option<&str>) -> String {
        let (name, columns, own, size) = (self.name, self.columns(""), self.columns("t."), self.size("t."));
        let uncounted = self.uncounted(after);
        let found: Vec<String> = self.key.iter().map(|(column, _)| format!("u.{column}")).collect();
        let found = found.join(", ");
        let (owner, tenant, joined) = match self.owner {
            None => ("tenant_id", "owner", String::new()),
            Some((parent, column)) => (column, "p.tenant_id", format!("join {parent} p on p.id = owner")),
        };
        format!(
            "with uncounted as (
                 select {columns} from {name} t where {uncounted} for no key update skip locked
             ), counted as (
                 update {name} t set stored_bytes = {size} from uncounted u
                  where ({own}) = ({found}) and t.stored_bytes = 0
                 returning t.{owner} as owner, t.stored_bytes as bytes
             )
             insert into stored_byte_changes (tenant_id, bytes)
             select {tenant}, sum(bytes)::bigint from counted {joined}
              where {tenant} is not null group by {tenant} order by {tenant}"
        )
    }

    /// The statement that answers whether any row behind $1 and up to $2 is uncounted.
    fn uncounted_exists(&self, after: Option<&str>) -> String {
        format!("select exists (select 1 from {} t where {})", self.name, self.uncounted(after))
    }

    fn uncounted(&self, after: Option<&str>) -> String {
        let (behind, columns, last) = (self.after_condition(after, "t."), self.columns("t."), self.key_at("$2"));
        let (counts, size) = (self.counts, self.size("t."));
        format!("{behind} and ({columns}) <= ({last}) and t.stored_bytes = 0 and {counts} and {size} > 0")
    }

    fn after_condition(&self, after: Option<&str>, alias: &str) -> String {
        match after {
            // the cast gives the parameter a type
            None => "$1::text is null".to_owned(),
            Some(_) => format!("({}) > ({})", self.columns(alias), self.key_at("$1")),
        }
    }

    fn columns(&self, alias: &str) -> String {
        self.key.iter().map(|(column, _)| format!("{alias}{column}")).collect::<Vec<_>>().join(", ")
    }

    /// The key at a position.
    fn key_at(&self, parameter: &str) -> String {
        let parts = self.key.iter().enumerate();
        parts.map(|(n, (_, kind))| format!("({parameter}::jsonb ->> {n})::{kind}")).collect::<Vec<_>>().join(", ")
    }

    fn size(&self, alias: &str) -> String {
        let parts = self.parts.iter().map(|part| format!("coalesce(pg_column_size({alias}{part}), 0)"));
        format!("({})", parts.collect::<Vec<_>>().join(" + "))
    }
}
