//! A credential: a secret document of a tenant for a service and account name, and where it may go.
//!
//! Data only; `draft` reads what is asked for. The document itself never lies here in the clear: it is sealed by the
//! vault, stored sealed, and opened for one request at a time.

pub mod draft;
mod issue;
mod settable_header;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::base::words::words;

pub use draft::{CredentialDraft, NewCredential, check_places};
pub use issue::{CredentialIssue, CredentialIssueKind};
pub use settable_header::{UnsettableHeader, settable_header};

/// The account of a reference that names none.
pub const PRIMARY: &str = "primary";
/// Largest document, in bytes of JSON.
pub const DOCUMENT_BYTES: usize = 64 * 1024;
/// Most texts and numbers in a document: each text may be a secret, and every answer is searched for all of them.
pub const DOCUMENT_TEXTS: usize = 200;
/// Most texts of its credentials that a run looks for in what it reads, those of renewed documents included. Each has
/// up to a dozen forms, so to make ready a thousand takes some ten milliseconds at each change, and a byte of an
/// ordinary answer is read in three or four steps. Five of the largest documents have as many.
pub const RUN_SECRETS: usize = 1_000;
/// Most bytes of these texts together: the forms of a text have some twenty times its bytes, and a run holds them until
/// it ends. Four of the largest documents have as many.
pub const RUN_SECRET_BYTES: usize = 256 * 1024;
/// Most scopes that are kept because the other side has asked for them.
pub const MISSED_SCOPES: usize = 20;
/// Longest service or account name, in characters.
pub const NAME_LENGTH: usize = 100;

/// Headers that hold secrets, in small letters: nobody writes them, since written headers are stored as they are, and
/// shown.
pub const SECRET_HEADERS: [&str; 3] = ["authorization", "cookie", "proxy-authorization"];

/// The name of a credential in tools, polls, pipelines and webhooks: `service`, or `service/account`.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Reference {
    /// Name of the service.
    pub service: String,
    /// Name of the account.
    pub account: String,
}

impl Reference {
    /// # Errors
    /// A sentence that says what would be right.
    pub fn parse(text: &str) -> Result<Reference, String> {
        let (service, account) = text.split_once('/').unwrap_or((text, PRIMARY));
        for name in [service, account] {
            check_name(name).map_err(|why| format!("{why}; expected `service` or `service/account`"))?;
        }
        Ok(Reference { service: service.to_owned(), account: account.to_owned() })
    }
}

impl TryFrom<String> for Reference {
    type Error = String;

    fn try_from(text: String) -> Result<Reference, String> {
        Reference::parse(&text)
    }
}

impl From<Reference> for String {
    fn from(reference: Reference) -> String {
        reference.to_string()
    }
}

impl std::fmt::Display for Reference {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.account.as_str() {
            PRIMARY => f.write_str(&self.service),
            account => write!(f, "{}/{account}", self.service),
        }
    }
}

/// The credentials of a list such as `["google/work", "shop"]`; adds what is wrong with it.
pub fn references(list: &Value, pointer: &str, faults: &mut ValidationErrors) -> Vec<Reference> {
    let names: Vec<String> = faults.read(list, pointer).unwrap_or_default();
    let mut references = Vec::with_capacity(names.len());
    for (index, name) in names.iter().enumerate() {
        match Reference::parse(name) {
            Ok(reference) => references.push(reference),
            Err(why) => faults.add(format!("{pointer}/{index}"), why),
        }
    }
    references
}

/// Whether this can be the name of a service or an account: letters, digits and `. _ - @ +`, up to [`NAME_LENGTH`].
///
/// # Errors
/// A sentence that says what would be right.
pub fn check_name(name: &str) -> Result<(), String> {
    let odd = |c: char| !(c.is_alphanumeric() || "._-@+".contains(c));
    match name.chars().count() {
        0 => Err("a name must not be empty".into()),
        n if n > NAME_LENGTH => Err(format!("a name must have at most {NAME_LENGTH} characters, this has {n}")),
        _ => match name.chars().find(|c| odd(*c)) {
            Some(c) => Err(format!("a name may hold letters, digits and . _ - @ +, not {c:?}")),
            None => Ok(()),
        },
    }
}

