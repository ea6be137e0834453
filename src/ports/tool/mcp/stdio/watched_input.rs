//! The input of an MCP server, which is given up once the server has read nothing of it for too long.
//!
//! The library waits for a server to read for as long as it takes, and keeps all that is to be written meanwhile.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use futures::future::{BoxFuture, FutureExt};
use tokio::io::AsyncWrite;
use tokio_util::sync::CancellationToken;

use crate::base::clock::pause;
use crate::ports::tool::mcp::output_budget::OutputBudget;

/// How long a server may read nothing: longer than its calls take, since some do nothing else meanwhile.
const READ_WITHIN: Duration = Duration::from_secs(310);

/// The input of a server. Once the server is stuck, nothing more is written to it.
pub struct WatchedInput<W> {
    inner: W,
    /// Cancelled when the server has read nothing for too long.
    stuck: CancellationToken,
    /// The time that is left to a server that has to read first.
    patience: Option<BoxFuture<'static, ()>>,
    /// Each line that is written may be answered.
    budget: OutputBudget,
}

impl<W> WatchedInput<W> {
    /// Writes to `inner`, and cancels `stuck` when that takes too long. Each line adds to the budget of the output.
    pub fn new(inner: W, stuck: CancellationToken, budget: OutputBudget) -> WatchedInput<W> {
        WatchedInput { inner, stuck, patience: None, budget }
    }
}

impl<W: AsyncWrite + Unpin> AsyncWrite for WatchedInput<W> {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let input = self.get_mut();
        if input.stuck.is_cancelled() {
            return Poll::Ready(Err(is_stuck()));
        }
        if let Poll::Ready(written) = Pin::new(&mut input.inner).poll_write(context, bytes) {
            input.patience = None;
            let taken = written.as_ref().map_or(0, |count| *count);
            input.budget.grant(bytes[..taken].iter().filter(|byte| **byte == b'\n').count());
            return Poll::Ready(written);
        }
        let patience = input.patience.get_or_insert_with(|| pause(READ_WITHIN).boxed());
        ready!(patience.as_mut().poll(context));
        input.stuck.cancel();
        Poll::Ready(Err(is_stuck()))
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_flush(context)
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.get_mut().inner).poll_shutdown(context)
    }
}

fn is_stuck() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "the server reads nothing of its input")
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::ports::tool::mcp::output_budget::OUTPUT_MESSAGES;

    #[tokio::test]
    async fn input_that_is_read_takes_everything_and_keeps_its_patience() {
        let (ours, mut theirs) = tokio::io::duplex(4);
        let stuck = CancellationToken::new();
        let mut input = WatchedInput::new(ours, stuck.clone(), OutputBudget::default());
        input.write_all(b"full").await.unwrap();
        assert!(input.write_all(b"more").now_or_never().is_none());
        assert!(input.patience.is_some());
        let mut read = [0; 4];
        theirs.read_exact(&mut read).await.unwrap();
        input.write_all(b"more").await.unwrap();
        assert!(input.patience.is_none() && !stuck.is_cancelled());
    }

    #[tokio::test]
    async fn each_line_that_is_written_may_be_answered() {
        let budget = OutputBudget::default();
        let mut input = WatchedInput::new(tokio::io::sink(), CancellationToken::new(), budget.clone());
        assert!(budget.spend(0, OUTPUT_MESSAGES as usize));
        input.write_all(b"{}\n{}\n{").await.unwrap();
        assert!(budget.spend(0, 2) && !budget.spend(0, OUTPUT_MESSAGES as usize));
    }

    #[tokio::test]
    async fn input_that_nobody_reads_is_given_up_once_its_time_is_over() {
        let (ours, _theirs) = tokio::io::duplex(4);
        let stuck = CancellationToken::new();
        let mut input = WatchedInput::new(ours, stuck.clone(), OutputBudget::default());
        input.write_all(b"full").await.unwrap();
        input.patience = Some(std::future::ready(()).boxed());
        assert_eq!(input.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
        assert!(stuck.is_cancelled());
        assert_eq!(input.write_all(b"more").await.unwrap_err().kind(), io::ErrorKind::TimedOut);
    }
}
