//! Windows whose time has come: those that close, and those whose held events are released.
//!
//! The longest due first; but where more are due than are looked at together, each tenant has a part of them in its
//! turn, so that a tenant with thousands of windows keeps no other's waiting.

use chrono::{DateTime, Utc};
use uuid::Uuid;

use crate::base::words::words;
use crate::store::db::text::document;
use crate::store::sql::sql;
use crate::store::tasks::tenant_turns::{self, TENANTS_WITH_DUE, in_rounds};
use crate::store::tx::Rows;
use crate::store::{Split, Store, StoreError};

/// Bytes of events, as counted when they came, after which no further window is closed in one transaction.
const CLOSED_BYTES: i64 = 4 * 1_048_576;

words! {
    /// The fate of the events that a paused task has held.
    pub enum EventRelease {
        /// Each goes the way that it would have gone.
        Run = "run",
        /// Each is recorded as skipped.
        Drop = "drop",
    }
}

/// A window whose time has come.
#[derive(Debug, Clone, PartialEq)]
pub struct DueWindow {
    /// Id of the window.
    pub id: Uuid,
    /// The task that it belongs to.
    pub task_id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
}

/// The held events of a resumed task, which are to be released.
#[derive(Debug, Clone, PartialEq)]
pub struct DueRelease {
    /// Id of the window.
    pub window_id: Uuid,
    /// The task that has held the events.
    pub task_id: Uuid,
    /// The tenant that owns the task.
    pub tenant_id: String,
    /// The fate of the events.
    pub release: EventRelease,
}

/// Kinds of windows that are looked for apart.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DueWindowKind {
    /// Its events become a run.
    Closing,
    /// The events that it has held are released.
    Released,
}

/// A window as it is found. A number of SQLite that is none counts as 0.
#[derive(sqlx_macros::FromRow)]
struct DueWindowRow {
    id: Uuid,
    task_id: Uuid,
    tenant_id: String,
    release: Option<String>,
    events: i64,
    bytes: i64,
}

/// Limits of the windows that are handled together, of which there is one in any case. `None`: no limit.
struct DueWindowLimits {
    windows: i64,
    events: Option<i64>,
    bytes: Option<i64>,
}

/// Statements for one kind of windows, which stands in the text so that its index can be used.
struct DueWindowStatements {
    /// In words that fit no index of one kind: those are in the order of tenants, and would be walked through.
    earliest: &'static str,
    /// From tenant to tenant.
    tenants: Split,
    /// The longest due (`$3` of each) of the listed tenants (`$2`). How a tenant is compared leaves Postgres no other
    /// index.
    of_tenants: Split,
}

const CLOSING: DueWindowStatements = DueWindowStatements {
    earliest: sql!(EARLIEST; "{kind}" = "<> 'buffer'"),
    tenants: Split {
        postgres: sql!(TENANTS; "{index}" = ""; "{kind}" = "<> 'buffer'"),
        sqlite: sql!(TENANTS; "{index}" = "indexed by event_windows_closing"; "{kind}" = "<> 'buffer'"),
    },
    of_tenants: Split {
        postgres: sql!(OF_TENANTS.postgres; "{kind}" = "<> 'buffer'"),
        sqlite: sql!(OF_TENANTS.sqlite; "{index}" = "event_windows_closing"; "{kind}" = "<> 'buffer'"),
    },
};
const RELEASED: DueWindowStatements = DueWindowStatements {
    earliest: sql!(EARLIEST; "{kind}" = "= 'buffer'"),
    tenants: Split {
        postgres: sql!(TENANTS; "{index}" = ""; "{kind}" = "= 'buffer'"),
        sqlite: sql!(TENANTS; "{index}" = "indexed by event_windows_released"; "{kind}" = "= 'buffer'"),
    },
    of_tenants: Split {
        postgres: sql!(OF_TENANTS.postgres; "{kind}" = "= 'buffer'"),
        sqlite: sql!(OF_TENANTS.sqlite; "{index}" = "event_windows_released"; "{kind}" = "= 'buffer'"),
    },
};

const EARLIEST: &str = "
    select id, task_id, tenant_id, release, cast(events as bigint) as events, cast(bytes as bigint) as bytes
      from event_windows where closes_at <= $1 and kind || '' {kind} order by closes_at limit $2";
