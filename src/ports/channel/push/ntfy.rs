//! ntfy (<https://ntfy.sh>): a message to a topic, published as JSON.
//!
//! The operator's server gets the operator's token and nobody else does: a server that a recipient names is reached as
//! every address that users give. ntfy has no idempotency key. A message with the `sequence_id` of an earlier one takes
//! its place on the device (ntfy 2.16), but it is a message, so an attempt without an answer is not repeated.

use std::time::Duration;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use chrono::{DateTime, Utc};
use http::header::{AUTHORIZATION, CONTENT_TYPE};
use http::{HeaderMap, HeaderValue, Method, StatusCode};
use serde::{Deserialize, Serialize};
use serde_json::json;
use url::Url;

use crate::base::invalid::ValidationErrors;
use crate::base::secret::Secret;
use crate::domain::task::Urgency;
use crate::ports::channel::answer::{judge_no_answer, judge_status};
use crate::ports::channel::push::{ANSWER_LIMIT, cut};
use crate::ports::channel::{ChannelError, OutgoingMessage, Receipt, ReceiptLevel};
use crate::ports::egress::{Egress, EgressError, EgressRequest, operator_client, retry_after};

/// Longest text in bytes; ntfy makes an attachment of a longer one, or refuses it.
const TEXT_LIMIT: usize = 4096;
/// How much of what a server says is kept, in characters.
const SAID_LENGTH: usize = 200;

/// `[channels.push.ntfy]`.
#[derive(Debug, Clone, Default, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The server for topics whose recipient names no other: `https://ntfy.example.org`. Absent: there is none.
    pub url: Option<String>,
    /// An access token (`tk_…`), or else `user` and `password`; none for a server that anybody may write to.
    pub token: Option<Secret>,
    pub user: Option<String>,
    pub password: Option<Secret>,
}

/// The way to ntfy servers.
pub struct NtfyClient {
    operator: Option<Operator>,
    egress: Egress,
    timeout: Duration,
}

struct Operator {
    url: Url,
    client: reqwest::Client,
    authorization: Option<HeaderValue>,
}

/// Owner of the server that answered, who has to act when it refuses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ServerOwner {
    Operator,
    Recipient,
}

struct NtfyAnswer {
    status: StatusCode,
    headers: HeaderMap,
    body: Bytes,
}

impl NtfyClient {
    /// A client of the server in these settings.
    pub fn new(settings: &Settings, timeout: Duration, egress: Egress) -> Result<NtfyClient, ValidationErrors> {
        let fault = |name: &str, why: &str| ValidationErrors::one(format!("/channels/push/ntfy/{name}"), why);
        let authorization = match (&settings.token, &settings.user, &settings.password) {
            (None, None, None) => None,
            (Some(token), None, None) => Some(("token", format!("Bearer {}", token.expose().trim()))),
            (None, Some(user), Some(password)) => {
                let pair = STANDARD.encode(format!("{user}:{}", password.expose()));
                Some(("password", format!("Basic {pair}")))
            }
            (None, _, None) => return Err(fault("password", "is needed with `user`")),
            (None, None, _) => return Err(fault("user", "is needed with `password`")),
            (Some(_), ..) => return Err(fault("token", "stands in the place of `user` and `password`; leave one out")),
        };
        let authorization = authorization
            .map(|(name, text)| {
                let mut value =
                    HeaderValue::from_str(&text).map_err(|_| fault(name, "has characters that no header can carry"))?;
                value.set_sensitive(true);
                Ok::<_, ValidationErrors>(value)
            })
            .transpose()?;
        let operator = match &settings.url {
            None if authorization.is_some() => return Err(fault("url", "is needed: the server that the login is for")),
            None => None,
            Some(url) => match Url::parse(url).ok().filter(|url| matches!(url.scheme(), "http" | "https")) {
                Some(url) if url.username().is_empty() && url.password().is_none() => {
                    Some(Operator { url, client: operator_client(timeout), authorization })
                }
                Some(_) => return Err(fault("url", "may not hold a login; set `token`, or `user` and `password`")),
                None => return Err(fault("url", "must be an address such as `https://ntfy.example.org`")),
            },
        };
        Ok(NtfyClient { operator, egress, timeout })
    }

