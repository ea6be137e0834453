//! Vaults of unit tests.

use crate::ports::vault::{KeySource, Settings, Vault, WithoutKeys};

/// A master key with the id `old`.
pub(crate) const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
/// Another, with the id `new`.
pub(crate) const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

/// A vault with these keys, the first of which encrypts.
pub(crate) fn vault(keys: &[&str]) -> Vault {
    let master_keys = keys.iter().map(|key| KeySource::value(*key)).collect();
    let settings = Settings { master_keys, accept_lost_keys: false };
    Vault::open(&settings, WithoutKeys::Refuse).expect("keys of tests can be read").0
}
