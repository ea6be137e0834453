//! The reservations of one run in the ledgers of a day, as far as turns of models use them. While much is left in the
//! ledgers, one reservation is made for several turns: what a turn leaves serves the next one. It is settled with the
//! end of the execution, or once it has too little for another turn. The store decides what the ledgers have.

use chrono::NaiveDate;
use uuid::Uuid;

use crate::domain::budget::Spend;

/// Calls for which one reservation is made, as long as much is left.
pub const AHEAD: i64 = 4;

/// A turn that is on the record, or is stored there now.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct RecordedCall {
    /// The reservation that it was taken from.
    pub reservation: Uuid,
    /// The worst that it could have come to.
    pub most: Spend,
    /// The cost that it has come to.
    pub spent: Spend,
}

/// A reservation, and the sum that it is settled with.
pub type SettledReservation = (Uuid, Spend);

#[derive(Debug, Clone, Copy, PartialEq)]
struct HeldReservation {
    id: Uuid,
    day: NaiveDate,
    /// Not taken by a call, and not spent.
    left: Spend,
    /// Spent by calls on the record.
    spent: Spend,
    /// Calls that are under way.
    calls: usize,
    /// Nothing more is taken from it.
    is_retired: bool,
}

impl HeldReservation {
    /// As it is once these calls are on the record.
    fn after(self, recorded: &[RecordedCall]) -> HeldReservation {
        let of_it = recorded.iter().filter(|call| call.reservation == self.id);
        of_it.fold(self, |held, call| HeldReservation {
            left: held.left + less(call.most, call.spent),
            spent: held.spent + call.spent,
            calls: held.calls.saturating_sub(1),
            ..held
        })
    }
}

/// Reservations of one run.
#[derive(Debug, Default)]
pub struct HeldReservations(Vec<HeldReservation>);

impl HeldReservations {
    /// Takes what a call may come to at worst from a reservation for this day, if one has it once these calls are on
    /// the record. Answers which.
    pub fn take(&mut self, most: Spend, day: NaiveDate, recorded: &[RecordedCall]) -> Option<Uuid> {
        let has_it = |held: &&mut HeldReservation| {
            let left = held.after(recorded).left;
            !held.is_retired && held.day == day && left.tokens >= most.tokens && left.cost_micros >= most.cost_micros
        };
        let held = self.0.iter_mut().find(has_it)?;
        (held.left, held.calls) = (less(held.left, most), held.calls + 1);
        Some(held.id)
    }

    /// Lets nothing more be taken from those that are there: another one is made.
    pub fn retire(&mut self) {
        self.0.iter_mut().for_each(|held| held.is_retired = true);
    }

    /// Adds a reservation of so much that was made for a call. One that is for this call alone ends with it.
    pub fn hold(&mut self, id: Uuid, day: NaiveDate, reserved: Spend, most: Spend) {
        let left = less(reserved, most);
        let is_retired = left == Spend::default();
        self.0.push(HeldReservation { id, day, left, spent: Spend::default(), calls: 1, is_retired });
    }

    /// Adds a reservation of so much that was made before there is a call.
    pub fn keep(&mut self, id: Uuid, day: NaiveDate, reserved: Spend) {
        let spent = Spend::default();
        self.0.push(HeldReservation { id, day, left: reserved, spent, calls: 0, is_retired: false });
    }

    /// Gives back what a call has taken that is not made.
    pub fn give_back(&mut self, id: Uuid, most: Spend) {
        if let Some(held) = self.0.iter_mut().find(|held| held.id == id) {
            (held.left, held.calls) = (held.left + most, held.calls.saturating_sub(1));
        }
    }

    /// Adds what a call has come to that no entry tells of.
    pub fn charge(&mut self, id: Uuid, spent: Spend) {
        if let Some(held) = self.0.iter_mut().find(|held| held.id == id) {
            (held.left, held.spent) = (less(held.left, spent), held.spent + spent);
        }
    }

    /// Those that end with the entries of these calls: nothing more is taken from them, and no call is under way.
    pub fn ended(&self, recorded: &[RecordedCall]) -> Vec<SettledReservation> {
        let after = self.0.iter().map(|held| held.after(recorded));
        after.filter(|held| held.is_retired && held.calls == 0).map(|held| (held.id, held.spent)).collect()
    }

    /// All of them, with the entries of these calls: the execution ends.
    pub fn all(&self, recorded: &[RecordedCall]) -> Vec<SettledReservation> {
        self.0.iter().map(|held| held.after(recorded)).map(|held| (held.id, held.spent)).collect()
    }

