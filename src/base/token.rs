//! The text of an API token, what is kept of it, and what a token may do.
//!
//! A token reads `rv_<kind>_<30 base62><6 checksum>`. The 30 characters are chance (178 bits); the checksum is the
//! CRC-32 of all before it, so that a typo is told from a wrong token without asking the database, and leak scanners
//! know one when they see it. Only the SHA-256 of the text is ever stored; the text is shown once.

use aws_lc_rs::{constant_time, digest, rand};
use zeroize::Zeroizing;

use crate::base::words::words;

const BASE62: &[u8; 62] = b"0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz";
/// Characters of chance.
const SECRET_LENGTH: usize = 30;
/// Characters of checksum: 62^6 > 2^32.
const CHECKSUM_LENGTH: usize = 6;
/// Characters of a secret of 256 bits: 62^43 > 2^256.
const BEARER_SECRET_LENGTH: usize = 43;

words! {
    /// Owners of tokens.
    #[derive(utoipa::ToSchema)]
    pub enum TokenKind {
        /// Sees every tenant, and names one where it acts for one.
        Admin = "admin",
        /// Belongs to one tenant, and sees nothing else.
        Tenant = "tenant",
    }
}

words! {
    /// A permission of a token. `All` is every permission there is and will be.
    #[derive(PartialOrd, Ord)]
    pub enum Permission {
        /// `*`
        All = "*",
        /// `tasks:read`
        TasksRead = "tasks:read",
        /// `tasks:write`
        TasksWrite = "tasks:write",
        /// `runs:read`
        RunsRead = "runs:read",
        /// `runs:write`
        RunsWrite = "runs:write",
        /// `runs:input`
        RunsInput = "runs:input",
        /// `recipients:read`
        RecipientsRead = "recipients:read",
        /// `recipients:write`
        RecipientsWrite = "recipients:write",
        /// `deliveries:read`
        DeliveriesRead = "deliveries:read",
        /// `deliveries:write`
        DeliveriesWrite = "deliveries:write",
        /// `tokens:read`
        TokensRead = "tokens:read",
        /// `tokens:write`
        TokensWrite = "tokens:write",
        /// `events:publish`
        EventsPublish = "events:publish",
        /// `events:read`
        EventsRead = "events:read",
        /// `dead_letters:read`
        DeadLettersRead = "dead_letters:read",
        /// `dead_letters:write`
        DeadLettersWrite = "dead_letters:write",
        /// `stats:read`
        StatsRead = "stats:read",
        /// `approvals:read`
        ApprovalsRead = "approvals:read",
        /// `approvals:decide`
        ApprovalsDecide = "approvals:decide",
        /// `facts:read`
        FactsRead = "facts:read",
        /// `facts:write`
        FactsWrite = "facts:write",
        /// `audit:read`
        AuditRead = "audit:read",
        /// `credentials:read`
        CredentialsRead = "credentials:read",
        /// `credentials:write`
        CredentialsWrite = "credentials:write",
    }
}

impl Permission {
    /// Whether who holds `self` holds `wanted`, too.
    pub fn covers(self, wanted: Permission) -> bool {
        self == Permission::All || self == wanted
    }
}

/// SHA-256 of a token's text: all that is stored of it. Compared in constant time.
#[derive(Clone, Copy)]
pub struct TokenHash([u8; 32]);

impl TokenHash {
    /// The hash of any text that is used as a token, ours or an operator's own.
    pub fn of(text: &str) -> TokenHash {
        let mut hash = [0; 32];
        hash.copy_from_slice(digest::digest(&digest::SHA256, text.as_bytes()).as_ref());
        TokenHash(hash)
    }

    /// A hash as the database has it; `None` for what is none.
    pub fn stored(bytes: &[u8]) -> Option<TokenHash> {
        bytes.try_into().ok().map(TokenHash)
    }

    /// The bytes, for the database.
    pub fn as_bytes(&self) -> &[u8; 32] {
        &self.0
    }
}

impl PartialEq for TokenHash {
    fn eq(&self, other: &TokenHash) -> bool {
        constant_time::verify_slices_are_equal(&self.0, &other.0).is_ok()
    }
}

