//! Recording what was judged: piece by piece, and few matches beside many.

use std::time::Duration;

use futures::FutureExt;
use tokio::sync::Notify;

use crate::base::clock::pause;
use crate::engine::events::matcher::backlog::ReadRequest;
use crate::engine::events::matcher::lanes::Lane;
use crate::engine::events::matcher::received::ReceivedEvent;
use crate::engine::events::matcher::slice::{FailedWrite, SlicePiece, WRITE_BY_RULES};
use crate::engine::events::matcher::work::MatcherWork;
use crate::engine::events::matcher::{BETWEEN_LOOKS, EventMatcher};
use crate::engine::service::TickError;
use crate::store::{EventsFired, FireEvents, Match, StoreError};

/// Whether what was judged still held.
#[derive(PartialEq)]
enum RecordOutcome {
    Done,
    Stale,
}

impl EventMatcher {
    /// Records the next piece, and meanwhile reads on. Answers how many entries are at their end.
    pub(super) async fn record(&self, work: &mut MatcherWork, first: bool) -> Result<usize, TickError> {
        match work.lanes.next() {
            None => Ok(0),
            Some(Lane::Few) => self.record_few(work, first).await,
            Some(Lane::Many) => self.record_many(work).await,
        }
    }

    async fn record_few(&self, work: &mut MatcherWork, first: bool) -> Result<usize, TickError> {
        let Some(piece) = self.next_piece(work, Lane::Few).await? else { return Ok(0) };
        let goes_on = work.many || !first || !work.backlog.is_empty() || !work.judging.is_empty();
        // what is read since another piece was recorded comes when it comes
        let ahead = goes_on && self.start_reading(work, Duration::ZERO);
        let reading = async {
            match ahead {
                true => work.reading.join_next().await,
                false => None,
            }
        };
        let (fired, read, acknowledged) =
            tokio::join!(self.fire(&piece, Lane::Few), reading, self.acknowledge(&mut work.done));
        let finished = self.settle(work, Lane::Few, &piece, fired);
        self.collect_read(work, read)?;
        acknowledged?;
        finished
    }

    /// Records a piece of the lane of many; the other lane goes on until it is recorded.
    async fn record_many(&self, work: &mut MatcherWork) -> Result<usize, TickError> {
        let Some(piece) = self.next_piece(work, Lane::Many).await? else { return Ok(0) };
        // what is acknowledged stays in the work until it is: a round may be broken off
        let done = work.done.clone();
        let over = Notify::new();
        let many = async {
            let fired = self.fire(&piece, Lane::Many).await;
            over.notify_one();
            fired
        };
        let (fired, beside, acknowledged) =
            tokio::join!(many, self.process_until(work, &over), self.bus.acknowledge(&done));
        let finished = self.settle(work, Lane::Many, &piece, fired);
        acknowledged?;
        work.done.drain(..done.len());
        Ok(beside? + finished?)
    }

    async fn next_piece(&self, work: &mut MatcherWork, lane: Lane) -> Result<Option<SlicePiece>, TickError> {
        let piece = work.lanes.next_piece(lane, self.store.events_at_once());
        let ready = work.lanes.lane(lane);
        if let Some(piece) = piece.as_ref().filter(|_| failpoint!("acknowledge_before_commit")) {
            self.bus.acknowledge(&ready.ids_of(piece)).await?;
            pause(Duration::from_millis(300)).await;
        }
        Ok(piece)
    }

    /// Reads, has judged, and records few matches of a tenant as they come, until `over`.
    async fn process_until(&self, work: &mut MatcherWork, over: &Notify) -> Result<usize, TickError> {
        let mut finished = 0;
        let over = over.notified();
        let mut over = std::pin::pin!(over);
        while over.as_mut().now_or_never().is_none() {
            self.start_reading(work, BETWEEN_LOOKS);
            self.start_judging(work);
            finished += self.collect_finished(work)?;
            if let Some(piece) = self.next_piece(work, Lane::Few).await? {
                let fired = self.fire(&piece, Lane::Few).await;
                finished += self.settle(work, Lane::Few, &piece, fired)?;
                continue;
            }
            let MatcherWork { reading, judging, .. } = &mut *work;
            tokio::select! {
                () = &mut over => break,
                Some(read) = reading.join_next() => self.collect_read(work, Some(read))?,
                Some(judged) = judging.join_next() => finished += self.collect_judged(work, judged)?,
            }
        }
        Ok(finished)
    }

