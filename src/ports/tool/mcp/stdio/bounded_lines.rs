//! Messages of an MCP server, a line each, within a bound.
//!
//! A longer line would be dropped by the library, and its call would wait until its time is over. Here the call gets an
//! error instead, at the end of the line. The line itself is never held.

use std::io;
use std::pin::Pin;
use std::sync::LazyLock;
use std::task::{Context, Poll, ready};

use regex::bytes::Regex;
use tokio::io::{AsyncRead, ReadBuf};

use crate::ports::tool::mcp::output_budget::OutputBudget;

/// Longest message of a server, in bytes.
pub const MESSAGE_BYTES: usize = 8 * 1_024 * 1_024;
/// As much is read at once, in bytes.
const CHUNK: usize = 8 * 1_024;
/// As much of both ends of a line that is too long is looked at, in bytes.
const EDGE: usize = 128;

/// Lines of a server, of which none is longer than a message may be: one that is is replaced by an error for its
/// request, as far as its id is known.
pub struct BoundedLines<R> {
    inner: R,
    budget: OutputBudget,
    chunk: Vec<u8>,
    /// The part of the chunk that was read, and not taken yet.
    unread: std::ops::Range<usize>,
    line: OpenLine,
    /// A line that is whole, and as much of it as has been handed out.
    whole: Vec<u8>,
    handed_out: usize,
}

impl<R> BoundedLines<R> {
    /// The lines of `inner`, which end with an error where they are more than the budget has.
    pub fn new(inner: R, budget: OutputBudget) -> BoundedLines<R> {
        BoundedLines {
            inner,
            budget,
            chunk: vec![0; CHUNK],
            unread: 0..0,
            line: OpenLine::default(),
            whole: Vec::new(),
            handed_out: 0,
        }
    }

    /// Hands out more of the line that is whole; `false`: there is none.
    fn hand_out(&mut self, to: &mut ReadBuf<'_>) -> bool {
        let rest = &self.whole[self.handed_out..];
        if rest.is_empty() {
            return false;
        }
        let count = rest.len().min(to.remaining());
        to.put_slice(&rest[..count]);
        self.handed_out += count;
        if self.handed_out == self.whole.len() {
            // a long line gives its memory back
            (self.whole, self.handed_out) = (Vec::new(), 0);
        }
        true
    }

    /// Takes what was read up to the end of the line, or all of it.
    fn take_unread(&mut self) {
        let unread = &self.chunk[self.unread.clone()];
        match unread.iter().position(|byte| *byte == b'\n') {
            Some(end) => {
                self.line.push(&unread[..end]);
                self.unread.start += end + 1;
                self.whole = std::mem::take(&mut self.line).ended();
            }
            None => {
                self.line.push(unread);
                self.unread.start = self.unread.end;
            }
        }
    }
}

impl<R: AsyncRead + Unpin> BoundedLines<R> {
    /// Reads the next chunk; `false`: there is nothing more.
    fn poll_chunk(&mut self, context: &mut Context<'_>) -> Poll<io::Result<bool>> {
        let mut chunk = ReadBuf::new(&mut self.chunk);
        ready!(Pin::new(&mut self.inner).poll_read(context, &mut chunk))?;
        let filled = chunk.filled();
        let lines = filled.iter().filter(|byte| **byte == b'\n').count();
        if !self.budget.spend(filled.len(), lines) {
            return Poll::Ready(Err(io::Error::other("the server writes more than it was asked for")));
        }
        self.unread = 0..filled.len();
        Poll::Ready(Ok(!self.unread.is_empty()))
    }
}

impl<R: AsyncRead + Unpin> AsyncRead for BoundedLines<R> {
    fn poll_read(self: Pin<&mut Self>, context: &mut Context<'_>, to: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let lines = self.get_mut();
        loop {
            if lines.hand_out(to) {
                return Poll::Ready(Ok(()));
            }
            // a line without an end is no message
            if lines.unread.is_empty() && !ready!(lines.poll_chunk(context))? {
                return Poll::Ready(Ok(()));
            }
            lines.take_unread();
        }
    }
}

