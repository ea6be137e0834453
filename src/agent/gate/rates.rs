//! `[gate_rates]`: how many messages of one tenant go to models within a minute, by its tier.

use std::collections::{BTreeMap, BTreeSet};

use serde::{Deserialize, Serialize};

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, escape};

/// The reason of a run that is one too many for its tenant.
pub const REASON_RATE: &str = "rate";
/// The reason of a run that is one too many for the tier of its tenant.
pub const REASON_TIER: &str = "tier";
/// Largest number.
const MOST: u64 = 1_000_000_000;
/// Tenants in tiers, at most.
const MOST_TENANTS: usize = 10_000;

/// `[gate_rates]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct RateSettings {
    /// Messages of a tenant without a tier in a minute; 0: there is no limit.
    pub messages_per_minute: u64,
    /// Tiers by their names.
    pub tiers: BTreeMap<String, Tier>,
}

/// `[gate_rates.tiers.…]`.
#[derive(Debug, Clone, Default, PartialEq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tier {
    /// Tenants that are in it.
    pub tenants: BTreeSet<String>,
    /// Messages of each of them in a minute; 0: there is no limit.
    pub messages_per_minute: u64,
}

impl RateSettings {
    /// Adds what makes no sense; pointers begin with `/gate_rates`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        let number = |limit: u64, place: String, faults: &mut ValidationErrors| {
            if limit > MOST {
                faults.add(format!("{place}/messages_per_minute"), format!("must be from 0 to {MOST}"));
            }
        };
        number(self.messages_per_minute, "/gate_rates".into(), faults);
        let mut known = BTreeSet::new();
        for (name, tier) in &self.tiers {
            let place = format!("/gate_rates/tiers/{}", escape(name));
            number(tier.messages_per_minute, place.clone(), faults);
            for tenant in &tier.tenants {
                if Tenant::new(tenant.as_str()).is_err() {
                    faults.add(format!("{place}/tenants"), format!("`{tenant}` can't be the name of a tenant"));
                }
                if !known.insert(tenant) {
                    faults.add(format!("{place}/tenants"), format!("`{tenant}` is in another tier"));
                }
            }
        }
        if known.len() > MOST_TENANTS {
            faults.add("/gate_rates/tiers", format!("`tenants` of all tiers are at most {MOST_TENANTS}"));
        }
    }

    /// Whether any tenant has a limit.
    pub fn is_limited(&self) -> bool {
        self.messages_per_minute > 0 || self.tiers.values().any(|tier| tier.messages_per_minute > 0)
    }

    /// The limit of a tenant, and the reason of a run beyond it; `None`: it has none.
    pub fn limit_of(&self, tenant: &str) -> Option<(u64, &'static str)> {
        let tier = self.tiers.values().find(|tier| tier.tenants.contains(tenant));
        let (limit, reason) = match tier {
            Some(tier) => (tier.messages_per_minute, REASON_TIER),
            None => (self.messages_per_minute, REASON_RATE),
        };
        (limit > 0).then_some((limit, reason))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> RateSettings {
        toml::from_str(text).unwrap()
    }

    #[test]
    fn limit_is_that_of_the_tier_and_else_that_of_all() {
        let settings = settings(
            "messages_per_minute = 5
             [tiers.free]
             tenants = ['ann']
             messages_per_minute = 1
             [tiers.house]
             tenants = ['bob']
             messages_per_minute = 0",
        );
        assert_eq!(settings.limit_of("ann"), Some((1, "tier")));
        assert_eq!(settings.limit_of("bob"), None);
        assert_eq!(settings.limit_of("cal"), Some((5, "rate")));
        assert!(settings.is_limited() && !RateSettings::default().is_limited());
    }

    #[test]
    fn faults_are_named_by_their_place() {
        let settings = settings(
            "messages_per_minute = 1000000001
             [tiers.free]
             tenants = ['ann', ' ']
             messages_per_minute = 1
             [tiers.house]
             tenants = ['ann']
             messages_per_minute = 1000000001",
        );
        let mut faults = ValidationErrors::new();
        settings.check(&mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        let [free, house] = ["/gate_rates/tiers/free/tenants", "/gate_rates/tiers/house/tenants"];
        let numbers = ["/gate_rates/messages_per_minute", "/gate_rates/tiers/house/messages_per_minute"];
        assert_eq!(places, [numbers[0], free, numbers[1], house]);
    }
}
