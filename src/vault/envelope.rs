//! The sealed form: `v1:<master key id>:<wrapped data key>:<ciphertext>`, both in URL-safe base64 without padding.
//!
//! Each secret has a data key of its own, wrapped by the master key, so that a new master key re-wraps without
//! touching the secret. Both layers are AES-256-GCM with random nonces of 96 bits in front, and both bind the version
//! and the whole context.

use aws_lc_rs::aead::{AES_256_GCM, Aad, NONCE_LEN, Nonce, RandomizedNonceKey};
use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use zeroize::Zeroizing;

use crate::vault::keyring::{KEY_LENGTH, Keyring, MasterKey};
use crate::vault::{Context, VaultError};

const VERSION: &str = "v1";

/// The two layers, told apart in what they bind.
const KEY_LAYER: &str = "data key";
const SECRET_LAYER: &str = "secret";

pub fn seal(master: &MasterKey, context: &Context, secret: &[u8]) -> Result<String, VaultError> {
    let mut data_key = Zeroizing::new([0_u8; KEY_LENGTH]);
    aws_lc_rs::rand::fill(&mut *data_key).map_err(|_| VaultError::Keys("no random bytes".into()))?;
    let wrapped = encrypt(&master.key, &bound(KEY_LAYER, &master.id, context), &*data_key)?;
    let ciphertext = encrypt(&key(&*data_key)?, &bound(SECRET_LAYER, "", context), secret)?;
    Ok(format!("{VERSION}:{}:{wrapped}:{ciphertext}", master.id))
}

pub fn open(keyring: &Keyring, context: &Context, sealed: &str) -> Result<Zeroizing<Vec<u8>>, VaultError> {
    let parts: Vec<&str> = sealed.split(':').collect();
    let [VERSION, id, wrapped, ciphertext] = parts[..] else { return Err(VaultError::Refused) };
    let master = keyring.get(id).ok_or_else(|| VaultError::UnknownKey(id.to_owned()))?;
    let data_key = decrypt(&master.key, &bound(KEY_LAYER, id, context), wrapped)?;
    decrypt(&key(&data_key)?, &bound(SECRET_LAYER, "", context), ciphertext)
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

/// What a layer is bound to. Each part goes in with its length, so that no two contexts read the same.
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
