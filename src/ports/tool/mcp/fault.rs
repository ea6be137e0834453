//! Why an MCP server or a call of its tools failed, and what a model is told of it.
//!
//! A fault says whether a call may have begun. Faults of a connection that could not be made are [`McpFault::Away`] and
//! the like: nothing was sent. Once a call may have begun, a break is [`McpFault::Broken`].

use std::time::Duration;

use rmcp::model::ErrorData;
use rmcp::service::{ClientInitializeError, ServiceError};
use rmcp::transport::DynamicTransportError;
use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::base::unicode_safety::on_one_line;
use crate::ports::egress::EgressError;
use crate::ports::tool::exchange::unreachable;
use crate::ports::tool::mcp::http::client::McpHttpError;
use crate::ports::tool::{ToolError, ToolFailure};
use crate::ports::vault::credentials::{CredentialError, CredentialFault, FetchError, UsedSecrets};
use crate::ports::vault::oauth::BearerChallenge;

/// The library's words to a call that was under way when the session of its server was found to be gone, and another
/// one was begun.
const SESSION_LOST: &str = "streamable HTTP session was re-initialized before the response arrived";
/// Characters of a reason that operators are told.
const DETAIL_CHARS: usize = 500;
/// Scopes of a challenge that are told.
const TOLD_SCOPES: usize = 10;
/// Longest message of a server that a model is told, in characters.
const MESSAGE_CHARS: usize = 2_000;

/// Why a server or a call failed, before a model is told.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum McpFault {
    /// There is no connection: nothing was sent.
    #[error("the MCP server `{server}` can't be reached now")]
    Away {
        /// Name of the server.
        server: String,
        /// For operators (log, `reveille check`), never for a model.
        why: String,
    },
    /// No connection was made in time: nothing was sent.
    #[error("the MCP server `{server}` did not answer within {} s", after.as_secs())]
    Slow {
        /// Name of the server.
        server: String,
        /// The time after which it was given up.
        after: Duration,
    },
    /// It writes more than it was asked for: there is no connection, nothing was sent.
    #[error("the MCP server `{server}` writes more than it was asked for")]
    Flood {
        /// Name of the server.
        server: String,
    },
    /// It answers nobody without authorisation, or refuses the one that it was sent.
    #[error("the MCP server `{server}` asks for authorisation")]
    Unauthorized {
        /// Name of the server.
        server: String,
    },
    /// It asks for more than the authorisation that it was sent allows.
    #[error("{}", scope_sentence(server, scopes))]
    Scope {
        /// Name of the server.
        server: String,
        /// The scopes that it asks for; none where it does not say.
        scopes: Vec<String>,
    },
    /// The credential was not used, or was refused.
    #[error(transparent)]
    Credential(CredentialError),
    /// The address may not be reached, or nothing answers there: nothing was sent.
    #[error("{0}")]
    Egress(EgressError),
    /// The connection broke after the call may have begun.
    #[error("the connection to the MCP server `{server}` broke before it answered")]
    Broken {
        /// Name of the server.
        server: String,
    },
    /// It answered with an error of the protocol.
    #[error("{message}")]
    Refused {
        /// Of JSON-RPC.
        code: i32,
        /// In the server's words.
        message: String,
    },
    /// It answered with a status that is a failure.
    #[error("the MCP server `{server}` answered {status}")]
    Status {
        /// Name of the server.
        server: String,
        /// Of HTTP.
        status: u16,
    },
    /// It answered, and with nothing that can be read.
    #[error("the MCP server `{server}` does not keep to the protocol: {why}")]
    Protocol {
        /// Name of the server.
        server: String,
        /// The fault, in a sentence.
        why: String,
    },
}

