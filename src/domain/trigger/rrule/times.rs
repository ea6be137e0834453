//! The times of day of a recurrence rule: every hour with every minute with every second, found by arithmetic.

use chrono::{NaiveTime, Timelike};

/// Three sets of numbers whose product is the times, in order. None is ever written out: there may be 86,400.
#[derive(Debug, Clone, Copy)]
pub struct Times {
    hours: u64,
    minutes: u64,
    seconds: u64,
}

impl Times {
    /// Of numbers from 0 to 59, at least one of each.
    pub fn new(hours: &[i32], minutes: &[i32], seconds: &[i32]) -> Times {
        let bits = |list: &[i32]| list.iter().fold(0, |bits, number| bits | 1_u64 << (number & 63));
        Times { hours: bits(hours), minutes: bits(minutes), seconds: bits(seconds) }
    }

    /// How many there are in a day.
    pub fn count(&self) -> u32 {
        self.hours.count_ones() * self.of_hour()
    }

    /// How many of them are earlier than a time.
    pub fn before(&self, time: NaiveTime) -> u32 {
        let mut before = below(self.hours, time.hour()) * self.of_hour();
        if has(self.hours, time.hour()) {
            before += below(self.minutes, time.minute()) * self.seconds.count_ones();
            if has(self.minutes, time.minute()) {
                before += below(self.seconds, time.second());
            }
        }
        before
    }

    /// The one before which `index` others are; `None` where there are no more.
    pub fn nth(&self, index: u32) -> Option<NaiveTime> {
        let (hour, rest) = (index / self.of_hour().max(1), index % self.of_hour().max(1));
        let (minute, second) = (rest / self.seconds.count_ones().max(1), rest % self.seconds.count_ones().max(1));
        NaiveTime::from_hms_opt(nth(self.hours, hour)?, nth(self.minutes, minute)?, nth(self.seconds, second)?)
    }

    fn of_hour(&self) -> u32 {
        self.minutes.count_ones() * self.seconds.count_ones()
    }
}

fn has(bits: u64, number: u32) -> bool {
    bits >> number & 1 == 1
}

/// How many numbers of a set are less than `number`, which is less than 60.
fn below(bits: u64, number: u32) -> u32 {
    (bits & ((1 << number) - 1)).count_ones()
}

/// The number of a set before which `index` others are.
fn nth(mut bits: u64, index: u32) -> Option<u32> {
    for _ in 0..index {
        bits &= bits.wrapping_sub(1);
    }
    (bits != 0).then(|| bits.trailing_zeros())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_counted_and_found_as_if_they_were_written_out() {
        let (hours, minutes, seconds) = ([0, 9, 23], [0, 30, 59], [7, 59]);
        let times = Times::new(&hours, &minutes, &seconds);
        let time = |h: i32, m: i32, s: i32| NaiveTime::from_hms_opt(h as u32, m as u32, s as u32).unwrap();
        let mut all = Vec::new();
        for hour in hours {
            for minute in minutes {
                all.extend(seconds.map(|second| time(hour, minute, second)));
            }
        }
        assert_eq!(times.count() as usize, all.len());
        for second in 0..86_400 {
            let at = NaiveTime::from_num_seconds_from_midnight_opt(second, 0).unwrap();
            assert_eq!(times.before(at) as usize, all.partition_point(|time| *time < at), "{at}");
        }
        for index in 0..=all.len() {
            assert_eq!(times.nth(index as u32), all.get(index).copied());
        }
    }
}