/// A line, as far as it has come.
enum OpenLine {
    /// All of it.
    Whole(Vec<u8>),
    /// It is longer than a message may be.
    TooLong(LineEnds),
}

impl Default for OpenLine {
    fn default() -> OpenLine {
        OpenLine::Whole(Vec::new())
    }
}

impl OpenLine {
    fn push(&mut self, more: &[u8]) {
        match self {
            OpenLine::Whole(line) if line.len() + more.len() <= MESSAGE_BYTES => line.extend_from_slice(more),
            OpenLine::Whole(line) => {
                let ends = LineEnds::of(line, more);
                *self = OpenLine::TooLong(ends);
            }
            OpenLine::TooLong(ends) => ends.push(more),
        }
    }

    /// The line as it goes out; in the place of one that is too long the error for its request, or nothing.
    fn ended(self) -> Vec<u8> {
        match self {
            OpenLine::Whole(mut line) => {
                line.push(b'\n');
                line
            }
            OpenLine::TooLong(ends) => ends.answered_id().map(too_long).unwrap_or_default(),
        }
    }
}

fn too_long(id: u64) -> Vec<u8> {
    let message = format!("the answer is longer than {MESSAGE_BYTES} bytes");
    let error = serde_json::json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32_603, "message": message } });
    format!("{error}\n").into_bytes()
}

/// Both ends of a line.
struct LineEnds {
    head: Vec<u8>,
    tail: Vec<u8>,
}

impl LineEnds {
    fn of(line: &[u8], more: &[u8]) -> LineEnds {
        let head = line.iter().chain(more).take(EDGE).copied().collect();
        let mut ends = LineEnds { head, tail: Vec::new() };
        ends.push(line);
        ends.push(more);
        ends
    }

    fn push(&mut self, more: &[u8]) {
        self.tail.extend_from_slice(&more[more.len().saturating_sub(EDGE)..]);
        let surplus = self.tail.len().saturating_sub(EDGE);
        self.tail.drain(..surplus);
    }

    /// The id of the request that the line answers; `None`: it is no answer, or which one is not sure. An id is read
    /// where it is one of the message itself, before its result or right before its last brace: one within a result
    /// would answer another call.
    fn answered_id(&self) -> Option<u64> {
        // a line without a result or an error is a request of the server's, whose ids are its own
        static HEAD: LazyLock<Regex> = LazyLock::new(|| {
            pattern(concat!(
                r#"^\s*\{(?:\s*"jsonrpc"\s*:\s*"2\.0"\s*,|\s*"id"\s*:\s*(?<id>[0-9]{1,15})\s*,)*"#,
                r#"\s*"(?:result|error)"\s*:"#,
            ))
        });
        static TAIL: LazyLock<Regex> = LazyLock::new(|| {
            pattern(r#",\s*"id"\s*:\s*(?<id>[0-9]{1,15})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*$"#)
        });
        let head = HEAD.captures(&self.head)?;
        let id = head.name("id").or_else(|| TAIL.captures(&self.tail)?.name("id"))?;
        std::str::from_utf8(id.as_bytes()).ok()?.parse().ok()
    }
}

fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern of ours")
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncReadExt;

    use super::*;
    use crate::ports::tool::mcp::output_budget::OUTPUT_MESSAGES;

    /// Lines that come out where these bytes come in, pieces of this size at a time.
    async fn lines_of(bytes: &[u8], piece: usize) -> Vec<String> {
        let (mut writer, reader) = tokio::io::duplex(piece);
        let write = async move {
            tokio::io::AsyncWriteExt::write_all(&mut writer, bytes).await.unwrap();
        };
        let mut lines = BoundedLines::new(reader, OutputBudget::default());
        let mut read = String::new();
        let (_, done) = tokio::join!(write, lines.read_to_string(&mut read));
        done.unwrap();
        read.lines().map(str::to_owned).collect()
    }