/// How the service puts a credential into a request.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Inject {
    /// The place of the value in a request.
    #[serde(rename = "as")]
    pub form: InjectForm,
    /// JSON pointer (RFC 6901) to the value within the document; absent: the whole document, which is then a text. For
    /// `basic` the value is `user:password`, or an object with `username` and `password`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub from: Option<String>,
    /// Of the header, the query parameter, or the field of the JSON body; needed for these three.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Text to put there instead of the bare value: each `{/pointer}` stands for that value of the document, as in
    /// `Token {/id}:{/key}`. Not together with `from`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub template: Option<String>,
}

words! {
    /// Places of a value in a request.
    #[derive(utoipa::ToSchema)]
    pub enum InjectForm {
        /// `Authorization: Bearer …` (RFC 6750).
        Bearer = "bearer",
        /// `Authorization: Basic …` (RFC 7617).
        Basic = "basic",
        /// A header.
        Header = "header",
        /// A parameter of the query.
        Query = "query",
        /// A field of the request's JSON body, which has to be an object.
        Field = "field",
    }
}

/// How an access token is refreshed (RFC 6749, section 6). The document then holds `access_token`, `refresh_token`, and
/// `client_secret` where there is one.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OAuth {
    /// The name of a service that the operator has described in `[oauth.*]`; then nothing else is needed here.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub provider: Option<String>,
    /// The authorization server that has given the tokens, where the addresses of the provider are discovered: they are
    /// renewed there alone. Connecting an account sets it, and `client_id` where this service has shown itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub issuer: Option<String>,
    /// Token endpoint of the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub token_url: Option<String>,
    /// Id of the client at the provider.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_id: Option<String>,
    /// How the client shows who it is at the token endpoint: `basic` (the usual one) or `body`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub client_auth: Option<ClientAuth>,
    /// Scopes that were granted or are asked for.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub scopes: Vec<String>,
    /// Scopes that the other side has asked for since the account was connected (`insufficient_scope`), the last ones
    /// first. The next link asks for them besides, where the provider is discovered and the operator names no scopes.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missed_scopes: Vec<String>,
}

impl OAuth {
    /// With these scopes, which the other side asks for; `None`: the next link asks for all of them anyway. Of too many
    /// the last ones are kept.
    pub fn missing(&self, asked: &[String]) -> Option<OAuth> {
        let mut missed: Vec<String> = Vec::new();
        for scope in asked.iter().filter(|scope| !self.scopes.contains(scope)).take(MISSED_SCOPES) {
            if !missed.contains(scope) {
                missed.push(scope.clone());
            }
        }
        if missed.iter().all(|scope| self.missed_scopes.contains(scope)) {
            return None;
        }
        let earlier: Vec<String> = self.missed_scopes.iter().filter(|scope| !missed.contains(scope)).cloned().collect();
        missed.extend(earlier);
        missed.truncate(MISSED_SCOPES);
        Some(OAuth { missed_scopes: missed, ..self.clone() })
    }
}

words! {
    /// Ways in which a client authenticates at a token endpoint.
    #[derive(Default, utoipa::ToSchema)]
    pub enum ClientAuth {
        /// HTTP Basic.
        #[default]
        Basic = "basic",
        /// Fields of the body.
        Body = "body",
    }
}

words! {
    /// Whether a credential can be used.
    #[derive(utoipa::ToSchema)]
    pub enum CredentialStatus {
        /// It can be used.
        Active = "active",
        /// The other side refuses to renew it: its owner has to connect the account again.
        NeedsConsent = "needs_consent",
    }
}

