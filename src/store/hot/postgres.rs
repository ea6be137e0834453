//! Batches on Postgres: one statement each.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};
use sqlx::PgConnection;
use sqlx::types::Json;
use uuid::Uuid;

use crate::id::new_id;
use crate::notification::NewDelivery;
use crate::store::StoreError;
use crate::store::fires::{Batch, FireDue, Ready, Written};
use crate::store::hot::{Going, Hot, TENANTS_AT_ONCE, Taken, TakenRuns};
use crate::store::lease::{Beat, CLAIM_MARGIN, Claim, Finish, Lease, Park, line};
use crate::store::limits::one_at_a_time;
use crate::store::runs::NewRun;
use crate::store::starting::{Take, Turn};
use crate::store::text::{document, optional, optional_document, text};

/// A row that `fire` answers: run, instant, token, lease, whether it entered the queue, and its time limit if it started.
type Made = (Uuid, DateTime<Utc>, i64, Option<DateTime<Utc>>, bool, Option<DateTime<Utc>>);

/// A run that is recorded; what there is of it in the queue, unless it is skipped.
struct Recorded<'a> {
    run: &'a NewRun,
    queued: Option<&'a Ready>,
}

/// A row that `take` answers; without a run: the last tenant whose turn it was, and how many there were.
#[derive(sqlx::FromRow)]
struct TakenRow {
    run_id: Option<Uuid>,
    task_id: Option<Uuid>,
    tenant_id: Option<String>,
    run_at: Option<DateTime<Utc>>,
    lease_token: i64,
    lease_until: Option<DateTime<Utc>>,
    deadline_at: Option<DateTime<Utc>>,
}

impl TakenRow {
    fn add_to(self, taken: &mut TakenRuns, run_id: Uuid, now: DateTime<Utc>) {
        let lease = Lease { run_id, token: self.lease_token };
        let tenant_id = self.tenant_id.unwrap_or_default();
        let (run_at, until) = (self.run_at.unwrap_or(now), self.lease_until.unwrap_or(now));
        let claim = Claim { lease, run_at, until, line: line(&tenant_id) };
        let going = self.deadline_at.map(|deadline_at| Going {
            run_id,
            task_id: self.task_id,
            tenant_id,
            lease_token: self.lease_token,
            deadline_at,
        });
        taken.add(claim, going, now);
    }
}