const TENANTS: &str = sql!(
    TENANTS_WITH_DUE; "{table}" = "event_windows"; "{having}" = "d.kind {kind} and d.closes_at is not null";
    "{due}" = "d.closes_at <= $3"; "{order}" = "d.closes_at"
);
const OF_TENANTS: Split = Split {
    postgres: "select w.*
                 from jsonb_array_elements_text($2::jsonb) as t (tenant_id)
                cross join lateral (select d.id, d.task_id, d.tenant_id, d.release, cast(d.events as bigint) as events,
                                           cast(d.bytes as bigint) as bytes, d.closes_at
                                      from event_windows d
                                     where d.kind {kind} and d.tenant_id between t.tenant_id and t.tenant_id
                                       and d.closes_at <= $1
                                     order by d.tenant_id, d.closes_at
                                     limit $3) w
                order by w.closes_at",
    sqlite: "select w.id, w.task_id, w.tenant_id, w.release, cast(w.events as bigint) as events,
                    cast(w.bytes as bigint) as bytes
               from json_each($2) t
              cross join event_windows w
              where w.id in (select d.id from event_windows d indexed by {index}
                              where d.kind {kind} and d.tenant_id = t.value and d.closes_at <= $1
                              order by d.closes_at limit $3)
              order by w.closes_at",
};

impl DueWindowKind {
    fn statements(self) -> &'static DueWindowStatements {
        match self {
            DueWindowKind::Closing => &CLOSING,
            DueWindowKind::Released => &RELEASED,
        }
    }
}

