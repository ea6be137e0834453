//! The vault: secrets at rest, each bound to the place that it belongs to.
//!
//! What it seals opens under the same tenant, service, account and field only; moved, changed by one bit, or without
//! its master key it does not open. It stores nothing itself: a sealed text lies wherever its owner lies. The master
//! keys live in the configuration or in a key file, never in the database; without them what was sealed is lost.

pub mod credentials;
mod document;
mod envelope;
#[cfg(test)]
pub(crate) mod fixture;
mod keyring;
pub mod oauth;
mod place;
pub mod rotation;
mod source;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use aws_lc_rs::constant_time::verify_slices_are_equal;
use aws_lc_rs::hmac;
use serde::{Deserialize, Serialize};

use crate::base::secret::Secret;
use crate::ports::vault::keyring::Keyring;

pub use place::SealedPlace;
pub use source::KeySource;

/// The key file's name within the data directory.
pub const KEY_FILE: &str = "master.key";

/// Bytes of a short tag.
pub const SHORT_TAG: usize = 16;

/// `[vault]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// `"id:base64 of 32 bytes"`, or where that text lies: `{ file = "…" }`, `{ command = ["…"] }`. The first encrypts,
    /// all decrypt. Empty: on SQLite a key file in the data directory.
    pub master_keys: Vec<KeySource>,
    /// Starts even where no key opens anything that is stored: what the lost keys have sealed has to be given anew.
    pub accept_lost_keys: bool,
}

/// Where master keys come from when none is configured.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum WithoutKeys<'a> {
    /// A key file in this directory, made if there is none: the embedded default.
    KeyFile(&'a Path),
    /// Refused: several instances have to share their keys.
    Refuse,
}

/// The place that a secret belongs to. All of it is bound into the ciphertext.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Context<'a> {
    /// The tenant that owns the secret.
    pub tenant: &'a str,
    /// Kind of place, such as the credential's service.
    pub service: &'a str,
    /// Account or part within the service.
    pub account: &'a str,
    /// Name of the sealed field.
    pub field: &'a str,
}

/// Why a secret can't be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum VaultError {
    /// No master key, or an unusable one. The text says what to do.
    #[error("{0}")]
    Keys(String),
    /// It was sealed with a master key that is not configured.
    #[error("sealed with the master key `{0}`, which is not in vault.master_keys")]
    UnknownKey(String),
    /// Not a sealed text, changed, or moved from the place that it was sealed for.
    #[error("can't be opened: damaged, or moved from where it belongs")]
    Refused,
}

/// Seals and opens. Cheap to clone.
#[derive(Clone)]
pub struct Vault {
    keyring: Arc<Keyring>,
}

impl Vault {
    /// Reads the master keys. Tells where a key file was made, so that it can be said once.
    pub fn open(settings: &Settings, without: WithoutKeys) -> Result<(Vault, Option<PathBuf>), VaultError> {
        let (keyring, made) = match (settings.master_keys.as_slice(), without) {
            ([], WithoutKeys::KeyFile(dir)) => Keyring::from_file(&dir.join(KEY_FILE))?,
            ([], WithoutKeys::Refuse) => {
                let why = "no master key: set vault.master_keys = [\"first:…\"] with `openssl rand -base64 32`";
                return Err(VaultError::Keys(why.into()));
            }
            (keys, _) => (Keyring::read(keys)?, None),
        };
        Ok((Vault { keyring: Arc::new(keyring) }, made))
    }

    /// A vault under a key that nobody keeps, to judge settings with: what it seals opens nowhere else.
    pub fn ephemeral() -> Result<Vault, VaultError> {
        Ok(Vault { keyring: Arc::new(Keyring::ephemeral()?) })
    }

    /// The secret as text that may be stored anywhere and is of use in one place only.
    pub fn seal(&self, context: &Context, secret: &Secret) -> Result<String, VaultError> {
        envelope::seal(self.keyring.first(), context, secret.expose().as_bytes())
    }