impl Hot for PgConnection {
    async fn fire(&mut self, batch: &Batch, ask: &FireDue) -> Result<Written, StoreError> {
        let mut written = Written::default();
        if batch.moves.is_empty() {
            return Ok(written);
        }
        let moves = &batch.moves;
        let ready = &batch.runs;
        let all: Vec<Recorded> = ready
            .iter()
            .map(|ready| Recorded { run: &ready.run, queued: Some(ready) })
            .chain(batch.skipped.iter().map(|run| Recorded { run, queued: None }))
            .collect();
        let made: Vec<Made> = sqlx::query_as(include_str!("../sql/fire.postgres.sql"))
            .bind(moves.iter().map(|m| m.task_id).collect::<Vec<_>>())
            .bind(moves.iter().map(|m| m.epoch).collect::<Vec<_>>())
            .bind(moves.iter().map(|m| m.next_at).collect::<Vec<_>>())
            .bind(moves.iter().map(|m| m.nominal_at).collect::<Vec<_>>())
            .bind(moves.iter().map(|m| m.fired).collect::<Vec<_>>())
            .bind(ask.now)
            .bind(ask.worker)
            .bind(ask.start.map(|start| start.lease_until))
            .bind(all.iter().map(|r| r.run.id).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.task_id).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.tenant_id.as_str()).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.fire_key.as_str()).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.trigger_type.as_str()).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.scheduled_for).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.state.as_str()).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.reason.as_deref()).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.run.missed.as_ref().map(Json)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.map(|q| q.epoch)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.map(|q| q.run_at)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.and_then(|q| q.lease_until)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.and_then(|q| q.overlap)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.is_some_and(|q| q.starts)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.is_some_and(|q| q.needs_slot)).collect::<Vec<_>>())
            .bind(all.iter().map(|r| r.queued.map(|q| q.timeout_seconds)).collect::<Vec<_>>())
            .fetch_all(&mut *self)
            .await?;
        let runs: HashMap<Uuid, &Ready> = ready.iter().map(|r| (r.run.id, r)).collect();
        let mut recorded = HashSet::with_capacity(ready.len());
        for (run_id, run_at, token, until, queued, deadline_at) in made {
            match (queued, deadline_at) {
                (false, _) => written.skipped += 1,
                (true, Some(deadline_at)) => {
                    let run = runs[&run_id].run.running(ask.now);
                    let (task_id, tenant_id) = (run.task_id, run.tenant_id.clone());
                    written.going.push((Going { run_id, task_id, tenant_id, lease_token: token, deadline_at }, run));
                }
                (true, None) => {
                    let line = line(&runs[&run_id].run.tenant_id);
                    let lease = Lease { run_id, token };
                    written.claims.extend(until.map(|until| Claim { lease, run_at, until, line }));
                }
            }
            if queued {
                recorded.insert(run_id);
            }
        }
        written.recorded = recorded.len();
        let unmade = runs.values().filter(|r| r.starts && !recorded.contains(&r.run.id));
        let unmade: Vec<Uuid> = unmade.map(|r| r.run.id).collect();
        if !unmade.is_empty() {
            let given_back = "delete from slots where run_id = any($1)";
            sqlx::query(given_back).bind(unmade).execute(&mut *self).await?;
        }
        settle(self, &batch.completed, "completed", ask.now).await?;
        settle(self, &batch.disabled, "disabled", ask.now).await?;
        Ok(written)
    }

    async fn take(&mut self, take: &Take) -> Result<TakenRuns, StoreError> {
        if take.limits.any() {
            one_at_a_time(self).await?;
        }
        let rows: Vec<TakenRow> = sqlx::query_as(unlocked(include_str!("../sql/take.postgres.sql")))
            .bind(take.now)
            .bind(take.ahead)
            .bind(take.limit)
            .bind(take.lease_until)
            .bind(take.worker)
            .bind(take.fair.is_some())
            .bind(take.fair.as_ref().map_or("", |turn| turn.0.as_str()))
            .bind(TENANTS_AT_ONCE)
            .bind(CLAIM_MARGIN.num_milliseconds())
            .bind(take.limits.per_tenant)
            .bind(take.limits.total)
            .fetch_all(self)
            .await?;
        let mut taken = TakenRuns::default();
        for row in rows {
            match row.run_id {
                Some(run_id) => row.add_to(&mut taken, run_id, take.now),
                // with fewer tenants than fit, the next turn begins with the first
                None if row.lease_token < TENANTS_AT_ONCE => {}
                None => taken.turn = Turn(row.tenant_id.unwrap_or_default()),
            }
        }
        Ok(taken)
    }

    async fn start(
        &mut self,
        leases: &[Lease],
        now: DateTime<Utc>,
        lease_until: DateTime<Utc>,
    ) -> Result<Vec<Going>, StoreError> {
        let start = include_str!("../sql/start.postgres.sql");
        Ok(sqlx::query_as(
            planted_text!("no_slot", start, "where a.task_id is null or a.overlap = 'allow'" => "where true"),
        )
        .bind(leases.iter().map(|lease| lease.run_id).collect::<Vec<_>>())
        .bind(leases.iter().map(|lease| lease.token).collect::<Vec<_>>())
        .bind(now)
        .bind(lease_until)
        .fetch_all(self)
        .await?)
    }

    async fn beat(&mut self, leases: &[Lease], lease_until: DateTime<Utc>) -> Result<Vec<Beat>, StoreError> {
        Ok(sqlx::query_as(include_str!("../sql/beat.postgres.sql"))
            .bind(leases.iter().map(|lease| lease.run_id).collect::<Vec<_>>())
            .bind(leases.iter().map(|lease| lease.token).collect::<Vec<_>>())
            .bind(lease_until)
            .fetch_all(self)
            .await?)
    }

    async fn finish(&mut self, ends: &[Finish], now: DateTime<Utc>) -> Result<Vec<Taken>, StoreError> {
        let errors = ends.iter().map(|f| optional_document(f.error.as_ref())).collect::<Result<Vec<_>, _>>()?;
        let finish = include_str!("../sql/finish.postgres.sql");
        Ok(sqlx::query_as(planted_text!("no_fence", finish, "and q.lease_token = f.lease_token" => ""))
            .bind(ends.iter().map(|f| f.lease.run_id).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.lease.token).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.state.as_str()).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| optional(f.reason.as_deref())).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| optional(f.output.as_deref())).collect::<Vec<_>>())
            .bind(errors)
            .bind(ends.iter().map(|f| f.usage.turns).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.usage.tool_calls).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.usage.input_tokens).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.usage.output_tokens).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.usage.cost_micros).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.ran_ms).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.again.map(|again| again.run_at)).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.attempts_back()).collect::<Vec<_>>())
            .bind(now)
            .bind(ends.iter().map(|f| i32::from(f.crashed)).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| i32::from(f.infra_retry)).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.park.as_ref().map(Park::wake_at)).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.park.as_ref().map(Park::why)).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.keeps_slot()).collect::<Vec<_>>())
            .bind(ends.iter().map(|f| f.unconfirmed).collect::<Vec<_>>())
            .fetch_all(self)
            .await?)
    }

    async fn waited_for(&mut self, tasks: &[Uuid]) -> Result<Vec<Uuid>, StoreError> {
        if tasks.is_empty() {
            return Ok(Vec::new());
        }
        let waited_for =
            "select distinct task_id from parked where task_id = any($1) and why = 'overlap' order by task_id";
        Ok(sqlx::query_scalar(waited_for).bind(tasks).fetch_all(self).await?)
    }

    async fn post(&mut self, deliveries: &[&NewDelivery], now: DateTime<Utc>) -> Result<(), StoreError> {
        let fallbacks = deliveries.iter().map(|d| document(&d.fallback)).collect::<Result<Vec<_>, _>>()?;
        sqlx::query(include_str!("../sql/post.postgres.sql"))
            .bind(deliveries.iter().map(|_| new_id(now)).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.tenant_id.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.recipient.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| text(&d.channel)).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| text(&d.dedupe_key)).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.run_id).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| d.kind.as_str()).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| optional(d.subject.as_deref())).collect::<Vec<_>>())
            .bind(deliveries.iter().map(|d| optional(d.text.as_deref())).collect::<Vec<_>>())
            .bind(fallbacks)
            .bind(now)
            .bind(deliveries.iter().map(|d| d.urgency.as_str()).collect::<Vec<_>>())
            .execute(self)
            .await?;
        Ok(())
    }
}

