//! Full-text search as the database has it: the rows of one tenant with one of some words, the best first.

use std::time::Instant;

use sqlx::AssertSqlSafe;

use crate::bench::DirectPool;
use crate::bench::limits::millis;

/// Rows that a search answers at most.
const FOUND: usize = 30;
/// Rows inserted by one statement.
const AT_ONCE: usize = 50_000;

/// Makes a table of so many texts with its index; `text` and `tenant` are those of the number `g.n`.
pub async fn fill(bare: &DirectPool, count: usize, tenant: &str, text: &str) -> anyhow::Result<()> {
    let (tables, numbers): (&[&str], _) = match bare {
        DirectPool::Postgres(_) => (
            &[
                "drop table if exists bare_texts",
                "create table bare_texts (tenant text not null, words tsvector not null)",
                "create index on bare_texts using gin (words)",
                "create index on bare_texts (tenant)",
            ],
            "generate_series({from}, {to}) as g (n)",
        ),
        DirectPool::Sqlite(_) => (
            &["drop table if exists bare_texts", "create virtual table bare_texts using fts5 (tenant, words)"],
            "(with recursive c (n) as (select {from} union all select n + 1 from c where n < {to}) select n from c) g",
        ),
    };
    for table in tables {
        bare.execute(*table).await?;
    }
    let words = if matches!(bare, DirectPool::Postgres(_)) {
        format!("to_tsvector('simple', {text})")
    } else {
        text.to_owned()
    };
    for from in (0..count).step_by(AT_ONCE) {
        let last = (from + AT_ONCE).min(count) - 1;
        let numbers = numbers.replace("{from}", &from.to_string()).replace("{to}", &last.to_string());
        bare.execute(format!("insert into bare_texts (tenant, words) select {tenant}, {words} from {numbers}")).await?;
    }
    if matches!(bare, DirectPool::Postgres(_)) {
        bare.execute("analyze bare_texts").await?;
    }
    Ok(())
}

/// How long one search takes, in milliseconds, and how many rows it found.
pub async fn search(bare: &DirectPool, tenant: &str, words: &[String]) -> anyhow::Result<(f64, usize)> {
    let began = Instant::now();
    let found = match bare {
        DirectPool::Postgres(pool) => {
            let query = format!(
                "select ctid::text from bare_texts, to_tsquery('simple', $2) as q
                  where tenant = $1 and words @@ q order by ts_rank(words, q) desc limit {FOUND}"
            );
            let any = words.iter().map(|word| format!("{word}:*")).collect::<Vec<_>>().join(" | ");
            let found: Vec<String> =
                sqlx::query_scalar(AssertSqlSafe(query)).bind(tenant).bind(any).fetch_all(pool).await?;
            found.len()
        }
        DirectPool::Sqlite(pool) => {
            let query = format!("select rowid from bare_texts where bare_texts match $1 order by rank limit {FOUND}");
            let any = words.iter().map(|word| format!("{word}*")).collect::<Vec<_>>().join(" OR ");
            let wanted = format!("tenant:\"{tenant}\" AND words:({any})");
            let found: Vec<i64> = sqlx::query_scalar(AssertSqlSafe(query)).bind(wanted).fetch_all(pool).await?;
            found.len()
        }
    };
    Ok((millis(began), found))
}
