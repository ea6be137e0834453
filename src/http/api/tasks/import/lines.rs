//! The lines of a body, read as it comes.
//!
//! Each byte is looked at once and copied at most once: a line that lies in one part of the body is a view of that
//! part.

use axum::body::{BodyDataStream, Bytes};
use axum::extract::{FromRequest, Request};
use axum::http::header::CONTENT_LENGTH;
use bytes::Buf;
use futures::StreamExt;
use tokio::task::yield_now;
use tokio::time::timeout;

use crate::http::HttpState;
use crate::http::error::ApiError;
use crate::http::server::ServerLimits;

/// Lines that are given out before others have their turn.
const LINES_AT_ONCE: usize = 256;

/// The lines of a body, not read yet.
pub struct BodyLines {
    body: BodyDataStream,
    limits: ServerLimits,
    /// Bytes that have come and were not given out.
    part: Bytes,
    /// The beginning of a line whose end has not come.
    begun: Vec<u8>,
    read: usize,
    ended: bool,
    /// The line that is coming is too long: the rest of it is passed over.
    skipping: bool,
    since_yield: usize,
}

/// The text between two line ends.
pub enum BodyLine {
    Text(Bytes),
    TooLong,
}

impl FromRequest<HttpState> for BodyLines {
    type Rejection = ApiError;

    async fn from_request(request: Request, state: &HttpState) -> Result<BodyLines, ApiError> {
        let limits = state.limits;
        let announced = request.headers().get(CONTENT_LENGTH).and_then(|n| n.to_str().ok()?.parse::<u64>().ok());
        if announced.is_some_and(|length| length > limits.import_bytes as u64) {
            return Err(ApiError::TooLarge { limit: limits.import_bytes });
        }
        Ok(BodyLines::new(request.into_body().into_data_stream(), limits))
    }
}

impl BodyLines {
    fn new(body: BodyDataStream, limits: ServerLimits) -> BodyLines {
        BodyLines {
            body,
            limits,
            part: Bytes::new(),
            begun: Vec::new(),
            read: 0,
            ended: false,
            skipping: false,
            since_yield: 0,
        }
    }

    /// The next line, without its end; `None` behind the last.
    pub async fn next(&mut self) -> Result<Option<BodyLine>, ApiError> {
        self.since_yield += 1;
        if self.since_yield >= LINES_AT_ONCE {
            self.since_yield = 0;
            yield_now().await;
        }
        loop {
            if let Some(end) = self.part.iter().position(|byte| *byte == b'\n') {
                // an empty line is no view: each view is counted
                let text = if end == 0 { Bytes::new() } else { self.part.split_to(end) };
                self.part.advance(1);
                return Ok(Some(self.end_line(text)));
            }
            let tail = std::mem::take(&mut self.part);
            self.keep(&tail);
            if self.ended {
                return Ok(match (self.skipping, self.begun.is_empty()) {
                    (false, true) => None,
                    _ => Some(self.end_line(Bytes::new())),
                });
            }
            self.part = self.next_part().await?;
        }
    }

    /// The line that ends with `text`.
    fn end_line(&mut self, text: Bytes) -> BodyLine {
        if self.begun.len() + text.len() > self.limits.body_bytes {
            self.skipping = true;
        }
        let mut begun = std::mem::take(&mut self.begun);
        match (std::mem::take(&mut self.skipping), begun.is_empty()) {
            (true, _) => BodyLine::TooLong,
            (false, true) => BodyLine::Text(text),
            (false, false) => {
                begun.extend_from_slice(&text);
                BodyLine::Text(begun.into())
            }
        }
    }

    /// Keeps the beginning of a line, unless the line is too long already.
    fn keep(&mut self, tail: &[u8]) {
        if self.skipping || self.begun.len() + tail.len() > self.limits.body_bytes {
            self.skipping = true;
            self.begun = Vec::new();
        } else {
            self.begun.extend_from_slice(tail);
        }
    }

    /// The next part of the body; nothing where it has ended.
    async fn next_part(&mut self) -> Result<Bytes, ApiError> {
        let limit = self.limits.body_time;
        let Some(part) = timeout(limit, self.body.next()).await.map_err(|_| ApiError::BodyTimeout { limit })? else {
            self.ended = true;
            return Ok(Bytes::new());
        };
        let part = part.map_err(|_| ApiError::Malformed("the body broke off".into()))?;
        self.read += part.len();
        match self.read > self.limits.import_bytes {
            true => Err(ApiError::TooLarge { limit: self.limits.import_bytes }),
            false => Ok(part),
        }
    }
}

