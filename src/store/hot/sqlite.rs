//! Batches on SQLite: prepared single-row statements, in the one transaction of the one writer.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::SqliteConnection;
use uuid::Uuid;

use crate::id::new_id;
use crate::notification::NewDelivery;
use crate::store::StoreError;
use crate::store::completions::PARK;
use crate::store::fires::{Batch, FireDue, Ready, Written};
use crate::store::hot::{Going, Hot, TENANTS_AT_ONCE, Taken, TakenRuns};
use crate::store::lease::{Beat, CLAIM_MARGIN, Claim, Finish, Lease, line};
use crate::store::limits::Room;
use crate::store::runs::insert_run;
use crate::store::slots::LEAVE_SLOT;
use crate::store::starting::{Take, Turn};
use crate::store::text::{document, optional, optional_document, text};

impl Hot for SqliteConnection {
    async fn fire(&mut self, batch: &Batch, ask: &FireDue) -> Result<Written, StoreError> {
        let mut written = Written::default();
        for m in &batch.moves {
            sqlx::query(
                "update due set next_at = $3, nominal_at = $4, fired = fired + $5, run_count = run_count + $5
                  where task_id = $1 and epoch = $2",
            )
            .bind(m.task_id)
            .bind(m.epoch)
            .bind(m.next_at)
            .bind(m.nominal_at)
            .bind(m.fired)
            .execute(&mut *self)
            .await?;
        }
        for run in &batch.skipped {
            written.skipped += insert_run!(self, run) as usize;
        }
        let mut token = next_tokens(self, batch.runs.iter().filter(|r| r.lease_until.is_some()).count()).await?;
        for ready in &batch.runs {
            let going = ready.starts && (!ready.needs_slot || take_slot(self, ready.run.task_id, ready.run.id).await?);
            if insert_fire(self, ready, going, ask.now).await? == 0 {
                sqlx::query(LEAVE_SLOT).bind(ready.run.id).execute(&mut *self).await?;
                continue;
            }
            written.recorded += 1;
            let claim = ready.lease_until.map(|until| {
                token += 1;
                let lease = Lease { run_id: ready.run.id, token };
                Claim { lease, run_at: ready.run_at, until, line: line(&ready.run.tenant_id) }
            });
            let started = ask.start.filter(|_| going);
            let deadline_at = started.map(|_| ask.now + TimeDelta::seconds(ready.timeout_seconds));
            let state = match (&claim, &started) {
                (_, Some(_)) => "started",
                (Some(_), None) => "claimed",
                (None, None) => "ready",
            };
            sqlx::query(
                "insert into queue (run_id, task_id, tenant_id, epoch, run_at, priority, state, lease_token,
                                    lease_until, worker, overlap, deadline_at)
                 values ($1, $2, $3, $4, $5, 0, $6, $7, $8, $9, $10, $11)",
            )
            .bind(ready.run.id)
            .bind(ready.run.task_id)
            .bind(&ready.run.tenant_id)
            .bind(ready.epoch)
            .bind(ready.run_at)
            .bind(state)
            .bind(claim.map_or(0, |c| c.lease.token))
            .bind(started.map(|start| start.lease_until).or(ready.lease_until))
            .bind(claim.map(|_| ask.worker))
            .bind(ready.overlap)
            .bind(deadline_at)
            .execute(&mut *self)
            .await?;
            match (claim, deadline_at) {
                (Some(claim), Some(deadline_at)) => {
                    let run = ready.run.running(ask.now);
                    let (task_id, tenant_id) = (run.task_id, run.tenant_id.clone());
                    let Lease { run_id, token: lease_token } = claim.lease;
                    written.going.push((Going { run_id, task_id, tenant_id, lease_token, deadline_at }, run));
                }
                _ => written.claims.extend(claim),
            }
        }
        settle(self, &batch.completed, "completed", ask.now).await?;
        settle(self, &batch.disabled, "disabled", ask.now).await?;
        Ok(written)
    }

    async fn take(&mut self, take: &Take) -> Result<TakenRuns, StoreError> {
        let mut taken = TakenRuns::default();
        let picked = match &take.fair {
            None => pick(self, READY, take, None, take.limit).await?,
            Some(after) => {
                let room = Room::of(self, take).await?;
                let tenants = tenants_in_turn(self, &after.0, &room).await?;
                let share = (room.all / tenants.len().max(1) as i64).max(1);
                let mut picked = Vec::new();
                for tenant in &tenants {
                    let left = (room.all - picked.len() as i64).min(room.of_tenant(tenant));
                    picked.extend(pick(self, READY_OF_TENANT, take, Some(tenant), share.min(left)).await?);
                }
                taken.turn = match tenants.last() {
                    Some(last) if tenants.len() as i64 == TENANTS_AT_ONCE => Turn(last.clone()),
                    _ => Turn::default(),
                };
                picked
            }
        };
        let mut token = next_tokens(self, picked.len()).await?;
        for (run_id, run_at, tenant_id) in picked {
            token += 1;
            let lease = Lease { run_id, token };
            let claim = Claim { lease, run_at, until: run_at.max(take.now) + CLAIM_MARGIN, line: line(&tenant_id) };
            sqlx::query(
                "update queue set state = 'claimed', lease_token = $2, lease_until = $3, worker = $4 where run_id = $1",
            )
            .bind(run_id)
            .bind(token)
            .bind(claim.until)
            .bind(take.worker)
            .execute(&mut *self)
            .await?;
            let going = match run_at <= take.now {
                true => start_one(self, &lease, take.now, take.lease_until).await?,
                false => None,
            };
            taken.add(claim, going, take.now);
        }
        Ok(taken)
    }

    async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<Going>, StoreError> {
        let mut going = Vec::with_capacity(leases.len());
        for lease in leases {
            let again: Option<Going> = sqlx::query_as(
                "update queue set lease_until = $3 where run_id = $1 and lease_token = $2 and state = 'started'
                 returning run_id, task_id, tenant_id, lease_token, deadline_at",
            )
            .bind(lease.run_id)
            .bind(lease.token)
            .bind(lease_until)
            .fetch_optional(&mut *self)
            .await?;
            match again {
                Some(again) => going.push(again),
                None => going.extend(start_one(self, lease, now, lease_until).await?),
            }
        }
        Ok(going)
    }

    async fn beat(&mut self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError> {
        let mut held = Vec::with_capacity(leases.len());
        for lease in leases {
            let beat: Option<Beat> = sqlx::query_as(
                "update queue set lease_until = $3 where run_id = $1 and lease_token = $2
                 returning run_id, cancel_reason",
            )
            .bind(lease.run_id)
            .bind(lease.token)
            .bind(lease_until)
            .fetch_optional(&mut *self)
            .await?;
            held.extend(beat);
        }
        Ok(held)
    }

    async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<Taken>, StoreError> {
        let mut taken = Vec::with_capacity(ends.len());
        for end in ends {
            let Lease { run_id, token } = end.lease;
            let fenced: Option<(Option<String>, Option<String>)> = match end.again {
                Some(again) => {
                    sqlx::query_as(
                        "update queue set state = 'ready', run_at = $3, lease_token = 0, lease_until = null,
                                worker = null, deadline_at = null
                          where run_id = $1 and lease_token = $2 and (state = 'started' or $4 and state = 'claimed')
                         returning null, null",
                    )
                    .bind(run_id)
                    .bind(token)
                    .bind(again.run_at)
                    .bind(end.unconfirmed.is_some())
                    .fetch_optional(&mut *self)
                    .await?
                }
                None => {
                    sqlx::query_as(
                        "delete from queue
                          where run_id = $1 and lease_token = $2 and (state = 'started' or $3 and state = 'claimed')
                         returning cancel_reason, overlap",
                    )
                    .bind(run_id)
                    .bind(token)
                    .bind(end.unconfirmed.is_some())
                    .fetch_optional(&mut *self)
                    .await?
                }
            };
            let Some((cancel_reason, overlap)) = fenced else { continue };
            if let Some(park) = &end.park {
                sqlx::query(PARK)
                    .bind(run_id)
                    .bind(park.wake_at())
                    .bind(park.why())
                    .bind(overlap)
                    .execute(&mut *self)
                    .await?;
            }
            if end.again.is_none() && !(end.keeps_slot() && cancel_reason.is_none()) {
                sqlx::query(LEAVE_SLOT).bind(run_id).execute(&mut *self).await?;
            }
            sqlx::query(
                "update runs set state = $2, reason = $3, output = $4, error = $5, turns = $6, tool_calls = $7,
                        input_tokens = $8, output_tokens = $9, cost_micros = $10, ran_ms = ran_ms + $11,
                        attempt = attempt - $12 + (state = 'queued'), finished_at = $13, crashes = crashes + $14,
                        infra_retries = infra_retries + $15,
                        started_at = case when state = 'queued' then coalesce(started_at, $16) else started_at end
                  where id = $1",
            )
            .bind(run_id)
            .bind(end.state.as_str())
            .bind(optional(end.reason.as_deref()))
            .bind(optional(end.output.as_deref()))
            .bind(optional_document(end.error.as_ref())?)
            .bind(end.usage.turns)
            .bind(end.usage.tool_calls)
            .bind(end.usage.input_tokens)
            .bind(end.usage.output_tokens)
            .bind(end.usage.cost_micros)
            .bind(end.ran_ms)
            .bind(end.attempts_back())
            .bind(end.finished_at(now))
            .bind(i32::from(end.crashed))
            .bind(i32::from(end.infra_retry))
            .bind(end.unconfirmed)
            .execute(&mut *self)
            .await?;
            let has_questions: bool = sqlx::query_scalar(
                "select exists (select 1 from approvals
                                 where run_id = $1
                                   and (status = 'pending'
                                        or (status in ('approved', 'edited') and replaced_by is null
                                            and began_at is null and hold_until > $2)))",
            )
            .bind(run_id)
            .bind(now)
            .fetch_one(&mut *self)
            .await?;
            taken.push(Taken { run_id, cancel_reason, has_questions });
        }
        Ok(taken)
    }

    async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        let mut waited_for = Vec::new();
        for task in tasks {
            let waits: Option<Uuid> =
                sqlx::query_scalar("select task_id from parked where task_id = $1 and why = 'overlap' limit 1")
                    .bind(task)
                    .fetch_optional(&mut *self)
                    .await?;
            waited_for.extend(waits);
        }
        Ok(waited_for)
    }

    async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError> {
        for d in deliveries {
            sqlx::query(
                "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, run_id, kind, subject, body,
                                         fallback, state, next_at, created_at, urgency)
                 values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, 'pending', $11, $11, $12)
                 on conflict (tenant_id, recipient, channel, dedupe_key) do nothing",
            )
            .bind(new_id(now))
            .bind(&d.tenant_id)
            .bind(&d.recipient)
            .bind(text(&d.channel))
            .bind(text(&d.dedupe_key))
            .bind(d.run_id)
            .bind(d.kind.as_str())
            .bind(optional(d.subject.as_deref()))
            .bind(optional(d.text.as_deref()))
            .bind(document(&d.fallback)?)
            .bind(now)
            .bind(d.urgency.as_str())
            .execute(&mut *self)
            .await?;
        }
        Ok(())
    }
}

