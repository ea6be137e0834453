//! 100 rows of the width of a task in one statement: inserted, and updated. And a page of rows in an index's order.

use std::time::Instant;

use sqlx::AssertSqlSafe;
use uuid::Uuid;

use crate::bench::env::{on_bare, random_id};
use crate::bench::limits::{millis, rate};
use crate::bench::{DirectPool, Samples};

/// Rows of a statement.
pub const BATCH: usize = 100;

/// Rows a second, inserted and then updated, each statement a commit.
#[derive(Debug, Clone, Copy)]
pub struct RowLimits {
    pub inserted: f64,
    pub updated: f64,
}

/// `body` is what a row holds besides its id and its tenant.
pub async fn rates(bare: &DirectPool, count: usize, body: &str) -> anyhow::Result<RowLimits> {
    bare.execute("drop table if exists bare_rows").await?;
    let (id, document) = if matches!(bare, DirectPool::Postgres(_)) { ("uuid", "jsonb") } else { ("blob", "text") };
    bare.execute(format!(
        "create table bare_rows (id {id} primary key, tenant_id text not null, body {document} not null, n bigint not null)"
    ))
    .await?;
    let ids: Vec<Uuid> = (0..count).map(|_| random_id()).collect();
    match bare {
        DirectPool::Postgres(pool) => {
            let mut connection = pool.acquire().await?;
            let began = Instant::now();
            for batch in ids.chunks(BATCH) {
                sqlx::query(
                    "insert into bare_rows (id, tenant_id, body, n)
                     select id, 'tenant', body::jsonb, 0 from unnest($1::uuid[], $2::text[]) as r (id, body)",
                )
                .bind(batch)
                .bind(vec![body; batch.len()])
                .execute(&mut *connection)
                .await?;
            }
            let inserted = rate(count, began);
            let began = Instant::now();
            for batch in ids.chunks(BATCH) {
                sqlx::query("update bare_rows set n = n + 1 where id = any($1)")
                    .bind(batch)
                    .execute(&mut *connection)
                    .await?;
            }
            Ok(RowLimits { inserted, updated: rate(count, began) })
        }
        DirectPool::Sqlite(pool) => {
            let mut connection = pool.acquire().await?;
            // one statement of 100 rows is the fastest that there is
            let rows: Vec<String> =
                (0..BATCH).map(|n| format!("(?{}, 'tenant', ?{}, 0)", 2 * n + 1, 2 * n + 2)).collect();
            let insert = format!("insert into bare_rows (id, tenant_id, body, n) values {}", rows.join(", "));
            let began = Instant::now();
            for batch in ids.chunks_exact(BATCH) {
                let mut query = sqlx::query(AssertSqlSafe(insert.clone()));
                for id in batch {
                    query = query.bind(*id).bind(body);
                }
                query.execute(&mut *connection).await?;
            }
            let inserted = rate(count / BATCH * BATCH, began);
            let places: Vec<String> = (1..=BATCH).map(|n| format!("?{n}")).collect();
            let update = format!("update bare_rows set n = n + 1 where id in ({})", places.join(", "));
            let began = Instant::now();
            for batch in ids.chunks_exact(BATCH) {
                let mut query = sqlx::query(AssertSqlSafe(update.clone()));
                for id in batch {
                    query = query.bind(*id);
                }
                query.execute(&mut *connection).await?;
            }
            Ok(RowLimits { inserted, updated: rate(count / BATCH * BATCH, began) })
        }
    }
}

/// How long each of so many selects takes that reads a tenant's newest runs by their index, in milliseconds.
pub async fn pages(inside: &DirectPool, tenant: &str, page: usize, times: usize) -> anyhow::Result<Samples> {
    let select = "select * from runs where tenant_id = $1 order by id desc limit $2";
    let mut took = Vec::with_capacity(times);
    on_bare!(inside, |pool| {
        let mut connection = pool.acquire().await?;
        for _ in 0..times {
            let began = Instant::now();
            let rows = sqlx::query(select).bind(tenant).bind(page as i64).fetch_all(&mut *connection).await?;
            took.push(millis(began));
            anyhow::ensure!(rows.len() == page, "{} instead of {page} rows are read", rows.len());
        }
    });
    Ok(Samples::new(took))
}
