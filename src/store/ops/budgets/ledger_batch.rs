//! The changes that a batch of calls makes to ledgers: what some have come to, what ended runs have left, and what
//! others reserve. On Postgres one statement, which an append to transcripts brings along; on SQLite a statement each,
//! in the transaction that is open.

use std::collections::BTreeMap;

use chrono::NaiveDate;
use serde::Serialize;
use sqlx::types::Json;
use uuid::Uuid;

use crate::domain::budget::{DayLimits, Spend};
use crate::store::StoreError;
use crate::store::db::text::text;
use crate::store::ops::budgets::ledgers::{
    LedgerChange, LedgerKey, LedgerRow, READ_LEDGER, ReservationRow, TAKE_OF_RUN, TAKE_RESERVATION, UpdatedLedger,
    change_ledgers, ledger_query, ledgers,
};
use crate::store::ops::budgets::reservation::Reservation;
use crate::store::ops::budgets::settlement::Settlement;
use crate::store::sql::sql;
use crate::store::tx::Tx;

/// Steps of a statement on Postgres, from `settled` to `reserved`: `{batch}` is a [`LedgerBatch`], and `{held}` says of
/// which rows `r` the lease is held. Nothing is reserved in a ledger that is not there.
pub(in crate::store) const LEDGERS: &str = sql!(LEDGERS_OF_ENDS; "{ended}" = "true");

/// As [`LEDGERS`]; `{ended}` says of which runs `e` all other reservations are taken back.
pub(in crate::store) const LEDGERS_OF_ENDS: &str =
    sql!(STEPS; "{there}" = "l.day is not null"; "{opened}" = ""; "{behind}" = "");

const STEPS: &str = include_str!("../../sql/ledgers.postgres.sql");

/// Whether the reservations were made, and what was changed; one row at least.
pub(in crate::store) const ANSWER: &str = "
    select f.is_reserved, m.tenant_id, m.task_id, m.day, m.spent_tokens, m.spent_cost, m.tokens, m.cost_micros,
           m.tokens_limit, m.cost_micros_limit, m.is_warned
      from fit f left join updated m on true";

const UPDATE_LEDGERS: &str = sql!(sql!("with ", LEDGERS, ANSWER); "{batch}" = "$1"; "{held}" = "true");

/// As [`UPDATE_LEDGERS`] for reservations alone: a ledger that is not there has nothing in it, and is opened with what
/// is reserved in it. One that another transaction opens meanwhile makes the statement fail as a whole, for what that
/// has reserved is not seen here.
const RESERVE_OPENING: &str = sql!(
    sql!("with ", STEPS, ANSWER);
    "{there}" = "true";
    "{opened}" = OPENED;
    "{behind}" = "and (select count(*) from opened) >= 0";
    "{batch}" = "$1";
    "{held}" = "true";
    "{ended}" = "true"
);

/// The ledgers that are not there: written behind the locks of the others, in the order of these, and before any of
/// the others is changed. An insert waits for the transaction that inserts or changes the same row, and not for one
/// that has it locked alone: so transactions that open ledgers never wait for each other in a circle.
const OPENED: &str = "opened as (
    insert into budget_days (tenant_id, task_id, day, tokens, cost_micros, reserved_tokens, reserved_cost_micros,
                             tokens_limit, cost_micros_limit)
    select c.tenant_id, c.task_id, c.day, 0, 0, c.asked_tokens, c.asked_cost, c.tokens_limit, c.cost_limit
      from changes c
      left join locked l on l.day = c.day and l.tenant_id = c.tenant_id and l.task_id = c.task_id
     cross join fit f
     where f.is_reserved and l.day is null
     order by c.tenant_id collate \"C\", c.task_id, c.day
    returning day
), ";

/// Calls whose ledgers are changed together.
#[derive(Default, Serialize)]
pub(in crate::store) struct LedgerBatch {
    settled: Vec<SettledCall>,
    ended: Vec<EndedRun>,
    asked: Vec<AskedCall>,
}

#[derive(Clone, Copy, Serialize)]
struct SettledCall {
    id: Uuid,
    tokens: i64,
    cost_micros: i64,
}

#[derive(Serialize)]
struct EndedRun {
    run_id: Uuid,
}

#[derive(Serialize)]
struct AskedCall {
    id: Uuid,
    run_id: Uuid,
    lease_token: i64,
    tenant_id: String,
    task_id: Option<Uuid>,
    day: NaiveDate,
    tokens: i64,
    cost_micros: i64,
    from_seq: i64,
    /// As one part of so many of the limits.
    parts: i64,
    tenant_tokens: Option<i64>,
    tenant_cost: Option<i64>,
    task_tokens: Option<i64>,
    task_cost: Option<i64>,
}

