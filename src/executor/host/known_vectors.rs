//! Vectors that were read for searches, of the tenants that were searched last: each search reads only what is new.
//!
//! A vector belongs to a version of a fact, which never changes; whether the fact still has that version is read for
//! each search.

use std::collections::{HashMap, HashSet};
use std::sync::{Arc, Mutex};

use lru::LruCache;
use uuid::Uuid;

use crate::base::id::Tenant;

/// Bytes of vectors that are kept at most, of all tenants.
pub const KNOWN_BYTES: usize = 128 * 1024 * 1024;
/// Bytes of vectors that are kept at most, of one tenant.
pub const KNOWN_BYTES_OF_ONE: usize = 32 * 1024 * 1024;
/// Bytes of a vector beside its numbers.
const BESIDE: usize = 64;

/// Vectors by tenant. Cheap to clone.
#[derive(Clone)]
pub struct KnownVectors {
    kept: Arc<Mutex<KeptVectors>>,
    most: usize,
    most_of_one: usize,
}

struct KeptVectors {
    by_tenant: LruCache<Tenant, VectorsOfTenant>,
    bytes: usize,
}

/// Those of one tenant, each with the version of its fact.
#[derive(Default)]
struct VectorsOfTenant {
    by_fact: HashMap<Uuid, (i64, Arc<[u8]>)>,
    bytes: usize,
}

impl KnownVectors {
    /// Keeps so many bytes at most, of all tenants and of one.
    pub fn new(most: usize, most_of_one: usize) -> KnownVectors {
        let kept = KeptVectors { by_tenant: LruCache::unbounded(), bytes: 0 };
        KnownVectors { kept: Arc::new(Mutex::new(kept)), most, most_of_one }
    }

    /// Those of a tenant's facts that are known, by fact; each has to have this version.
    pub fn get(&self, tenant: &Tenant, facts: impl Iterator<Item = (Uuid, Option<i64>)>) -> HashMap<Uuid, Arc<[u8]>> {
        let mut kept = self.kept.lock().expect("vectors lock");
        let Some(vectors) = kept.by_tenant.get(tenant) else { return HashMap::new() };
        let known = |(id, version): (Uuid, Option<i64>)| {
            let (of, vector) = vectors.by_fact.get(&id)?;
            (Some(*of) == version).then(|| (id, Arc::clone(vector)))
        };
        facts.filter_map(known).collect()
    }

    /// Keeps these of a tenant as well, as far as there is room, and forgets those of the tenants that were searched
    /// longest ago.
    pub fn add(&self, tenant: &Tenant, read: &[(Uuid, i64, Arc<[u8]>)]) {
        if read.is_empty() {
            return;
        }
        let mut forgotten = Vec::new();
        let mut kept = self.kept.lock().expect("vectors lock");
        let of_tenant = kept.by_tenant.get_or_insert_mut(tenant.clone(), VectorsOfTenant::default);
        let before = of_tenant.bytes;
        of_tenant.add(read, self.most_of_one);
        kept.bytes = kept.by_tenant.peek(tenant).map_or(0, |of_tenant| of_tenant.bytes) + kept.bytes - before;
        while kept.bytes > self.most
            && let Some((_, vectors)) = kept.by_tenant.pop_lru()
        {
            kept.bytes -= vectors.bytes;
            forgotten.push(vectors);
        }
        // the forgotten vectors may be many, and are freed behind the lock
        drop(kept);
    }

    /// Forgets those of a tenant whose facts are not among these.
    pub fn retain(&self, tenant: &Tenant, facts: &HashSet<Uuid>) {
        let mut kept = self.kept.lock().expect("vectors lock");
        let Some(of_tenant) = kept.by_tenant.get_mut(tenant).filter(|known| known.by_fact.len() > facts.len()) else {
            return;
        };
        let before = of_tenant.bytes;
        of_tenant.by_fact.retain(|id, _| facts.contains(id));
        of_tenant.bytes = of_tenant.by_fact.values().map(|(_, vector)| size_of(vector)).sum();
        let freed = before - of_tenant.bytes;
        kept.bytes -= freed;
    }
}

impl VectorsOfTenant {
    fn add(&mut self, read: &[(Uuid, i64, Arc<[u8]>)], most: usize) {
        for (id, version, vector) in read {
            if let Some((_, former)) = self.by_fact.remove(id) {
                self.bytes -= size_of(&former);
            }
            if self.bytes + size_of(vector) > most {
                continue;
            }
            self.bytes += size_of(vector);
            self.by_fact.insert(*id, (*version, Arc::clone(vector)));
        }
    }
}

fn size_of(vector: &[u8]) -> usize {
    vector.len() + BESIDE
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vectors(ids: std::ops::Range<u128>, version: i64) -> Vec<(Uuid, i64, Arc<[u8]>)> {
        ids.map(|id| (Uuid::from_u128(id), version, Arc::from([0; 36]))).collect()
    }

    /// How many of the first ten facts are known by their first version.
    fn count(known: &KnownVectors, tenant: &Tenant) -> usize {
        known.get(tenant, (0..10).map(|id| (Uuid::from_u128(id), Some(1)))).len()
    }

    #[test]
    fn vectors_of_the_tenant_that_was_searched_longest_ago_are_forgotten_first() {
        let known = KnownVectors::new(1_000, 500);
        let [a, b, c] = ["a", "b", "c"].map(|name| Tenant::new(name).unwrap());
        known.add(&a, &vectors(0..2, 1));
        known.add(&a, &vectors(1..4, 1));
        known.add(&b, &vectors(0..4, 1));
        assert_eq!((count(&known, &b), count(&known, &a)), (4, 4));
        known.add(&c, &vectors(0..4, 1));
        assert_eq!((count(&known, &a), count(&known, &b), count(&known, &c)), (4, 0, 4));
        known.add(&b, &vectors(0..9, 1));
        let held = (count(&known, &a), count(&known, &b), count(&known, &c));
        assert_eq!(held, (0, 5, 4), "of one there are no more, however many it has");
        const { assert!(KNOWN_BYTES >= 4 * KNOWN_BYTES_OF_ONE, "one leaves room for others") };
    }

    #[test]
    fn vector_is_known_by_the_version_of_its_fact_and_as_long_as_there_is_the_fact() {
        let known = KnownVectors::new(1_000, 500);
        let a = Tenant::new("a").unwrap();
        known.add(&a, &vectors(0..3, 1));
        known.add(&a, &vectors(0..1, 2));
        assert_eq!(count(&known, &a), 2, "one has another version");
        assert_eq!(known.get(&a, std::iter::once((Uuid::from_u128(1), None))).len(), 0, "it is gone");
        known.retain(&a, &HashSet::from([Uuid::from_u128(2)]));
        assert_eq!(count(&known, &a), 1);
        known.add(&a, &vectors(3..7, 1));
        assert_eq!(count(&known, &a), 5, "the room of those that are gone is free");
    }
}