    /// A secret that was sealed for this place, its data key under the first master key; the secret itself is not
    /// touched. `None`: it is under that key already.
    pub fn rewrap(&self, context: &Context, sealed: &str) -> Result<Option<String>, VaultError> {
        envelope::rewrap(&self.keyring, self.keyring.first(), context, sealed)
    }

    /// Whether a configured key opens what was sealed for this place. The secret itself is not touched.
    pub fn can_open(&self, context: &Context, sealed: &str) -> bool {
        envelope::opens(&self.keyring, context, sealed)
    }

    /// The id of the master key that encrypts.
    pub fn first_key(&self) -> &str {
        &self.keyring.first().id
    }

    /// The ids of all master keys, the one that encrypts first.
    pub fn key_ids(&self) -> Vec<&str> {
        self.keyring.ids()
    }

    /// The id of the master key that a sealed text needs; `None` where it is not one.
    pub fn key_of(sealed: &str) -> Option<&str> {
        envelope::key_id(sealed)
    }

    /// A tag over a text for one purpose (HMAC-SHA-256, hexadecimal) that nobody without the master key can make. The
    /// same each time, until the first master key changes.
    pub fn tag(&self, purpose: &str, text: &str) -> String {
        hex::encode(hmac::sign(&self.keyring.first().tagging, &tagged(purpose, text)))
    }

    /// Whether this tag was made for this purpose and text, with any of the master keys.
    pub fn is_tag(&self, purpose: &str, text: &str, tag: &str) -> bool {
        self.tagged_by(purpose, text, tag).is_some()
    }

    /// The id of the master key with which this tag was made for this purpose and text.
    pub fn tagged_by(&self, purpose: &str, text: &str, tag: &str) -> Option<&str> {
        let tag = hex::decode(tag).ok()?;
        let text = tagged(purpose, text);
        let made_it = |key: &&keyring::MasterKey| hmac::verify(&key.tagging, &text, &tag).is_ok();
        self.keyring.all().iter().find(made_it).map(|key| key.id.as_str())
    }

    /// The first half of a tag, for addresses that have to be short: 128 bits, which nobody guesses from outside (RFC
    /// 2104, section 5).
    pub fn short_tag(&self, purpose: &str, text: &str) -> [u8; SHORT_TAG] {
        short_mac(self.keyring.first(), &tagged(purpose, text))
    }

    /// Whether this short tag was made for this purpose and text, with any of the master keys.
    pub fn is_short_tag(&self, purpose: &str, text: &str, tag: &[u8]) -> bool {
        let text = tagged(purpose, text);
        self.keyring.all().iter().any(|key| verify_slices_are_equal(&short_mac(key, &text), tag).is_ok())
    }

    /// Opens a secret that was sealed for exactly this place.
    pub fn unseal(&self, context: &Context, sealed: &str) -> Result<Secret, VaultError> {
        let opened = envelope::open(&self.keyring, context, sealed)?;
        let text = std::str::from_utf8(&opened).map_err(|_| VaultError::Refused)?;
        Ok(Secret::new(text))
    }
}

fn short_mac(key: &keyring::MasterKey, text: &[u8]) -> [u8; SHORT_TAG] {
    let whole = hmac::sign(&key.tagging, text);
    std::array::from_fn(|at| whole.as_ref()[at])
}

fn tagged(purpose: &str, text: &str) -> Vec<u8> {
    [purpose.as_bytes(), b"\0", text.as_bytes()].concat()
}

impl std::fmt::Debug for Vault {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Vault").field("keys", &self.keyring.ids()).finish()
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::ports::vault::fixture::{NEW, OLD, vault};

    /// A directory that goes with the test.
    struct VaultDir(PathBuf);

    impl VaultDir {
        fn new() -> VaultDir {
            VaultDir(std::env::temp_dir().join(format!("reveille-vault-{:016x}", fastrand::u64(..))))
        }
    }