impl McpFault {
    /// Why no connection could be made; `stderr`: the last line that the server has written there, empty for none.
    pub fn of_start(server: &str, error: &ClientInitializeError, stderr: &str) -> McpFault {
        let away = |why: String| {
            let said = if stderr.is_empty() { String::new() } else { format!("; it said: {stderr}") };
            McpFault::Away { server: server.to_owned(), why: shortened(&(why + &said)) }
        };
        match error {
            ClientInitializeError::TransportError { error, .. } => match McpFault::of_transport(server, error) {
                McpFault::Broken { .. } => away(error.error.to_string()),
                fault => fault,
            },
            ClientInitializeError::LegacyFallbackFailed { fallback, .. } => {
                McpFault::of_start(server, fallback, stderr)
            }
            ClientInitializeError::ConnectionClosed(_) => away("it ended before it answered".to_owned()),
            ClientInitializeError::Cancelled => away("the connection was given up".to_owned()),
            ClientInitializeError::JsonRpcError(error) => McpFault::of_refusal(error),
            ClientInitializeError::NoCompatibleProtocolVersion { server_supported, .. } => {
                let known: Vec<String> = server_supported.iter().map(ToString::to_string).collect();
                McpFault::protocol(
                    server,
                    &format!("it speaks revisions that are not known here: {}", known.join(", ")),
                )
            }
            _ => McpFault::protocol(server, "its answer to the first message can't be read"),
        }
    }

    /// Why a request failed over a connection that there was.
    pub fn of_call(server: &str, error: ServiceError) -> McpFault {
        match error {
            ServiceError::McpError(error) if error.message == SESSION_LOST => {
                McpFault::Broken { server: server.to_owned() }
            }
            ServiceError::McpError(error) => McpFault::of_refusal(&error),
            ServiceError::TransportSend(error) => McpFault::of_transport(server, &error),
            ServiceError::Timeout { timeout } => McpFault::Slow { server: server.to_owned(), after: timeout },
            ServiceError::UnexpectedResponse => {
                McpFault::protocol(server, "its answer is none to the question that it was asked")
            }
            _ => McpFault::Broken { server: server.to_owned() },
        }
    }

    /// The fault of a call that was to go over a connection which could not be made: whatever went wrong, the call was
    /// not sent.
    pub fn before_call(self, server: &str) -> McpFault {
        match self {
            McpFault::Broken { .. }
            | McpFault::Refused { .. }
            | McpFault::Status { .. }
            | McpFault::Protocol { .. } => McpFault::Away { server: server.to_owned(), why: self.detail() },
            fault => fault,
        }
    }

    /// The fault as a run is told of it where the credential is another tenant's: neither its name nor what became of
    /// it is the run's matter, and nothing that its own tenant connects will mend it.
    pub fn of_others_credential(self, server: &str) -> McpFault {
        match self {
            McpFault::Credential(error) if error.kind == CredentialFault::Busy => {
                McpFault::Away { server: server.to_owned(), why: error.to_string() }
            }
            McpFault::Credential(_) => McpFault::Unauthorized { server: server.to_owned() },
            fault => fault,
        }
    }

    /// The fault without what was sent to the server, which may say it again.
    pub async fn cleaned(self, used_secrets: &UsedSecrets) -> McpFault {
        match self {
            McpFault::Away { server, why } => McpFault::Away { server, why: used_secrets.cleaned(why).await },
            McpFault::Refused { code, message } => {
                McpFault::Refused { code, message: used_secrets.cleaned(message).await }
            }
            McpFault::Protocol { server, why } => McpFault::Protocol { server, why: used_secrets.cleaned(why).await },
            fault => fault,
        }
    }

