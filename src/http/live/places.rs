//! How many sessions each tenant has open on this instance. In memory only.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};

use crate::id::Tenant;

/// The places of one instance.
#[derive(Debug, Clone)]
pub struct Places {
    per_tenant: usize,
    taken: Arc<Mutex<HashMap<Tenant, usize>>>,
}

/// Room for one session, given back when it is dropped.
#[derive(Debug)]
pub struct Place {
    tenant: Tenant,
    taken: Arc<Mutex<HashMap<Tenant, usize>>>,
}

impl Places {
    pub fn new(per_tenant: usize) -> Places {
        Places { per_tenant, taken: Arc::default() }
    }

    /// `None` where the tenant has all that it may have.
    pub fn take(&self, tenant: &Tenant) -> Option<Place> {
        let mut taken = self.taken.lock().expect("session lock");
        let open = taken.get(tenant).copied().unwrap_or_default();
        if open >= self.per_tenant {
            return None;
        }
        taken.insert(tenant.clone(), open + 1);
        Some(Place { tenant: tenant.clone(), taken: Arc::clone(&self.taken) })
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let mut taken = self.taken.lock().expect("session lock");
        match taken.get_mut(&self.tenant) {
            Some(open) if *open > 1 => *open -= 1,
            _ => drop(taken.remove(&self.tenant)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_tenant_has_its_places_and_gets_them_back() {
        let places = Places::new(2);
        let (ann, bob) = (Tenant::new("ann").unwrap(), Tenant::new("bob").unwrap());
        let (first, _second) = (places.take(&ann).unwrap(), places.take(&ann).unwrap());
        assert!(places.take(&ann).is_none());
        let others = places.take(&bob).unwrap();
        drop((first, others));
        assert!(places.take(&ann).is_some());
        assert_eq!(places.taken.lock().unwrap().len(), 1, "a tenant without sessions is forgotten");
    }
}
