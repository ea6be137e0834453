//! Lines of a host, of which none is held beyond a bound.

use std::io;

use tokio::io::{AsyncBufRead, AsyncBufReadExt};

/// A line, without its end.
#[derive(Debug, PartialEq)]
pub enum HostLine {
    /// All of it.
    Whole(Vec<u8>),
    /// It was longer than a line may be, and is gone.
    TooLong,
}

/// Lines of an input, of this many bytes each at most.
pub struct HostLines<R> {
    input: R,
    longest: usize,
    begun: Vec<u8>,
    is_too_long: bool,
}

impl<R: AsyncBufRead + Unpin> HostLines<R> {
    /// The lines of `input`.
    pub fn new(input: R, longest: usize) -> HostLines<R> {
        HostLines { input, longest, begun: Vec::new(), is_too_long: false }
    }

    /// The next line; `None`: the input has ended. A line that nothing ends is none. Nothing is lost where this is
    /// dropped before it is done.
    ///
    /// # Errors
    /// The input can't be read.
    pub async fn next(&mut self) -> io::Result<Option<HostLine>> {
        loop {
            let chunk = self.input.fill_buf().await?;
            if chunk.is_empty() {
                return Ok(None);
            }
            let end = chunk.iter().position(|byte| *byte == b'\n');
            let part = &chunk[..end.unwrap_or(chunk.len())];
            if self.is_too_long || self.begun.len() + part.len() > self.longest {
                (self.begun, self.is_too_long) = (Vec::new(), true);
            } else {
                self.begun.extend_from_slice(part);
            }
            let used = part.len() + usize::from(end.is_some());
            self.input.consume(used);
            if end.is_some() {
                return Ok(Some(self.ended()));
            }
        }
    }

    fn ended(&mut self) -> HostLine {
        let line = std::mem::take(&mut self.begun);
        match std::mem::take(&mut self.is_too_long) {
            true => HostLine::TooLong,
            false => HostLine::Whole(line),
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::BufReader;

    use super::*;

    async fn lines_of(text: &str, piece: usize) -> Vec<HostLine> {
        let mut lines = HostLines::new(BufReader::with_capacity(piece, text.as_bytes()), 5);
        let mut read = Vec::new();
        while let Some(line) = lines.next().await.unwrap() {
            read.push(line);
        }
        read
    }

    #[tokio::test]
    async fn line_is_whole_up_to_its_longest_and_gone_beyond() {
        let whole = |text: &str| HostLine::Whole(text.as_bytes().to_vec());
        for piece in [1, 2, 3, 64] {
            let read = lines_of("12345\n123456\n\nabcdefghijkl\na\r\nhalf", piece).await;
            let expected = [whole("12345"), HostLine::TooLong, whole(""), HostLine::TooLong, whole("a\r")];
            assert_eq!(read, expected, "{piece}");
        }
    }
}