    impl Drop for VaultDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    const PLACE: Context<'_> = Context { tenant: "ann", service: "s", account: "a", field: "f" };

    #[test]
    fn key_file_is_made_once_for_its_owner_only_and_said_once() {
        let dir = VaultDir::new();
        let open = || Vault::open(&Settings::default(), WithoutKeys::KeyFile(&dir.0)).unwrap();
        let (first, made) = open();
        let path = dir.0.join(KEY_FILE);
        assert_eq!(made.as_deref(), Some(path.as_path()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir.0).unwrap().count(), 1, "no draft is left");

        let sealed = first.seal(&PLACE, &Secret::new("canary")).unwrap();
        let (second, made) = open();
        assert_eq!(made, None);
        assert_eq!(second.unseal(&PLACE, &sealed).unwrap().expose(), "canary");
    }

    #[test]
    fn tag_is_good_for_its_purpose_and_text_under_any_configured_key() {
        let (old, rotated, other) = (vault(&[OLD]), vault(&[NEW, OLD]), vault(&[NEW]));
        let tag = old.tag("complete", "run 1");
        assert_eq!((tag.len(), tag == old.tag("complete", "run 1")), (64, true));
        assert!(old.is_tag("complete", "run 1", &tag) && rotated.is_tag("complete", "run 1", &tag));
        assert!(!other.is_tag("complete", "run 1", &tag));
        assert!(!old.is_tag("complete", "run 2", &tag) && !old.is_tag("approve", "run 1", &tag));
        assert!(!old.is_tag("complete", "run 1", "") && !old.is_tag("complete", "run 1", "zz"));
        let short = old.short_tag("complete", "run 1");
        assert_eq!(hex::encode(short), tag[..2 * SHORT_TAG]);
        assert!(old.is_short_tag("complete", "run 1", &short) && rotated.is_short_tag("complete", "run 1", &short));
        assert!(!other.is_short_tag("complete", "run 1", &short) && !old.is_short_tag("complete", "run 2", &short));
        assert!(!old.is_short_tag("complete", "run 1", &short[1..]) && !old.is_short_tag("complete", "run 1", &[]));
        assert_ne!(rotated.tag("complete", "run 1"), tag);
    }

    #[test]
    fn key_file_that_others_may_read_is_refused() {
        let dir = VaultDir::new();
        Vault::open(&Settings::default(), WithoutKeys::KeyFile(&dir.0)).unwrap();
        let path = dir.0.join(KEY_FILE);
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o644)).unwrap();
        let refused = Vault::open(&Settings::default(), WithoutKeys::KeyFile(&dir.0)).unwrap_err().to_string();
        assert!(refused.contains("others may read it (mode 644); hint: chmod 600"), "{refused}");
    }

    #[test]
    fn damaged_key_file_is_refused_not_replaced() {
        let dir = VaultDir::new();
        Vault::open(&Settings::default(), WithoutKeys::KeyFile(&dir.0)).unwrap();
        std::fs::write(dir.0.join(KEY_FILE), "").unwrap();
        let refused = Vault::open(&Settings::default(), WithoutKeys::KeyFile(&dir.0)).unwrap_err().to_string();
        assert!(refused.ends_with("is not `id:base64`"), "{refused}");
    }

    #[test]
    fn missing_shared_key_refuses_to_start() {
        let refused = Vault::open(&Settings::default(), WithoutKeys::Refuse).unwrap_err().to_string();
        assert!(refused.contains("set vault.master_keys"), "{refused}");
    }

    #[test]
    fn vault_shows_its_key_ids_and_nothing_more() {
        let settings = Settings {
            master_keys: vec![KeySource::value("k:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=")],
            accept_lost_keys: false,
        };
        let (vault, made) = Vault::open(&settings, WithoutKeys::Refuse).unwrap();
        assert_eq!((made, format!("{vault:?}")), (None, r#"Vault { keys: ["k"] }"#.into()));
    }
}
