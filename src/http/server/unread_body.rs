//! Request bodies that are not read to their end when the answer is ready.
//!
//! A request may be refused by its head, or by the first part of its body. On HTTP/1 the next request of the connection
//! begins behind that body, and a connection that is closed while its client sends may lose the answer on the way. So a
//! short rest is read before the answer, and the connection is kept. With a longer one the answer says
//! `Connection: close`, and the rest is read behind it, within bounds. Nothing of it is kept.

use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use axum::body::Bytes;
use axum::extract::Request;
use axum::http::header::EXPECT;
use http_body_util::BodyExt;
use hyper::body::{Body, Frame, Incoming, SizeHint};
use tokio::sync::oneshot;
use tokio::time::timeout;

/// Bytes of a rest that is read before the answer.
const SHORT_BYTES: usize = 64 * 1_024;
/// How long the answer waits for such a rest. It is sent with its head, or right behind it.
const SHORT_TIME: Duration = Duration::from_millis(250);
/// Bytes of a rest that are read behind the answer.
const BEHIND_BYTES: usize = 1_024 * 1_024;
/// How long they are read: time enough for a client to see the answer and to stop.
const BEHIND_TIME: Duration = Duration::from_secs(2);

/// The body of a request, whose unread rest goes back to the connection when its reader drops it.
pub struct TrackedBody {
    /// `None` once it is dropped.
    incoming: Option<Incoming>,
    back: Option<oneshot::Sender<UnreadBody>>,
    /// The client sends nothing before it is asked to (`Expect: 100-continue`), and nobody has asked.
    is_awaited: bool,
    is_ended: bool,
    is_broken: bool,
}

/// The rest of a body that an answer left unread.
pub struct UnreadBody {
    rest: Incoming,
    /// Reading it to its end leaves the connection usable, and asks the client for nothing that it holds back.
    is_readable: bool,
}

impl TrackedBody {
    /// The request with its body tracked, and where an unread rest is found once the body is dropped.
    pub fn of(request: Request<Incoming>) -> (Request<TrackedBody>, oneshot::Receiver<UnreadBody>) {
        let (back, unread) = oneshot::channel();
        let is_awaited = request.headers().contains_key(EXPECT);
        let request = request.map(|incoming| TrackedBody {
            incoming: Some(incoming),
            back: Some(back),
            is_awaited,
            is_ended: false,
            is_broken: false,
        });
        (request, unread)
    }
}

impl Body for TrackedBody {
    type Data = Bytes;
    type Error = hyper::Error;

    fn poll_frame(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<Result<Frame<Bytes>, hyper::Error>>> {
        self.is_awaited = false;
        let Some(incoming) = self.incoming.as_mut() else { return Poll::Ready(None) };
        let frame = ready!(Pin::new(incoming).poll_frame(cx));
        match &frame {
            None => self.is_ended = true,
            Some(Err(_)) => self.is_broken = true,
            Some(Ok(_)) => {}
        }
        Poll::Ready(frame)
    }

    fn is_end_stream(&self) -> bool {
        self.incoming.as_ref().is_none_or(|incoming| incoming.is_end_stream())
    }

    fn size_hint(&self) -> SizeHint {
        self.incoming.as_ref().map_or_else(SizeHint::default, |incoming| incoming.size_hint())
    }
}

impl Drop for TrackedBody {
    fn drop(&mut self) {
        let (Some(rest), Some(back)) = (self.incoming.take(), self.back.take()) else { return };
        if !self.is_ended && !rest.is_end_stream() {
            // a connection that is gone has no use for it
            let _ = back.send(UnreadBody { rest, is_readable: !self.is_broken && !self.is_awaited });
        }
    }
}

impl UnreadBody {
    /// Reads a short rest that is there or on its way. `false` where it is not at its end by then: the connection can't
    /// be kept.
    pub async fn read_short(&mut self) -> bool {
        let is_short = self.rest.size_hint().lower() <= SHORT_BYTES as u64;
        self.is_readable
            && is_short
            && timeout(SHORT_TIME, discard(&mut self.rest, SHORT_BYTES)).await.is_ok_and(|is_whole| is_whole)
    }

    /// Reads the rest while the client takes the answer, up to the bounds.
    pub async fn read_behind(mut self) {
        let _ = timeout(BEHIND_TIME, discard(&mut self.rest, BEHIND_BYTES)).await;
    }
}

/// Reads a body and throws it away. `false` where it breaks off, or has more than `most` bytes.
async fn discard<B: Body<Data = Bytes> + Unpin>(body: &mut B, most: usize) -> bool {
    let mut room = most;
    while !body.is_end_stream() {
        let frame = match body.frame().await {
            None => return true,
            Some(Err(_)) => return false,
            Some(Ok(frame)) => frame,
        };
        let bytes = frame.data_ref().map_or(0, Bytes::len);
        let Some(left) = room.checked_sub(bytes) else { return false };
        room = left;
    }
    true
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;

    #[tokio::test]
    async fn rest_of_a_body_is_read_up_to_its_bound_and_no_further() {
        for most in [SHORT_BYTES, BEHIND_BYTES] {
            for (bytes, is_whole) in [(0, true), (most, true), (most + 1, false)] {
                let mut whole = axum::body::Body::from(vec![0_u8; bytes]);
                assert_eq!(discard(&mut whole, most).await, is_whole, "{bytes} of {most}");
                let parts = (0..bytes).step_by(1_000).map(|from| Bytes::from(vec![0_u8; (bytes - from).min(1_000)]));
                let parts = parts.map(Ok::<_, std::io::Error>).collect::<Vec<_>>();
                let mut parts = axum::body::Body::from_stream(stream::iter(parts));
                assert_eq!(discard(&mut parts, most).await, is_whole, "{bytes} of {most} in parts");
            }
        }
    }

    #[tokio::test]
    async fn body_that_breaks_off_is_not_at_its_end() {
        let parts = [Ok(Bytes::from_static(b"a")), Err(std::io::Error::other("broken"))];
        let mut body = axum::body::Body::from_stream(stream::iter(parts));
        assert!(!discard(&mut body, SHORT_BYTES).await);
    }
}
