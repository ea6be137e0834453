//! The sealed form: `v1:<master key id>:<wrapped data key>:<ciphertext>`, both in URL-safe base64 without padding.
//!
//! Each secret has a data key of its own, wrapped by the master key, so that a new master key re-wraps without
//! touching the secret. Both layers are AES-256-GCM with random nonces of 96 bits in front, and both bind the version
//! and the whole context.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::ports::vault::keyring::{KEY_LENGTH, Keyring, MasterKey};
use crate::ports::vault::{Context, VaultError};

const VERSION: &str = "v1";

/// The two layers, told apart in what they bind.
const KEY_LAYER: &str = "data key";
const SECRET_LAYER: &str = "secret";

/// Seals a secret for its context under this master key.
pub fn seal(master: &MasterKey, context: &Context, secret: &[u8]) -> Result<String, VaultError> {
    let mut data_key = Zeroizing::new([0_u8; KEY_LENGTH]);
    aws_lc_rs::rand::fill(&mut *data_key).map_err(|_| VaultError::Keys("no random bytes".into()))?;
    let wrapped = encrypt(&master.key, &bound(KEY_LAYER, &master.id, context), &*data_key)?;
    let ciphertext = encrypt(&key(&*data_key)?, &bound(SECRET_LAYER, "", context), secret)?;
    Ok(format!("{VERSION}:{}:{wrapped}:{ciphertext}", master.id))
}

/// Opens what was sealed for this context.
pub fn open(keyring: &Keyring, context: &Context, sealed: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let parts: Vec<&str> = sealed.split(':').collect();
    let [VERSION, id, wrapped, ciphertext] = parts[..] else { return Err(VaultError::Refused) };
    let master = keyring.get(id).ok_or_else(|| VaultError::UnknownKey(id.to_owned()))?;
    let data_key = decrypt(&master.key, &bound(KEY_LAYER, id, context), wrapped)?;
    decrypt(&key(&data_key)?, &bound(SECRET_LAYER, "", context), ciphertext)
}

/// The secret with its data key under another master key; the sealed secret itself is not touched. `None`: it is under
/// that one already.
pub fn rewrap(
    keyring: &Keyring,
    master: &MasterKey,
    context: &Context,
    sealed: &str,
) -> Result<Option<String>, VaultError> {
    let parts: Vec<&str> = sealed.split(':').collect();
    let [VERSION, id, wrapped, ciphertext] = parts[..] else { return Err(VaultError::Refused) };
    let old = keyring.get(id).ok_or_else(|| VaultError::UnknownKey(id.to_owned()))?;
    if old.id == master.id {
        return Ok(None);
    }
    let data_key = decrypt(&old.key, &bound(KEY_LAYER, id, context), wrapped)?;
    let wrapped = encrypt(&master.key, &bound(KEY_LAYER, &master.id, context), &data_key)?;
    Ok(Some(format!("{VERSION}:{}:{wrapped}:{ciphertext}", master.id)))
}

/// Whether a key of the ring opens the data key.
pub fn opens(keyring: &Keyring, context: &Context, sealed: &str) -> bool {
    let parts: Vec<&str> = sealed.split(':').collect();
    let [VERSION, id, wrapped, _] = parts[..] else { return false };
    keyring.get(id).is_some_and(|master| decrypt(&master.key, &bound(KEY_LAYER, id, context), wrapped).is_ok())
}

/// The id of the master key that a sealed text needs.
pub fn key_id(sealed: &str) -> Option<&str> {
    match sealed.split(':').collect::<Vec<_>>()[..] {
        [VERSION, id, _, _] => Some(id),
        _ => None,
    }
}

fn key(bytes: &[u8]) -> Result<RandomizedNonceKey, VaultError> {
    RandomizedNonceKey::new(&AES_256_GCM, bytes).map_err(|_| VaultError::Refused)
}

/// nonce ‖ ciphertext ‖ tag, in base64.
fn encrypt(key: &RandomizedNonceKey, bound: &[u8], plain: &[u8]) -> Result<String, VaultError> {
    // room for the tag, so that growing leaves no copy behind
    let mut text = Vec::with_capacity(plain.len() + AES_256_GCM.tag_len());
    text.extend_from_slice(plain);
    let nonce = key.seal_in_place_append_tag(Aad::from(bound), &mut text).map_err(|_| VaultError::Refused)?;
    Ok(URL_SAFE_NO_PAD.encode([nonce.as_ref().as_slice(), &text].concat()))
}

fn decrypt(key: &RandomizedNonceKey, bound: &[u8], encoded: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let bytes = URL_SAFE_NO_PAD.decode(encoded).map_err(|_| VaultError::Refused)?;
    let (nonce, text) = bytes.split_at_checked(NONCE_LEN).ok_or(VaultError::Refused)?;
    let nonce = Nonce::try_assume_unique_for_key(nonce).map_err(|_| VaultError::Refused)?;
    let mut text = Zeroizing::new(text.to_vec());
    let length = key.open_in_place(nonce, Aad::from(bound), &mut text).map_err(|_| VaultError::Refused)?.len();
    text.truncate(length);
    Ok(text)
}