/// Where a bug is planted: takes runs without the lock that keeps others from them, and lingers over it; or without
/// their tasks' slots.
fn unlocked(take: &'static str) -> &'static str {
    let lingers = planted_text!("no_skip_locked", take, "left join tasks t on" => "cross join (select pg_sleep(0.03)) as late left join tasks t on");
    let unlocked = planted_text!("no_skip_locked", lingers, "for update skip locked" => "");
    planted_text!("no_slot", unlocked, "a.may_start and (a.task_id is null or a.overlap = 'allow')" => "a.may_start")
}

async fn settle<S: AsRef<str>>(
    conn: &mut PgConnection,
    tasks: &[(Uuid, S)],
    status: &str,
    now: DateTime<Utc>,
) -> Result<(), StoreError> {
    if tasks.is_empty() {
        return Ok(());
    }
    sqlx::query(
        "update tasks t set status = $3, status_reason = s.reason, version = version + 1, updated_at = $4
           from unnest($1::uuid[], $2::text[]) as s (id, reason)
          where t.id = s.id and t.status = 'active'",
    )
    .bind(tasks.iter().map(|(id, _)| *id).collect::<Vec<_>>())
    .bind(tasks.iter().map(|(_, reason)| text(reason.as_ref())).collect::<Vec<_>>())
    .bind(status)
    .bind(now)
    .execute(conn)
    .await?;
    Ok(())
}