impl Store {
    /// Windows that are due at `now`, to be closed together: up to `limit`, with as many events as a write may have and
    /// up to 4 MiB of them, one window at least. The earliest first; where more are due, as many of each tenant that
    /// has its turn.
    pub async fn due_windows(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueWindow>, StoreError> {
        let events = self.paces.windows.rows() as i64;
        let limits = DueWindowLimits { windows: limit, events: Some(events), bytes: Some(CLOSED_BYTES) };
        let due = self.find_due_windows(DueWindowKind::Closing, now, &limits).await?;
        let read = |row: DueWindowRow| DueWindow { id: row.id, task_id: row.task_id, tenant_id: row.tenant_id };
        Ok(due.into_iter().map(read).collect())
    }

    /// Up to `limit` tasks whose held events are to be released at `now`, the earliest first; where there are more, as
    /// many of each tenant that has its turn.
    pub async fn due_releases(&self, now: DateTime<Utc>, limit: i64) -> Result<Vec<DueRelease>, StoreError> {
        let limits = DueWindowLimits { windows: limit, events: None, bytes: None };
        let due = self.find_due_windows(DueWindowKind::Released, now, &limits).await?;
        let read = |row: DueWindowRow| DueRelease {
            window_id: row.id,
            task_id: row.task_id,
            tenant_id: row.tenant_id,
            release: if row.release.as_deref() == Some("drop") { EventRelease::Drop } else { EventRelease::Run },
        };
        Ok(due.into_iter().map(read).collect())
    }

    async fn find_due_windows(
        &self,
        kind: DueWindowKind,
        now: DateTime<Utc>,
        limits: &DueWindowLimits,
    ) -> Result<Vec<DueWindowRow>, StoreError> {
        let mut read = self.db.read().await?;
        let found = read.query(kind.statements().earliest).bind(now).bind(limits.windows).rows().await?;
        read.end().await?;
        let mut earliest = self.readable_windows(&found).await?;
        let fit = fitting(&earliest, limits);
        if (found.len() as i64) < limits.windows && fit == earliest.len() {
            return Ok(earliest);
        }
        let in_turn = self.windows_in_turn(kind, now, limits).await?;
        if in_turn.is_empty() {
            earliest.truncate(fit);
            return Ok(earliest);
        }
        Ok(in_turn)
    }

    /// Of the tenants that have their turn the first of each, then the second of each, and so on as far as there is
    /// room.
    async fn windows_in_turn(
        &self,
        kind: DueWindowKind,
        now: DateTime<Utc>,
        limits: &DueWindowLimits,
    ) -> Result<Vec<DueWindowRow>, StoreError> {
        let (cursor, statements) = (&self.window_cursors[kind as usize], kind.statements());
        let turn = self.next_turn(cursor, statements.tenants, now, limits.windows).await?;
        let each = tenant_turns::rows_per_tenant(limits.windows, turn.len());
        let mut read = self.db.read().await?;
        let found = read.query(statements.of_tenants).bind(now).bind(document(&turn)?).bind(each).rows().await?;
        read.end().await?;
        let (mut due, tenants) =
            in_rounds(self.readable_windows(&found).await?, &turn, |window| window.tenant_id.as_str());
        let fit = fitting(&due, limits);
        if fit < tenants {
            cursor.stop_at(&due[fit - 1].tenant_id);
        }
        due.truncate(fit);
        Ok(due)
    }

    /// The windows of these rows. One that can't be read is set aside, so that it isn't due at each look.
    async fn readable_windows(&self, found: &Rows) -> Result<Vec<DueWindowRow>, StoreError> {
        let (due, lost) = self.unreadable.partition_readable::<DueWindowRow, _, Uuid>("event_windows", found, Ok);
        for id in lost {
            self.set_aside_window(id, &"its row can't be read").await?;
        }
        Ok(due)
    }
}

/// How many of these windows fit: one at least, where there is one.
fn fitting(due: &[DueWindowRow], limits: &DueWindowLimits) -> usize {
    let is_beyond = |count: i64, limit: Option<i64>| limit.is_some_and(|limit| count > limit);
    let (mut events, mut bytes) = (0_i64, 0_i64);
    for (at, window) in due.iter().enumerate() {
        events = events.saturating_add(window.events.max(0));
        bytes = bytes.saturating_add(window.bytes.max(0));
        if at > 0 && (is_beyond(events, limits.events) || is_beyond(bytes, limits.bytes)) {
            return at;
        }
    }
    due.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::sqlite_plan;

    fn window(tenant: &str, events: i64, bytes: i64) -> DueWindowRow {
        let (id, tenant_id) = (Uuid::nil(), tenant.to_owned());
        DueWindowRow { id, task_id: id, tenant_id, release: None, events, bytes }
    }

    #[test]
    fn windows_fit_up_to_the_bound_of_events_and_bytes_and_one_does_in_any_case() {
        let limits = DueWindowLimits { windows: 9, events: Some(10), bytes: Some(100) };
        let unlimited = DueWindowLimits { windows: 9, events: None, bytes: None };
        let windows = |windows: &[(i64, i64)]| -> Vec<DueWindowRow> {
            windows.iter().map(|(events, bytes)| window("a", *events, *bytes)).collect()
        };
        let fit = |of: &[(i64, i64)]| fitting(&windows(of), &limits);
        assert_eq!([fit(&[]), fit(&[(5, 50), (5, 50)]), fit(&[(11, 101)]), fit(&[(11, 101), (1, 1)])], [0, 2, 1, 1]);
        assert_eq!([fit(&[(5, 50), (6, 50)]), fit(&[(5, 50), (5, 51)])], [1, 1]);
        assert_eq!(fit(&[(-7, -7), (i64::MAX, i64::MAX), (1, 1)]), 1, "numbers that are none overflow nothing");
        assert_eq!(fitting(&windows(&[(11, 101), (i64::MAX, i64::MAX)]), &unlimited), 2, "without limits all fit");
    }

    #[tokio::test]
    async fn on_sqlite_windows_of_a_tenant_are_found_by_an_index() {
        for (statements, index) in [(CLOSING, "event_windows_closing"), (RELEASED, "event_windows_released")] {
            for statement in [statements.tenants, statements.of_tenants] {
                let plan = sqlite_plan(statement.sqlite).await;
                let on_windows: Vec<&String> = plan.iter().filter(|step| step.contains(" d ")).collect();
                assert!(!on_windows.is_empty() && on_windows.iter().all(|step| step.contains(index)), "{plan:?}");
                assert!(!plan.iter().any(|step| step.contains("SCAN w")), "{plan:?}");
            }
            let plan = sqlite_plan(statements.earliest).await;
            assert!(plan.iter().any(|step| step.contains("event_windows_close ")), "{plan:?}");
        }
    }
}