#[cfg(test)]
mod tests {
    use axum::body::Body;
    use futures::FutureExt;

    use super::*;

    fn of(parts: Vec<std::io::Result<Bytes>>, limits: ServerLimits) -> BodyLines {
        BodyLines::new(Body::from_stream(futures::stream::iter(parts)).into_data_stream(), limits)
    }

    /// Lines of a body that comes in these parts.
    async fn read(parts: &[&str], limits: ServerLimits) -> Result<Vec<Option<String>>, ApiError> {
        let parts: Vec<_> = parts.iter().map(|part| Ok::<_, std::io::Error>(Bytes::from(part.to_string()))).collect();
        let mut lines = of(parts, limits);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await? {
            read.push(match line {
                BodyLine::Text(text) => Some(String::from_utf8(text.to_vec()).unwrap()),
                BodyLine::TooLong => None,
            });
        }
        Ok(read)
    }

    #[tokio::test]
    async fn lines_are_the_same_however_the_body_is_cut() {
        let text = |lines: &[&str]| lines.iter().map(|line| Some((*line).to_owned())).collect::<Vec<_>>();
        for parts in [&["ab\n\ncd\nef"][..], &["a", "b\n", "\nc", "d", "\ne", "f"], &["ab\n\ncd\n", "", "ef"]] {
            assert_eq!(read(parts, ServerLimits::default()).await.unwrap(), text(&["ab", "", "cd", "ef"]), "{parts:?}");
        }
        assert_eq!(read(&["ab\n"], ServerLimits::default()).await.unwrap(), text(&["ab"]));
        assert_eq!(read(&[], ServerLimits::default()).await.unwrap(), text(&[]));
    }

    #[tokio::test]
    async fn line_that_is_too_long_is_passed_over_and_the_next_one_is_whole() {
        let limits = ServerLimits { body_bytes: 4, ..ServerLimits::default() };
        for parts in [&["12345", "678\nab\n"][..], &["12345678", "9", "0", "\nab"], &["12345\nab"]] {
            assert_eq!(read(parts, limits).await.unwrap(), [None, Some("ab".to_owned())], "{parts:?}");
        }
        assert_eq!(read(&["ab\n12345", "6"], limits).await.unwrap(), [Some("ab".to_owned()), None]);
    }

    #[tokio::test]
    async fn body_that_is_too_long_is_refused_when_it_is() {
        let limits = ServerLimits { import_bytes: 8, ..ServerLimits::default() };
        assert_eq!(read(&["abc\n", "def\n"], limits).await.unwrap().len(), 2);
        let refused = read(&["abc\n", "def\n", "g"], limits).await;
        assert!(matches!(refused, Err(ApiError::TooLarge { limit: 8 })), "{refused:?}");
    }

    #[tokio::test]
    async fn line_is_a_view_of_the_body_so_that_no_byte_is_moved() {
        let part = Bytes::from("{}\n".repeat(100_000));
        let within = part.as_ptr_range();
        let mut lines = of(vec![Ok(part.clone())], ServerLimits::default());
        let mut count = 0;
        while let Some(BodyLine::Text(text)) = lines.next().await.unwrap() {
            assert!(within.contains(&text.as_ptr()), "line {count} was copied");
            count += 1;
        }
        assert_eq!(count, 100_000);
    }

    #[tokio::test]
    async fn reading_lines_gives_others_their_turn_after_a_number() {
        let mut lines = of(vec![Ok(Bytes::from("\n".repeat(4 * LINES_AT_ONCE)))], ServerLimits::default());
        let mut turns = vec![0];
        loop {
            // a turn ends where the reader is not ready
            match lines.next().now_or_never() {
                None => turns.push(0),
                Some(Ok(Some(_))) => *turns.last_mut().unwrap() += 1,
                Some(end) => break assert!(end.unwrap().is_none()),
            }
        }
        assert_eq!(turns.iter().sum::<usize>(), 4 * LINES_AT_ONCE);
        assert!(turns.iter().all(|lines| *lines <= LINES_AT_ONCE), "{turns:?}");
        assert!(turns.len() >= 4, "{turns:?}");
    }
}