    /// Starts a read that waits so long for the first entry, unless one is under way or nothing may be read. Whether it
    /// did.
    pub(super) fn start_reading(&self, work: &mut MatcherWork, wait: Duration) -> bool {
        let wanted = if work.away || !work.reading.is_empty() { None } else { work.next_read() };
        let Some(ReadRequest { full, limit }) = wanted else { return false };
        let intake = self.intake.clone();
        work.reading.spawn(async move { intake.read(&full, limit, wait).await });
        true
    }

    /// Goes by how the recording of a piece ended. One event that fails must not hold up the others, nor one tenant
    /// another.
    fn settle(
        &self,
        work: &mut MatcherWork,
        lane: Lane,
        piece: &SlicePiece,
        fired: Result<RecordOutcome, StoreError>,
    ) -> Result<usize, TickError> {
        work.away = matches!(fired, Err(StoreError::Unavailable(_) | StoreError::LeaseLost));
        let error = match fired {
            Ok(RecordOutcome::Done) => {
                let whole = work.lanes.recorded(lane, piece);
                let count = whole.len();
                self.events.inc_by(count as u64);
                work.done.extend(whole.into_iter().map(|taken| taken.id));
                return Ok(count);
            }
            Ok(RecordOutcome::Stale) => {
                // each is put before those that are there
                for slice in work.lanes.stale(lane, piece).into_iter().rev() {
                    work.backlog.put_back(&slice.tenant, slice.events, Some(slice.version));
                }
                return Ok(0);
            }
            Err(error) if work.away => {
                work.lanes.not_recorded(lane);
                return Err(error.into());
            }
            Err(error) => error,
        };
        tracing::warn!(%error, matches = piece.matches.len(), "events can't be recorded together, fewer are tried");
        match work.lanes.failed(lane, piece) {
            FailedWrite::Again => Ok(0),
            FailedWrite::Event(taken) => {
                self.leave_unhandled(work, taken, &error);
                Ok(1)
            }
        }
    }

    /// Leaves an entry that can't be handled now: it comes again from the bus, and in the end is a dead letter.
    pub(super) fn leave_unhandled(&self, work: &mut MatcherWork, taken: ReceivedEvent, error: &StoreError) {
        match taken.deliveries >= self.max_deliveries {
            true => work.hopeless.push((taken.entry(), error.to_string())),
            false => tracing::warn!(entry = taken.id, %error, "an event can't be recorded, it comes again"),
        }
    }

    /// Records a piece.
    async fn fire(&self, piece: &SlicePiece, lane: Lane) -> Result<RecordOutcome, StoreError> {
        let rules = piece.matches.iter().filter(|matched| !matched.is_stateless());
        let (straight, by_rules): (Vec<Match>, Vec<Match>) = match rules.count() {
            0 => return self.fire_batch(&piece.shards, &piece.matches, lane).await,
            _ => piece.matches.iter().cloned().partition(Match::is_stateless),
        };
        let straight = (!straight.is_empty()).then_some(straight.as_slice());
        for matches in straight.into_iter().chain(by_rules.chunks(WRITE_BY_RULES)) {
            if self.fire_batch(&piece.shards, matches, lane).await? == RecordOutcome::Stale {
                return Ok(RecordOutcome::Stale);
            }
        }
        Ok(RecordOutcome::Done)
    }

    async fn fire_batch(
        &self,
        shards: &[(i32, i64)],
        matches: &[Match],
        lane: Lane,
    ) -> Result<RecordOutcome, StoreError> {
        let fires = matches.iter().filter(|matched| matched.is_fire());
        let tenants: Vec<&str> = fires.map(|matched| matched.arrival.event.tenant.as_str()).collect();
        let permit = self.starter.acquire_for(&tenants).await;
        let now = self.store.clock().now();
        let (worker, start) = (self.starter.worker(), self.starter.start(&permit, now));
        let (room, few) = (permit.prefetch, lane == Lane::Few);
        let ask = FireEvents { now, shards, matches, worker, room, start: start.as_ref(), few };
        let EventsFired::Done(recorded) = self.store.fire_events(&ask).await? else { return Ok(RecordOutcome::Stale) };
        self.matched.inc_by(recorded.recorded as u64);
        self.skipped.inc_by(recorded.skipped as u64);
        self.starter.take_in(recorded.claims, recorded.started);
        Ok(RecordOutcome::Done)
    }
}