/// Takes `count` lease tokens; answers the last one given before them. None are taken where none are needed: a write
/// would cost an idle service a commit to disk with each look.
pub(super) async fn next_tokens(conn: &mut SqliteConnection, count: usize) -> Result<i64, StoreError> {
    if count == 0 {
        return Ok(0);
    }
    Ok(sqlx::query_scalar("update lease_tokens set last = last + $1 returning last - $1")
        .bind(count as i64)
        .fetch_one(conn)
        .await?)
}

/// Records a run that is to be executed, as started where it is going; answers how many rows that made.
async fn insert_fire(
    conn: &mut SqliteConnection,
    ready: &Ready,
    going: bool,
    now: DateTime<Utc>,
) -> Result<u64, StoreError> {
    let run = &ready.run;
    let made = sqlx::query(
        "insert into runs (id, task_id, tenant_id, fire_key, trigger_type, scheduled_for, state, missed, created_at,
                           attempt, started_at)
         values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)
         on conflict (task_id, fire_key) do nothing",
    )
    .bind(run.id)
    .bind(run.task_id)
    .bind(&run.tenant_id)
    .bind(&run.fire_key)
    .bind(&run.trigger_type)
    .bind(run.scheduled_for)
    .bind(if going { "running" } else { "queued" })
    .bind(optional_document(run.missed.as_ref())?)
    .bind(run.created_at)
    .bind(i32::from(going))
    .bind(going.then_some(now))
    .execute(conn)
    .await?;
    Ok(made.rows_affected())
}