impl Eq for TokenHash {}

impl std::fmt::Debug for TokenHash {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("TokenHash([redacted])")
    }
}

/// Why a text is not a token of ours.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidToken {
    /// It does not have the form of a token.
    #[error("a token reads rv_<admin|tenant>_ and 36 letters and digits")]
    Shape,
    /// Its checksum is wrong: a character was changed or left out.
    #[error("the token is mistyped or cut off: its checksum does not fit")]
    Checksum,
}

/// The text of a token. Wiped when dropped, never printed by `Debug`.
#[derive(Clone)]
pub struct TokenText {
    text: Zeroizing<String>,
    kind: TokenKind,
}

impl TokenText {
    /// A new token, from the operating system's randomness.
    ///
    /// # Panics
    /// If the operating system has no randomness to give: no token is better than a guessable one.
    pub fn new(kind: TokenKind) -> TokenText {
        TokenText::of_secret(kind, &chance(SECRET_LENGTH))
    }

    /// Reads a token. A text that passes is well formed; whether it is valid the store knows.
    pub fn parse(text: &str) -> Result<TokenText, InvalidToken> {
        let (kind, rest) = text.strip_prefix("rv_").and_then(|rest| rest.split_once('_')).ok_or(InvalidToken::Shape)?;
        let kind = TokenKind::parse(kind).ok_or(InvalidToken::Shape)?;
        if rest.len() != SECRET_LENGTH + CHECKSUM_LENGTH || !rest.bytes().all(|b| b.is_ascii_alphanumeric()) {
            return Err(InvalidToken::Shape);
        }
        let token = TokenText::of_secret(kind, &rest[..SECRET_LENGTH]);
        if token.text.as_str() == text { Ok(token) } else { Err(InvalidToken::Checksum) }
    }

    /// Owner of the token.
    pub fn kind(&self) -> TokenKind {
        self.kind
    }

    /// The hash that is stored in its place.
    pub fn hash(&self) -> TokenHash {
        TokenHash::of(&self.text)
    }

    /// The text itself: for the one answer that shows it.
    pub fn expose(&self) -> &str {
        &self.text
    }

    /// The part that may be shown of it later, so that people can tell their tokens apart.
    pub fn hint(&self) -> String {
        let secret = self.text.len() - SECRET_LENGTH - CHECKSUM_LENGTH;
        format!("{}…", &self.text[..secret + 4])
    }

    fn of_secret(kind: TokenKind, secret: &str) -> TokenText {
        let mut text = Zeroizing::new(format!("rv_{}_{secret}", kind.as_str()));
        let checksum = checksum(text.as_bytes());
        text.push_str(&checksum);
        TokenText { text, kind }
    }
}

impl std::fmt::Debug for TokenText {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "TokenText(rv_{}_[redacted])", self.kind.as_str())
    }
}

/// A new secret of 256 bits for whoever bears it: of a session, or of a link. Only its [`TokenHash`] is stored.
///
/// # Panics
/// As [`TokenText::new`].
pub fn bearer_secret() -> Zeroizing<String> {
    chance(BEARER_SECRET_LENGTH)
}

/// Whether a text has the form of a [`bearer_secret`]: another one costs no look-up.
pub fn is_bearer_secret(text: &str) -> bool {
    text.len() == BEARER_SECRET_LENGTH && text.bytes().all(|byte| byte.is_ascii_alphanumeric())
}

/// So many letters and digits of chance, from the operating system's randomness.
fn chance(length: usize) -> Zeroizing<String> {
    let mut secret = Zeroizing::new(String::with_capacity(length));
    while secret.len() < length {
        let mut bytes = Zeroizing::new([0_u8; 32]);
        rand::fill(bytes.as_mut()).expect("the operating system gives randomness");
        // 248 is the largest multiple of 62 in a byte: above it the first letters would be likelier
        let fair = bytes.iter().filter(|byte| **byte < 248).map(|byte| BASE62[usize::from(byte % 62)] as char);
        let missing = length - secret.len();
        secret.extend(fair.take(missing));
    }
    secret
}