/// All of a credential but its document: what is shown of it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct Credential {
    /// Id of the credential, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns it.
    pub tenant_id: String,
    /// Name of the service.
    pub service: String,
    /// Name of the account.
    pub account_name: String,
    /// Hosts that it may be sent to: `api.example.org`, `*.example.org`, with `:8443` that port only. None: no use.
    pub hosts: Vec<String>,
    /// `null`: it can't be put into requests.
    #[schema(required)]
    pub inject: Option<Inject>,
    /// Renewal by OAuth; `None`: the document is fixed.
    #[schema(required)]
    pub oauth: Option<OAuth>,
    /// Whether it can be used.
    pub status: CredentialStatus,
    /// Reason of a status other than `active`.
    #[schema(required)]
    pub status_reason: Option<String>,
    /// Of the access token, where that is known.
    #[schema(required)]
    pub expires_at: Option<DateTime<Utc>>,
    /// Bumped by each write.
    pub version: i64,
    /// The instant of its creation.
    pub created_at: DateTime<Utc>,
    /// The instant of its last change.
    pub updated_at: DateTime<Utc>,
    /// The instant of its last use, to the minute.
    #[schema(required)]
    pub last_used_at: Option<DateTime<Utc>>,
}

/// A use of a credential, or an attempt that was refused.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct CredentialUse {
    /// Id of the use, a UUIDv7.
    pub id: Uuid,
    /// The tenant that owns the credential.
    pub tenant_id: String,
    /// Name of the service.
    pub service: String,
    /// Name of the account.
    pub account_name: String,
    /// The instant of the use.
    pub at: DateTime<Utc>,
    /// The run that used it.
    #[schema(required)]
    pub run_id: Option<Uuid>,
    /// The run's task.
    #[schema(required)]
    pub task_id: Option<Uuid>,
    /// The user of the credential: `tool:http_send`, `executor:NAME`, `poll`, `step:order`, `webhook`.
    pub used_by: String,
    /// Where it was to go; empty: code of the service's program has read it.
    pub host: String,
    /// `used`; `refused` by the other side, which answered 401; or why it was not sent: `missing`, `needs_consent`,
    /// `not_for_host`, `no_inject`, `taken`, `unreadable`, `misconfigured` (for whoever runs this service), `busy`,
    /// `too_many` (with it the credentials of the run would have more texts than are looked for).
    pub outcome: String,
}

impl CredentialUse {
    /// The outcome of one that was put into a request.
    pub const USED: &'static str = "used";
}

impl Credential {
    /// The name by which tasks and tools refer to it.
    pub fn reference(&self) -> Reference {
        Reference { service: self.service.clone(), account: self.account_name.clone() }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn scopes_that_are_missed_are_kept_up_to_their_most_the_last_ones_first() {
        let names = |numbers: std::ops::Range<usize>| numbers.map(|n| format!("scope:{n}")).collect::<Vec<_>>();
        let granted = OAuth { scopes: names(0..2), ..OAuth::default() };
        assert_eq!(granted.missing(&[]), None);
        assert_eq!(granted.missing(&names(0..2)), None, "what was granted is asked for anyway");
        let first = granted.missing(&names(1..4)).unwrap();
        assert_eq!((&first.missed_scopes, &first.scopes), (&names(2..4), &names(0..2)));
        assert_eq!(first.missing(&names(0..4)), None);
        let more = first.missing(&["b".into(), "scope:3".into(), "b".into()]).unwrap();
        assert_eq!(more.missed_scopes, ["b", "scope:3", "scope:2"]);
        let most = more.missing(&names(10..10 + MISSED_SCOPES - 1)).unwrap().missed_scopes;
        assert_eq!((most.len(), most.last().map(String::as_str)), (MISSED_SCOPES, Some("b")));
        let beyond = more.missing(&names(10..10 + MISSED_SCOPES + 1)).unwrap().missed_scopes;
        assert_eq!(beyond, names(10..10 + MISSED_SCOPES));
    }

    #[test]
    fn reference_is_a_service_and_the_primary_account_unless_it_names_another() {
        let read = |text: &str| Reference::parse(text).map(|reference| (reference.service, reference.account));
        assert_eq!(read("google"), Ok(("google".into(), "primary".into())));
        assert_eq!(read("google/ann@example.org"), Ok(("google".into(), "ann@example.org".into())));
        assert_eq!(Reference::parse("google/primary").unwrap().to_string(), "google");
        assert_eq!(Reference::parse("google/work").unwrap().to_string(), "google/work");
        let long = "a".repeat(101);
        for odd in ["", "/", "a/", "/b", "a/b/c", "a b", "a\n", "a\u{202e}", &long] {
            assert!(Reference::parse(odd).is_err(), "{odd:?}");
        }
    }
}