    fn error_of(id: u64) -> String {
        let error = r#"{"code":-32603,"message":"the answer is longer than 8388608 bytes"}"#;
        let expected: serde_json::Value =
            serde_json::from_str(&format!(r#"{{"jsonrpc":"2.0","id":{id},"error":{error}}}"#)).unwrap();
        expected.to_string()
    }

    /// A line of this length, with a text of the letter `x` between its ends.
    fn line(before: &str, after: &str, length: usize) -> String {
        format!("{before}{}{after}", "x".repeat(length - before.len() - after.len()))
    }

    /// The lines that come out for one that is one byte longer than a message may be, and for the one behind it.
    async fn beyond(before: &str, after: &str) -> Vec<String> {
        let bytes = format!("{}\n{{\"id\":1}}\n", line(before, after, MESSAGE_BYTES + 1));
        lines_of(bytes.as_bytes(), 64 * 1_024).await
    }

    #[tokio::test]
    async fn lines_come_through_in_whatever_pieces() {
        let bytes = "{\"a\":\"\u{e9}\"}\n\n{\"b\":2}\r\n{\"half";
        for piece in [1, 2, 7, 1_024] {
            assert_eq!(lines_of(bytes.as_bytes(), piece).await, ["{\"a\":\"\u{e9}\"}", "", "{\"b\":2}"], "{piece}");
        }
    }

    #[tokio::test]
    async fn lines_that_nobody_has_asked_for_end_once_there_are_too_many() {
        let budget = OutputBudget::default();
        let mut lines = BoundedLines::new(tokio::io::repeat(b'\n'), budget.clone());
        let mut read = Vec::new();
        assert!(lines.read_to_end(&mut read).await.is_err() && budget.has_flooded());
        assert!(read.len() as u64 <= OUTPUT_MESSAGES, "{}", read.len());
    }

    #[tokio::test]
    async fn message_is_whole_at_the_bound_and_an_error_beyond_it() {
        let (before, after) = (r#"{"jsonrpc":"2.0","id":7,"result":{"text":""#, r#""}}"#);
        let longest = line(before, after, MESSAGE_BYTES);
        let read = lines_of(format!("{longest}\n").as_bytes(), 64 * 1_024).await;
        assert!(read == [longest], "a message of {MESSAGE_BYTES} bytes");
        assert_eq!(beyond(before, after).await, [error_of(7), r#"{"id":1}"#.to_owned()]);
    }

    #[tokio::test]
    async fn id_is_found_first_and_last_with_blanks_and_without() {
        for (before, after) in [
            (r#"{"jsonrpc": "2.0", "id": 7, "result": {"text": ""#, r#""}}"#),
            (r#"{"id":7,"jsonrpc":"2.0","error":{"code":1,"message":""#, r#""}}"#),
            (r#"{"result":{"text":""#, r#""},"jsonrpc":"2.0","id":7}"#),
            (r#"{"jsonrpc":"2.0","result":{"text":""#, r#""}, "id": 7, "jsonrpc": "2.0" } "#),
        ] {
            assert_eq!(beyond(before, after).await[0], error_of(7), "{before} {after}");
        }
    }

    #[tokio::test]
    async fn id_within_a_result_or_of_a_request_of_the_server_answers_nobody() {
        for (before, after) in [
            (r#"{"jsonrpc":"2.0","result":{"id":7,"text":""#, r#""}}"#),
            (r#"{"jsonrpc":"2.0","result":{"text":"","id":7}}"#, ""),
            (r#"{"jsonrpc":"2.0","result":{"text":""#, r#"","id":7}}"#),
            (r#"{"jsonrpc":"2.0","id":7,"method":"elicitation/create","params":{"message":""#, r#""}}"#),
            (r#"{"method":"x","params":{"text":""#, r#""},"jsonrpc":"2.0","id":7}"#),
            (r#"{"jsonrpc":"2.0","id":"7","result":{"text":""#, r#""}}"#),
            ("", ""),
        ] {
            assert_eq!(beyond(before, after).await, [r#"{"id":1}"#], "{before} {after}");
        }
    }

    #[test]
    fn line_that_is_too_long_is_not_held() {
        let mut line = OpenLine::default();
        for _ in 0..2 * MESSAGE_BYTES / CHUNK {
            line.push(&[b'x'; CHUNK]);
        }
        let OpenLine::TooLong(ends) = line else { panic!("it is too long") };
        assert_eq!((ends.head.len(), ends.tail.len()), (EDGE, EDGE));
    }
}
