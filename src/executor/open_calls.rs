//! The calls of models of one run that may be made and are not on the record yet, and the reservations that they take from.

use chrono::NaiveDate;
use uuid::Uuid;

use crate::domain::budget::Spend;
use crate::domain::run::TranscriptEntry;
use crate::executor::held_reservations::{HeldReservations, SettledReservation, ToldCall};
use crate::store::Reservation;

/// Calls and reservations of one execution.
#[derive(Default)]
pub struct OpenCalls {
    /// Calls that may be made.
    pub calls: Vec<OpenCall>,
    /// Reservations that turns take from.
    pub held: HeldReservations,
    /// Reservations of which nobody knows whether they were made, or will be: each append takes them back.
    pub unsure: Vec<Uuid>,
    /// The day of which so much is used that each call is reserved by itself.
    pub scarce: Option<NaiveDate>,
    /// The owner was told that most of the run's own budget is used.
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
            None => entry.message.is_of_summary(),
        }
    }
}

impl OpenCalls {
    /// The calls of these entries, each with what it has come to. A provider that counts no tokens is charged the worst.
    pub fn told_of(&self, entries: &[TranscriptEntry]) -> Vec<(OpenCall, Spend)> {
        let mut told: Vec<(OpenCall, Spend)> = Vec::new();
        for entry in entries {
            let is_told = |call: &OpenCall| told.iter().any(|(other, _)| other.id == call.id);
            if let Some(call) = self.calls.iter().find(|call| call.fits(entry) && !is_told(call)) {
                let spent = Spend::of(entry.usage);
                told.push((*call, if spent.tokens > 0 { spent } else { call.most }));
            }
        }
        told
    }

    /// The worst of the calls that are under way once these are on the record.
    pub fn under_way(&self, told: &[(OpenCall, Spend)]) -> Vec<Spend> {
        let is_told = |open: &&OpenCall| told.iter().any(|(call, _)| call.id == open.id);
        self.calls.iter().filter(|open| !is_told(open)).map(|call| call.most).collect()
    }

    /// Forgets turns whose calls are under way no more, and have come to nothing: what they have come to is told before another
    /// one is asked.
    pub fn forget_turns(&mut self) {
        let gone: Vec<OpenCall> = self.calls.iter().filter(|call| call.turn.is_some()).copied().collect();
        gone.iter().for_each(|call| self.forget(call));
    }

    /// Forgets a call that is not made.
    pub fn forget(&mut self, call: &OpenCall) {
        let known = self.calls.iter().position(|open| open.id == call.id).map(|place| self.calls.remove(place));
        if let Some(OpenCall { turn: Some(_), reservation: Some(reservation), most, .. }) = known {
            self.held.give_back(reservation, most);
        }
    }

    /// Notes from which reservation a call was taken.
    pub fn taken(&mut self, id: Uuid, reservation: Uuid) {
        let call = self.calls.iter_mut().find(|open| open.id == id);
        call.into_iter().for_each(|call| call.reservation = Some(reservation));
    }
}

/// Turns among calls that are told, by their reservations.
pub fn turns(told: &[(OpenCall, Spend)]) -> Vec<ToldCall> {
    let turn = |(call, spent): &(OpenCall, Spend)| {
        Some(ToldCall {
            reservation: call.reservation.filter(|_| call.turn.is_some())?,
            most: call.most,
            spent: *spent,
        })
    };
    told.iter().filter_map(turn).collect()
}

/// Summaries among calls that are told, by their reservations.
pub fn summaries(told: &[(OpenCall, Spend)]) -> impl Iterator<Item = SettledReservation> {
    let summary = |(call, spent): &(OpenCall, Spend)| Some((call.reservation.filter(|_| call.turn.is_none())?, *spent));
    told.iter().filter_map(summary)
}
