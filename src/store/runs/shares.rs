//! How the slots of an instance are shared among tenants: the rule, and nothing else.
//!
//! A slot in which a slow run is executed can't be taken back. So what a tenant may have follows what is free: up to
//! three times as many slots as nobody has. One tenant alone stops at three quarters of them, a second at three
//! quarters of the rest, and the next one that comes finds a slot at once. Where all tasks are of one tenant there is
//! nobody to keep a slot for, and it may have all of them.

use std::collections::HashMap;
use std::sync::Arc;

/// How many of an instance's slots each tenant has, and how many are free. Tenants are known by their hashes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Shares {
    /// Slots that are free.
    pub free: usize,
    /// Slots in use, by the hash of the tenant.
    pub occupants: HashMap<u32, Occupant>,
    /// All tasks are of one tenant.
    pub single_tenant: bool,
}

/// A tenant that has slots.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Occupant {
    /// Empty where only the hash is known.
    pub tenant: Arc<str>,
    /// Runs of the tenant.
    pub runs: usize,
}

/// The rest of a take for each tenant.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct TenantShares {
    /// Slots that are free, of which none may have more than its part.
    pub(in crate::store) free: i64,
    /// Runs of a tenant that has none yet.
    pub(in crate::store) usual: i64,
    /// Tenants to which less is left.
    pub(in crate::store) less: Vec<(String, i64)>,
}

/// How many more slots a tenant may take that has `runs`, where so many are free and nobody else takes any.
pub fn tenant_share(free: usize, runs: usize) -> usize {
    (3 * free).saturating_sub(runs).div_ceil(4)
}

impl Shares {
    /// How many more slots this tenant may take, if nobody else takes any.
    pub fn available_to(&self, tenant_hash: u32) -> usize {
        match self.single_tenant {
            true => self.free,
            false => tenant_share(self.free, self.occupants.get(&tenant_hash).map_or(0, |occupant| occupant.runs)),
        }
    }

    /// How many more slots any tenant may take, whoever it is.
    pub fn available_to_any(&self) -> usize {
        match self.single_tenant {
            true => self.free,
            false => tenant_share(self.free, self.occupants.values().map(|occupant| occupant.runs).max().unwrap_or(0)),
        }
    }

    /// Takes a slot for a tenant, if it may have one more.
    pub fn take(&mut self, tenant: &str) -> bool {
        let tenant_hash = tenant_hash(tenant);
        let may = self.take_for_hash(tenant_hash);
        if may
            && let Some(occupant) = self.occupants.get_mut(&tenant_hash)
            && occupant.tenant.is_empty()
        {
            occupant.tenant = tenant.into();
        }
        may
    }

    /// Takes a slot for the tenant of a hash, if it may have one more.
    pub fn take_for_hash(&mut self, tenant_hash: u32) -> bool {
        let may = self.available_to(tenant_hash) > 0;
        if may {
            self.free -= 1;
            self.occupants.entry(tenant_hash).or_default().runs += 1;
        }
        may
    }

    /// The limits by tenant that a take keeps; `None`: it leases whatever there is.
    pub fn of_tenants(&self) -> Option<TenantShares> {
        if self.single_tenant {
            return None;
        }
        let usual = tenant_share(self.free, 0);
        let less = self
            .occupants
            .values()
            .map(|occupant| (occupant.tenant.to_string(), tenant_share(self.free, occupant.runs)));
        let less = less.filter(|(_, left)| *left < usual).map(|(tenant, left)| (tenant, left as i64));
        Some(TenantShares { free: self.free as i64, usual: usual as i64, less: less.collect() })
    }
}

impl TenantShares {
    /// These for two takes at once.
    pub fn halves(&self) -> [TenantShares; 2] {
        [0, 1].map(|up| {
            let half = |whole: i64| (whole + up) / 2;
            let less = self.less.iter().map(|(tenant, left)| (tenant.clone(), half(*left)));
            TenantShares { free: half(self.free), usual: half(self.usual), less: less.collect() }
        })
    }

    /// Rest of a tenant.
    pub(in crate::store) fn of(&self, tenant: &str) -> i64 {
        self.less.iter().find(|(name, _)| name == tenant).map_or(self.usual, |(_, left)| *left)
    }

    /// Part of each of so many tenants that take at the same time, so that the rule holds whichever comes first.
    pub(in crate::store) fn each_of(&self, tenants: i64) -> i64 {
        (3 * self.free / (3 * tenants + 1)).max(1)
    }
}

/// The hash by which a tenant is queued. Two tenants may share one, which costs them some waiting and nothing else.
pub fn tenant_hash(tenant: &str) -> u32 {
    crc32fast::hash(tenant.as_bytes())
}

/// How often each tenant is named, by its hash: callers name the tenant of each run or task.
pub fn count_by_tenant<'a>(tenants: impl IntoIterator<Item = &'a str>) -> HashMap<u32, usize> {
    let mut counts: HashMap<u32, usize> = HashMap::new();
    for tenant in tenants {
        *counts.entry(tenant_hash(tenant)).or_default() += 1;
    }
    counts
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(free: usize) -> Shares {
        Shares { free, ..Shares::default() }
    }

    fn hog(shares: &mut Shares, tenant: &str) -> usize {
        std::iter::from_fn(|| shares.take(tenant).then_some(())).count()
    }

    #[test]
    fn one_tenant_stops_at_three_quarters_and_the_next_ones_find_places() {
        let mut shares = of(64);
        let first = shares.available_to(tenant_hash("a"));
        assert_eq!(["a", "b", "c", "d"].map(|tenant| hog(&mut shares, tenant)), [48, 12, 3, 1]);
        assert_eq!((first, shares.free), (48, 0), "what is told beforehand is what is taken");
        for (slots, taken) in [(0, 0), (1, 1), (2, 2), (3, 3), (4, 3), (7, 6), (8, 6)] {
            assert_eq!(hog(&mut of(slots), "a"), taken, "of {slots}");
        }
    }

    #[test]
    fn tenants_are_counted_by_their_hashes() {
        let expected = HashMap::from([(tenant_hash("a"), 2), (tenant_hash("b"), 1)]);
        assert_eq!((count_by_tenant(["a", "b", "a"]), count_by_tenant([])), (expected, HashMap::new()));
    }

    #[test]
    fn single_tenant_may_have_all_slots() {
        let mut shares = Shares { single_tenant: true, ..of(64) };
        assert_eq!((shares.available_to_any(), shares.of_tenants()), (64, None));
        assert_eq!(hog(&mut shares, "a"), 64);
    }

    #[test]
    fn tenants_that_take_at_the_same_time_leave_what_one_after_the_other_would() {
        let shares = of(64).of_tenants().expect("shares");
        for tenants in 1..=16 {
            let taken = tenants * shares.each_of(tenants);
            let free = 64 - taken;
            assert!(shares.each_of(tenants) <= 3 * free + 1, "{tenants} tenants leave {free}");
        }
    }

    #[test]
    fn concurrent_takes_lease_no_more_than_one_take_may() {
        let mut shares = of(64);
        (0..7).for_each(|_| assert!(shares.take("a")));
        let whole = shares.of_tenants().expect("shares");
        let [one, other] = whole.halves();
        assert_eq!((one.of("a") + other.of("a"), one.of("b") + other.of("b")), (whole.of("a"), whole.of("b")));
        assert_eq!((whole.of("a"), whole.of("b"), shares.available_to_any()), (41, 43, 41));
    }
}