    /// Its word for programs and metrics.
    pub fn word(&self) -> &'static str {
        match self {
            McpFault::Away { .. } => "away",
            McpFault::Slow { .. } => "slow",
            McpFault::Flood { .. } => "flood",
            McpFault::Unauthorized { .. } => "unauthorized",
            McpFault::Scope { .. } => "scope",
            McpFault::Credential(_) => "credential",
            McpFault::Egress(_) => "egress",
            McpFault::Broken { .. } => "broken",
            McpFault::Refused { .. } => "refused",
            McpFault::Status { .. } => "status",
            McpFault::Protocol { .. } => "protocol",
        }
    }

    /// The sentence for operators, on one line.
    pub fn detail(&self) -> String {
        match self {
            McpFault::Away { why, .. } => shortened(&format!("{self}: {why}")),
            McpFault::Refused { code, message } => shortened(&format!("it answered with the error {code}: {message}")),
            other => shortened(&other.to_string()),
        }
    }

    fn of_refusal(error: &ErrorData) -> McpFault {
        McpFault::Refused { code: error.code.0, message: error.message.to_string() }
    }

    fn protocol(server: &str, why: &str) -> McpFault {
        McpFault::Protocol { server: server.to_owned(), why: shortened(why) }
    }

    fn of_transport(server: &str, error: &DynamicTransportError) -> McpFault {
        match error.error.downcast_ref::<StreamableHttpError<McpHttpError>>() {
            Some(error) => McpFault::of_http(server, error),
            None => McpFault::Broken { server: server.to_owned() },
        }
    }

    fn of_http(server: &str, error: &StreamableHttpError<McpHttpError>) -> McpFault {
        let named = server.to_owned();
        match error {
            StreamableHttpError::Client(McpHttpError::Fetch(FetchError::Credential(error))) => {
                McpFault::Credential(error.clone())
            }
            StreamableHttpError::Client(McpHttpError::Fetch(FetchError::Egress(error))) => {
                McpFault::of_egress(server, error)
            }
            StreamableHttpError::Client(McpHttpError::Redirected)
            | StreamableHttpError::UnexpectedServerResponse(_)
            | StreamableHttpError::UnexpectedContentType(_)
            | StreamableHttpError::ResponseBodyTooLarge { .. }
            | StreamableHttpError::Deserialize(_) => McpFault::protocol(server, &error.to_string()),
            StreamableHttpError::AuthRequired(_) => McpFault::Unauthorized { server: named },
            StreamableHttpError::InsufficientScope(error) => {
                McpFault::of_challenge(named, &BearerChallenge::parse(&error.www_authenticate_header))
            }
            StreamableHttpError::HttpStatus(error) => McpFault::Status { server: named, status: error.status },
            // a session that is not known there any more has taken no message
            StreamableHttpError::SessionExpired | StreamableHttpError::ReinitializationFailed(_) => {
                McpFault::Away { server: named, why: shortened(&error.to_string()) }
            }
            _ => McpFault::Broken { server: named },
        }
    }

    /// The fault of a 403 with a challenge (RFC 6750, section 3.1).
    fn of_challenge(server: String, challenge: &BearerChallenge) -> McpFault {
        match challenge.error.as_deref() {
            Some("insufficient_scope") => {
                let scopes = challenge.scopes().into_iter().take(TOLD_SCOPES).collect();
                McpFault::Scope { server, scopes }
            }
            _ => McpFault::Unauthorized { server },
        }
    }

    fn of_egress(server: &str, error: &EgressError) -> McpFault {
        match error {
            EgressError::Denied { .. } | EgressError::Invalid { .. } | EgressError::Connect { .. } => {
                McpFault::Egress(error.clone())
            }
            EgressError::TooLarge { .. } | EgressError::TooManyRedirects => {
                McpFault::protocol(server, &error.to_string())
            }
            EgressError::Timeout { .. } | EgressError::Broken { .. } => McpFault::Broken { server: server.to_owned() },
        }
    }
}

/// A server asks for more than it was granted, and what is to be done.
fn scope_sentence(server: &str, scopes: &[String]) -> String {
    let (asked, named) = match scopes {
        [] => ("more than".to_owned(), "the missing scopes"),
        scopes => (format!("the scopes `{}` beyond", scopes.join(" ")), "them"),
    };
    format!(
        "the MCP server `{server}` asks for {asked} what its credential was granted: connect the account again; where \
         its [oauth] section names `scopes` or `authorize_url`, name {named} in `scopes` first"
    )
}

/// The beginning of a text, on one line.
fn shortened(text: &str) -> String {
    on_one_line(&text.chars().take(DETAIL_CHARS).collect::<String>())
}

