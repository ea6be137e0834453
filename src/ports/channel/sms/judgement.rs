//! Judgement of the answers of Twilio and SignalWire. Codes: <https://www.twilio.com/docs/api/errors>

use crate::ports::channel::ChannelError;
use crate::ports::channel::provider::{ProviderAnswer, ProviderApi};

/// A success, or why not. A message may be refused in the very answer that took it.
pub fn judge(provider: &ProviderApi, answer: &ProviderAnswer) -> Result<(), ChannelError> {
    let body = &answer.body;
    if answer.status.is_success() {
        let refused = matches!(body["status"].as_str(), Some("failed" | "undelivered" | "canceled"));
        let code = body["error_code"].as_i64();
        let message = body["error_message"].as_str().unwrap_or_default();
        return if refused { Err(ChannelError::Rejected { why: failed(provider, code, message) }) } else { Ok(()) };
    }
    let code = code_in(body);
    let message = body["message"].as_str().unwrap_or_default();
    let error = match code {
        Some(code) => provider.judge(answer, &format!("error {code}: {message}")),
        None => provider.judge(answer, message),
    };
    let why = error.to_string();
    Err(match code {
        // the number: not valid, none that takes messages, asked not to be written to, out of reach from here
        Some(21211 | 21214 | 21217 | 21265 | 21407 | 21602 | 21610 | 21612 | 21614 | 21617 | 21619 | 63001) => {
            ChannelError::Rejected { why }
        }
        // login, account, sender, region, trial, address of reports: what the operator has set up, or not
        Some(
            20003
            | 20005
            | 20006
            | 20008
            | 20010
            | 20404
            | 21212
            | 21408
            | 21603
            | 21606
            | 21608
            | 21609
            | 21659
            | 21660
            | 21701..=21705
            | 21712
            | 30002
            | 30032
            | 30034,
        ) => ChannelError::Misconfigured { why },
        // too many at once, for today, or in the queue
        Some(14107 | 20429 | 21611 | 30001 | 63038) if answer.retry_after.is_none() => ChannelError::Busy { why },
        Some(14107 | 20429 | 21611 | 30001 | 63038) => ChannelError::Transient { why, retry_after: answer.retry_after },
        _ => error,
    })
}

/// Twilio sends a number, SignalWire a number or the same as text.
fn code_in(body: &serde_json::Value) -> Option<i64> {
    let code = &body["code"];
    code.as_i64().or_else(|| code.as_str()?.parse().ok())
}

/// Why a message did not arrive, for people.
pub fn failed(provider: &ProviderApi, code: Option<i64>, message: &str) -> String {
    let meaning = match code {
        Some(30003) => "the phone is switched off or out of reach",
        Some(30004 | 21610) => "the number does not want messages from this sender",
        Some(30005) => "the number is not known",
        Some(30006) => "the number is a landline, or out of reach for the carrier",
        Some(30007) => "the carrier filtered it",
        Some(30008) => "the carrier gave no reason",
        _ => "",
    };
    let message = if message.is_empty() { meaning.to_owned() } else { provider.public_text(message) };
    match (code, message.as_str()) {
        (None, "") => "the message did not arrive, and no reason was given".into(),
        (None, message) => format!("the message did not arrive: {message}"),
        (Some(code), "") => format!("the message did not arrive (error {code})"),
        (Some(code), message) => format!("the message did not arrive: {message} (error {code})"),
    }
}
