//! The names by which the record knows whoever acts: written and read here, and nowhere else.

use uuid::Uuid;

use crate::domain::approval::Via;

/// Prefix of the names of recipients.
const RECIPIENT: &str = "recipient:";
/// Prefix of the names of tokens.
const TOKEN: &str = "token:";

/// Name of the caller with the token of the configuration, which has no row.
const ADMIN: &str = "token:admin";

/// Name of the program that the service is a part of.
pub const EMBEDDER: &str = "process:embedder";

/// Name of the service itself.
pub const SERVICE: &str = "service";

/// An actor as a name of the record says it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Actor<'a> {
    /// The person of this tenant, at a link.
    Recipient(&'a str),
    /// The token of the configuration.
    Admin,
    /// A stored token.
    Token(Uuid),
    /// The program that the service is a part of.
    Embedder,
    /// Any other caller of the API.
    Caller(&'a str),
    /// The service, by itself or by a policy.
    Service,
}

impl Actor<'_> {
    /// The actor of this name.
    pub fn parse(name: &str) -> Actor<'_> {
        if name == ADMIN {
            return Actor::Admin;
        }
        if name == EMBEDDER {
            return Actor::Embedder;
        }
        if let Some(tenant) = name.strip_prefix(RECIPIENT) {
            return Actor::Recipient(tenant);
        }
        match name.strip_prefix(TOKEN).map(Uuid::parse_str) {
            Some(Ok(id)) => Actor::Token(id),
            _ if name.contains(':') => Actor::Caller(name),
            _ => Actor::Service,
        }
    }

    /// The id of the stored token that acts.
    pub fn token_id(self) -> Option<Uuid> {
        match self {
            Actor::Token(id) => Some(id),
            _ => None,
        }
    }

    /// The way by which the actor comes, as the audit record says it.
    pub fn via(self) -> Via {
        match self {
            Actor::Recipient(_) => Via::Link,
            Actor::Admin | Actor::Token(_) | Actor::Embedder | Actor::Caller(_) => Via::Api,
            Actor::Service => Via::Service,
        }
    }
}

impl std::fmt::Display for Actor<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Actor::Recipient(tenant) => write!(f, "{RECIPIENT}{tenant}"),
            Actor::Admin => f.write_str(ADMIN),
            Actor::Token(id) => write!(f, "{TOKEN}{id}"),
            Actor::Embedder => f.write_str(EMBEDDER),
            Actor::Caller(name) => f.write_str(name),
            Actor::Service => f.write_str(SERVICE),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_as_they_are_written() {
        let id = Uuid::from_u128(7);
        for (actor, name, via) in [
            (Actor::Recipient("a:b"), "recipient:a:b", Via::Link),
            (Actor::Admin, "token:admin", Via::Api),
            (Actor::Token(id), "token:00000000-0000-0000-0000-000000000007", Via::Api),
            (Actor::Caller("token:t"), "token:t", Via::Api),
            (Actor::Service, "service", Via::Service),
        ] {
            assert_eq!((actor.to_string().as_str(), Actor::parse(name), actor.via()), (name, actor, via));
        }
        assert_eq!(Actor::parse("policy"), Actor::Service);
        assert_eq!((Actor::Token(id).token_id(), Actor::Admin.token_id()), (Some(id), None));
    }
}
