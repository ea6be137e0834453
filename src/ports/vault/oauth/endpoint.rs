//! One token endpoint: a form goes there, tokens or an error come back (RFC 6749, sections 3.2, 5 and 6).
//!
//! It asks once and never repeats: what may be asked again is the caller's to know. Errors say what the provider said,
//! on one line, cut, and without any secret that was sent.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::{Bytes, BytesMut};
use http::{HeaderMap, HeaderValue, Method, StatusCode, header};
use serde::Deserialize;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::base::redact::{Redactor, secrets_of};
use crate::base::secret::{Secret, erase};
use crate::base::unicode_safety::on_one_line;
use crate::domain::credential::{ClientAuth, DOCUMENT_TEXTS};
use crate::ports::egress::{Egress, EgressError, EgressRequest};
use crate::ports::vault::credentials::hosts;
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::oauth::tokens::OAuthTokenResponse;

/// How long a token endpoint may take for the whole of an answer.
pub const TIMEOUT: Duration = Duration::from_secs(10);
/// Largest answer in bytes.
pub const ANSWER_BYTES: usize = 64 * 1024;
/// How much of a provider's own words is shown, in characters.
const SHOWN: usize = 200;
/// Fields of a form that hold no secret.
const PLAIN: [&str; 2] = ["grant_type", "redirect_uri"];
const FORM: HeaderValue = HeaderValue::from_static("application/x-www-form-urlencoded");
const JSON: HeaderValue = HeaderValue::from_static("application/json");

/// Where, and as whom.
pub struct Endpoint {
    pub token_url: String,
    pub client_id: String,
    pub client_secret: Option<Secret>,
    pub client_auth: ClientAuth,
    /// The address that tokens are asked for (RFC 8707); `None`: none is named.
    pub resource: Option<String>,
    pub way: ClientAuthentication,
    /// Where it is made ready to find secrets in answers.
    pub turn: ReadingTurn,
}

/// How it is reached.
pub enum ClientAuthentication {
    /// The operator has written the address down.
    Operator(reqwest::Client),
    /// A user has.
    User(Egress),
}

/// Why no tokens came, by what follows from it. The texts hold no secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EndpointRefusal {
    /// `invalid_grant`: what was sent is used up, expired or taken back.
    #[error("{0}")]
    Grant(String),
    /// `invalid_client` and its kin: this client is not known there, or its secret is wrong.
    #[error("{0}")]
    Client(String),
    /// Asked wrongly, or answered with something else than tokens. Asking again is useless.
    #[error("{0}")]
    Request(String),
    /// No answer, or one that says to come later. The request may have taken effect.
    #[error("{0}")]
    Later(String),
}

/// An error of RFC 6749, section 5.2.
#[derive(Deserialize)]
struct EndpointError {
    error: String,
    #[serde(default)]
    error_description: Option<String>,
}

impl Endpoint {
    /// Sends a form with the client's own proof, and reads what is given for it. `document`: the credential's, of which
    /// nothing may be in what the endpoint says.
    pub async fn ask(
        &self,
        form: &[(&str, &Secret)],
        document: Option<&Secret>,
    ) -> Result<OAuthTokenResponse, EndpointRefusal> {
        let (headers, body) = self.request(form);
        let secrets = self.redactor(form, document).await;
        let (status, body) = self.send(headers, body).await.map_err(|refusal| match refusal {
            EndpointRefusal::Later(why) => EndpointRefusal::Later(redacted_text(&why, &secrets)),
            EndpointRefusal::Request(why) => EndpointRefusal::Request(redacted_text(&why, &secrets)),
            other => other,
        })?;
        read(status, &body, &secrets)
    }

