//! Measurement of the database's time, so that the answer's way counts and nothing else.

use std::time::Duration;

use chrono::{DateTime, Utc};
use sqlx::PgConnection;

use crate::base::clock::{self, Measurement};
use crate::store::db::Db;
use crate::store::{Store, StoreError};

/// How often the database is asked in one measurement.
const QUESTIONS: usize = 3;

impl Store {
    /// Asks the database for its time and pushes the measurement into the clock: of a few the one that was answered
    /// soonest, because half of the way is what it may be wrong by. SQLite's clock is the machine's.
    pub async fn measure_clock(&self) -> Result<Measurement, StoreError> {
        let best = match &self.db {
            Db::Postgres { pool, .. } if !failpoint!("local_clock") => {
                // to wait for a connection is no part of the way
                let mut held = pool.acquire().await?;
                let mut best = self.measure_by(&mut held).await?;
                for _ in 1..QUESTIONS {
                    let other = self.measure_by(&mut held).await?;
                    if other.uncertainty < best.uncertainty {
                        best = other;
                    }
                }
                best
            }
            Db::Postgres { .. } | Db::Sqlite { .. } => Measurement {
                database_now: clock::machine_now(),
                at: self.clock.elapsed(),
                uncertainty: Duration::ZERO,
            },
        };
        self.clock.apply_measurement(best);
        Ok(best)
    }

    async fn measure_by(&self, conn: &mut PgConnection) -> Result<Measurement, StoreError> {
        let before = self.clock.elapsed();
        let database_now: DateTime<Utc> = sqlx::query_scalar("select clock_timestamp()").fetch_one(conn).await?;
        let round_trip = self.clock.elapsed().saturating_sub(before);
        Ok(Measurement { database_now, at: before + round_trip / 2, uncertainty: round_trip / 2 })
    }
}
