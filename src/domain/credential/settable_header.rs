//! Headers that a task or a declared tool may set: none that holds a secret, and none that Reveille writes itself.

use http::HeaderName;

use crate::domain::credential::SECRET_HEADERS;

/// Headers that the client writes, or Reveille, whatever is sent.
const OURS: [&str; 6] = ["host", "content-length", "transfer-encoding", "connection", "idempotency-key", "expect"];

/// Why a header can't be set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnsettableHeader {
    /// It holds a secret, whose place is a credential.
    Secret,
    /// Reveille writes it.
    Ours,
    /// No header has such a name.
    NoName,
}

impl UnsettableHeader {
    /// A sentence for the writer of a task.
    pub fn message(self) -> &'static str {
        match self {
            UnsettableHeader::Secret => {
                "can't be set here: it holds a secret, and what is written here is stored as it is and shown; save it as \
                 a credential and name that in `credential`"
            }
            UnsettableHeader::Ours => "can't be set: Reveille writes this header itself",
            UnsettableHeader::NoName => "is no name of a header",
        }
    }
}

/// The header of this name, where it may be set. `is_ours_too` says of a name in small letters whether Reveille writes
/// that one in such a request as well.
///
/// # Errors
/// The reason why it may not.
pub fn settable_header(written: &str, is_ours_too: impl FnOnce(&str) -> bool) -> Result<HeaderName, UnsettableHeader> {
    let name = written.parse::<HeaderName>().map_err(|_| UnsettableHeader::NoName)?;
    match name.as_str() {
        secret if SECRET_HEADERS.contains(&secret) => Err(UnsettableHeader::Secret),
        ours if OURS.contains(&ours) || is_ours_too(ours) => Err(UnsettableHeader::Ours),
        _ => Ok(name),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn headers_with_secrets_and_those_of_the_service_can_not_be_set_however_they_are_written() {
        let set =
            |written: &str| settable_header(written, |name| name == "content-type" || name.starts_with("webhook-"));
        for (written, fault) in [
            ("Authorization", UnsettableHeader::Secret),
            ("cookie", UnsettableHeader::Secret),
            ("Host", UnsettableHeader::Ours),
            ("Idempotency-Key", UnsettableHeader::Ours),
            ("Content-Type", UnsettableHeader::Ours),
            ("Webhook-Id", UnsettableHeader::Ours),
            ("a b", UnsettableHeader::NoName),
            ("", UnsettableHeader::NoName),
        ] {
            assert_eq!(set(written), Err(fault), "{written}");
        }
        assert_eq!(set("X-Trace").map(|name| name.to_string()), Ok("x-trace".to_owned()));
        assert!(settable_header("Content-Type", |_| false).is_ok());
    }
}
