//! Ledgers that this instance knows to be there. The others are opened by the statement that reserves a call in them,
//! so that the first call of a task in a day makes no attempt that finds nothing.

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::sync::{Mutex, MutexGuard};

use lru::LruCache;

use crate::domain::budget::DayLimits;
use crate::store::ops::budgets::ledgers::LedgerKey;

/// Ledgers that are remembered, at most. For one that is forgotten it is looked once more whether it is there.
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(20_000).unwrap();

/// Ledgers that are there.
pub(in crate::store) struct SeenLedgers(Mutex<LruCache<LedgerKey, ()>>);

impl Default for SeenLedgers {
    fn default() -> SeenLedgers {
        SeenLedgers(Mutex::new(LruCache::new(REMEMBERED)))
    }
}

impl SeenLedgers {
    /// Those of these that are not known to be there.
    pub fn unseen(&self, mut wanted: BTreeMap<LedgerKey, DayLimits>) -> BTreeMap<LedgerKey, DayLimits> {
        let mut seen = self.lock();
        wanted.retain(|key, _| seen.get(key).is_none());
        wanted
    }

    /// Notes that these are there.
    pub fn note(&self, opened: &BTreeMap<LedgerKey, DayLimits>) {
        let mut seen = self.lock();
        for key in opened.keys() {
            seen.put(key.clone(), ());
        }
    }

    fn lock(&self) -> MutexGuard<'_, LruCache<LedgerKey, ()>> {
        self.0.lock().expect("ledgers lock")
    }
}

#[cfg(test)]
mod tests {
    use chrono::NaiveDate;
    use uuid::Uuid;

    use super::*;

    #[test]
    fn ledger_is_opened_once_for_each_day_and_task() {
        let seen = SeenLedgers::default();
        let day = |day: u32| NaiveDate::from_ymd_opt(2027, 3, day).unwrap();
        let wanted = |keys: &[(u128, u32)]| -> BTreeMap<LedgerKey, DayLimits> {
            let key = |&(task, of): &(u128, u32)| LedgerKey {
                tenant: "ann".into(),
                task_id: Uuid::from_u128(task),
                day: day(of),
            };
            keys.iter().map(|one| (key(one), DayLimits::default())).collect()
        };
        assert_eq!(seen.unseen(wanted(&[(0, 1), (7, 1)])), wanted(&[(0, 1), (7, 1)]));
        seen.note(&wanted(&[(0, 1), (7, 1)]));
        assert_eq!(seen.unseen(wanted(&[(0, 1), (7, 1)])), BTreeMap::new());
        assert_eq!(seen.unseen(wanted(&[(0, 1), (8, 1), (0, 2)])), wanted(&[(8, 1), (0, 2)]));
    }
}