const READY: &str = "
    select run_id, run_at, tenant_id from queue where state = 'ready' and run_at <= $1 and $2 is null
     order by priority desc, run_at limit $3";
const READY_OF_TENANT: &str = "
    select run_id, run_at, tenant_id from queue where state = 'ready' and run_at <= $1 and tenant_id = $2
     order by priority desc, run_at limit $3";

async fn pick(
    conn: &mut SqliteConnection,
    statement: &'static str,
    take: &Take,
    tenant: Option<&String>,
    limit: i64,
) -> Result<Vec<(Uuid, DateTime<Utc>, String)>, StoreError> {
    if limit <= 0 {
        return Ok(Vec::new());
    }
    Ok(sqlx::query_as(statement).bind(take.ahead).bind(tenant).bind(limit).fetch_all(conn).await?)
}

/// Tenants that have ready runs, and may have more under way, by one look into the index each.
async fn tenants_in_turn(conn: &mut SqliteConnection, after: &str, room: &Room) -> Result<Vec<String>, StoreError> {
    let mut tenants: Vec<String> = Vec::new();
    let mut last = after.to_owned();
    while (tenants.len() as i64) < TENANTS_AT_ONCE {
        let next: Option<String> = sqlx::query_scalar(
            "select tenant_id from queue where state = 'ready' and tenant_id > $1 order by tenant_id limit 1",
        )
        .bind(&last)
        .fetch_optional(&mut *conn)
        .await?;
        let Some(next) = next else { break };
        last.clone_from(&next);
        if room.of_tenant(&next) > 0 {
            tenants.push(next);
        }
    }
    Ok(tenants)
}

