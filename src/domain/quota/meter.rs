//! Counting by the minute, on one instance, with as few questions to the database as can be.
//!
//! A tenant that does little costs nothing: each instance lets it do [`UNASKED`] of its quota in a minute without
//! asking. From then on the instance tells the database what was done, and asks for portions of what is left to all
//! instances, which are used up here. So one instance holds the quota exactly, and each further one adds at most that
//! share to it. Nothing survives the minute, nor the process.

use std::collections::HashMap;

use chrono::{DateTime, Utc};

/// The share of a quota that an instance uses in a minute without asking: one in so many.
pub const UNASKED: u64 = 32;
/// Tenants that are counted at once; those who come then make room by being asked about.
const MOST: usize = 50_000;

/// Counts of this minute, by tenant and quota.
#[derive(Default)]
pub struct Meter {
    minute: i64,
    windows: HashMap<(String, &'static str), MinuteWindow>,
}

#[derive(Debug, Clone, Copy, Default)]
struct MinuteWindow {
    /// Done here, and not told.
    untold: u64,
    /// Granted, and not used.
    left: u64,
    /// Whether the database was asked in this minute: from then on nothing goes without asking.
    asked: bool,
    /// The rest that was left to all instances when less was granted than was wanted. It only shrinks.
    at_most: Option<u64>,
}

/// A demand to be counted.
#[derive(Debug, Clone, Copy)]
pub struct Demand<'a> {
    /// The tenant that asks.
    pub tenant: &'a str,
    /// Name of the quota that is asked.
    pub quota: &'static str,
    /// The limit of the tenant.
    pub limit: u64,
    /// So many.
    pub count: u64,
    /// All of them or none.
    pub whole: bool,
}

/// The question to the database.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MeterRequest {
    /// The minute, counted from 1970.
    pub minute: i64,
    /// Count that was used here and not told.
    pub report: u64,
    /// Less than this is of no use.
    pub least: u64,
    /// Count that is wanted.
    pub want: u64,
}

impl MeterRequest {
    /// The grant where so much is used by all instances, and the rest that is left to them then.
    pub fn answer(&self, limit: u64, used: u64) -> (u64, u64) {
        let remaining = limit.saturating_sub(used);
        let granted = if remaining >= self.least { remaining.min(self.want) } else { 0 };
        (granted, remaining - granted)
    }
}

/// Whether it is allowed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum MeterVerdict {
    /// So many are; they are counted.
    Allowed(u64),
    /// It takes a question to the database, and then [`Meter::settle`].
    Ask(MeterRequest),
}

impl Meter {
    /// Counts what is asked for, as far as that can be said here.
    pub fn take(&mut self, demand: &Demand<'_>, now: DateTime<Utc>) -> MeterVerdict {
        self.roll_over(minute_of(now));
        let minute = self.minute;
        let window = self.window(demand);
        if !window.asked && window.untold + demand.count <= demand.limit / UNASKED {
            window.untold += demand.count;
            return MeterVerdict::Allowed(demand.count);
        }
        if window.left >= demand.count {
            window.left -= demand.count;
            return MeterVerdict::Allowed(demand.count);
        }
        let need = demand.count - window.left;
        if let Some(at_most) = window.at_most {
            // others use what is left as well: there is never more than there was
            if at_most == 0 || (demand.whole && at_most < need) {
                return MeterVerdict::Allowed(window.consume(demand));
            }
        }
        let least = if demand.whole { need } else { 1 };
        MeterVerdict::Ask(MeterRequest { minute, report: window.untold, least, want: need + demand.limit / UNASKED })
    }

    /// Counts what is asked for, once the database has said what is granted and what is left to all then.
    pub fn settle(&mut self, demand: &Demand<'_>, asked: &MeterRequest, granted: u64, remaining: u64) -> u64 {
        if asked.minute != self.minute {
            return granted.min(demand.count);
        }
        let window = self.window(demand);
        window.asked = true;
        window.untold = window.untold.saturating_sub(asked.report);
        window.left += granted;
        window.at_most = (granted < asked.want).then_some(remaining);
        window.consume(demand)
    }

    /// Gives back a count that was allowed and not used: it may be used again here.
    pub fn give_back(&mut self, tenant: &str, quota: &'static str, count: u64, now: DateTime<Utc>) {
        if self.minute != minute_of(now) {
            return;
        }
        if let Some(window) = self.windows.get_mut(&(tenant.to_owned(), quota)) {
            match window.asked {
                true => window.left += count,
                false => window.untold = window.untold.saturating_sub(count),
            }
        }
    }

    /// The count that was used here and is not in the database's number, and the count that is there and not used.
    pub fn unsettled(&self, tenant: &str, quota: &'static str, now: DateTime<Utc>) -> (u64, u64) {
        let window = self.windows.get(&(tenant.to_owned(), quota)).filter(|_| self.minute == minute_of(now));
        window.map_or((0, 0), |window| (window.untold, window.left))
    }

    /// Forward alone: whoever read the time a moment ago counts into the minute that has begun.
    fn roll_over(&mut self, minute: i64) {
        if self.minute < minute {
            self.minute = minute;
            self.windows.clear();
        }
    }

