//! Rows that were stored on PostgreSQL before bytes were counted: they are counted a bounded piece at a time, table by
//! table in the order of their keys. How far that is stands in `stored_byte_scans`, so a restart goes on there, and
//! each instance takes a table that no other one is at.
//!
//! A row that is not counted has zero in `stored_bytes`. It is counted under its lock, in the transaction that notes its
//! bytes for the tenant, so it counts once, whatever is written or deleted meanwhile. Rows that others have locked are not
//! waited for: the piece is gone through again.

use sqlx::{AssertSqlSafe, PgConnection};

use crate::store::db::{Db, fault};
use crate::store::{Store, StoreError};

/// A table whose rows count for tenants.
struct CountedTable {
    name: &'static str,
    /// The columns of its key and their types.
    key: &'static [(&'static str, &'static str)],
    /// Parts of a row that count, as migration 0024 has them.
    parts: &'static [&'static str],
    /// Where the tenant stands that a row counts for: in the row, or in the row of this table that its column names.
    owner: Option<(&'static str, &'static str)>,
}

const ID: &[(&str, &str)] = &[("id", "uuid")];

const fn of_tenant(name: &'static str, parts: &'static [&'static str]) -> CountedTable {
    CountedTable { name, key: ID, parts, owner: None }
}

const TABLES: [CountedTable; 10] = [
    of_tenant("tasks", &["spec"]),
    of_tenant("runs", &["input", "cause", "output", "error"]),
    CountedTable {
        name: "turns",
        key: &[("run_id", "uuid"), ("seq", "bigint")],
        parts: &["body", "provider_message"],
        owner: Some(("runs", "run_id")),
    },
    CountedTable { name: "events", key: &[("seq", "bigint")], parts: &["body"], owner: None },
    CountedTable {
        name: "window_events",
        key: &[("task_id", "uuid"), ("event_key", "text")],
        parts: &["body"],
        owner: Some(("tasks", "task_id")),
    },
    of_tenant("dead_letters", &["body"]),
    of_tenant("deliveries", &["body"]),
    of_tenant("credentials", &["sealed"]),
    CountedTable { name: "task_state", key: &[("task_id", "uuid"), ("name", "text")], parts: &["value"], owner: None },
    of_tenant("approvals", &["proposal", "modifications"]),
];

impl Store {
    /// Counts the rows from before bytes were counted among the next `limit` rows of a table; answers whether there is more
    /// to go through.
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
    /// Goes through the `limit` rows behind a position, and notes how far that is.
    async fn scan(&self, conn: &mut PgConnection, after: Option<&str>, limit: i64) -> Result<(), sqlx::Error> {
        let page: Vec<String> =
            sqlx::query_scalar(AssertSqlSafe(self.page(after))).bind(after).bind(limit).fetch_all(&mut *conn).await?;
        let Some(last) = page.last() else { return self.end(conn).await };
        sqlx::query(AssertSqlSafe(self.count(after))).bind(after).bind(last).execute(&mut *conn).await?;
        // others have had these rows locked
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

    /// Nothing is left in this table.
    async fn end(&self, conn: &mut PgConnection) -> Result<(), sqlx::Error> {
        sqlx::query("delete from stored_byte_scans where table_name = $1").bind(self.name).execute(conn).await?;
        Ok(())
    }

    /// The positions of the next $2 rows behind $1.
    fn page(&self, after: Option<&str>) -> String {
        let texts: Vec<String> = self.key.iter().map(|(column, _)| format!("{column}::text")).collect();
        let (texts, columns, behind) = (texts.join(", "), self.columns(""), self.after_condition(after, ""));
        let name = self.name;
        format!("select jsonb_build_array({texts})::text from {name} where {behind} order by {columns} limit $2")
    }

    /// Counts what is not counted behind $1 and up to $2, but for rows that others have locked.
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

    /// Whether anything behind $1 and up to $2 is not counted.
    fn uncounted_exists(&self, after: Option<&str>) -> String {
        format!("select exists (select 1 from {} t where {})", self.name, self.uncounted(after))
    }

    fn uncounted(&self, after: Option<&str>) -> String {
        let (behind, columns, last) = (self.after_condition(after, "t."), self.columns("t."), self.key_at("$2"));
        format!("{behind} and ({columns}) <= ({last}) and t.stored_bytes = 0 and {} > 0", self.size("t."))
    }

    fn after_condition(&self, after: Option<&str>, alias: &str) -> String {
        match after {
            // so that the parameter has a type
            None => "$1::text is null".to_owned(),
            Some(_) => format!("({}) > ({})", self.columns(alias), self.key_at("$1")),
        }
    }

    fn columns(&self, alias: &str) -> String {
        self.key.iter().map(|(column, _)| format!("{alias}{column}")).collect::<Vec<_>>().join(", ")
    }

    /// A position as a key.
    fn key_at(&self, parameter: &str) -> String {
        let parts = self.key.iter().enumerate();
        parts.map(|(n, (_, kind))| format!("({parameter}::jsonb ->> {n})::{kind}")).collect::<Vec<_>>().join(", ")
    }

    fn size(&self, alias: &str) -> String {
        let parts = self.parts.iter().map(|part| format!("coalesce(pg_column_size({alias}{part}), 0)"));
        format!("({})", parts.collect::<Vec<_>>().join(" + "))
    }
}