impl LedgerBatch {
    /// In the order in which rows are locked.
    pub fn new<'a>(
        settlements: impl Iterator<Item = &'a Settlement>,
        ended: impl IntoIterator<Item = Uuid>,
        asked: impl Iterator<Item = &'a Reservation>,
    ) -> LedgerBatch {
        let settled = |one: &Settlement| {
            let Spend { tokens, cost_micros } = one.spent;
            SettledCall { id: one.id, tokens, cost_micros }
        };
        let mut settled: Vec<SettledCall> = settlements.map(settled).collect();
        settled.sort_by_key(|one| one.id);
        let mut ended: Vec<EndedRun> = ended.into_iter().map(|run_id| EndedRun { run_id }).collect();
        ended.sort_by_key(|one| one.run_id);
        LedgerBatch { settled, ended, asked: asked.map(AskedCall::of).collect() }
    }

    /// Whether it changes nothing.
    pub fn is_empty(&self) -> bool {
        self.settled.is_empty() && self.ended.is_empty() && self.asked.is_empty()
    }
}

impl AskedCall {
    fn of(call: &Reservation) -> AskedCall {
        AskedCall {
            id: call.id,
            run_id: call.lease.run_id,
            lease_token: call.lease.token,
            tenant_id: text(&call.tenant).into_owned(),
            task_id: call.task_id,
            day: call.day,
            tokens: call.most.tokens,
            cost_micros: call.most.cost_micros,
            from_seq: call.from,
            parts: call.parts(),
            tenant_tokens: call.tenant_limits.tokens,
            tenant_cost: call.tenant_limits.cost_micros,
            task_tokens: call.task_limits.tokens,
            task_cost: call.task_limits.cost_micros,
        }
    }

    /// The ledgers of the call, each with its limits.
    fn ledgers(&self) -> impl Iterator<Item = (LedgerKey, DayLimits)> {
        let of_tenant = DayLimits { tokens: self.tenant_tokens, cost_micros: self.tenant_cost };
        let of_task = DayLimits { tokens: self.task_tokens, cost_micros: self.task_cost };
        ledgers(&self.tenant_id, self.task_id, self.day).zip([of_tenant, of_task])
    }
}

/// Outcome of a batch.
#[derive(Debug, Default)]
pub(in crate::store) struct LedgerOutcome {
    /// Whether the reservations of the batch were made: all of them, or none.
    pub is_reserved: bool,
    pub updated: Vec<UpdatedLedger>,
}

/// A row of [`ANSWER`].
#[derive(sqlx_macros::FromRow)]
pub(in crate::store) struct LedgerOutcomeRow {
    is_reserved: bool,
    tenant_id: Option<String>,
    task_id: Option<Uuid>,
    day: Option<NaiveDate>,
    spent_tokens: Option<i64>,
    spent_cost: Option<i64>,
    tokens: Option<i64>,
    cost_micros: Option<i64>,
    tokens_limit: Option<i64>,
    cost_micros_limit: Option<i64>,
    is_warned: Option<bool>,
}

impl LedgerOutcomeRow {
    fn updated(self) -> Option<UpdatedLedger> {
        Some(UpdatedLedger {
            key: LedgerKey { tenant: self.tenant_id?, task_id: self.task_id?, day: self.day? },
            spent: Spend { tokens: self.spent_tokens?, cost_micros: self.spent_cost? },
            used: Spend { tokens: self.tokens?, cost_micros: self.cost_micros? },
            limits: DayLimits { tokens: self.tokens_limit, cost_micros: self.cost_micros_limit },
            is_warned: self.is_warned?,
        })
    }
}

impl LedgerOutcome {
    /// As Postgres has answered it, in the order in which ledgers are locked.
    pub fn of(rows: Vec<LedgerOutcomeRow>) -> LedgerOutcome {
        let is_reserved = rows.first().is_some_and(|row| row.is_reserved);
        let mut updated: Vec<UpdatedLedger> = rows.into_iter().filter_map(LedgerOutcomeRow::updated).collect();
        updated.sort_by(|one, other| one.key.cmp(&other.key));
        LedgerOutcome { is_reserved, updated }
    }
}

/// Changes ledgers. Reservations are made if all of the batch fit in their ledgers, which exist.
pub(in crate::store) async fn update_ledgers(
    tx: &mut Tx<'_>,
    batch: &LedgerBatch,
) -> Result<LedgerOutcome, StoreError> {
    match tx {
        Tx::Postgres(conn) => {
            let rows = sqlx::query_as(UPDATE_LEDGERS).bind(Json(batch)).fetch_all(&mut **conn).await?;
            Ok(LedgerOutcome::of(rows))
        }
        Tx::Sqlite(_) => update_one_by_one(tx, batch).await,
    }
}