    /// Where there are too many tenants, all are forgotten: each may do its unasked share once more.
    fn window(&mut self, demand: &Demand<'_>) -> &mut MinuteWindow {
        if self.windows.len() >= MOST {
            self.windows.clear();
        }
        self.windows.entry((demand.tenant.to_owned(), demand.quota)).or_default()
    }
}

impl MinuteWindow {
    fn consume(&mut self, demand: &Demand<'_>) -> u64 {
        let allowed = match self.left >= demand.count {
            true => demand.count,
            false if demand.whole => 0,
            false => self.left,
        };
        self.left -= allowed;
        allowed
    }
}

/// Minutes since 1970.
pub fn minute_of(now: DateTime<Utc>) -> i64 {
    now.timestamp().div_euclid(60)
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;

    use super::*;

    const START: DateTime<Utc> = DateTime::from_timestamp_millis(1_772_352_000_000).unwrap();

    fn demand(limit: u64, count: u64, whole: bool) -> Demand<'static> {
        Demand { tenant: "a", quota: "events_per_minute", limit, count, whole }
    }

    /// The database: what was told and granted, of all instances.
    #[derive(Default)]
    struct Shared(u64);

    impl Shared {
        fn answer(&mut self, limit: u64, asked: &MeterRequest) -> (u64, u64) {
            self.0 += asked.report;
            let (granted, remaining) = asked.answer(limit, self.0);
            self.0 += granted;
            (granted, remaining)
        }

        fn take(&mut self, meter: &mut Meter, demand: Demand<'_>, now: DateTime<Utc>) -> u64 {
            match meter.take(&demand, now) {
                MeterVerdict::Allowed(count) => count,
                MeterVerdict::Ask(question) => {
                    let (granted, remaining) = self.answer(demand.limit, &question);
                    meter.settle(&demand, &question, granted, remaining)
                }
            }
        }
    }

    #[test]
    fn one_instance_allows_the_quota_exactly_and_the_next_minute_begins_anew() {
        for limit in [1, 31, 32, 64, 1_000, 60_000] {
            let (mut meter, mut shared) = (Meter::default(), Shared::default());
            let allowed: u64 = (0..limit + 50).map(|_| shared.take(&mut meter, demand(limit, 1, true), START)).sum();
            assert_eq!(allowed, limit);
            let later = START + TimeDelta::seconds(60);
            assert_eq!(Shared::default().take(&mut meter, demand(limit, 1, true), later), 1, "{limit}");
        }
    }

    #[test]
    fn indivisible_demand_is_never_allowed_in_part() {
        let (mut meter, mut shared) = (Meter::default(), Shared::default());
        assert_eq!(shared.take(&mut meter, demand(10, 7, true), START), 7);
        assert_eq!(shared.take(&mut meter, demand(10, 4, true), START), 0);
        assert_eq!(shared.take(&mut meter, demand(10, 3, true), START), 3);
        assert_eq!(shared.take(&mut meter, demand(10, 1, true), START), 0);
        let (mut meter, mut shared) = (Meter::default(), Shared::default());
        assert_eq!(shared.take(&mut meter, demand(10, 7, false), START), 7);
        assert_eq!(shared.take(&mut meter, demand(10, 7, false), START), 3);
        assert_eq!(shared.take(&mut meter, demand(10, 7, false), START), 0);
    }

    #[test]
    fn tenant_that_does_little_is_not_asked_about_and_one_at_its_bound_no_more() {
        let mut meter = Meter::default();
        for _ in 0..1_875 {
            assert_eq!(meter.take(&demand(60_000, 1, true), START), MeterVerdict::Allowed(1));
        }
        let MeterVerdict::Ask(question) = meter.take(&demand(60_000, 1, true), START) else {
            panic!("its share is used")
        };
        assert_eq!((question.report, question.least, question.want), (1_875, 1, 1_876));
        assert_eq!(meter.settle(&demand(60_000, 1, true), &question, 0, 0), 0);
        assert_eq!(meter.take(&demand(60_000, 1, true), START), MeterVerdict::Allowed(0));
    }

    #[test]
    fn several_instances_pass_the_quota_by_no_more_than_their_unasked_shares() {
        let limit = 6_400;
        let mut shared = Shared::default();
        let mut meters: Vec<Meter> = (0..4).map(|_| Meter::default()).collect();
        let mut allowed = 0;
        for round in 0..8_000 {
            allowed += shared.take(&mut meters[round % 4], demand(limit, 1, true), START);
        }
        assert!((limit..=limit + 3 * limit / UNASKED).contains(&allowed), "{allowed}");
    }

    #[test]
    fn unused_quota_is_given_back() {
        let (mut meter, mut shared) = (Meter::default(), Shared::default());
        assert_eq!(shared.take(&mut meter, demand(10, 10, true), START), 10);
        meter.give_back("a", "events_per_minute", 4, START);
        assert_eq!(meter.unsettled("a", "events_per_minute", START), (0, 4));
        assert_eq!(shared.take(&mut meter, demand(10, 5, false), START), 4);
    }
}
