//! The chain of the audit log: each entry's hash covers the entry and the hash before it, under a key that the database
//! does not have. Looking changes nothing.
//!
//! Found is what was changed, taken out, put in or moved among sealed entries, and what was cut off at the end. Not
//! covered are entries that are not sealed yet: they are counted.

use std::collections::BTreeSet;

use chrono::SecondsFormat;
use serde::Serialize;
use serde_json::json;

use crate::ports::vault::Vault;
use crate::store::{AuditEntry, Store, StoreError};

/// Purpose of the hashes, among the tags of the vault.
const PURPOSE: &str = "audit";
/// Entries read at once.
const PAGE: i64 = 1_000;

/// Result of a walk along the chain.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainCheck {
    /// Entries that are as they were sealed.
    pub sealed: i64,
    /// Entries that have no place in the chain yet.
    pub unsealed: i64,
    /// The first break of the chain; `None`: it is whole.
    pub broken: Option<ChainBreak>,
}

/// The first place where the chain is not as it was sealed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct ChainBreak {
    /// Position of the row in the chain.
    pub position: i64,
    /// The kind of the break, in words.
    pub why: &'static str,
}

const MISSING: &str = "the entry is missing";
const CHANGED: &str = "the entry is not as it was sealed here: changed, moved, put in, or sealed under another key";
const CUT_OFF: &str = "the entries from here to the recorded end are missing";
const OTHER_END: &str = "the recorded end is not that of the entries";

/// The hash of an entry behind the one that has the hash `before`, which is empty for the first.
pub fn hash(vault: &Vault, before: &str, entry: &AuditEntry) -> String {
    vault.tag(PURPOSE, &sealed_text(before, entry))
}

/// All of an entry but its place, which the hash before it tells, as canonical JSON (RFC 8785).
fn sealed_text(before: &str, entry: &AuditEntry) -> String {
    let text = serde_json_canonicalizer::to_string(&json!({
        "id": entry.id, "tenant": entry.tenant_id, "at": entry.at.to_rfc3339_opts(SecondsFormat::Micros, true),
        "actor": entry.actor, "via": entry.via, "action": entry.action,
        "subject_type": entry.subject_type, "subject": entry.subject_id, "body": entry.body,
    }));
    format!("{before}|{}", text.expect("a JSON value is JSON"))
}

/// Checks entry by entry; its state is where it has come to.
#[derive(Default)]
struct ChainWalk {
    position: i64,
    hash: String,
}

impl ChainWalk {
    fn step(&mut self, vault: &Vault, entry: &AuditEntry) -> Result<(), ChainBreak> {
        let position = self.position + 1;
        let broken = |why| Err(ChainBreak { position, why });
        if entry.position != Some(position) {
            return broken(MISSING);
        }
        match &entry.hash {
            Some(hash) if vault.is_tag(PURPOSE, &sealed_text(&self.hash, entry), hash) => {
                *self = ChainWalk { position, hash: hash.clone() };
                Ok(())
            }
            _ => broken(CHANGED),
        }
    }

    /// `end`: the recorded end before the walk, and after it; entries may have been sealed meanwhile.
    fn end(&self, before: (i64, &str), after: (i64, &str)) -> Result<(), ChainBreak> {
        if self.position < before.0 {
            return Err(ChainBreak { position: self.position + 1, why: CUT_OFF });
        }
        let agrees = |end: (i64, &str)| end.0 != self.position || end.1 == self.hash;
        match after.0 < self.position || !agrees(before) || !agrees(after) {
            true => Err(ChainBreak { position: self.position, why: OTHER_END }),
            false => Ok(()),
        }
    }
}

/// The ids of the configured keys that entries of the chain were sealed under. A key is used for one stretch of it, so
/// that the ends of stretches are searched for, and not every entry is read; what no key fits has none.
pub async fn keys_used(store: &Store, vault: &Vault) -> Result<BTreeSet<String>, StoreError> {
    let (end, ..) = store.audit_end().await?;
    let mut keys = BTreeSet::new();
    let mut stretches = vec![];
    if end > 0 {
        stretches.push(((1, key_at(store, vault, 1).await?), (end, key_at(store, vault, end).await?)));
    }
    while let Some(((first, one), (last, other))) = stretches.pop() {
        if one != other && last - first > 1 {
            let middle = first + (last - first) / 2;
            let key = key_at(store, vault, middle).await?;
            stretches.push(((first, one), (middle, key.clone())));
            stretches.push(((middle, key), (last, other)));
        } else {
            keys.extend(one.into_iter().chain(other));
        }
    }
    Ok(keys)
}

/// The key of the entry at a position.
async fn key_at(store: &Store, vault: &Vault, position: i64) -> Result<Option<String>, StoreError> {
    let found = store.audit_chain((position - 2).max(0), 2).await?;
    let at = |position: i64| found.iter().find(|entry| entry.position == Some(position));
    let before = at(position - 1).and_then(|entry| entry.hash.as_deref()).unwrap_or_default();
    let key = at(position).and_then(|entry| {
        vault.tagged_by(PURPOSE, &sealed_text(before, entry), entry.hash.as_deref().unwrap_or_default())
    });
    Ok(key.map(str::to_owned))
}

