//! The private key of VAPID: read from the forms that tools print, or made once in a file.
//!
//! The file appears whole or not at all, only its owner may read it, and it is never written over. No message repeats
//! what was read.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};

use aws_lc_rs::agreement::{ECDH_P256, PrivateKey};
use aws_lc_rs::encoding::AsBigEndian;
use aws_lc_rs::signature::{ECDSA_P256_SHA256_FIXED_SIGNING, EcdsaKeyPair, KeyPair};
use base64::Engine;
use base64::engine::general_purpose::{STANDARD, URL_SAFE_NO_PAD};
use zeroize::Zeroizing;

use crate::base::secret::Secret;

const FORMS: &str = "expected a private key of P-256: its 32 bytes in base64url, or PEM";

/// A key as `npx web-push generate-vapid-keys` (32 bytes in base64url) or OpenSSL (PEM, SEC 1 or PKCS #8) prints it.
pub fn read(key: &Secret) -> Result<EcdsaKeyPair, String> {
    let text = key.expose().trim();
    let read = if text.starts_with("-----BEGIN") { of_pem(text) } else { of_base64(text) };
    read.ok_or_else(|| FORMS.into())
}

/// The key in a file, made if there is none; tells the path if it was.
pub fn from_file(path: &Path) -> Result<(EcdsaKeyPair, Option<PathBuf>), String> {
    let unusable = |why: String| format!("the key file {}: {why}", path.display());
    let failed = |error: std::io::Error| unusable(error.to_string());
    let made = make_once(path).map_err(failed)?;
    let mode = std::fs::metadata(path).map_err(failed)?.permissions().mode();
    if mode & 0o077 != 0 {
        let mode = mode & 0o777;
        return Err(unusable(format!("others may read it (mode {mode:o}); hint: chmod 600 {}", path.display())));
    }
    let text = Secret::new(std::fs::read_to_string(path).map_err(failed)?);
    Ok((read(&text).map_err(unusable)?, made.then(|| path.to_owned())))
}

/// The public key as a point: `0x04`, x, y.
pub fn public(pair: &EcdsaKeyPair) -> &[u8] {
    pair.public_key().as_ref()
}

fn of_base64(text: &str) -> Option<EcdsaKeyPair> {
    let bytes = Zeroizing::new(URL_SAFE_NO_PAD.decode(text.trim_end_matches('=')).ok()?);
    let public = PrivateKey::from_private_key(&ECDH_P256, &bytes).ok()?.compute_public_key().ok()?;
    EcdsaKeyPair::from_private_key_and_public_key(&ECDSA_P256_SHA256_FIXED_SIGNING, &bytes, public.as_ref()).ok()
}

/// The first private key among the blocks; what else OpenSSL prints (`EC PARAMETERS`) is passed over.
fn of_pem(text: &str) -> Option<EcdsaKeyPair> {
    let block = text.split("-----BEGIN ").find_map(|block| {
        let (label, rest) = block.split_once("-----")?;
        let (body, _) = rest.split_once("-----END ")?;
        ["PRIVATE KEY", "EC PRIVATE KEY"].contains(&label).then_some(body)
    })?;
    let encoded: Zeroizing<String> = Zeroizing::new(block.split_whitespace().collect());
    let der = Zeroizing::new(STANDARD.decode(encoded.as_bytes()).ok()?);
    EcdsaKeyPair::from_private_key_der(&ECDSA_P256_SHA256_FIXED_SIGNING, &der).ok()
}

/// Makes the file unless it is there; of two makers one wins.
fn make_once(path: &Path) -> std::io::Result<bool> {
    if path.try_exists()? {
        return Ok(false);
    }
    let draft = path.with_extension(format!("{}.tmp", std::process::id()));
    let written = write(&draft).and_then(|()| match std::fs::hard_link(&draft, path) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::AlreadyExists => Ok(false),
        Err(error) => Err(error),
    });
    let _ = std::fs::remove_file(&draft);
    if let (Ok(true), Some(dir)) = (&written, path.parent()) {
        std::fs::File::open(dir)?.sync_all()?;
    }
    written
}

