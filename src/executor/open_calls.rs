//! The calls of models of one run that may be made and are not on the record yet, and the reservations that they take
//! from.

use chrono::NaiveDate;
use uuid::Uuid;

use crate::domain::budget::Spend;
use crate::domain::run::{TranscriptEntry, TranscriptMessage, Usage};
use crate::executor::held_reservations::{HeldReservations, RecordedCall, SettledReservation};
use crate::store::Reservation;

/// Calls and reservations of one execution.
#[derive(Default)]
pub struct OpenCalls {
    /// Calls that may be made.
    pub calls: Vec<OpenCall>,
    /// Reservations that turns take from.
    pub held: HeldReservations,
    /// Reservations whose answer is lost: each later settlement takes them back, in case they were made.
    pub unconfirmed: Vec<Uuid>,
    /// The day in which this run reserves each call by itself, because much of the budget is used.
    pub scarce_day: Option<NaiveDate>,
    /// Whether the owner was told that most of the run's own budget is used.
    pub is_warned: bool,
}

/// A call that may be made and is not on the record yet.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct OpenCall {
    /// Id of the call.
    pub id: Uuid,
    /// `None`: it is a summary, beside the turns.
    pub turn: Option<i64>,
    /// The worst that it may come to.
    pub most: Spend,
    /// Where a budget of a day holds: the reservation that it was taken from. That of a summary is its own.
    pub reservation: Option<Uuid>,
}

/// The call behind entries that are about to be stored.
pub struct NextCall {
    /// The call.
    pub call: OpenCall,
    /// The reservation that is to be made for it; `None`: none is needed.
    pub reservation: Option<Reservation>,
}

impl OpenCall {
    /// Whether the usage of this entry may be that of the call.
    pub fn fits(&self, entry: &TranscriptEntry) -> bool {
        match self.turn {
            Some(turn) => turn == entry.turn && entry.usage.turns > 0,
            // no model has written one that was kept
            None => entry.message.is_of_summary() && (!is_without_call(entry) || is_unusable(entry)),
        }
    }

    /// The charge for the call by the entry that records it.
    fn charge(&self, entry: &TranscriptEntry) -> Spend {
        match is_without_call(entry) {
            true => Spend::default(),
            false => Spend::of(entry.usage).or_worst(self.most),
        }
    }
}

/// Whether an entry tells of no call of a model that was paid.
fn is_without_call(entry: &TranscriptEntry) -> bool {
    entry.model_call.is_none() && entry.usage == Usage::default()
}

fn is_unusable(entry: &TranscriptEntry) -> bool {
    matches!(entry.message, TranscriptMessage::Unusable { .. })
}

impl OpenCalls {
    /// The calls that these entries record, each with its charge.
    pub fn recorded_by(&self, entries: &[TranscriptEntry]) -> Vec<(OpenCall, Spend)> {
        let mut recorded: Vec<(OpenCall, Spend)> = Vec::new();
        for entry in entries {
            let is_recorded = |call: &OpenCall| recorded.iter().any(|(other, _)| other.id == call.id);
            if let Some(call) = self.calls.iter().find(|call| call.fits(entry) && !is_recorded(call)) {
                recorded.push((*call, call.charge(entry)));
            }
        }
        recorded
    }

    /// The worst of the calls that are under way once these are on the record.
    pub fn under_way(&self, recorded: &[(OpenCall, Spend)]) -> Vec<Spend> {
        let is_recorded = |open: &&OpenCall| recorded.iter().any(|(call, _)| call.id == open.id);
        self.calls.iter().filter(|open| !is_recorded(open)).map(|call| call.most).collect()
    }

    /// Forgets the call of a turn that failed without a cost, or is made again. One with a cost is on the record by
    /// then.
    pub fn forget_turn(&mut self, turn: i64) {
        let gone: Vec<OpenCall> = self.calls.iter().filter(|call| call.turn == Some(turn)).copied().collect();
        gone.iter().for_each(|call| self.forget(call));
    }

    /// Charges the call of a turn that was cut off, and that no entry tells of: it counts for what it has come to from
    /// now on.
    pub fn charge_cut_call(&mut self, turn: i64, spent: Spend) {
        let Some(call) = self.calls.iter_mut().rfind(|call| call.turn == Some(turn)) else { return };
        call.most = spent;
        if let Some(reservation) = call.reservation {
            self.held.charge(reservation, spent);
        }
    }