    /// Finds what is sent, and what else the document holds; of one with more texts than it may have, nothing is shown.
    async fn redactor(&self, form: &[(&str, &Secret)], document: Option<&Secret>) -> Redactor {
        let held = document.map_or_else(Vec::new, held_by);
        if held.len() > DOCUMENT_TEXTS {
            return Redactor::hiding_all();
        }
        let sent = form.iter().filter(|(name, _)| !PLAIN.contains(name)).map(|(_, value)| *value);
        let own = sent.chain(&self.client_secret).map(|secret| Zeroizing::new(secret.expose().to_owned()));
        let pair = self.client_secret.as_ref().map(|secret| self.pair(secret));
        let secrets: Vec<Zeroizing<String>> = own.chain(pair).chain(held).collect();
        let bytes: usize = secrets.iter().map(|secret| secret.len()).sum();
        let steps = Redactor::steps_to_build(secrets.len(), bytes);
        let build = move || Redactor::new(secrets.iter().map(|secret| secret.as_str()));
        self.turn.run_if_costly(steps, build).await.unwrap_or_else(Redactor::hiding_all)
    }

    /// The text that HTTP Basic encodes (RFC 6749, section 2.3.1: both are form-encoded first).
    fn pair(&self, secret: &Secret) -> Zeroizing<String> {
        let encode = |text: &str| url::form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>();
        Zeroizing::new(format!("{}:{}", encode(&self.client_id), encode(secret.expose())))
    }

    fn request(&self, form: &[(&str, &Secret)]) -> (HeaderMap, String) {
        let mut headers = HeaderMap::from_iter([(header::CONTENT_TYPE, FORM), (header::ACCEPT, JSON)]);
        let mut body = url::form_urlencoded::Serializer::new(String::new());
        for (name, value) in form {
            body.append_pair(name, value.expose());
        }
        if let Some(resource) = &self.resource {
            body.append_pair("resource", resource);
        }
        match (&self.client_secret, self.client_auth) {
            (Some(secret), ClientAuth::Basic) => {
                let pair = self.pair(secret);
                let basic = HeaderValue::try_from(format!("Basic {}", STANDARD.encode(pair.as_bytes())));
                let mut basic = basic.expect("base64 is good in a header");
                basic.set_sensitive(true);
                headers.insert(header::AUTHORIZATION, basic);
            }
            (Some(secret), ClientAuth::Body) => {
                body.append_pair("client_id", &self.client_id).append_pair("client_secret", secret.expose());
            }
            (None, _) => drop(body.append_pair("client_id", &self.client_id)),
        }
        (headers, body.finish())
    }

    async fn send(&self, headers: HeaderMap, body: String) -> Result<(StatusCode, Bytes), EndpointRefusal> {
        match &self.way {
            ClientAuthentication::Operator(client) => {
                let sent = client.post(&self.token_url).headers(headers).body(body).send().await;
                let mut answer = sent.map_err(|error| unreachable(&error))?;
                let mut whole = BytesMut::new();
                while let Some(part) = answer.chunk().await.map_err(|error| unreachable(&error))? {
                    if whole.len() + part.len() > ANSWER_BYTES {
                        return Err(EndpointRefusal::Request(format!(
                            "the answer is larger than {ANSWER_BYTES} bytes"
                        )));
                    }
                    whole.extend_from_slice(&part);
                }
                Ok((answer.status(), whole.freeze()))
            }
            ClientAuthentication::User(egress) => {
                let denied = |error: EgressError| EndpointRefusal::Request(error.to_string());
                let url = egress.check(&self.token_url).map_err(denied)?;
                hosts::check_encrypted(&url, egress.is_allowed(&url)).map_err(EndpointRefusal::Request)?;
                let request = EgressRequest {
                    headers,
                    body: body.into(),
                    timeout: TIMEOUT,
                    max_bytes: ANSWER_BYTES,
                    follow_redirects: false,
                    ..EgressRequest::new(Method::POST, &self.token_url)
                };
                let answer = egress.fetch(request).await.map_err(|error| match error {
                    EgressError::Timeout { .. } | EgressError::Connect { .. } | EgressError::Broken { .. } => {
                        EndpointRefusal::Later(error.to_string())
                    }
                    other => EndpointRefusal::Request(other.to_string()),
                })?;
                Ok((answer.status, answer.body))
            }
        }
    }
}