/// Walks the whole chain.
pub async fn verify(store: &Store, vault: &Vault) -> Result<ChainCheck, StoreError> {
    let before = store.audit_end().await?;
    let mut walk = ChainWalk::default();
    let broken = 'walk: {
        loop {
            let page = store.audit_chain(walk.position, PAGE).await?;
            for entry in &page {
                if let Err(broken) = walk.step(vault, entry) {
                    break 'walk Some(broken);
                }
            }
            if (page.len() as i64) < PAGE {
                break;
            }
        }
        let after = store.audit_end().await?;
        walk.end((before.0, &before.1), (after.0, &after.1)).err()
    };
    Ok(ChainCheck { sealed: walk.position, unsealed: before.2, broken })
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, TimeDelta};
    use uuid::Uuid;

    use super::*;
    use crate::ports::vault::fixture::{NEW, OLD, vault};

    fn chain(vault: &Vault, length: u32) -> Vec<AuditEntry> {
        let mut before = String::new();
        let entry = |n: u32| {
            let mut entry = AuditEntry {
                id: Uuid::from_u128(n.into()),
                tenant_id: "ann".into(),
                at: DateTime::UNIX_EPOCH + TimeDelta::seconds(n.into()),
                actor: format!("recipient:{}", n % 3),
                via: "link".into(),
                action: "approval.approved".into(),
                subject_type: "approval".into(),
                subject_id: Uuid::from_u128((1000 + n).into()),
                body: json!({ "n": n, "digest": "d" }),
                position: Some(n.into()),
                hash: None,
            };
            before = hash(vault, &before, &entry);
            entry.hash = Some(before.clone());
            entry
        };
        (1..=length).map(entry).collect()
    }

    fn walked(vault: &Vault, entries: &[AuditEntry]) -> Result<ChainWalk, ChainBreak> {
        let mut walk = ChainWalk::default();
        entries.iter().try_for_each(|entry| walk.step(vault, entry))?;
        Ok(walk)
    }

    #[test]
    fn chain_is_whole_under_the_key_that_sealed_it_after_a_rotation_too_and_under_no_other() {
        let entries = chain(&vault(&[OLD]), 20);
        assert_eq!(walked(&vault(&[OLD]), &entries).map(|walk| walk.position), Ok(20));
        assert_eq!(walked(&vault(&[NEW, OLD]), &entries).map(|walk| walk.position), Ok(20));
        assert_eq!(walked(&vault(&[NEW]), &entries).err(), Some(ChainBreak { position: 1, why: CHANGED }));
    }

    #[test]
    fn thousand_changes_are_each_found_where_they_are() {
        let vault = vault(&[OLD]);
        let whole = chain(&vault, 40);
        let mut random = fastrand::Rng::with_seed(7);
        for _ in 0..1_000 {
            let mut entries = whole.clone();
            let at = random.usize(..entries.len() - 1);
            let entry = &mut entries[at];
            let kind = random.u8(..12);
            match kind {
                0 => entry.id = Uuid::from_u128(random.u128(..)),
                1 => entry.tenant_id.push('x'),
                2 => entry.at += TimeDelta::microseconds(1),
                3 => entry.actor = "service".into(),
                4 => entry.via = "api".into(),
                5 => entry.action = "approval.cancelled".into(),
                6 => entry.subject_type = "grant".into(),
                7 => entry.subject_id = Uuid::from_u128(random.u128(..)),
                8 => entry.body["n"] = json!(random.u32(100..)),
                9 => entry.hash = Some(hex::encode([random.u8(..); 32])),
                10 => drop(entries.remove(at)),
                // two entries change places, each with the other's position
                _ => {
                    entries.swap(at, at + 1);
                    entries[at].position = Some(at as i64 + 1);
                    entries[at + 1].position = Some(at as i64 + 2);
                }
            }
            let found = walked(&vault, &entries).err().map(|broken| broken.position);
            assert_eq!(found, Some(at as i64 + 1), "change {kind} at {at}");
        }
    }

    #[test]
    fn cut_end_of_the_chain_is_found_and_rows_sealed_meanwhile_are_no_fault() {
        let vault = vault(&[OLD]);
        let entries = chain(&vault, 10);
        let hash_of = |n: usize| entries[n - 1].hash.clone().unwrap();
        let (eight, ten) = (hash_of(8), hash_of(10));
        let walk = |n| walked(&vault, &entries[..n]).ok().unwrap();
        assert_eq!(walk(8).end((10, &ten), (10, &ten)), Err(ChainBreak { position: 9, why: CUT_OFF }));
        assert_eq!(walk(10).end((8, &eight), (10, &ten)), Ok(()));
        assert_eq!(walk(8).end((8, &eight), (10, &ten)), Ok(()));
        assert_eq!(walk(10).end((8, &eight), (8, &eight)), Err(ChainBreak { position: 10, why: OTHER_END }));
        assert_eq!(walk(10).end((10, &eight), (10, &eight)), Err(ChainBreak { position: 10, why: OTHER_END }));
        assert_eq!(ChainWalk::default().end((0, ""), (0, "")), Ok(()));
    }
}