impl From<McpFault> for ToolError {
    fn from(fault: McpFault) -> ToolError {
        let message = fault.to_string();
        match fault {
            McpFault::Away { .. } | McpFault::Slow { .. } | McpFault::Flood { .. } => {
                ToolError::Unsent { code: "mcp_unavailable".to_owned(), message }
            }
            McpFault::Egress(error @ EgressError::Connect { .. }) => {
                ToolError::Unsent { code: error.code().to_owned(), message }
            }
            McpFault::Egress(error) => unreachable(error),
            McpFault::Credential(error) => ToolError::Credential(error),
            McpFault::Scope { .. } => {
                ToolError::for_model(ToolFailure::PermissionDenied, "mcp_insufficient_scope", message)
            }
            McpFault::Unauthorized { .. } => {
                ToolError::for_model(ToolFailure::PermissionDenied, "mcp_unauthorized", message)
            }
            McpFault::Broken { .. } => {
                let message = format!("{message}; whether the call had its effect is not known");
                ToolError::for_model(ToolFailure::TransientError, "outcome_unknown", message)
            }
            McpFault::Refused { code, message } => {
                let message: String = message.chars().take(MESSAGE_CHARS).collect();
                ToolError::for_model(of_code(code), format!("mcp_error_{}", code.unsigned_abs()), message)
            }
            McpFault::Status { status, .. } => {
                ToolError::for_model(of_status(status), format!("http_{status}"), message)
            }
            McpFault::Protocol { .. } => ToolError::for_model(ToolFailure::ExecutionError, "mcp_protocol", message),
        }
    }
}

/// The failure that an error of JSON-RPC or MCP is to a model.
fn of_code(code: i32) -> ToolFailure {
    match code {
        -32_602 => ToolFailure::InvalidParameters,
        -32_601 | -32_002 => ToolFailure::NotFound,
        _ => ToolFailure::ExecutionError,
    }
}

/// The failure that a status of HTTP is to a model.
fn of_status(status: u16) -> ToolFailure {
    match status {
        429 => ToolFailure::RateLimit,
        500.. => ToolFailure::TransientError,
        _ => ToolFailure::ExecutionError,
    }
}

#[cfg(test)]
mod tests {
    use std::any::TypeId;
    use std::io;

    use rmcp::model::ErrorCode;
    use rmcp::transport::streamable_http_client::{AuthRequiredError, HttpStatusError, InsufficientScopeError};

    use super::*;
    use crate::domain::credential::Reference;

    fn transport(error: impl std::error::Error + Send + Sync + 'static) -> DynamicTransportError {
        DynamicTransportError::from_parts("test", TypeId::of::<()>(), Box::new(error))
    }

    fn over_http(error: StreamableHttpError<McpHttpError>) -> ServiceError {
        ServiceError::TransportSend(transport(error))
    }

    /// A 403 with this challenge.
    fn lacking(challenge: &str) -> ServiceError {
        over_http(StreamableHttpError::InsufficientScope(InsufficientScopeError::new(challenge.into(), None)))
    }

    fn of_egress(error: EgressError) -> ServiceError {
        over_http(StreamableHttpError::Client(McpHttpError::Fetch(FetchError::Egress(error))))
    }

    fn missing() -> CredentialError {
        let reference = Reference::parse("github").unwrap();
        CredentialError { kind: CredentialFault::Missing, reference, why: String::new(), last_used: 0, sent_at: None }
    }

    fn refused(code: i32, message: &str) -> ServiceError {
        ServiceError::McpError(ErrorData::new(ErrorCode(code), message.to_owned(), None))
    }

    fn connect() -> EgressError {
        EgressError::Connect { why: "nothing listens".into() }
    }

    /// The word of a fault in mid-call, and what a model is told of it: kind, code and sentence.
    fn told(error: ServiceError) -> (&'static str, String) {
        let fault = McpFault::of_call("github", error);
        let word = fault.word();
        let error = ToolError::from(fault);
        let (kind, code, message) = error.model_message().unwrap();
        let sent = if error.is_unsent() { "unsent " } else { "" };
        (word, format!("{sent}{} {code}: {message}", kind.as_str()))
    }

