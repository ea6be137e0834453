//! Bare drain: queued runs are claimed, taken from the queue and marked done, 500 at once by two connections. Nothing
//! was ever analysed: the statistics are missing, as after a burst.

use std::sync::atomic::{AtomicUsize, Ordering};

use futures::future::try_join_all;
use sqlx::PgPool;
use uuid::Uuid;

use crate::bench::env::random_id;
use crate::bench::limits::fire::{BATCH, CLIENTS};
use crate::bench::{Rate, Watch};

const TABLES: [&str; 6] = [
    "drop table if exists bare_queue, bare_done",
    "create table bare_queue (like queue including defaults) with (fillfactor = 70, autovacuum_enabled = false)",
    "alter table bare_queue add primary key (run_id)",
    "create index bare_queue_ready on bare_queue (priority desc, run_at) where state = 'ready'",
    "create table bare_done (like runs including defaults) with (fillfactor = 80, autovacuum_enabled = false)",
    "alter table bare_done add primary key (id), add unique (task_id, fire_key)",
];
const FILL: [&str; 2] = [
    "insert into bare_done (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, created_at)
     select ($1 || lpad(to_hex(n), 12, '0'))::uuid, ($1 || lpad(to_hex(n % 500), 12, '0'))::uuid, 'tenant-17', 'm:' || n,
            'schedule', now(), 'queued', now()
       from generate_series(1, $2::int) as g (n)",
    "insert into bare_queue (run_id, task_id, tenant_id, epoch, run_at, priority, state)
     select ($1 || lpad(to_hex(n), 12, '0'))::uuid, ($1 || lpad(to_hex(n % 500), 12, '0'))::uuid, 'tenant-17', 1, now(),
            1, 'ready'
       from generate_series(1, $2::int) as g (n)",
];
const CLAIM: &str = "
    with picked as (
        select run_id from bare_queue where state = 'ready' order by priority desc, run_at limit $1
           for update skip locked
    )
    update bare_queue q set state = 'started', lease_token = 1, lease_until = now(), deadline_at = now()
      from picked where q.run_id = picked.run_id
    returning q.run_id";
const DONE: &str = "
    with gone as (delete from bare_queue where run_id = any($1) returning run_id)
    update bare_done r
       set state = 'succeeded', attempt = 1, output = '', execution_ms = 1, started_at = now(), finished_at = now()
      from gone where r.id = gone.run_id";

/// Runs a second.
pub async fn measure(pool: &PgPool, count: usize) -> anyhow::Result<Rate> {
    for statement in TABLES {
        sqlx::query(statement).execute(pool).await?;
    }
    let base = random_id().simple().to_string();
    for statement in FILL {
        sqlx::query(statement).bind(&base[..20]).bind(count as i32).execute(pool).await?;
    }
    let done = AtomicUsize::new(0);
    let client = async || {
        let mut connection = pool.acquire().await?;
        loop {
            let claimed: Vec<Uuid> = sqlx::query_scalar(CLAIM).bind(BATCH as i64).fetch_all(&mut *connection).await?;
            if claimed.is_empty() {
                return Ok::<(), sqlx::Error>(());
            }
            done.fetch_add(claimed.len(), Ordering::Relaxed);
            sqlx::query(DONE).bind(&claimed).execute(&mut *connection).await?;
        }
    };
    let watch = Watch::start();
    try_join_all((0..CLIENTS).map(|_| client())).await?;
    let rate = watch.rate(count);
    let done = done.into_inner();
    anyhow::ensure!(done == count, "the bare loop drained {done} of {count}");
    Ok(rate)
}