    /// Forgets a call that is not made.
    pub fn forget(&mut self, call: &OpenCall) {
        let known = self.calls.iter().position(|open| open.id == call.id).map(|place| self.calls.remove(place));
        if let Some(OpenCall { turn: Some(_), reservation: Some(reservation), most, .. }) = known {
            self.held.give_back(reservation, most);
        }
    }

    /// Notes from which reservation a call was taken.
    pub fn note_reservation(&mut self, id: Uuid, reservation: Uuid) {
        let call = self.calls.iter_mut().find(|open| open.id == id);
        call.into_iter().for_each(|call| call.reservation = Some(reservation));
    }
}

/// The turns among recorded calls.
pub fn turns(recorded: &[(OpenCall, Spend)]) -> Vec<RecordedCall> {
    let turn = |(call, spent): &(OpenCall, Spend)| {
        Some(RecordedCall {
            reservation: call.reservation.filter(|_| call.turn.is_some())?,
            most: call.most,
            spent: *spent,
        })
    };
    recorded.iter().filter_map(turn).collect()
}

/// The summaries among recorded calls, each with its own reservation.
pub fn summaries(recorded: &[(OpenCall, Spend)]) -> impl Iterator<Item = SettledReservation> {
    let summary = |(call, spent): &(OpenCall, Spend)| Some((call.reservation.filter(|_| call.turn.is_none())?, *spent));
    recorded.iter().filter_map(summary)
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::domain::run::transcript::{Compaction, CompactionKind, ModelCall, ModelTokens, SUMMARY_UNUSABLE};

    #[test]
    fn summary_is_charged_by_its_own_entry_and_nothing_where_no_model_was_paid() {
        let most = Spend { tokens: 900, cost_micros: 9 };
        let id = Uuid::from_u128(1);
        let call = OpenCall { id, turn: None, most, reservation: Some(id) };
        let open = OpenCalls { calls: vec![call], ..OpenCalls::default() };
        let charged = |message: &TranscriptMessage, input_tokens: i64, model_call: Option<ModelCall>| {
            let entry = TranscriptEntry {
                usage: Usage { input_tokens, ..Usage::default() },
                model_call,
                ..TranscriptEntry::new(0, 1, DateTime::UNIX_EPOCH, message.clone())
            };
            open.recorded_by(&[entry]).first().map(|(_, charge)| *charge)
        };
        let unusable = TranscriptMessage::Unusable { code: SUMMARY_UNUSABLE.into() };
        let by = CompactionKind::Summarised { summary: "in short".into(), errors: vec![] };
        let written = TranscriptMessage::Compaction(Compaction { from: 0, to: 0, pinned: vec![], by });
        let answered = || Some(ModelCall { model: "m".into(), tokens: ModelTokens::default() });
        assert_eq!(charged(&unusable, 0, None), Some(Spend::default()));
        assert_eq!(charged(&unusable, 70, None), Some(Spend { tokens: 70, cost_micros: 0 }));
        assert_eq!(charged(&written, 70, answered()), Some(Spend { tokens: 70, cost_micros: 0 }));
        assert_eq!(charged(&written, 0, answered()), Some(most), "its provider counts no tokens");
        assert_eq!(charged(&written, 0, None), None, "one that was kept is of no call");
    }

    #[test]
    fn call_that_was_cut_off_counts_for_what_it_has_come_to_and_others_for_their_worst() {
        let worst = Spend { tokens: 45_000, cost_micros: 450 };
        let call =
            |turn| OpenCall { id: Uuid::from_u128(turn as u128), turn: Some(turn), most: worst, reservation: None };
        let mut open = OpenCalls { calls: vec![call(2), call(3)], ..OpenCalls::default() };
        open.charge_cut_call(2, Spend { tokens: 100, cost_micros: 1 });
        assert_eq!(open.under_way(&[]), [Spend { tokens: 100, cost_micros: 1 }, worst]);
        open.charge_cut_call(9, Spend::default());
        assert_eq!(open.under_way(&[]).len(), 2);
    }
}
