//! Bare fire: what a fire costs at the least, whoever does it. Due rows are claimed and moved on and their runs
//! recorded in one statement, the runs marked done in a second; 500 at once, by two connections.
//!
//! The rows hold what those of the service hold, in tables of the same columns; the indexes are those without which
//! nothing is found, or could be recorded twice.

use std::sync::atomic::{AtomicUsize, Ordering};

use chrono::{DateTime, Utc};
use futures::future::try_join_all;
use sqlx::PgPool;
use uuid::Uuid;

use crate::bench::env::random_id;
use crate::bench::{Rate, Watch};

/// Rows of a statement.
pub const BATCH: usize = 500;
/// Connections.
pub const CLIENTS: usize = 2;

const TABLES: [&str; 6] = [
    "drop table if exists bare_due, bare_fired",
    "create table bare_due (like due including defaults) with (fillfactor = 60)",
    "alter table bare_due add primary key (task_id)",
    "create index bare_due_next on bare_due (kind, next_at) where next_at is not null",
    "create table bare_fired (like runs including defaults) with (fillfactor = 80)",
    "alter table bare_fired add primary key (id), add unique (task_id, fire_key)",
];
const FILL: &str = "
    insert into bare_due (task_id, kind, next_at, nominal_at, epoch)
    select ($1 || lpad(to_hex(n), 12, '0'))::uuid, 'schedule', now(), now(), 1 from generate_series(1, $2::int) as g (n)";
const FIRE: &str = "
    with picked as (
        select task_id, nominal_at, row_number() over () as n
          from (select task_id, nominal_at from bare_due
                 where kind = 'schedule' and next_at <= $1 order by next_at limit $3 for update skip locked) as due
    ), moved as (
        update bare_due d
           set next_at = p.nominal_at + interval '1 hour', nominal_at = p.nominal_at + interval '1 hour',
               fire_count = d.fire_count + 1, run_count = d.run_count + 1
          from picked p
         where d.task_id = p.task_id
    )
    insert into bare_fired (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, attempt, created_at,
                            started_at)
    select ids.id, p.task_id, 'tenant-17', 's:' || (extract(epoch from p.nominal_at) * 1000)::bigint, 'schedule',
           p.nominal_at, 'running', 1, $1, $1
      from picked p join unnest($2::uuid[]) with ordinality as ids (id, n) on ids.n = p.n
    returning id";
const DONE: &str = "
    update bare_fired set state = 'succeeded', output = '', execution_ms = 1, finished_at = $2 where id = any($1)";

/// Fires a second.
pub async fn measure(pool: &PgPool, count: usize) -> anyhow::Result<Rate> {
    for statement in TABLES {
        sqlx::query(statement).execute(pool).await?;
    }
    let base = random_id().simple().to_string();
    sqlx::query(FILL).bind(&base[..20]).bind(count as i32).execute(pool).await?;
    let until: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(pool).await?;
    let fired = AtomicUsize::new(0);
    let client = async || {
        let mut connection = pool.acquire().await?;
        loop {
            let ids: Vec<Uuid> = (0..BATCH).map(|_| random_id()).collect();
            let made: Vec<Uuid> =
                sqlx::query_scalar(FIRE).bind(until).bind(&ids).bind(BATCH as i64).fetch_all(&mut *connection).await?;
            if made.is_empty() {
                return Ok::<(), sqlx::Error>(());
            }
            fired.fetch_add(made.len(), Ordering::Relaxed);
            sqlx::query(DONE).bind(&made).bind(until).execute(&mut *connection).await?;
        }
    };
    let watch = Watch::start();
    try_join_all((0..CLIENTS).map(|_| client())).await?;
    let rate = watch.rate(count);
    let fired = fired.into_inner();
    anyhow::ensure!(fired == count, "the bare loop fired {fired} of {count}");
    Ok(rate)
}
