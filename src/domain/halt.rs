//! The operator's orders that keep the work of tenants from beginning: the stop switch, and disabled tenants. Facts and
//! the rule, no more: they are kept in the store, and every service asks for them before it begins something.

use std::collections::{HashMap, HashSet};

use chrono::{DateTime, Utc};

use crate::base::words::words;

words! {
    /// The kind of a halt; its word is the reason of what is skipped for it.
    #[derive(PartialOrd, Ord, utoipa::ToSchema)]
    pub enum HaltKind {
        /// The stop switch: fires are skipped, nothing begins, and runs under way are handed back.
        Stopped = "stopped",
        /// The tenant is disabled: fires are skipped, nothing begins, and its tokens may read alone.
        TenantDisabled = "tenant_disabled",
    }
}

/// One halt that holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Halt {
    /// The tenant; `None`: every tenant.
    pub tenant: Option<String>,
    /// Its kind.
    pub kind: HaltKind,
    /// The operator's reason.
    pub reason: Option<String>,
    /// The operator's name on the record.
    pub by: String,
    /// The instant of the order.
    pub since: DateTime<Utc>,
}

/// The halts that hold at one moment.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Halts {
    /// Everything is stopped.
    all: bool,
    /// Halted tenants; of one that is stopped and disabled, that it is stopped.
    tenants: HashMap<String, HaltKind>,
    /// Tenants that are disabled, whatever else they are.
    disabled: HashSet<String>,
}

impl Halts {
    /// The halts of these tenants; `None` stands for all.
    pub fn of(halts: impl IntoIterator<Item = (Option<String>, HaltKind)>) -> Halts {
        let mut held = Halts::default();
        for (tenant, kind) in halts {
            let Some(tenant) = tenant else {
                held.all = true;
                continue;
            };
            if kind == HaltKind::TenantDisabled {
                held.disabled.insert(tenant.clone());
            }
            let known = held.tenants.entry(tenant).or_insert(kind);
            *known = (*known).min(kind);
        }
        held
    }

    /// Whether nothing is halted.
    pub fn is_empty(&self) -> bool {
        !self.all && self.tenants.is_empty()
    }

    /// Whether every tenant is stopped.
    pub fn all(&self) -> bool {
        self.all
    }

    /// Why nothing of this tenant may begin; `None`: it may. The stop switch comes first.
    pub fn halt_of(&self, tenant: &str) -> Option<HaltKind> {
        match self.all {
            true => Some(HaltKind::Stopped),
            false => self.tenants.get(tenant).copied(),
        }
    }

    /// Whether the tokens of this tenant may read alone.
    pub fn is_disabled(&self, tenant: &str) -> bool {
        self.disabled.contains(tenant)
    }

    /// How many halts of each kind there are: of all tenants, of tenants that are stopped, and of those that are
    /// disabled.
    pub fn counts(&self) -> [(&'static str, i64); 3] {
        let stopped = self.tenants.values().filter(|kind| **kind == HaltKind::Stopped).count();
        [
            ("all", self.all.into()),
            (HaltKind::Stopped.as_str(), stopped as i64),
            (HaltKind::TenantDisabled.as_str(), self.disabled.len() as i64),
        ]
    }

    /// The halted tenants, but for those that the stop of all concerns.
    pub fn tenants(&self) -> impl Iterator<Item = &str> {
        self.tenants.keys().map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const STOPPED: HaltKind = HaltKind::Stopped;
    const DISABLED: HaltKind = HaltKind::TenantDisabled;

    fn tenant(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn stop_of_all_concerns_every_tenant_and_disables_none() {
        let halts = Halts::of([(None, STOPPED), (tenant("ann"), DISABLED)]);
        assert_eq!(["ann", "bob"].map(|tenant| halts.halt_of(tenant)), [Some(STOPPED), Some(STOPPED)]);
        assert_eq!(["ann", "bob"].map(|tenant| halts.is_disabled(tenant)), [true, false]);
        assert!(halts.all() && !halts.is_empty());
        assert_eq!(halts.counts(), [("all", 1), ("stopped", 0), ("tenant_disabled", 1)]);
    }

    #[test]
    fn stop_of_a_tenant_comes_before_that_it_is_disabled_in_whatever_order_they_are_read() {
        for order in [[STOPPED, DISABLED], [DISABLED, STOPPED]] {
            let halts = Halts::of(order.map(|kind| (tenant("ann"), kind)));
            assert_eq!((halts.halt_of("ann"), halts.halt_of("bob")), (Some(STOPPED), None));
            assert!(halts.is_disabled("ann"));
        }
        assert_eq!(Halts::of([(tenant("ann"), DISABLED)]).halt_of("ann"), Some(DISABLED));
        assert!(Halts::default().is_empty());
    }
}
