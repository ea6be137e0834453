//! Streams of server-sent events, of which none is longer than a message may be.

use bytes::Bytes;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::StatusCode;
use rmcp::transport::streamable_http_client::SseError;
use sse_stream::{Sse, SseStream};

use crate::ports::egress::EgressError;
use crate::ports::tool::mcp::output_budget::OutputBudget;

/// The events of a stream. One that is longer than `limit` bytes is an error, which ends the stream; so is more than the
/// budget of the connection has.
pub fn bounded_events(
    pieces: BoxStream<'static, Result<Bytes, EgressError>>,
    limit: usize,
    budget: OutputBudget,
) -> BoxStream<'static, Result<Sse, SseError>> {
    let bounded = pieces.scan(EventMeter::new(limit, budget), |meter, piece| std::future::ready(meter.pass(piece)));
    SseStream::from_bytes_stream(bounded.boxed()).boxed()
}

/// Counts the bytes of events before they are read: the reader holds an event until its last line is there.
struct EventMeter {
    limit: usize,
    budget: OutputBudget,
    /// Lines of this piece that end an event, comments among them.
    ended: usize,
    /// Bytes of the lines of the event so far.
    event: usize,
    /// Bytes of the line so far.
    line: usize,
    /// Comments are not kept by the reader.
    is_comment: bool,
    /// A line feed behind a carriage return ends no other line.
    after_return: bool,
    /// Nothing is passed any more.
    is_over: bool,
}

impl EventMeter {
    fn new(limit: usize, budget: OutputBudget) -> EventMeter {
        EventMeter {
            limit,
            budget,
            ended: 0,
            event: 0,
            line: 0,
            is_comment: false,
            after_return: false,
            is_over: false,
        }
    }

    /// A piece as it goes on to the reader; `None`: the stream has ended with an error.
    fn pass(&mut self, piece: Result<Bytes, EgressError>) -> Option<Result<Bytes, EgressError>> {
        if self.is_over {
            return None;
        }
        let passed = piece.and_then(|piece| match self.takes(&piece) {
            true if self.budget.spend(piece.len(), std::mem::take(&mut self.ended)) => Ok(piece),
            true => Err(EgressError::Broken { why: "the server writes more than it was asked for".to_owned() }),
            false => Err(EgressError::TooLarge { status: StatusCode::OK, limit: self.limit }),
        });
        self.is_over = passed.is_err();
        Some(passed)
    }

    /// Whether no event is longer than it may be with this piece.
    fn takes(&mut self, piece: &[u8]) -> bool {
        piece.iter().all(|byte| {
            self.count(*byte);
            self.event + self.line <= self.limit
        })
    }

    fn count(&mut self, byte: u8) {
        match byte {
            b'\n' if self.after_return => {}
            b'\n' | b'\r' => self.end_line(),
            _ => {
                self.is_comment |= self.line == 0 && byte == b':';
                self.line += 1;
            }
        }
        self.after_return = byte == b'\r';
    }

    /// A blank line ends the event.
    fn end_line(&mut self) {
        self.ended += usize::from(self.line == 0 || self.is_comment);
        self.event = match self.line {
            0 => 0,
            _ if self.is_comment => self.event,
            line => self.event + line + 1,
        };
        (self.line, self.is_comment) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use futures::stream;

    use super::*;
    use crate::ports::tool::mcp::output_budget::OUTPUT_MESSAGES;

    /// The data of the events, and whether an error has ended them.
    async fn read(pieces: &[&str], limit: usize) -> (Vec<String>, bool) {
        let pieces: Vec<_> = pieces.iter().map(|piece| Ok(Bytes::from((*piece).to_owned()))).collect();
        let events: Vec<_> =
            bounded_events(stream::iter(pieces).boxed(), limit, OutputBudget::default()).collect().await;
        let is_broken = events.last().is_some_and(Result::is_err);
        (events.into_iter().filter_map(|event| event.ok()?.data).collect(), is_broken)
    }

    #[tokio::test]
    async fn event_is_read_up_to_its_most_and_refused_one_byte_beyond_it() {
        for end in ["\n", "\r\n", "\r"] {
            let whole = format!("data: 1234{end}data: 56{end}{end}");
            let data = vec!["1234\n56".to_owned()];
            assert_eq!(read(&[&whole, &whole], 20).await, ([data.clone(), data].concat(), false), "{end:?}");
            assert_eq!(read(&[&whole], 19).await, (vec![], true), "{end:?}");
        }
    }

    #[tokio::test]
    async fn event_that_never_ends_is_refused_once_it_is_too_long() {
        let endless = std::iter::repeat_with(|| Ok(Bytes::from_static(b"data: 1\n")));
        let mut events = bounded_events(stream::iter(endless).boxed(), 1_000, OutputBudget::default());
        let refused = events.next().await.unwrap().unwrap_err();
        assert!(refused.to_string().contains("is larger than 1000 bytes"), "{refused}");
    }

    #[tokio::test]
    async fn stream_of_any_length_is_read_and_comments_are_not_counted() {
        let (event, comment) = ("data: 1\n\n", ": still there\n");
        let pieces: Vec<&str> = (0..200).flat_map(|_| [event, comment, comment]).collect();
        assert_eq!(read(&pieces, 40).await, (vec!["1".to_owned(); 200], false));
        // wherever it is cut
        let split: Vec<&str> = "data: a\r\ndata: b\r\n\r\n".split_inclusive(|_| true).collect();
        assert_eq!(read(&split, 17).await, (vec!["a\nb".to_owned()], false));
    }

    #[tokio::test]
    async fn events_and_comments_that_nobody_has_asked_for_end_the_stream_once_there_are_too_many() {
        for flood in ["data: 1\n\n", ": still there\n"] {
            let budget = OutputBudget::default();
            let endless = std::iter::repeat_with(move || Ok(Bytes::from_static(flood.as_bytes())));
            let events = bounded_events(stream::iter(endless).boxed(), 1_000, budget.clone());
            let (read, failed): (Vec<_>, Vec<_>) =
                events.collect::<Vec<_>>().await.into_iter().partition(Result::is_ok);
            assert!((read.len() as u64) < 2 * OUTPUT_MESSAGES && failed.len() == 1, "{flood:?}: {}", read.len());
            assert!(budget.has_flooded());
        }
    }

    #[tokio::test]
    async fn broken_stream_ends_with_its_reason() {
        let broken = EgressError::Broken { why: "reset".into() };
        let pieces = vec![Ok(Bytes::from_static(b"data: 1\n\n")), Err(broken), Ok(Bytes::from_static(b"data: 2\n\n"))];
        let events: Vec<_> = bounded_events(stream::iter(pieces).boxed(), 100, OutputBudget::default()).collect().await;
        assert_eq!((events.len(), events[0].as_ref().unwrap().data.as_deref()), (2, Some("1")));
        assert!(events[1].as_ref().unwrap_err().to_string().contains("reset"));
    }
}
