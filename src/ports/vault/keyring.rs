//! Master keys: read from the configuration, from files or from commands, known by their ids.

use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::aead::{AES_256_GCM, RandomizedNonceKey};
use aws_lc_rs::hmac;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use zeroize::Zeroizing;

use crate::ports::vault::VaultError;
use crate::ports::vault::source::{self, KeySource};

/// Bytes of a key.
pub const KEY_LENGTH: usize = 32;
/// Longest id of a key, in bytes.
const ID_LENGTH: usize = 32;

/// The keys, the one that encrypts first. Never empty.
pub struct Keyring(Vec<MasterKey>);

/// A master key and its id.
pub struct MasterKey {
    pub id: String,
    pub key: RandomizedNonceKey,
    /// Derived from it, for tags.
    pub tagging: hmac::Key,
}

impl Keyring {
    /// Reads each key from where it lies; a fault names its entry.
    pub fn read(keys: &[KeySource]) -> Result<Keyring, VaultError> {
        let mut read: Vec<MasterKey> = vec![];
        for (index, source) in keys.iter().enumerate() {
            let fault = |why: String| VaultError::Keys(format!("vault.master_keys[{index}] {why}"));
            let key = source.text().and_then(|text| MasterKey::read(text.trim())).map_err(fault)?;
            if read.iter().any(|other| other.id == key.id) {
                return Err(fault(format!("has the id `{}`, which another key has", key.id)));
            }
            read.push(key);
        }
        if read.is_empty() {
            return Err(VaultError::Keys("no master key".into()));
        }
        Ok(Keyring(read))
    }

    /// The key in a file, made if there is none; tells the path if it was.
    pub fn from_file(path: &Path) -> Result<(Keyring, Option<PathBuf>), VaultError> {
        let made = make_once(path).map_err(|error| unusable(path, &error.to_string()))?;
        let text = source::read_file(path).map_err(|why| unusable(path, &why))?;
        let key = MasterKey::read(text.trim()).map_err(|why| unusable(path, &why))?;
        Ok((Keyring(vec![key]), made.then(|| path.to_owned())))
    }

    /// One key that is written nowhere.
    pub fn ephemeral() -> Result<Keyring, VaultError> {
        let text = new_key().map_err(|error| VaultError::Keys(error.to_string()))?;
        Ok(Keyring(vec![MasterKey::read(&text).map_err(VaultError::Keys)?]))
    }

    /// The key that encrypts.
    pub fn first(&self) -> &MasterKey {
        &self.0[0]
    }

    /// All of them, the one that encrypts first.
    pub fn all(&self) -> &[MasterKey] {
        &self.0
    }

    /// The key of this id.
    pub fn get(&self, id: &str) -> Option<&MasterKey> {
        self.0.iter().find(|key| key.id == id)
    }

    /// The ids of all keys, that of the first one first.
    pub fn ids(&self) -> Vec<&str> {
        self.0.iter().map(|key| key.id.as_str()).collect()
    }
}

impl MasterKey {
    /// `id:base64`; the fault does not repeat the text.
    fn read(text: &str) -> Result<MasterKey, String> {
        let (id, encoded) = text.split_once(':').ok_or("is not `id:base64`")?;
        let plain = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || matches!(c, '-' | '_');
        if id.is_empty() || id.len() > ID_LENGTH || !id.chars().all(plain) {
            return Err(format!("needs an id of 1 to {ID_LENGTH} characters a-z, 0-9, - and _ before the colon"));
        }
        let bytes = STANDARD.decode(encoded.trim()).map(Zeroizing::new).map_err(|_| "is not base64 after the colon")?;
        if bytes.len() != KEY_LENGTH {
            return Err(format!("has {} bytes after the colon instead of {KEY_LENGTH}", bytes.len()));
        }
        let key = RandomizedNonceKey::new(&AES_256_GCM, &bytes).map_err(|_| "is not a usable key")?;
        let derived = hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, &bytes), b"reveille tags 1");
        let tagging = hmac::Key::new(hmac::HMAC_SHA256, derived.as_ref());
        Ok(MasterKey { id: id.to_owned(), key, tagging })
    }
}

/// Makes the key file unless it is there. It appears whole or not at all, and of two makers one wins.
fn make_once(path: &Path) -> std::io::Result<bool> {
    if path.try_exists()? {
        return Ok(false);
    }
    let dir = path.parent().unwrap_or(Path::new("."));
    std::fs::DirBuilder::new().recursive(true).mode(0o700).create(dir)?;
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = write_key(&draft).and_then(|()| match std::fs::hard_link(&draft, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == std::io::ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    });
    let _ = std::fs::remove_file(&draft);
    std::fs::File::open(dir)?.sync_all()?;
    written
}

/// A new key, as `id:base64`.
fn new_key() -> std::io::Result<Zeroizing<String>> {
    let mut bytes = Zeroizing::new([0_u8; KEY_LENGTH]);
    let mut id = [0_u8; 4];
    let chance = |_| std::io::Error::other("no random bytes");
    aws_lc_rs::rand::fill(&mut *bytes).map_err(chance)?;
    aws_lc_rs::rand::fill(&mut id).map_err(chance)?;
    Ok(Zeroizing::new(format!("file-{}:{}", hex::encode(id), STANDARD.encode(*bytes))))
}

fn write_key(path: &Path) -> std::io::Result<()> {
    let text = Zeroizing::new(format!("{}\n", *new_key()?));
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(true).mode(0o600).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

fn unusable(path: &Path, why: &str) -> VaultError {
    VaultError::Keys(format!("the key file {} can't be used: {why}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: &str = "AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn refused(keys: &[&str]) -> String {
        let keys: Vec<KeySource> = keys.iter().map(|key| KeySource::value(*key)).collect();
        Keyring::read(&keys).err().expect("a refusal").to_string()
    }

    #[test]
    fn keys_are_read_in_order_and_found_by_id() {
        let keys = [KeySource::value(format!("new-2:{KEY}")), KeySource::value(format!("old_1:{KEY}"))];
        let ring = Keyring::read(&keys).unwrap();
        assert_eq!((ring.first().id.as_str(), ring.ids()), ("new-2", vec!["new-2", "old_1"]));
        assert!(ring.get("old_1").is_some() && ring.get("other").is_none());
    }

    #[test]
    fn bad_key_is_refused_by_its_place_and_never_repeated() {
        assert_eq!(refused(&["canary"]), "vault.master_keys[0] is not `id:base64`");
        assert_eq!(refused(&[&format!("a:{KEY}"), "b:canary!"]), "vault.master_keys[1] is not base64 after the colon");
        assert_eq!(refused(&["a:"]), "vault.master_keys[0] has 0 bytes after the colon instead of 32");
        assert_eq!(refused(&["a:Y2FuYXJ5"]), "vault.master_keys[0] has 6 bytes after the colon instead of 32");
        assert_eq!(
            refused(&[&format!("a:{KEY}"), &format!("a:{KEY}")]),
            "vault.master_keys[1] has the id `a`, which another key has"
        );
        for id in ["", "A", "a b", "a.b", &"a".repeat(33)] {
            assert!(refused(&[&format!("{id}:{KEY}")]).contains("needs an id"), "{id:?}");
        }
    }
}
