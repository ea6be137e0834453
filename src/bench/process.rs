//! Another process of a measurement, from outside.

pub mod held_stream;
pub mod service;
pub mod threads;
pub mod visitor;

use std::process::Stdio;
use std::time::Duration;

use anyhow::Context;
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use crate::bench::protocol::{GO, RAN, STOP};
use crate::bench::{BenchSite, Part, PartMessage};

/// The argument of the executable that makes it one.
pub const ARGUMENT: &str = "--as-part";
/// How long it may take to say what is waited for.
const PATIENCE: Duration = Duration::from_secs(60);

/// It is killed when this is dropped.
pub struct PartProcess {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl PartProcess {
    /// Starts it and returns once it is ready.
    pub async fn start(at: &BenchSite, part: &Part) -> anyhow::Result<PartProcess> {
        let mut child = Command::new(&at.program)
            .args(["bench", ARGUMENT])
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .with_context(|| format!("{} can't be started", at.program.display()))?;
        let input = child.stdin.take().context("its input")?;
        let output = BufReader::new(child.stdout.take().context("its output")?).lines();
        let mut process = PartProcess { child, input, output };
        process.send(&serde_json::to_string(part)?).await?;
        let said = process.receive().await?;
        anyhow::ensure!(said == PartMessage::Ready, "the other process said {said:?} before it was ready");
        Ok(process)
    }

    pub fn id(&self) -> Option<u32> {
        self.child.id()
    }

    /// The next thing that it says.
    pub async fn receive(&mut self) -> anyhow::Result<PartMessage> {
        let line = timeout(PATIENCE, self.output.next_line()).await.context("the other process says nothing")??;
        Ok(serde_json::from_str(&line.context("the other process has ended")?)?)
    }

    /// Lets it begin.
    pub async fn begin(&mut self) -> anyhow::Result<()> {
        self.send(GO).await
    }

    /// CPU time on all processors. `stat` counts in hundredths of a second, which is precise enough here.
    pub async fn cpu(&mut self) -> anyhow::Result<Duration> {
        self.send(RAN).await?;
        loop {
            if let PartMessage::Ran { cpu } = self.receive().await? {
                return Ok(cpu);
            }
        }
    }

    /// Ends it in order; answers how many runs it has executed.
    pub async fn stop(mut self) -> anyhow::Result<u64> {
        self.send(STOP).await?;
        loop {
            if let PartMessage::Ended { executed } = self.receive().await? {
                self.child.wait().await?;
                return Ok(executed);
            }
        }
    }

    async fn send(&mut self, line: &str) -> anyhow::Result<()> {
        self.input.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(self.input.flush().await?)
    }
}
