//! Message encryption for Web Push (RFC 8291): one record of `aes128gcm` (RFC 8188) that one browser alone can read.
//!
//! Each message has a key pair and a salt of its own, so nothing is kept and nothing is used twice. The push service in
//! between sees sizes and times.

use aws_lc_rs::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use aws_lc_rs::agreement::{ECDH_P256, PrivateKey, UnparsedPublicKey, agree};
use aws_lc_rs::hkdf::{HKDF_SHA256, KeyType, Prk, Salt};
use zeroize::Zeroizing;

/// Length of a point of P-256 as browsers give it: `0x04`, x, y.
pub const PUBLIC_KEY_LENGTH: usize = 65;
/// Length of a subscription's authentication secret (RFC 8291, section 3.2).
pub const AUTH_LENGTH: usize = 16;
/// Largest plaintext, in bytes: what is left of the 4,096 that every push service takes (RFC 8030, section 7.2) for the
/// header of 86, the delimiter and the tag of 16.
pub const PLAINTEXT_LIMIT: usize = RECORD_SIZE as usize - 86 - 1 - 16;

const RECORD_SIZE: u32 = 4096;
const SALT_LENGTH: usize = 16;
const KEY_LENGTH: usize = 16;
/// The delimiter after the text in the last record (RFC 8188, section 2).
const LAST_RECORD: u8 = 2;

/// Why a message can't be encrypted for a subscription.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum EncryptionError {
    #[error("the message is longer than {PLAINTEXT_LIMIT} bytes")]
    TooLong,
    #[error("the subscription's `auth` is not {AUTH_LENGTH} bytes in base64url")]
    Auth,
    #[error("the subscription's `p256dh` is not a public key of P-256 in base64url")]
    PublicKey,
    #[error("the message can't be encrypted")]
    Failed,
}

/// The body of a push request for the subscription with this public key and authentication secret.
pub fn encrypt(plaintext: &[u8], public_key: &[u8], auth: &[u8]) -> Result<Vec<u8>, EncryptionError> {
    let own = PrivateKey::generate(&ECDH_P256).map_err(|_| EncryptionError::Failed)?;
    let mut salt = [0; SALT_LENGTH];
    aws_lc_rs::rand::fill(&mut salt).map_err(|_| EncryptionError::Failed)?;
    seal(plaintext, public_key, auth, &own, salt)
}

/// Whether a message can be encrypted for a subscription with these keys, their texts decoded.
pub fn check(public_key: &[u8], auth: &[u8]) -> Result<(), EncryptionError> {
    encrypt(&[], public_key, auth).map(|_| ())
}

fn seal(
    plaintext: &[u8],
    public_key: &[u8],
    auth: &[u8],
    own: &PrivateKey,
    salt: [u8; SALT_LENGTH],
) -> Result<Vec<u8>, EncryptionError> {
    if plaintext.len() > PLAINTEXT_LIMIT {
        return Err(EncryptionError::TooLong);
    }
    if auth.len() != AUTH_LENGTH {
        return Err(EncryptionError::Auth);
    }
    if public_key.len() != PUBLIC_KEY_LENGTH {
        return Err(EncryptionError::PublicKey);
    }
    let own_public = own.compute_public_key().map_err(|_| EncryptionError::Failed)?;
    let peer = UnparsedPublicKey::new(&ECDH_P256, public_key);
    // RFC 8291, section 3.3 and 3.4
    let keying = agree(own, peer, EncryptionError::PublicKey, |shared| {
        let info = [b"WebPush: info\0", public_key, own_public.as_ref()].concat();
        let mut keying = Zeroizing::new([0; 32]);
        expand(&Salt::new(HKDF_SHA256, auth).extract(shared), &info, &mut *keying)?;
        Ok(keying)
    })?;
    // RFC 8188, section 2.2 and 2.3
    let secret = Salt::new(HKDF_SHA256, &salt).extract(&*keying);
    let (mut key, mut nonce) = (Zeroizing::new([0; KEY_LENGTH]), [0; NONCE_LEN]);
    expand(&secret, b"Content-Encoding: aes128gcm\0", &mut *key)?;
    expand(&secret, b"Content-Encoding: nonce\0", &mut nonce)?;
    let key = UnboundKey::new(&AES_128_GCM, &*key).map_err(|_| EncryptionError::Failed)?;
    let mut record = [plaintext, &[LAST_RECORD]].concat();
    // the key is made for this one record
    LessSafeKey::new(key)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut record)
        .map_err(|_| EncryptionError::Failed)?;
    let header = [&salt[..], &RECORD_SIZE.to_be_bytes(), &[PUBLIC_KEY_LENGTH as u8], own_public.as_ref()];
    Ok([header.concat(), record].concat())
}

