//! Master keys that open nothing of what is stored.

use std::collections::BTreeSet;

use crate::base::invalid::hinted::HintedError;
use crate::config::Config;
use crate::ports::vault::Vault;
use crate::ports::vault::rotation::locked_out;
use crate::store::Store;

/// With keys that open nothing of what is stored, every use of a secret would fail, and new ones would be sealed with a
/// key that nobody means to keep.
pub(super) async fn refuse_foreign_keys(config: &Config, store: &Store, vault: &Vault) -> anyhow::Result<()> {
    let Some(needed) = locked_out(store, vault).await? else { return Ok(()) };
    let why = foreign_keys(&needed, vault);
    if config.vault.accept_lost_keys {
        tracing::warn!("{why}; it is accepted, so these secrets have to be given anew");
        return Ok(());
    }
    let hint = "put the keys into vault.master_keys (or the key file back into the data directory); if they are lost \
                for good, set vault.accept_lost_keys = true and give the secrets anew";
    Err(HintedError::new(why, hint).into())
}

/// The error for keys that open none of the stored secrets.
pub(crate) fn foreign_keys(needed: &BTreeSet<String>, vault: &Vault) -> String {
    let named = |ids: Vec<&str>| ids.into_iter().map(|id| format!("`{id}`")).collect::<Vec<_>>().join(", ");
    let (needed, configured) = (named(needed.iter().map(String::as_str).collect()), named(vault.key_ids()));
    format!("no master key opens any of the secrets that are stored: they need {needed}, and there is {configured}")
}