    /// One attempt: to `server`, else to the operator's. `sequence` is what a later message that replaces it shares.
    pub async fn publish(
        &self,
        topic: &str,
        server: Option<&str>,
        sequence: &str,
        message: &OutgoingMessage<'_>,
    ) -> Result<Receipt, ChannelError> {
        let body = body(topic, sequence, message);
        match (server, &self.operator) {
            (Some(server), _) => judge(self.fetch(server, body).await?, ServerOwner::Recipient, message.now),
            (None, Some(operator)) => judge(operator.post(body).await?, ServerOwner::Operator, message.now),
            (None, None) => {
                let why = "there is no ntfy server for topics without one: channels.push.ntfy.url is not set".into();
                Err(ChannelError::Misconfigured { why })
            }
        }
    }

    async fn fetch(&self, server: &str, body: Bytes) -> Result<NtfyAnswer, ChannelError> {
        let json = HeaderValue::from_static("application/json");
        let request = EgressRequest {
            headers: HeaderMap::from_iter([(CONTENT_TYPE, json)]),
            body,
            timeout: self.timeout,
            max_bytes: ANSWER_LIMIT,
            follow_redirects: false,
            ..EgressRequest::new(Method::POST, server)
        };
        match self.egress.fetch(request).await {
            Ok(response) => Ok(NtfyAnswer { status: response.status, headers: response.headers, body: response.body }),
            Err(EgressError::TooLarge { status, .. }) => {
                Ok(NtfyAnswer { status, headers: HeaderMap::new(), body: Bytes::new() })
            }
            Err(error) => Err(judge_no_answer("the ntfy server", &error)),
        }
    }
}

impl Operator {
    async fn post(&self, body: Bytes) -> Result<NtfyAnswer, ChannelError> {
        let mut request = self.client.post(self.url.clone()).header(CONTENT_TYPE, "application/json").body(body);
        if let Some(authorization) = &self.authorization {
            request = request.header(AUTHORIZATION, authorization);
        }
        let failed = |error: reqwest::Error| {
            // the text of the error has the address in it, which is no business of the recipient's
            match error.is_connect() {
                true => {
                    tracing::warn!(%error, "the ntfy server can't be reached");
                    ChannelError::Transient { why: "the ntfy server can't be reached".into(), retry_after: None }
                }
                false => ChannelError::Unknown { why: "the ntfy server gave no complete answer".into() },
            }
        };
        let mut response = request.send().await.map_err(failed)?;
        let (status, headers) = (response.status(), response.headers().clone());
        let mut body = Vec::new();
        while let Some(piece) = response.chunk().await.map_err(failed)? {
            if body.len() + piece.len() > ANSWER_LIMIT {
                body.clear();
                break;
            }
            body.extend_from_slice(&piece);
        }
        Ok(NtfyAnswer { status, headers, body: body.into() })
    }
}

fn body(topic: &str, sequence: &str, message: &OutgoingMessage) -> Bytes {
    let words = message.words;
    let mut body = json!({
        "topic": topic,
        "sequence_id": sequence,
        "title": words.subject,
        "message": cut(&words.text, TEXT_LIMIT),
        "priority": priority(message.urgency),
    });
    if words.asks {
        body["tags"] = json!(["raised_hand"]);
    }
    if let Some(link) = &words.link {
        body["click"] = json!(link.url);
        body["actions"] = json!([{ "action": "view", "label": link.label, "url": link.url, "clear": true }]);
    }
    body.to_string().into()
}

fn priority(urgency: Urgency) -> u8 {
    match urgency {
        Urgency::Low => 2,
        Urgency::Normal => 3,
        Urgency::High => 4,
        Urgency::Urgent => 5,
    }
}

/// The fields of an answer that are read. The rest is passed over, which a server of a recipient may have made long.
#[derive(Default, Deserialize)]
struct NtfyFields {
    id: Option<String>,
    error: Option<String>,
}