    /// Notes that these calls are on the record, and these reservations settled.
    pub fn stored(&mut self, recorded: &[RecordedCall], settled: &[Uuid]) {
        self.0.iter_mut().for_each(|held| *held = held.after(recorded));
        self.0.retain(|held| !settled.contains(&held.id));
    }
}

fn less(of: Spend, part: Spend) -> Spend {
    Spend { tokens: of.tokens - part.tokens, cost_micros: of.cost_micros - part.cost_micros }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DAY: NaiveDate = NaiveDate::from_ymd_opt(2026, 12, 24).unwrap();

    fn spend(tokens: i64) -> Spend {
        Spend { tokens, cost_micros: 2 * tokens }
    }

    fn recorded(id: u128, most: i64, spent: i64) -> RecordedCall {
        RecordedCall { reservation: Uuid::from_u128(id), most: spend(most), spent: spend(spent) }
    }

    #[test]
    fn one_reservation_serves_calls_until_the_worst_of_the_next_is_not_left() {
        let mut held = HeldReservations::default();
        let first = Uuid::from_u128(1);
        held.hold(first, DAY, spend(400), spend(100));
        for _ in 0..2 {
            assert_eq!(held.take(spend(100), DAY, &[recorded(1, 100, 90)]), Some(first));
            held.stored(&[recorded(1, 100, 90)], &[]);
        }
        assert_eq!(held.take(spend(100), DAY, &[]), Some(first), "180 of 400 are spent and 100 taken");
        assert_eq!(held.take(spend(100), DAY, &[]), None);
        assert_eq!(
            held.take(spend(100), DAY, &[recorded(1, 100, 20)]),
            Some(first),
            "80 more are left with the record of one"
        );
    }

    #[test]
    fn reservation_is_settled_once_it_is_retired_and_its_calls_are_on_the_record() {
        let mut held = HeldReservations::default();
        let (first, second) = (Uuid::from_u128(1), Uuid::from_u128(2));
        held.hold(first, DAY, spend(200), spend(100));
        assert_eq!(held.take(spend(100), DAY, &[]), Some(first));
        assert_eq!(held.ended(&[recorded(1, 100, 30), recorded(1, 100, 40)]), []);
        held.retire();
        held.hold(second, DAY, spend(400), spend(100));
        assert_eq!(held.ended(&[recorded(1, 100, 30)]), [], "its other call is under way");
        let both = [recorded(1, 100, 30), recorded(1, 100, 40)];
        assert_eq!(held.ended(&both), [(first, spend(70))]);
        assert_eq!(held.all(&both), [(first, spend(70)), (second, spend(0))]);
        held.stored(&both, &[first]);
        assert_eq!(held.all(&[recorded(2, 100, 25)]), [(second, spend(25))]);
    }

    #[test]
    fn reservation_that_is_made_before_there_is_a_call_serves_the_first_ones_or_is_settled_with_nothing() {
        let mut held = HeldReservations::default();
        let early = Uuid::from_u128(1);
        held.keep(early, DAY, spend(400));
        assert_eq!((held.ended(&[]), held.all(&[])), (vec![], vec![(early, spend(0))]));
        assert_eq!(held.take(spend(401), DAY, &[]), None, "the call may come to more");
        assert_eq!(held.take(spend(300), DAY, &[]), Some(early));
        assert_eq!(held.take(spend(300), DAY, &[recorded(1, 300, 90)]), Some(early));
        held.stored(&[recorded(1, 300, 90)], &[]);
        assert_eq!(held.all(&[recorded(1, 300, 60)]), [(early, spend(150))]);
    }

    #[test]
    fn another_day_and_a_call_that_is_not_made_take_nothing() {
        let mut held = HeldReservations::default();
        held.hold(Uuid::from_u128(1), DAY, spend(200), spend(100));
        assert_eq!(held.take(spend(100), DAY.succ_opt().unwrap(), &[]), None);
        held.give_back(Uuid::from_u128(1), spend(100));
        assert!(held.take(spend(200), DAY, &[]).is_some());
    }

    #[test]
    fn reservation_for_one_call_ends_with_it() {
        let mut held = HeldReservations::default();
        held.hold(Uuid::from_u128(1), DAY, spend(100), spend(100));
        assert_eq!(held.ended(&[recorded(1, 100, 30)]), [(Uuid::from_u128(1), spend(30))]);
        held.stored(&[recorded(1, 100, 30)], &[Uuid::from_u128(1)]);
        assert_eq!(held.all(&[]), []);
    }
}