/// The context to which a layer is bound. Each part goes in with its length, so that no two contexts read the same.
fn bound(layer: &str, key_id: &str, context: &Context) -> Vec<u8> {
    let parts =
        ["reveille vault", VERSION, layer, key_id, context.tenant, context.service, context.account, context.field];
    let mut bytes = vec![];
    for part in parts {
        bytes.extend_from_slice(&(part.len() as u64).to_be_bytes());
        bytes.extend_from_slice(part.as_bytes());
    }
    bytes
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ports::vault::source::KeySource;

    const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "new:HxAREhMUFRYXGBkaGxwdHh8AAQIDBAUGBwgJCgsMDQ4=";
    const PLACE: Context<'_> = Context { tenant: "ann", service: "google", account: "primary", field: "document" };

    fn ring(keys: &[&str]) -> Keyring {
        Keyring::read(&keys.iter().map(|key| KeySource::value(*key)).collect::<Vec<_>>()).unwrap()
    }

    #[test]
    fn sealed_value_opens_in_its_place_and_is_never_the_same_twice() {
        let ring = ring(&[OLD]);
        let sealed: Vec<String> = (0..2).map(|_| seal(ring.first(), &PLACE, b"canary").unwrap()).collect();
        assert_ne!(sealed[0], sealed[1]);
        for sealed in sealed {
            assert!(sealed.starts_with("v1:old:") && !sealed.contains("canary"));
            assert_eq!(open(&ring, &PLACE, &sealed).unwrap().as_slice(), b"canary");
        }
    }

    #[test]
    fn each_flipped_bit_fails() {
        let ring = ring(&[OLD, NEW]);
        let sealed = seal(ring.first(), &PLACE, b"canary").unwrap();
        for index in 0..sealed.len() * 8 {
            let mut bytes = sealed.clone().into_bytes();
            bytes[index / 8] ^= 1 << (index % 8);
            let Ok(changed) = String::from_utf8(bytes) else { continue };
            assert!(open(&ring, &PLACE, &changed).is_err(), "bit {index} of {sealed} as {changed}");
        }
    }

    #[test]
    fn moved_to_any_other_place_it_fails() {
        let ring = ring(&[OLD]);
        let sealed = seal(ring.first(), &PLACE, b"canary").unwrap();
        let moved = [
            Context { tenant: "bob", ..PLACE },
            Context { service: "gmail", ..PLACE },
            Context { account: "work", ..PLACE },
            Context { field: "secret", ..PLACE },
            // the same letters, divided otherwise
            Context { tenant: "anng", service: "oogle", ..PLACE },
        ];
        for place in moved {
            assert_eq!(open(&ring, &place, &sealed).err(), Some(VaultError::Refused), "{place:?}");
        }
    }

    #[test]
    fn layers_of_two_secrets_can_t_be_mixed() {
        let ring = ring(&[OLD]);
        let other = Context { field: "other", ..PLACE };
        let (one, two) = (seal(ring.first(), &PLACE, b"1").unwrap(), seal(ring.first(), &other, b"2").unwrap());
        let parts = |sealed: &str| sealed.split(':').map(str::to_owned).collect::<Vec<_>>();
        let (one, two) = (parts(&one), parts(&two));
        for mixed in [[&one[2], &two[3]], [&two[2], &one[3]], [&one[3], &one[2]]] {
            let mixed = format!("v1:old:{}:{}", mixed[0], mixed[1]);
            assert_eq!(open(&ring, &PLACE, &mixed).err(), Some(VaultError::Refused));
        }
    }

    #[test]
    fn old_key_decrypts_while_the_first_encrypts() {
        let sealed = seal(ring(&[OLD]).first(), &PLACE, b"canary").unwrap();
        let rotated = ring(&[NEW, OLD]);
        assert_eq!(open(&rotated, &PLACE, &sealed).unwrap().as_slice(), b"canary");
        assert!(seal(rotated.first(), &PLACE, b"x").unwrap().starts_with("v1:new:"));
        assert_eq!(open(&ring(&[NEW]), &PLACE, &sealed).err(), Some(VaultError::UnknownKey("old".into())));
    }

    #[test]
    fn rewrapped_it_opens_with_the_new_key_alone_and_its_ciphertext_is_the_same() {
        let sealed = seal(ring(&[OLD]).first(), &PLACE, b"canary").unwrap();
        let both = ring(&[NEW, OLD]);
        let rewrapped = rewrap(&both, both.first(), &PLACE, &sealed).unwrap().unwrap();
        assert_eq!((key_id(&sealed), key_id(&rewrapped)), (Some("old"), Some("new")));
        assert_eq!(rewrapped.split(':').next_back(), sealed.split(':').next_back());
        assert_eq!(open(&ring(&[NEW]), &PLACE, &rewrapped).unwrap().as_slice(), b"canary");
        assert_eq!(rewrap(&both, both.first(), &PLACE, &rewrapped), Ok(None));
        // it does not open a place that it does not belong to, and says which key is missing
        let elsewhere = Context { tenant: "bob", ..PLACE };
        assert_eq!(rewrap(&both, both.first(), &elsewhere, &sealed), Err(VaultError::Refused));
        let alone = ring(&[NEW]);
        assert_eq!(rewrap(&alone, alone.first(), &PLACE, &sealed), Err(VaultError::UnknownKey("old".into())));
        assert_eq!((key_id("canary"), key_id("v2:a:b:c"), key_id("v1:a:b")), (None, None, None));
    }

    #[test]
    fn another_key_under_the_same_id_fails() {
        let sealed = seal(ring(&[OLD]).first(), &PLACE, b"canary").unwrap();
        let impostor = ring(&[&NEW.replace("new:", "old:")]);
        assert_eq!(open(&impostor, &PLACE, &sealed).err(), Some(VaultError::Refused));
    }

    #[test]
    fn unsealed_value_fails_to_open() {
        let ring = ring(&[OLD]);
        for text in ["", "canary", "v1", "v1:old", "v1:old::", "v2:old:AA:AA", "v1:old:AA:AA:AA"] {
            assert_eq!(open(&ring, &PLACE, text).err(), Some(VaultError::Refused), "{text:?}");
        }
    }
}