/// Judges an answer. A refused login is the operator's to mend where it is the operator's server.
fn judge(answer: NtfyAnswer, whose: ServerOwner, now: DateTime<Utc>) -> Result<Receipt, ChannelError> {
    let refused = |why: String| match whose {
        ServerOwner::Operator => ChannelError::Misconfigured { why },
        ServerOwner::Recipient => ChannelError::Rejected { why },
    };
    let fields: NtfyFields = serde_json::from_slice(&answer.body).unwrap_or_default();
    let mut why = format!("the ntfy server answered {}", answer.status);
    if let Some(error) = fields.error {
        let error: String = error.chars().filter(|c| !c.is_control()).take(SAID_LENGTH).collect();
        why = format!("{why}: {error}");
    }
    match answer.status.as_u16() {
        200..=299 => match fields.id {
            Some(id) => {
                let provider_id = Some(id.chars().take(SAID_LENGTH).collect());
                Ok(Receipt { provider_id, confirmed: ReceiptLevel::Delivered })
            }
            None => Err(refused(format!("{why}, but not as ntfy does: there is something else at this address"))),
        },
        300..=399 => Err(refused(format!("{why}; redirects are not followed, set the new address"))),
        401 | 403 | 404 | 405 => Err(refused(why)),
        // 429: the server counts by visitor and by topic, so it is this recipient's limit, or ours
        _ => judge_status(answer.status, retry_after(&answer.headers, now), why),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn meaning(status: u16, body: &'static str, whose: ServerOwner) -> String {
        let status = StatusCode::from_u16(status).unwrap();
        let answer = NtfyAnswer { status, headers: HeaderMap::new(), body: Bytes::from_static(body.as_bytes()) };
        match judge(answer, whose, DateTime::UNIX_EPOCH) {
            Ok(receipt) => format!("{:?} {:?}", receipt.confirmed, receipt.provider_id),
            Err(error) => format!("{error:?}").split(' ').next().unwrap().to_owned(),
        }
    }

    #[test]
    fn every_status_has_its_meaning() {
        for code in 200..600 {
            let expected = match code {
                200..=299 => ["Delivered Some(\"x\")"; 2],
                300..=399 | 401 | 403 | 404 | 405 => ["Misconfigured", "Rejected"],
                429 => ["Busy"; 2],
                408 | 425 | 500..=599 => ["Transient"; 2],
                _ => ["Rejected"; 2],
            };
            let body = r#"{"id":"x"}"#;
            let answer_body = [ServerOwner::Operator, ServerOwner::Recipient].map(|whose| meaning(code, body, whose));
            assert_eq!(answer_body, expected, "{code}");
        }
        assert_eq!(meaning(200, "<html>", ServerOwner::Operator), "Misconfigured");
        assert_eq!(meaning(200, "{}", ServerOwner::Recipient), "Rejected");
    }

    #[test]
    fn login_is_whole_and_has_a_server() {
        let secret = |text: &str| Some(Secret::new(text));
        let url = Some("https://ntfy.example.org".to_owned());
        let fault = |settings: Settings| {
            let egress = Egress::new(&crate::ports::egress::Settings::default()).unwrap();
            NtfyClient::new(&settings, Duration::from_secs(1), egress).err().map(|faults| faults.to_string())
        };
        let user = Some("ann".to_owned());
        assert_eq!(fault(Settings::default()), None);
        assert_eq!(fault(Settings { url: url.clone(), token: secret("tk_1"), ..Settings::default() }), None);
        let basic =
            Settings { url: url.clone(), user: user.clone(), password: secret("canary"), ..Settings::default() };
        assert_eq!(fault(basic.clone()), None);
        let answer_body = [
            fault(Settings { password: None, ..basic.clone() }),
            fault(Settings { user: None, ..basic.clone() }),
            fault(Settings { token: secret("tk_1"), ..basic.clone() }),
            fault(Settings { url: None, ..basic.clone() }),
            fault(Settings { url: Some("ntfy.example.org".into()), ..Settings::default() }),
            fault(Settings { url: Some("https://u:canary@ntfy.example.org".into()), ..Settings::default() }),
            fault(Settings { url, token: secret("canary\n7"), ..Settings::default() }),
        ];
        assert_eq!(
            answer_body.map(|fault| fault.unwrap()),
            [
                "/channels/push/ntfy/password: is needed with `user`",
                "/channels/push/ntfy/user: is needed with `password`",
                "/channels/push/ntfy/token: stands in the place of `user` and `password`; leave one out",
                "/channels/push/ntfy/url: is needed: the server that the login is for",
                "/channels/push/ntfy/url: must be an address such as `https://ntfy.example.org`",
                "/channels/push/ntfy/url: may not hold a login; set `token`, or `user` and `password`",
                "/channels/push/ntfy/token: has characters that no header can carry",
            ]
        );
    }
}
