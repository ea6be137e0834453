//! The meaning of an HTTP answer of a recipient's own server, and of its absence, for the message that it was sent.

use std::time::Duration;

use http::StatusCode;

use crate::ports::channel::{ChannelError, Receipt, ReceiptLevel};
use crate::ports::egress::EgressError;

/// Judges a status that the receiver gives no meaning of its own; `why` says who answered it.
pub(super) fn judge_status(
    status: StatusCode,
    retry_after: Option<Duration>,
    why: String,
) -> Result<Receipt, ChannelError> {
    match status.as_u16() {
        200..=299 => Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered }),
        // a server that many share may mean this recipient alone
        429 if retry_after.is_none() => Err(ChannelError::Busy { why }),
        408 | 425 | 429 | 500..=599 => Err(ChannelError::Transient { why, retry_after }),
        _ => Err(ChannelError::Rejected { why }),
    }
}

/// Judges that there was no answer of `whom`, or none that could be read.
pub(super) fn judge_no_answer(whom: &str, error: &EgressError) -> ChannelError {
    let why = format!("{whom}: {error}");
    match error {
        EgressError::Denied { .. } | EgressError::Invalid { .. } => ChannelError::Unsendable { why },
        EgressError::TooManyRedirects => ChannelError::Rejected { why },
        EgressError::Connect { .. } => ChannelError::Transient { why, retry_after: None },
        EgressError::Timeout { .. } | EgressError::Broken { .. } | EgressError::TooLarge { .. } => {
            ChannelError::Unknown { why: format!("{whom} was sent the message: {error}") }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_status_has_its_meaning() {
        for code in 200..600 {
            let expected = match code {
                200..=299 => "Receipt",
                429 => "Busy",
                408 | 425 | 500..=599 => "Transient",
                _ => "Rejected",
            };
            let said = match judge_status(StatusCode::from_u16(code).unwrap(), None, "it".into()) {
                Ok(receipt) => format!("{receipt:?}"),
                Err(error) => format!("{error:?}"),
            };
            assert!(said.starts_with(expected), "{code}: {said}");
        }
        let busy = judge_status(StatusCode::TOO_MANY_REQUESTS, Some(Duration::from_secs(9)), "it".into());
        assert!(matches!(busy, Err(ChannelError::Transient { retry_after: Some(_), .. })), "{busy:?}");
    }

    #[test]
    fn failures_tell_apart_never_sendable_not_sent_and_maybe_sent() {
        let meaning = |error: EgressError| judge_no_answer("it", &error);
        let unsendable = |error| matches!(meaning(error), ChannelError::Unsendable { .. });
        let unknown = |error| matches!(meaning(error), ChannelError::Unknown { .. });
        assert!(unsendable(EgressError::Denied { why: "private".into() }));
        assert!(unsendable(EgressError::Invalid { why: "no host".into() }));
        assert!(matches!(meaning(EgressError::TooManyRedirects), ChannelError::Rejected { .. }));
        assert!(unknown(EgressError::Timeout { after: Duration::from_secs(1) }));
        assert!(unknown(EgressError::Broken { why: "reset".into() }));
        let connect = meaning(EgressError::Connect { why: "refused".into() });
        assert_eq!(connect, ChannelError::Transient { why: "it: can't connect: refused".into(), retry_after: None });
    }
}