    #[test]
    fn fault_in_mid_call_is_an_observation_that_says_whether_anything_was_sent() {
        let broken = "transient_error outcome_unknown: the connection to the MCP server `github` broke before it answered; \
                      whether the call had its effect is not known";
        let cases = [
            (ServiceError::TransportClosed, "broken", broken),
            (ServiceError::Cancelled { reason: None }, "broken", broken),
            (ServiceError::TransportSend(transport(io::Error::other("gone"))), "broken", broken),
            (of_egress(EgressError::Broken { why: "reset".into() }), "broken", broken),
            (of_egress(EgressError::Timeout { after: Duration::from_secs(1) }), "broken", broken),
            (of_egress(connect()), "egress", "unsent resource_error connect: can't connect: nothing listens"),
            (
                of_egress(EgressError::Denied { why: "no".into() }),
                "egress",
                "permission_denied address_denied: the address is not allowed: no",
            ),
            (
                over_http(StreamableHttpError::SessionExpired),
                "away",
                "unsent resource_error mcp_unavailable: the MCP server `github` can't be reached now",
            ),
            (
                over_http(StreamableHttpError::AuthRequired(AuthRequiredError::new("Bearer".into()))),
                "unauthorized",
                "permission_denied mcp_unauthorized: the MCP server `github` asks for authorisation",
            ),
            (
                lacking("Bearer error=\"insufficient_scope\", scope=\"notes:read notes:write\""),
                "scope",
                "permission_denied mcp_insufficient_scope: the MCP server `github` asks for the scopes `notes:read \
                 notes:write` beyond what its credential was granted: connect the account again; where its [oauth] section \
                 names `scopes` or `authorize_url`, name them in `scopes` first",
            ),
            (
                lacking("Bearer error=insufficient_scope"),
                "scope",
                "permission_denied mcp_insufficient_scope: the MCP server `github` asks for more than what its credential \
                 was granted: connect the account again; where its [oauth] section names `scopes` or `authorize_url`, name \
                 the missing scopes in `scopes` first",
            ),
            (
                lacking("Bearer error=\"invalid_token\", scope=\"notes:write\""),
                "unauthorized",
                "permission_denied mcp_unauthorized: the MCP server `github` asks for authorisation",
            ),
            (
                over_http(HttpStatusError::new(429, None).into()),
                "status",
                "rate_limit http_429: the MCP server `github` answered 429",
            ),
            (
                over_http(HttpStatusError::new(503, None).into()),
                "status",
                "transient_error http_503: the MCP server `github` answered 503",
            ),
            (
                over_http(StreamableHttpError::Client(McpHttpError::Redirected)),
                "protocol",
                "execution_error mcp_protocol: the MCP server `github` does not keep to the protocol: Client error: \
                 redirected to another address",
            ),
            (refused(-32_602, "`repo` is missing"), "refused", "invalid_parameters mcp_error_32602: `repo` is missing"),
            (refused(-32_601, "no tool"), "refused", "not_found mcp_error_32601: no tool"),
            (refused(-32_603, "broke"), "refused", "execution_error mcp_error_32603: broke"),
            (refused(-32_603, SESSION_LOST), "broken", broken),
        ];
        for (error, word, expected) in cases {
            assert_eq!(told(error), (word, expected.to_owned()));
        }
    }

    #[test]
    fn credential_that_is_missing_is_told_as_one() {
        let error = StreamableHttpError::Client(McpHttpError::Fetch(FetchError::Credential(missing())));
        let fault = McpFault::of_call("github", over_http(error));
        assert_eq!((fault.word(), ToolError::from(fault)), ("credential", ToolError::Credential(missing())));
    }