/// The texts of a document that count as secrets.
fn held_by(document: &Secret) -> Vec<Zeroizing<String>> {
    let mut document: Value = serde_json::from_str(document.expose()).unwrap_or_default();
    let held = secrets_of(&document).into_iter().map(|text| Zeroizing::new(text.to_owned())).collect();
    erase(&mut document);
    held
}

/// The error of reqwest without the address, which is the operator's to know.
fn unreachable(error: &reqwest::Error) -> EndpointRefusal {
    let cause = std::iter::successors(std::error::Error::source(error), |cause| cause.source()).last();
    EndpointRefusal::Later(match (error.is_timeout(), cause) {
        (true, _) => format!("no complete answer within {} s", TIMEOUT.as_secs()),
        (false, Some(cause)) => format!("can't be reached: {cause}"),
        (false, None) => "can't be reached".into(),
    })
}

/// Judges an answer. Some providers answer 200 with an error in it.
fn read(status: StatusCode, body: &[u8], secrets: &Redactor) -> Result<OAuthTokenResponse, EndpointRefusal> {
    if let Ok(answer) = serde_json::from_slice::<EndpointError>(body) {
        return Err(refused(status, &answer, secrets));
    }
    if status.is_success() {
        let granted: OAuthTokenResponse = serde_json::from_slice(body).map_err(|_| {
            EndpointRefusal::Request("it answers something else than tokens (RFC 6749, section 5.1)".into())
        })?;
        return match granted.token_type.as_deref() {
            Some(kind) if !kind.eq_ignore_ascii_case("bearer") => Err(EndpointRefusal::Request(redacted_text(
                &format!("it gives tokens of the type `{kind}`, not `Bearer`"),
                secrets,
            ))),
            _ if granted.access_token.expose().is_empty() => {
                Err(EndpointRefusal::Request("it gives an empty token".into()))
            }
            _ => Ok(granted),
        };
    }
    let why = format!("it answers {status}");
    Err(match status {
        StatusCode::UNAUTHORIZED => EndpointRefusal::Client(why),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::REQUEST_TIMEOUT => EndpointRefusal::Later(why),
        status if status.is_server_error() => EndpointRefusal::Later(why),
        _ => EndpointRefusal::Request(why),
    })
}

fn refused(status: StatusCode, answer: &EndpointError, secrets: &Redactor) -> EndpointRefusal {
    let why = match answer.error_description.as_deref().filter(|text| !text.trim().is_empty()) {
        Some(description) => redacted_text(&format!("{}: {description}", answer.error), secrets),
        None => redacted_text(&answer.error, secrets),
    };
    match answer.error.as_str() {
        // the last four are what GitHub, Slack and Google say for it
        "invalid_grant" | "bad_refresh_token" | "bad_verification_code" | "invalid_refresh_token" | "token_revoked" => {
            EndpointRefusal::Grant(why)
        }
        "invalid_client" | "unauthorized_client" | "incorrect_client_credentials" => EndpointRefusal::Client(why),
        "temporarily_unavailable" | "server_error" | "slow_down" => EndpointRefusal::Later(why),
        _ if status.is_server_error() || status == StatusCode::TOO_MANY_REQUESTS => EndpointRefusal::Later(why),
        _ => EndpointRefusal::Request(why),
    }
}

