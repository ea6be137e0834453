//! The due tasks of a batch, planned piece by piece: a piece is bounded in steps, whatever tenants wrote.
//!
//! Between two pieces others have their turns of the computing threads. A batch of ordinary schedules is one piece.
//! Where it is more, the tenants of what is left take turns, so that no tenant's schedules hold up all of another's.

use std::collections::{HashMap, VecDeque};

use super::FireDue;
use super::batch::{FireBatch, UnplannableTask};
use super::due_row::DueRow;
use crate::domain::trigger::steps::PLANNED;
use crate::store::runs::starting::immediate_start::RemainingCapacity;

/// Steps after which a piece ends, with the task that took the last of them: so it takes less than twice what one task
/// may.
const PIECE: u64 = PLANNED;

/// The due tasks that are not planned yet.
pub(super) struct PlanningPieces {
    rows: VecDeque<DueRow>,
    ask: FireDue,
    left: RemainingCapacity,
    /// How many tasks of each tenant are planned.
    had: HashMap<String, usize>,
    in_turn: bool,
}

impl PlanningPieces {
    /// Rows of which none is planned yet.
    pub fn new(due: Vec<DueRow>, ask: FireDue) -> PlanningPieces {
        let left = RemainingCapacity::new(ask.room, ask.start.as_ref());
        PlanningPieces { rows: due.into(), left, ask, had: HashMap::new(), in_turn: false }
    }

    /// How many are not planned.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Plans the next piece, one task at least; those that can't be planned are answered beside the batch.
    pub fn piece(&mut self) -> (FireBatch, Vec<UnplannableTask>) {
        let (mut batch, mut unplannable) = (FireBatch::default(), Vec::new());
        let mut steps = 0;
        while steps < PIECE {
            let Some(row) = self.rows.pop_front() else { break };
            if !self.in_turn {
                next_turn(&mut self.had, row.tenant());
            }
            steps += row.plan_into(&self.ask, &mut self.left, &mut batch, &mut unplannable);
        }
        if !self.in_turn && !self.rows.is_empty() {
            self.order_by_tenant();
        }
        (batch, unplannable)
    }

    /// Tenants of which fewer tasks are planned come first, with one task each.
    fn order_by_tenant(&mut self) {
        let had = &mut self.had;
        let mut rows: Vec<_> = self.rows.drain(..).map(|row| (next_turn(had, row.tenant()), row)).collect();
        rows.sort_by_key(|(turn, _)| *turn);
        self.rows = rows.into_iter().map(|(_, row)| row).collect();
        self.in_turn = true;
    }
}

/// Which of its tenant's tasks the next one is.
fn next_turn(had: &mut HashMap<String, usize>, tenant: &str) -> usize {
    match had.get_mut(tenant) {
        Some(had) => {
            *had += 1;
            *had
        }
        None => {
            had.insert(tenant.to_owned(), 1);
            1
        }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;

    use super::*;
    use crate::store::Store;
    use crate::store::db::flow::QueueFlow;
    use crate::store::db::scratch::{Scratch, asked};
    use crate::store::tasks::fires::PIECES;

    const COSTLY: usize = 4;
    /// More of them than one batch has pieces.
    const MANY: usize = PIECES + 2;

    /// So many tasks of a hostile tenant, due first, that take all steps that one may; then two cheap ones of that
    /// tenant and one of another.
    async fn due(scratch: &Scratch, costly: usize) -> FireDue {
        for _ in 0..costly {
            scratch.task("hostile", json!({ "cron": "* * * * * *", "exclude": ["59 59 23 31 12 *"] })).await;
        }
        for tenant in ["hostile", "hostile", "quiet"] {
            scratch.task(tenant, json!({ "interval": "1h" })).await;
        }
        // a step for each of these at each of the seconds, and no second is left
        let exclusions: Vec<String> = (0..199).map(|number| format!("\"{} 0 1 1 *\"", number % 60)).collect();
        let mut writer = scratch.writer().acquire(QueueFlow::Engine("test")).await.expect("the writer");
        sqlx::query("update tasks set spec = replace(spec, '\"59 59 23 31 12 *\"', $1)")
            .bind(format!("{}, \"* * * * *\"", exclusions.join(", ")))
            .execute(&mut *writer)
            .await
            .expect("planted");
        scratch.clock.advance(TimeDelta::hours(1));
        FireDue { now: scratch.clock.now(), limit: 100, ..FireDue::default() }
    }

    async fn disabled(store: &Store) -> i64 {
        let read = async || {
            Ok::<i64, crate::store::StoreError>(
                store.db.read().await?.query("select count(*) from tasks where status = 'disabled'").scalar().await?,
            )
        };
        read().await.expect("a count")
    }

    #[tokio::test]
    async fn piece_has_one_task_that_takes_all_steps_and_the_quiet_tenant_is_in_the_second() {
        let scratch = Scratch::open().await;
        let ask = due(&scratch, COSTLY).await;
        let rows = scratch.store.read_due(ask.now, ask.limit, 0, &[]).await.expect("what is due");
        let mut unplanned = PlanningPieces::new(rows, ask);
        let mut pieces = Vec::new();
        while unplanned.len() > 0 {
            let (batch, unplannable) = unplanned.piece();
            let quiet = batch.runs.iter().any(|ready| ready.run.tenant_id == "quiet");
            pieces.push((batch.read.len(), unplannable.len(), quiet));
        }
        assert_eq!(pieces, [(1, 1, false), (2, 1, true), (1, 1, false), (1, 1, false), (2, 0, false)]);
    }

    #[tokio::test]
    async fn rest_of_a_batch_is_left_to_the_next_and_is_not_lost() {
        let scratch = Scratch::open().await;
        let ask = due(&scratch, MANY).await;
        let first = scratch.store.fire_due(&ask).await.expect("fired");
        // the second piece has a cheap task beside a costly one
        assert_eq!((first.disabled.len(), first.lost), (PIECES, 0));
        assert_eq!(first.tasks + first.left, MANY + 3);
        let second = scratch.store.fire_due(&ask).await.expect("fired");
        assert_eq!((second.tasks, second.left, second.lost), (first.left, 0, 0));
    }

    #[tokio::test]
    async fn batch_lets_others_write_between_its_pieces() {
        let scratch = Scratch::open().await;
        let ask = due(&scratch, COSTLY).await;
        let (store, writer, turns) = (&scratch.store, scratch.writer(), scratch.writer().queue());
        let writes = turns.acquire(&QueueFlow::of(Some("a"))).await;
        let seen = async {
            // the first piece is planned, and waits for the writer; this one waits behind it
            while turns.waiting() == 0 {
                tokio::task::yield_now().await;
            }
            let next = asked(writer.begin(QueueFlow::of(Some("b"))));
            drop(writes);
            let writes = next.await.expect("a turn");
            let seen = disabled(store).await;
            drop(writes);
            seen
        };
        let (fired, seen) = tokio::join!(store.fire_due(&ask), seen);
        assert_eq!(seen, 1);
        let fired = fired.expect("fired");
        assert_eq!((fired.tasks, fired.lost, fired.recorded, fired.disabled.len()), (COSTLY + 3, 0, 3, COSTLY));
        assert_eq!(disabled(store).await, COSTLY as i64);
    }
}