/// Reserves calls, if all of them fit in their ledgers, and opens with that those that the day does not have yet, which
/// are among the `unseen` ones.
///
/// # Errors
/// `Conflict`, and nothing written: another transaction has opened one of them meanwhile. Not on SQLite.
pub(in crate::store) async fn reserve_opening(
    tx: &mut Tx<'_>,
    calls: &[Reservation],
    unseen: &BTreeMap<LedgerKey, DayLimits>,
) -> Result<bool, StoreError> {
    let batch = LedgerBatch::new([].iter(), [], calls.iter());
    if let Tx::Postgres(conn) = tx {
        let rows = sqlx::query_as(RESERVE_OPENING).bind(Json(&batch)).fetch_all(&mut **conn).await?;
        return Ok(LedgerOutcome::of(rows).is_reserved);
    }
    open_ledgers(tx, unseen).await?;
    Ok(update_one_by_one(tx, &batch).await?.is_reserved)
}

/// Writes the first rows of these ledgers, in the order in which ledgers are locked. One that is there stays as it is.
pub(in crate::store) async fn open_ledgers(
    tx: &mut Tx<'_>,
    opened: &BTreeMap<LedgerKey, DayLimits>,
) -> Result<(), StoreError> {
    let mut insert = tx.build(
        "insert into budget_days (tokens, cost_micros, reserved_tokens, reserved_cost_micros, tenant_id, task_id, day,
                                  tokens_limit, cost_micros_limit)
         values ",
    );
    let mut before = "(0, 0, 0, 0, ";
    for (key, limits) in opened {
        insert
            .push(before)
            .push_bind(text(&key.tenant))
            .push(", ")
            .push_bind(key.task_id)
            .push(", ")
            .push_bind(key.day);
        insert.push(", ").push_bind(limits.tokens).push(", ").push_bind(limits.cost_micros).push(")");
        before = ", (0, 0, 0, 0, ";
    }
    insert.push(" on conflict (tenant_id, task_id, day) do nothing");
    insert.finish().persistent(false).execute().await?;
    Ok(())
}

async fn update_one_by_one(tx: &mut Tx<'_>, batch: &LedgerBatch) -> Result<LedgerOutcome, StoreError> {
    let mut changes: BTreeMap<LedgerKey, LedgerChange> = BTreeMap::new();
    for settled in &batch.settled {
        // none: it was settled before, and this is the same write once more
        let row: Option<ReservationRow> = tx.query(TAKE_RESERVATION).bind(settled.id).optional().await?;
        let spent = Spend { tokens: settled.tokens, cost_micros: settled.cost_micros };
        row.iter().for_each(|row| row.settle(&mut changes, spent));
    }
    for ended in &batch.ended {
        let rows: Vec<ReservationRow> = tx.query(TAKE_OF_RUN).bind(ended.run_id).all().await?;
        rows.iter().for_each(|row| row.settle(&mut changes, Spend::default()));
    }
    let is_reserved = reserve_all(tx, &batch.asked, &mut changes).await?;
    Ok(LedgerOutcome { is_reserved, updated: change_ledgers(tx, changes).await? })
}

/// Writes the reservations, and adds them to the changes, if they fit behind these.
async fn reserve_all(
    tx: &mut Tx<'_>,
    asked: &[AskedCall],
    changes: &mut BTreeMap<LedgerKey, LedgerChange>,
) -> Result<bool, StoreError> {
    let mut wanted: BTreeMap<LedgerKey, (Spend, DayLimits, i64)> = BTreeMap::new();
    for call in asked {
        for (key, limits) in call.ledgers() {
            let (sum, lowest, parts) = wanted.entry(key).or_insert((Spend::default(), limits, 1));
            *lowest = lowest.lower(limits);
            *parts = call.parts.max(*parts);
            *sum = *sum + Spend { tokens: call.tokens, cost_micros: call.cost_micros };
        }
    }
    for (key, (sum, limits, parts)) in &wanted {
        let row: Option<LedgerRow> = ledger_query(tx.query(READ_LEDGER), key).optional().await?;
        let Some(row) = row else { return Ok(false) };
        let before = changes.get(key).map_or(Spend::default(), LedgerChange::net);
        if limits.part(*parts).exceeded(row.used() + row.reserved() + before + *sum).is_some() {
            return Ok(false);
        }
    }
    for call in asked {
        tx.query(
            "insert into budget_reservations (id, run_id, lease_token, tenant_id, task_id, day, tokens, cost_micros, from_seq)
             values ($1, $2, $3, $4, $5, $6, $7, $8, $9)",
        )
        .bind(call.id)
        .bind(call.run_id)
        .bind(call.lease_token)
        .bind(call.tenant_id.as_str())
        .bind(call.task_id)
        .bind(call.day)
        .bind(call.tokens)
        .bind(call.cost_micros)
        .bind(call.from_seq)
        .execute()
        .await?;
    }
    for (key, (reserved, limits, _)) in wanted {
        let change = changes.entry(key).or_default();
        (change.reserved, change.limits) = (reserved, Some(limits));
    }
    Ok(true)
}