/// CRC-32 in base 62, most significant digit first.
fn checksum(bytes: &[u8]) -> String {
    let mut rest = crc32(bytes) as usize;
    let mut digits = [b'0'; CHECKSUM_LENGTH];
    for digit in digits.iter_mut().rev() {
        *digit = BASE62[rest % 62];
        rest /= 62;
    }
    digits.into_iter().map(char::from).collect()
}

/// CRC-32 of IEEE 802.3, as in zlib. Forty bytes a request need no table.
fn crc32(bytes: &[u8]) -> u32 {
    let step = |crc: u32| if crc & 1 == 1 { (crc >> 1) ^ 0xEDB8_8320 } else { crc >> 1 };
    !bytes.iter().fold(u32::MAX, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), |crc, _| step(crc)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn checksum_is_the_crc_32_of_zlib() {
        assert_eq!(crc32(b"123456789"), 0xCBF4_3926);
        assert_eq!(checksum(b"123456789").len(), CHECKSUM_LENGTH);
    }

    #[test]
    fn new_token_reads_back_with_its_kind_and_hash() {
        for kind in [TokenKind::Admin, TokenKind::Tenant] {
            let token = TokenText::new(kind);
            let read = TokenText::parse(token.expose()).unwrap();
            assert_eq!((read.kind(), read.hash()), (kind, token.hash()));
            assert_eq!(token.expose().len(), "rv__".len() + kind.as_str().len() + 36);
        }
        assert_ne!(TokenText::new(TokenKind::Admin).expose(), TokenText::new(TokenKind::Admin).expose());
    }

    #[test]
    fn bearer_secret_is_known_by_its_form_and_its_hash_is_read_back() {
        let secret = bearer_secret();
        assert!(is_bearer_secret(&secret) && *secret != *bearer_secret());
        for other in ["", &secret[1..], &format!("{}x", *secret), &format!("{}_", &secret[1..]), &"é".repeat(43)] {
            assert!(!is_bearer_secret(other), "{other:?}");
        }
        let hash = TokenHash::of(&secret);
        assert_eq!(TokenHash::stored(hash.as_bytes()), Some(hash));
        assert_eq!(TokenHash::stored(&hash.as_bytes()[1..]), None);
    }

    #[test]
    fn every_typo_of_one_character_is_noticed() {
        let token = TokenText::new(TokenKind::Tenant);
        for at in "rv_tenant_".len()..token.expose().len() {
            for other in ["0", "z", "Q"] {
                let mut typo = token.expose().to_owned();
                typo.replace_range(at..=at, other);
                if typo != token.expose() {
                    assert_eq!(TokenText::parse(&typo).unwrap_err(), InvalidToken::Checksum, "{at}");
                }
            }
        }
    }

    #[test]
    fn text_of_another_shape_is_no_token() {
        let cut = &TokenText::new(TokenKind::Admin).expose()[..30].to_owned();
        let kind = TokenText::new(TokenKind::Admin).expose().replace("admin", "root");
        for text in
            ["", "rv_", "rv_admin", "rv_admin_", "Bearer x", cut, &kind, &format!("rv_tenant_{}", "é".repeat(18))]
        {
            assert_eq!(TokenText::parse(text).unwrap_err(), InvalidToken::Shape, "{text:?}");
        }
        let swapped = TokenText::new(TokenKind::Tenant).expose().replace("tenant", "admin");
        assert_eq!(TokenText::parse(&swapped).unwrap_err(), InvalidToken::Checksum);
    }

    #[test]
    fn secret_document_is_never_printed() {
        let token = TokenText::new(TokenKind::Admin);
        assert_eq!(format!("{token:?}"), "TokenText(rv_admin_[redacted])");
        assert_eq!(format!("{:?}", token.hash()), "TokenHash([redacted])");
        assert_eq!(token.hint(), format!("{}…", &token.expose()[..13]));
    }

    #[test]
    fn every_permission_has_a_word_that_reads_back_and_the_star_covers_all() {
        for permission in Permission::ALL {
            assert_eq!(Permission::parse(permission.as_str()), Some(permission));
            assert!(Permission::All.covers(permission));
            assert_eq!(Permission::TasksRead.covers(permission), permission == Permission::TasksRead);
        }
    }
}
