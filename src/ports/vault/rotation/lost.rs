//! Whether the configured master keys open anything of what is stored: with keys of another installation every
//! credential would fail by itself, one run after the other.

use std::collections::BTreeSet;

use crate::ports::vault::Vault;
use crate::ports::vault::rotation::{BATCH, texts};
use crate::store::{Store, StoreError};

/// Pages of each kind that are looked through: a start does not wait for a long list without secrets.
const PAGES: usize = 50;

/// The ids of the keys that the data needs, where none of the configured ones opens any of it; `None`: one does, or
/// there is nothing to open. Messages are no part of it: they are gone within the hour.
///
/// # Errors
/// The store's.
pub async fn locked_out(store: &Store, vault: &Vault) -> Result<Option<BTreeSet<String>>, StoreError> {
    let mut needed = BTreeSet::new();
    let found = opens_credential(store, vault, &mut needed).await?
        || opens_recipient(store, vault, &mut needed).await?
        || opens_task(store, vault, &mut needed).await?;
    Ok(Some(needed).filter(|needed| !found && !needed.is_empty()))
}

async fn opens_credential(store: &Store, vault: &Vault, needed: &mut BTreeSet<String>) -> Result<bool, StoreError> {
    let mut after = None;
    for _ in 0..PAGES {
        // no key has an empty id: all of them
        let page = store.credentials_not_under("", after, BATCH).await?;
        if page.iter().any(|stored| vault.opens_document(stored)) {
            return Ok(true);
        }
        needed.extend(page.iter().filter_map(|stored| Vault::key_of(&stored.sealed)).map(str::to_owned));
        let Some(last) = page.last() else { break };
        after = Some(last.credential.id);
    }
    Ok(false)
}

async fn opens_recipient(store: &Store, vault: &Vault, needed: &mut BTreeSet<String>) -> Result<bool, StoreError> {
    let mut after = String::new();
    for _ in 0..PAGES {
        let page = store.sealed_recipients(&after, BATCH).await?;
        for (row, body) in page.iter().filter_map(|row| Some((row, row.body.as_ref()?))) {
            if texts::opens_recipient(vault, &row.tenant_id, body) {
                return Ok(true);
            }
            needed.extend(texts::keys_of_recipient(body).into_iter().map(str::to_owned));
        }
        let Some(last) = page.last() else { break };
        after.clone_from(&last.id);
    }
    Ok(false)
}

async fn opens_task(store: &Store, vault: &Vault, needed: &mut BTreeSet<String>) -> Result<bool, StoreError> {
    let mut after = None;
    for _ in 0..PAGES {
        let page = store.sealed_tasks(after, BATCH).await?;
        for (row, spec) in page.iter().filter_map(|row| Some((row, row.body.as_ref()?))) {
            if texts::opens_task(vault, &row.tenant_id, spec) {
                return Ok(true);
            }
            needed.extend(texts::keys_of_task(spec).into_iter().map(str::to_owned));
        }
        let Some(last) = page.last() else { break };
        after = Some(last.id);
    }
    Ok(false)
}