/// Starts a claim if it still stands, was not cancelled, and has its task's slot.
async fn start_one(
    conn: &mut SqliteConnection,
    lease: &Lease,
    now: DateTime<Utc>,
    lease_until: DateTime<Utc>,
) -> Result<Option<Going>, StoreError> {
    let asked: Option<(Option<Uuid>, String, String, i64, i64)> = sqlx::query_as(
        "select q.task_id, q.tenant_id, coalesce(q.overlap, t.spec -> 'trigger' ->> 'overlap', 'skip'),
                coalesce(t.spec ->> 'timeout_seconds', 600), r.ran_ms
           from queue q join runs r on r.id = q.run_id left join tasks t on t.id = q.task_id
          where q.run_id = $1 and q.lease_token = $2 and q.state = 'claimed' and q.cancel_reason is null
            and r.state = 'queued'",
    )
    .bind(lease.run_id)
    .bind(lease.token)
    .fetch_optional(&mut *conn)
    .await?;
    let Some((task_id, tenant_id, overlap, timeout_seconds, ran_ms)) = asked else { return Ok(None) };
    if let Some(task_id) = task_id
        && overlap != "allow"
        && !take_slot(conn, task_id, lease.run_id).await?
    {
        return Ok(None);
    }
    let deadline_at = now + TimeDelta::milliseconds((timeout_seconds * 1000 - ran_ms).max(0));
    sqlx::query("update queue set state = 'started', lease_until = $2, deadline_at = $3 where run_id = $1")
        .bind(lease.run_id)
        .bind(lease_until)
        .bind(deadline_at)
        .execute(&mut *conn)
        .await?;
    sqlx::query(
        "update runs set state = 'running', attempt = attempt + 1, started_at = coalesce(started_at, $2)
          where id = $1",
    )
    .bind(lease.run_id)
    .bind(now)
    .execute(&mut *conn)
    .await?;
    Ok(Some(Going { run_id: lease.run_id, task_id, tenant_id, lease_token: lease.token, deadline_at }))
}

/// Whether the run has its task's slot now: free till now, or its own already.
pub(super) async fn take_slot(conn: &mut SqliteConnection, task_id: Uuid, run_id: Uuid) -> Result<bool, StoreError> {
    sqlx::query("insert into slots (task_id, run_id) values ($1, $2) on conflict (task_id) do nothing")
        .bind(task_id)
        .bind(run_id)
        .execute(&mut *conn)
        .await?;
    let holder: Uuid =
        sqlx::query_scalar("select run_id from slots where task_id = $1").bind(task_id).fetch_one(conn).await?;
    Ok(holder == run_id)
}

async fn settle<S: AsRef<str>>(
    conn: &mut SqliteConnection,
    tasks: &[(Uuid, S)],
    status: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    for (id, reason) in tasks {
        sqlx::query(
            "update tasks set status = $2, status_reason = $3, version = version + 1, updated_at = $4
              where id = $1 and status = 'active'",
        )
        .bind(id)
        .bind(status)
        .bind(text(reason.as_ref()))
        .bind(now)
        .execute(&mut *conn)
        .await?;
    }
    Ok(())
}
