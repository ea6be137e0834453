//! Reports of providers about messages that they took on: whether they arrived.
//!
//! There is no token here: whoever has the address, which only the provider was told, may report on that one delivery.
//! Where the provider signs what it sends, that is looked at as well. Guessing addresses costs the guesser.

use std::net::IpAddr;

use axum::Extension;
use axum::extract::{FromRequestParts, RawPathParams, State};
use axum::http::request::Parts;
use axum::http::{HeaderMap, StatusCode};
use uuid::Uuid;

use crate::base::token::TokenHash;
use crate::http::HttpState;
use crate::http::error::{ApiError, ProblemDetails};
use crate::http::request::JsonBody;
use crate::http::server::Peer;
use crate::ports::channel::{Callback, CallbackError, Channel, report_url};

/// Longest report in bytes: those of providers have one or two thousand. It is checked where it is taken.
const REPORT_BYTES: usize = 16 * 1_024;
/// Whatever is wrong with an address is told in these words.
const NOT_HERE: ApiError = ApiError::NotFound("receipt");

/// The two parts of the address.
pub struct ReceiptAddress {
    channel: String,
    ticket: String,
}

impl<S: Send + Sync> FromRequestParts<S> for ReceiptAddress {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<ReceiptAddress, ApiError> {
        let params = RawPathParams::from_request_parts(parts, state).await.map_err(|_| NOT_HERE)?;
        let named = |wanted: &str| params.iter().find(|(name, _)| *name == wanted).map(|(_, value)| value.to_owned());
        let (Some(channel), Some(ticket)) = (named("channel"), named("ticket")) else { return Err(NOT_HERE) };
        Ok(ReceiptAddress { channel, ticket })
    }
}

/// Report on a message
///
/// For providers of text messages, which are told this address with each message (Twilio's `StatusCallback`) and send
/// form fields to it. A failed message goes on to the recipient's next channel. Reports that come late, twice or in
/// another order change nothing.
#[utoipa::path(post, path = "/v1/receipts/{channel}/{ticket}", tag = "notifications",
    params(("channel" = String, Path, example = "sms"), ("ticket" = String, Path)),
    request_body(content = std::collections::BTreeMap<String, String>, content_type = "application/x-www-form-urlencoded"),
    responses((status = 204, description = "Taken, whether it changed something or not"),
        (status = 401, body = ProblemDetails, content_type = "application/problem+json",
            description = "The provider's signature is missing or wrong"),
        (status = 404, body = ProblemDetails, content_type = "application/problem+json", description = "No such address"),
        (status = 429, body = ProblemDetails, content_type = "application/problem+json",
            description = "Too many wrong addresses or signatures")))]
pub async fn receive_receipt(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    place: ReceiptAddress,
    headers: HeaderMap,
    body: JsonBody,
) -> Result<StatusCode, ApiError> {
    let guard =
        ReceiptGuard { state: &state, peer: peer.map(|Extension(peer)| peer.0), hash: TokenHash::of(&place.ticket) };
    guard.wait()?;
    if body.bytes().len() > REPORT_BYTES {
        return Err(ApiError::TooLarge { limit: REPORT_BYTES });
    }
    let (delivery, channel) = open(&state, &place).ok_or_else(|| guard.wrong(NOT_HERE))?;
    let address = report_url::address(&state.settings.public_url(), &place.channel, &place.ticket);
    let callback = Callback { address: &address, headers: &headers, body: body.bytes() };
    let report = channel.read_callback(&callback).map_err(|error| match error {
        CallbackError::NotSigned => {
            tracing::warn!(delivery_id = %delivery, channel = place.channel, "a report was refused: not signed as it should be");
            guard.wrong(ApiError::Unauthorized("the signature is missing or wrong"))
        }
        CallbackError::Unreadable(why) => ApiError::Malformed(why),
        CallbackError::NotExpected => NOT_HERE,
    })?;
    state.wrong_tokens.record_success(&guard.hash);
    let stands = state.store.receive_receipt(delivery, &place.channel, &report).await;
    let stands = stands.map_err(|error| ApiError::of_store(error, "receipt"))?;
    tracing::debug!(delivery_id = %delivery, channel = place.channel, state = stands.as_str(), "a report came");
    Ok(StatusCode::NO_CONTENT)
}

/// The delivery and the channel that an address is good for.
fn open<'a>(state: &'a HttpState, place: &ReceiptAddress) -> Option<(Uuid, &'a dyn Channel)> {
    let delivery = report_url::read(&state.vault, &place.channel, &place.ticket)?;
    Some((delivery, state.channels.get(&place.channel)?))
}

/// The reporting provider, and the limit on its wrong signatures.
struct ReceiptGuard<'a> {
    state: &'a HttpState,
    peer: Option<IpAddr>,
    hash: TokenHash,
}

impl ReceiptGuard<'_> {
    fn wait(&self) -> Result<(), ApiError> {
        let wait = |peer| self.state.wrong_tokens.wait(peer, &self.hash, self.state.clock.elapsed());
        match self.peer.and_then(wait) {
            None => Ok(()),
            Some(retry_after) => {
                let detail = "too many wrong addresses or signatures came from here";
                Err(ApiError::TooManyRequests { detail, retry_after })
            }
        }
    }

    fn wrong(&self, error: ApiError) -> ApiError {
        if let Some(peer) = self.peer {
            self.state.wrong_tokens.record_failure(peer, self.state.clock.elapsed());
        }
        error
    }
}
