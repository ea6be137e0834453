//! The standard error of an MCP server: its end is kept, for the log and for `reveille check`, and nothing else of it.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::process::ChildStderr;

use crate::base::clock::pause;
use crate::base::unicode_safety::on_one_line;

/// As much of its end is kept, in bytes.
pub const STDERR_BYTES: usize = 8 * 1_024;
/// After as many bytes there is a pause.
const PIECE: usize = 64 * 1_024;
/// Between two pieces of a flood.
const PAUSE: Duration = Duration::from_millis(10);
/// Longest line that is shown, in characters.
const LINE: usize = 300;

/// The end of what a server has written to its standard error. Cheap to clone.
#[derive(Clone, Default)]
pub struct StderrTail(Arc<Mutex<Vec<u8>>>);

impl StderrTail {
    /// Reads to the end; at most 64 KiB in 10 ms, so that a flood keeps its writer waiting and nobody else.
    pub async fn read(self, stderr: ChildStderr) {
        self.read_from(stderr).await;
    }

    async fn read_from(&self, mut stderr: impl AsyncRead + Unpin) {
        let mut piece = vec![0; STDERR_BYTES];
        let mut since_pause = 0;
        // an error is an end as well: nothing more can be read
        while let Ok(count @ 1..) = stderr.read(&mut piece).await {
            self.keep(&piece[..count]);
            since_pause += count;
            if since_pause >= PIECE {
                pause(PAUSE).await;
                since_pause = 0;
            }
        }
    }

    fn keep(&self, piece: &[u8]) {
        let mut kept = self.0.lock().expect("standard error lock");
        kept.extend_from_slice(piece);
        let surplus = kept.len().saturating_sub(STDERR_BYTES);
        kept.drain(..surplus);
    }

    /// The last line that is not blank, cut to 300 characters, on one line; empty: there is none.
    pub fn last_line(&self) -> String {
        let kept = self.0.lock().expect("standard error lock");
        let text = String::from_utf8_lossy(&kept);
        let last = text.lines().map(str::trim).rfind(|line| !line.is_empty()).unwrap_or_default();
        on_one_line(last).chars().take(LINE).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn tail_of(written: &[u8]) -> StderrTail {
        let tail = StderrTail::default();
        tail.read_from(written).await;
        tail
    }

    #[tokio::test]
    async fn last_line_that_says_something_is_shown() {
        assert_eq!(tail_of(b"").await.last_line(), "");
        assert_eq!(tail_of(b"\n \n").await.last_line(), "");
        assert_eq!(tail_of(b"starting\nError: no token is set\n\n  \n").await.last_line(), "Error: no token is set");
        assert_eq!(tail_of(b"half a li").await.last_line(), "half a li");
    }

    #[tokio::test]
    async fn last_line_is_short_on_one_line_and_hides_nothing() {
        let long = format!("first\n{}", "\u{e9}".repeat(LINE + 1));
        assert_eq!(tail_of(long.as_bytes()).await.last_line().chars().count(), LINE);
        assert_eq!(tail_of(b"ten\rtwenty\x1b[0m\xff").await.last_line(), "ten twenty\u{241b}[0m\u{fffd}");
    }

    #[tokio::test]
    async fn flood_leaves_no_more_than_its_end() {
        let mut written = vec![b'x'; 4 * PIECE];
        written.extend_from_slice(b"\nthe end\n");
        let tail = tail_of(&written).await;
        assert_eq!(tail.last_line(), "the end");
        assert_eq!(tail.0.lock().unwrap().len(), STDERR_BYTES);
    }
}