fn write(draft: &Path) -> std::io::Result<()> {
    let failed = |_| std::io::Error::other("no key could be made");
    let pair = EcdsaKeyPair::generate(&ECDSA_P256_SHA256_FIXED_SIGNING).map_err(failed)?;
    let bytes = pair.private_key().as_be_bytes().map_err(failed)?;
    let line = Zeroizing::new(format!("{}\n", URL_SAFE_NO_PAD.encode(bytes.as_ref())));
    let mut file = OpenOptions::new().write(true).create_new(true).mode(0o600).open(draft)?;
    file.write_all(line.as_bytes())?;
    file.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Made for these tests by OpenSSL 3, in each form that it prints.
    const SEC1: &str = "-----BEGIN EC PARAMETERS-----\nBggqhkjOPQMBBw==\n-----END EC PARAMETERS-----\n-----BEGIN EC PRIVATE KEY-----\nMHcCAQEEIHqD1sF69N/RPozDpF77DHgKc8QgMFmYNlmz2+4dnBudoAoGCCqGSM49\nAwEHoUQDQgAEfR+JAyvLSyY2aATaSGG/kJOCudKysBEHqi71AW4yG90jxvvUxFpR\nJWzfZbZowtToobL4dtnS7Zd0x9mTv1s+qg==\n-----END EC PRIVATE KEY-----";
    const PKCS8: &str = "-----BEGIN PRIVATE KEY-----\nMIGHAgEAMBMGByqGSM49AgEGCCqGSM49AwEHBG0wawIBAQQgeoPWwXr039E+jMOk\nXvsMeApzxCAwWZg2WbPb7h2cG52hRANCAAR9H4kDK8tLJjZoBNpIYb+Qk4K50rKw\nEQeqLvUBbjIb3SPG+9TEWlElbN9ltmjC1Oihsvh22dLtl3TH2ZO/Wz6q\n-----END PRIVATE KEY-----";
    const RAW: &str = "eoPWwXr039E-jMOkXvsMeApzxCAwWZg2WbPb7h2cG50";
    const PUBLIC: &str = "BH0fiQMry0smNmgE2khhv5CTgrnSsrARB6ou9QFuMhvdI8b71MRaUSVs32W2aMLU6KGy-HbZ0u2XdMfZk79bPqo";
    /// Of another curve, P-384.
    const OTHER_CURVE: &str = "-----BEGIN EC PRIVATE KEY-----\nMIGkAgEBBDCHYnV6Pq+fUUV5hB7rVza2N39uuZMnSwm4LaAuPB5UeqgY+IeN+pjR\nuvRG6h4qsZSgBwYFK4EEACKhZANiAATNQU29s3izQUq3B/uXHm9TN8YVhgbQvvnx\nmB+MLE2tM+v6AuzS41FHO52w6MoT9lhVDAcA1e7m5ZkRaRqVduKMHjsuwp8X9rqW\nFGlc79u237N+wfzZrr7Qie7l0i38dyw=\n-----END EC PRIVATE KEY-----";

    #[test]
    fn one_key_is_read_from_each_form() {
        for form in [SEC1, PKCS8, RAW, &format!("{RAW}=")] {
            let pair = read(&Secret::new(form)).unwrap();
            assert_eq!(URL_SAFE_NO_PAD.encode(public(&pair)), PUBLIC);
        }
    }

    #[test]
    fn invalid_keys_are_refused_and_never_repeated() {
        let truncated = SEC1.replace("-----END", "");
        let zeros = "A".repeat(43);
        for text in ["", "canary", &RAW[1..], &truncated, OTHER_CURVE, &zeros, "-----BEGIN PRIVATE KEY-----"] {
            assert_eq!(read(&Secret::new(text)).unwrap_err(), FORMS, "{text}");
        }
    }

    #[test]
    fn key_file_is_made_once_for_its_owner_only() {
        let dir = std::env::temp_dir().join(format!("reveille-vapid-{:016x}", fastrand::u64(..)));
        std::fs::create_dir(&dir).unwrap();
        let path = dir.join("vapid.key");
        let (first, made) = from_file(&path).unwrap();
        assert_eq!(made.as_deref(), Some(path.as_path()));
        assert_eq!(std::fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(std::fs::read_dir(&dir).unwrap().count(), 1, "no draft is left");
        let (second, made) = from_file(&path).unwrap();
        assert_eq!((public(&first), made), (public(&second), None));

        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o640)).unwrap();
        let refused = from_file(&path).unwrap_err();
        assert!(refused.contains("others may read it (mode 640); hint: chmod 600"), "{refused}");
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        std::fs::write(&path, "").unwrap();
        assert!(from_file(&path).unwrap_err().ends_with(FORMS), "a damaged file is refused, not replaced");
        std::fs::remove_dir_all(&dir).unwrap();
    }
}
