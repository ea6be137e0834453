//! What tasks have told, so that the end of a run is told with measure: a step of the transaction that ends it.
//!
//! The row of a task is locked before it is judged: of two runs that end at once with the same fault one is told. Rows
//! are locked in the order of their tasks, after everything else that such a transaction locks.

use chrono::{DateTime, Utc};

use crate::notification::measure::{Alert, Told};
use crate::store::Split;

#[derive(sqlx::FromRow)]
pub(super) struct ToldRow {
    output_hash: Option<Vec<u8>>,
    alert_code: Option<String>,
    alert_count: i64,
    alert_since: Option<DateTime<Utc>>,
    alert_told_at: Option<DateTime<Utc>>,
}

impl ToldRow {
    pub fn told(self) -> Told {
        let alert = self.alert_code.zip(self.alert_since).zip(self.alert_told_at);
        let alert = alert.map(|((code, since), told_at)| Alert { code, count: self.alert_count, since, told_at });
        Told { output_hash: self.output_hash, alert }
    }
}

macro_rules! select_told {
    ($rest:literal) => {
        concat!(
            "select output_hash, alert_code, alert_count, alert_since, alert_told_at
               from task_told where task_id = $1",
            $rest
        )
    };
}

pub(super) const ALERTED: &str = "select 1 from task_told where task_id = $1 and alert_code is not null";
pub(super) const TOLD: Split = Split { postgres: select_told!(" for update"), sqlite: select_told!("") };
pub(super) const FIRST: &str =
    "insert into task_told (task_id, tenant_id) values ($1, $2) on conflict (task_id) do nothing";
pub(super) const TELL: &str = "
    update task_told set output_hash = $2, alert_code = $3, alert_count = $4, alert_since = $5, alert_told_at = $6
     where task_id = $1";

/// The messages of these ends, by what their tasks have told before; what they have told then is written.
macro_rules! measured {
    ($store:ident, $conn:ident, $ends:expr, $now:expr) => {{
        use $crate::store::told::{ALERTED, FIRST, TELL, TOLD, ToldRow};
        let mut ends: Vec<&$crate::notification::measure::Measure> = $ends;
        ends.sort_by_key(|end| end.task_id);
        let mut told: Vec<$crate::notification::NewDelivery> = Vec::new();
        for end in ends {
            if end.stands_alone() {
                let alerted: Option<i32> =
                    sqlx::query_scalar(ALERTED).bind(end.task_id).fetch_optional(&mut *$conn).await?;
                if alerted.is_none() {
                    told.extend(end.alone());
                    continue;
                }
            }
            sqlx::query(FIRST).bind(end.task_id).bind(&end.delivery.tenant_id).execute(&mut *$conn).await?;
            let row: ToldRow = sqlx::query_as($store.db.text(TOLD)).bind(end.task_id).fetch_one(&mut *$conn).await?;
            let (next, said) = row.told().after(end, $now);
            let alert = next.alert.as_ref();
            sqlx::query(TELL)
                .bind(end.task_id)
                .bind(&next.output_hash)
                .bind(alert.map(|alert| &alert.code))
                .bind(alert.map_or(0, |alert| alert.count))
                .bind(alert.map(|alert| alert.since))
                .bind(alert.map(|alert| alert.told_at))
                .execute(&mut *$conn)
                .await?;
            told.extend(said);
        }
        told
    }};
}
pub(super) use measured;