    #[test]
    fn credential_of_another_tenant_is_not_named_and_what_time_may_mend_is_told_so() {
        let told = |kind: CredentialFault| {
            let fault = McpFault::Credential(CredentialError { kind, ..missing() }).of_others_credential("shared");
            ToolError::from(fault)
        };
        let refused = told(CredentialFault::Refused);
        assert_eq!((refused.code(), refused.is_unsent()), ("mcp_unauthorized", false));
        let busy = told(CredentialFault::Busy);
        assert_eq!((busy.code(), busy.is_unsent()), ("mcp_unavailable", true));
        for error in [refused, busy] {
            assert!(!error.to_string().contains("github"), "{error}");
        }
        let broken = McpFault::Broken { server: "shared".into() };
        assert_eq!(broken.clone().of_others_credential("shared"), broken);
    }

    #[tokio::test]
    async fn secret_that_a_server_repeats_in_a_fault_is_taken_out() {
        let used_secrets = UsedSecrets::default();
        used_secrets.add(["canary-8"]);
        let (server, text) = (|| "github".to_owned(), || "no canary-8 here".to_owned());
        for fault in [
            McpFault::Away { server: server(), why: text() },
            McpFault::Refused { code: -1, message: text() },
            McpFault::Protocol { server: server(), why: text() },
        ] {
            let detail = fault.cleaned(&used_secrets).await.detail();
            assert!(detail.contains("no [redacted] here"), "{detail}");
        }
    }

    #[test]
    fn message_of_a_server_is_told_up_to_its_longest() {
        let told = |length: usize| match ToolError::from(McpFault::of_call("a", refused(-1, &"é".repeat(length)))) {
            ToolError::Tell { message, .. } => message.chars().count(),
            other => panic!("{other:?}"),
        };
        assert_eq!((told(MESSAGE_CHARS), told(MESSAGE_CHARS + 1)), (MESSAGE_CHARS, MESSAGE_CHARS));
    }

    #[test]
    fn connection_that_could_not_be_made_says_why_to_operators_alone() {
        let start = |error: ClientInitializeError| McpFault::of_start("github", &error, "npm ERR!\n404");
        let closed = start(ClientInitializeError::ConnectionClosed("discover".into()));
        assert_eq!(closed.to_string(), "the MCP server `github` can't be reached now");
        let detail = closed.detail();
        assert!(detail.contains("it ended before it answered; it said: npm ERR!"), "{detail}");
        assert!(!detail.contains('\n'), "{detail}");
        let transport_error = |error| ClientInitializeError::TransportError { error, context: "x".into() };
        let broken = start(transport_error(transport(io::Error::other("broken pipe"))));
        assert!(broken.word() == "away" && broken.detail().contains("broken pipe"), "{broken:?}");
        let nested = start(ClientInitializeError::LegacyFallbackFailed {
            discover: Box::new(ClientInitializeError::Cancelled),
            fallback: Box::new(transport_error(transport(StreamableHttpError::<McpHttpError>::AuthRequired(
                AuthRequiredError::new("Bearer".into()),
            )))),
        });
        assert_eq!(nested, McpFault::Unauthorized { server: "github".into() });
        assert_eq!(McpFault::of_start("a", &ClientInitializeError::Cancelled, "").word(), "away");
        assert!(start(ClientInitializeError::ExpectedInitResult(None)).word() == "protocol");
    }

    #[test]
    fn call_over_a_connection_that_could_not_be_made_was_not_sent() {
        let server = || "github".to_owned();
        let faults = [
            McpFault::Broken { server: server() },
            McpFault::Refused { code: -1, message: "not today".into() },
            McpFault::Status { server: server(), status: 503 },
            McpFault::Protocol { server: server(), why: "x".into() },
            McpFault::Slow { server: server(), after: Duration::from_secs(30) },
        ];
        for fault in faults {
            let error = ToolError::from(fault.before_call("github"));
            assert!(error.is_unsent() && error.code() == "mcp_unavailable", "{error:?}");
        }
        let refused = McpFault::Refused { code: -1, message: "not today".into() }.before_call("github");
        assert!(refused.detail().contains("not today") && !refused.to_string().contains("not today"));
        assert_eq!(McpFault::Credential(missing()).before_call("github"), McpFault::Credential(missing()));
    }
}