fn expand(from: &Prk, info: &[u8], into: &mut [u8]) -> Result<(), EncryptionError> {
    struct Length(usize);
    impl KeyType for Length {
        fn len(&self) -> usize {
            self.0
        }
    }
    let info = [info];
    let okm = from.expand(&info, Length(into.len()));
    okm.and_then(|okm| okm.fill(into)).map_err(|_| EncryptionError::Failed)
}

#[cfg(test)]
mod tests {
    use base64::Engine;
    use base64::engine::general_purpose::URL_SAFE_NO_PAD;

    use super::*;

    /// RFC 8291, appendix A.
    const PLAINTEXT: &[u8] = b"When I grow up, I want to be a watermelon";
    const OWN_PRIVATE: &str = "yfWPiYE-n46HLnH0KqZOF1fJJU3MYrct3AELtAQ-oRw";
    const PUBLIC: &str = "BCVxsr7N_eNgVRqvHtD0zTZsEc6-VV-JvLexhqUzORcxaOzi6-AYWXvTBHm4bjyPjs7Vd8pZGH6SRpkNtoIAiw4";
    const SALT: &str = "DGv6ra1nlYgDCS1FRnbzlw";
    const AUTH: &str = "BTBZMqHH6r4Tts7J_aSIgg";
    const MESSAGE: &str = "DGv6ra1nlYgDCS1FRnbzlwAAEABBBP4z9KsN6nGRTbVYI_c7VJSPQTBtkgcy27mlmlMoZIIgDll6e3vCYLocInmYWAmS6TlzAC8wEqKK6PBru3jl7A_yl95bQpu6cVPTpK4Mqgkf1CXztLVBSt2Ks3oZwbuwXPXLWyouBWLVWGNWQexSgSxsj_Qulcy4a-fN";

    fn bytes(text: &str) -> Vec<u8> {
        URL_SAFE_NO_PAD.decode(text).unwrap()
    }

    #[test]
    fn example_of_the_standard_comes_out_byte_by_byte() {
        let own = PrivateKey::from_private_key(&ECDH_P256, &bytes(OWN_PRIVATE)).unwrap();
        let salt = bytes(SALT).try_into().unwrap();
        let sealed = seal(PLAINTEXT, &bytes(PUBLIC), &bytes(AUTH), &own, salt).unwrap();
        assert_eq!(URL_SAFE_NO_PAD.encode(sealed), MESSAGE);
    }

    #[test]
    fn no_two_messages_are_alike_and_the_largest_fits_in_one_record() {
        let largest = vec![b'x'; PLAINTEXT_LIMIT];
        let encrypted = || encrypt(&largest, &bytes(PUBLIC), &bytes(AUTH)).unwrap();
        let (first, second) = (encrypted(), encrypted());
        assert_eq!((PLAINTEXT_LIMIT, first.len()), (3993, 4096));
        assert_ne!(first[..16], second[..16], "the salt is new");
        assert_ne!(first[21..86], second[21..86], "the key is new");
        assert_eq!(encrypt(&[b'x'; 3994], &bytes(PUBLIC), &bytes(AUTH)), Err(EncryptionError::TooLong));
    }

    #[test]
    fn keys_that_are_none_are_refused() {
        let (public, auth) = (bytes(PUBLIC), bytes(AUTH));
        assert_eq!(check(&public, &auth), Ok(()));
        assert_eq!(check(&public, &auth[1..]), Err(EncryptionError::Auth));
        assert_eq!(check(&public[1..], &auth), Err(EncryptionError::PublicKey));
        let mut off_the_curve = public;
        off_the_curve[64] ^= 1;
        assert_eq!(check(&off_the_curve, &auth), Err(EncryptionError::PublicKey));
    }
}
