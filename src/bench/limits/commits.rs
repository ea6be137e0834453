//! One-row commits: the least that anything durable costs, by one client and by many.

use std::time::{Duration, Instant};

use futures::future::try_join_all;

use crate::base::clock::pause;
use crate::bench::env::{on_bare, random_id};
use crate::bench::limits::millis;
use crate::bench::{DirectPool, Rate, Samples, Watch};

pub const INSERT: &str = "insert into bare_commits (id, body) values ($1, $2)";
/// As long as an order is that something is to be run.
pub const BODY: &str = "a row about as long as what is written when somebody asks for a run to be started right now";

/// Makes the table.
pub async fn prepare(bare: &DirectPool) -> anyhow::Result<()> {
    let id = if matches!(bare, DirectPool::Postgres(_)) { "uuid" } else { "blob" };
    bare.execute(format!("create table if not exists bare_commits (id {id} primary key, body text not null)")).await
}

/// Rows a second, each committed by itself, by so many clients at once for so long.
pub async fn rate(bare: &DirectPool, clients: usize, length: Duration) -> anyhow::Result<Rate> {
    prepare(bare).await?;
    let watch = Watch::start();
    let counts = match bare {
        DirectPool::Postgres(pool) => {
            let client = async || {
                let mut connection = pool.acquire().await?;
                let mut rows = 0_u64;
                loop {
                    sqlx::query(INSERT).bind(random_id()).bind(BODY).execute(&mut *connection).await?;
                    rows += 1;
                    if watch.elapsed() >= length {
                        return Ok::<u64, sqlx::Error>(rows);
                    }
                }
            };
            try_join_all((0..clients).map(|_| client())).await?
        }
        // one writer, whoever writes
        DirectPool::Sqlite(pool) => {
            let mut connection = pool.acquire().await?;
            let mut rows = 0;
            while rows == 0 || watch.elapsed() < length {
                sqlx::query(INSERT).bind(random_id()).bind(BODY).execute(&mut *connection).await?;
                rows += 1;
            }
            vec![rows]
        }
    };
    Ok(watch.rate(counts.iter().sum::<u64>() as usize))
}

/// How long each of so many groups of commits takes, one commit after the other, in milliseconds. `gap` passes after
/// each group: a machine that was idle takes longer than one that is at it.
pub async fn times(bare: &DirectPool, groups: usize, commits: usize, gap: Duration) -> anyhow::Result<Samples> {
    prepare(bare).await?;
    let mut took = Vec::with_capacity(groups);
    on_bare!(bare, |pool| {
        let mut connection = pool.acquire().await?;
        for _ in 0..groups {
            let began = Instant::now();
            for _ in 0..commits {
                sqlx::query(INSERT).bind(random_id()).bind(BODY).execute(&mut *connection).await?;
            }
            took.push(millis(began));
            pause(gap).await;
        }
    });
    Ok(Samples::new(took))
}