/// Words of a provider as they may be shown: on one line, cut, none of these secrets in them. Words that take long to
/// read are not shown.
fn redacted_text(text: &str, secrets: &Redactor) -> String {
    let line = on_one_line(secrets.in_place().text(text).trim());
    match line.chars().count() {
        n if n > SHOWN => line.chars().take(SHOWN - 1).chain(['…']).collect(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn endpoint(secret: Option<&str>, auth: ClientAuth) -> Endpoint {
        Endpoint {
            token_url: "https://id.example.org/token".into(),
            client_id: "an id".into(),
            client_secret: secret.map(Secret::new),
            client_auth: auth,
            resource: None,
            way: ClientAuthentication::User(Egress::new(&Default::default()).unwrap()),
            turn: ReadingTurn::default(),
        }
    }

    fn sent(secret: Option<&str>, auth: ClientAuth) -> (Option<String>, String) {
        let token = Secret::new("a+b c");
        let (headers, body) = endpoint(secret, auth).request(&[("refresh_token", &token)]);
        let basic = headers.get(header::AUTHORIZATION).map(|basic| {
            assert!(basic.is_sensitive());
            let encoded = basic.to_str().unwrap().strip_prefix("Basic ").unwrap().to_owned();
            String::from_utf8(STANDARD.decode(encoded).unwrap()).unwrap()
        });
        (basic, body)
    }

    #[test]
    fn client_shows_itself_as_the_rfc_has_it() {
        let refresh = "refresh_token=a%2Bb+c";
        assert_eq!(sent(Some("s:%é"), ClientAuth::Basic), (Some("an+id:s%3A%25%C3%A9".into()), refresh.into()));
        assert_eq!(
            sent(Some("s:%"), ClientAuth::Body),
            (None, format!("{refresh}&client_id=an+id&client_secret=s%3A%25"))
        );
        for auth in [ClientAuth::Basic, ClientAuth::Body] {
            assert_eq!(sent(None, auth), (None, format!("{refresh}&client_id=an+id")));
        }
    }

    #[test]
    fn resource_is_named_in_each_request() {
        let resource = Some("https://mcp.example.org/mcp".to_owned());
        let endpoint = Endpoint { resource, ..endpoint(None, ClientAuth::Basic) };
        let kind = Secret::new("refresh_token");
        let (_, body) = endpoint.request(&[("grant_type", &kind)]);
        let resource = "resource=https%3A%2F%2Fmcp.example.org%2Fmcp";
        assert_eq!(body, format!("grant_type=refresh_token&{resource}&client_id=an+id"));
    }

    #[test]
    fn each_answer_is_judged_by_what_follows_from_it() {
        let judge = |status: u16, body: &str| {
            let status = StatusCode::from_u16(status).unwrap();
            read(status, body.as_bytes(), &Redactor::new(["canary"]))
                .map(|granted| granted.access_token.expose().to_owned())
        };
        assert_eq!(judge(200, r#"{"access_token":"a","token_type":"bearer"}"#), Ok("a".into()));
        assert_eq!(judge(200, r#"{"access_token":"a"}"#), Ok("a".into()));
        let error = |code: &str| format!(r#"{{"error":"{code}"}}"#);
        assert_eq!(judge(400, &error("invalid_grant")), Err(EndpointRefusal::Grant("invalid_grant".into())));
        // GitHub
        assert_eq!(judge(200, &error("bad_refresh_token")), Err(EndpointRefusal::Grant("bad_refresh_token".into())));
        assert_eq!(judge(401, &error("invalid_client")), Err(EndpointRefusal::Client("invalid_client".into())));
        assert_eq!(judge(401, ""), Err(EndpointRefusal::Client("it answers 401 Unauthorized".into())));
        assert_eq!(judge(400, &error("invalid_scope")), Err(EndpointRefusal::Request("invalid_scope".into())));
        assert_eq!(judge(404, "<h1>"), Err(EndpointRefusal::Request("it answers 404 Not Found".into())));
        assert_eq!(judge(302, ""), Err(EndpointRefusal::Request("it answers 302 Found".into())));
        for status in [500, 502, 503, 429, 408] {
            assert!(matches!(judge(status, "busy"), Err(EndpointRefusal::Later(_))), "{status}");
        }
        assert_eq!(
            judge(400, &error("temporarily_unavailable")),
            Err(EndpointRefusal::Later("temporarily_unavailable".into()))
        );
        assert_eq!(judge(503, &error("other")), Err(EndpointRefusal::Later("other".into())));
        let mac = judge(200, r#"{"access_token":"a","token_type":"mac"}"#);
        assert_eq!(mac, Err(EndpointRefusal::Request("it gives tokens of the type `mac`, not `Bearer`".into())));
        for odd in ["", "[]", "{}", r#"{"access_token":7}"#, r#"{"access_token":""}"#] {
            assert!(matches!(judge(200, odd), Err(EndpointRefusal::Request(_))), "{odd}");
        }
    }

    #[test]
    fn provider_error_is_shown_without_secrets_on_one_short_line() {
        let secret = Redactor::new(["can+ary/1"]);
        let body = format!(
            r#"{{"error":"invalid_grant","error_description":"no can+ary/1\nor can%2Bary%2F1 \u202e{}"}}"#,
            "x".repeat(500)
        );
        let Err(EndpointRefusal::Grant(why)) = read(StatusCode::BAD_REQUEST, body.as_bytes(), &secret) else {
            panic!()
        };
        assert!(why.starts_with("invalid_grant: no [redacted]or [redacted] ⟦U+202E⟧xxx"), "{why}");
        assert_eq!(why.chars().count(), SHOWN);
    }

    #[test]
    fn provider_error_that_takes_long_to_read_is_not_shown() {
        // each place may be read in two ways, and no way comes to its end
        let leaves: Vec<String> = (0..200)
            .map(|n: usize| (0..60).map(|bit| if (n * 7919) >> (bit % 16) & 1 == 0 { '+' } else { ' ' }).collect())
            .map(|leaf: String| format!("+{leaf}x"))
            .collect();
        let secrets = Redactor::new(leaves.iter().map(String::as_str));
        let body = format!(r#"{{"error":"invalid_grant","error_description":"{}"}}"#, "+".repeat(1_000));
        let refused = read(StatusCode::BAD_REQUEST, body.as_bytes(), &secrets).map(|_| ());
        assert_eq!(refused, Err(EndpointRefusal::Grant("[redacted]".into())));
    }

    #[tokio::test]
    async fn nothing_that_a_provider_says_is_shown_of_a_document_with_more_texts_than_it_may_have() {
        let endpoint = endpoint(None, ClientAuth::Basic);
        let shown = async |count: usize| {
            let texts: Vec<String> = (0..count).map(|n| format!("secret-{n:04}")).collect();
            let document = Secret::new(serde_json::to_string(&texts).unwrap());
            redacted_text("plain, secret-0000", &endpoint.redactor(&[], Some(&document)).await)
        };
        assert_eq!(shown(DOCUMENT_TEXTS).await, "plain, [redacted]");
        assert_eq!(shown(DOCUMENT_TEXTS + 1).await, "[redacted]");
    }

    #[tokio::test]
    async fn secrets_are_redacted_in_every_encoding() {
        let endpoint = endpoint(Some("client-canary"), ClientAuth::Basic);
        let (token, kind) = (Secret::new("refresh-canary"), Secret::new("refresh_token"));
        let document = Secret::new(r#"{"refresh_token":"refresh-canary","note":{"key":"beside-canary"}}"#);
        let form = [("grant_type", &kind), ("refresh_token", &token)];
        let secrets = endpoint.redactor(&form, Some(&document)).await;
        let (headers, _) = endpoint.request(&form);
        let basic = headers[header::AUTHORIZATION].to_str().unwrap().to_owned();
        let hex: String = "refresh-canary".bytes().map(|byte| format!("{byte:02x}")).collect();
        for (answer, shown) in [
            (basic.as_str(), "Basic [redacted]"),
            ("an+id:client-canary", "[redacted]"),
            (&STANDARD.encode("client-canary"), "[redacted]"),
            (&hex, "[redacted]"),
            ("refresh%2Dcanary, beside-canary", "[redacted], [redacted]"),
            ("the refresh_token is used up", "the refresh_token is used up"),
        ] {
            assert_eq!(redacted_text(answer, &secrets), shown, "{answer}");
        }
    }
}
