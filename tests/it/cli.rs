//! The command line, as it is typed: the real binary, its output, its exit codes.

mod apply;
pub mod approval;
mod bench;
mod chat;
mod check;
mod client;
mod condition;
mod connect;
mod credentials;
mod demo;
mod events;
mod facts;
mod help;
mod memory;
mod notify;
mod operating;
mod readme;
mod refusals;
mod registry;
mod schedule;
mod serve;
mod typing;
mod ui;

use std::path::Path;
use std::process::{Output, Stdio};

use serde_json::Value;
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use crate::support::binary::{Service, TempDir, reveille};

/// Someone who types commands in a directory.
struct Shell<'a> {
    dir: &'a Path,
    environment: Vec<(&'static str, String)>,
}

/// Result of a command.
struct CommandResult {
    code: i32,
    out: String,
    err: String,
}

impl<'a> Shell<'a> {
    fn in_dir(dir: &'a TempDir) -> Shell<'a> {
        Shell { dir: dir.path(), environment: Vec::new() }
    }

    /// Beside a running service, as its admin.
    fn beside(service: &'a Service) -> Shell<'a> {
        let token = service.admin_token().expect("an admin token").to_owned();
        let environment = vec![("REVEILLE_URL", service.url().to_owned()), ("REVEILLE_TOKEN", token)];
        Shell { dir: service.dir.path(), environment }
    }

    fn with(mut self, name: &'static str, value: impl Into<String>) -> Shell<'a> {
        self.environment.push((name, value.into()));
        self
    }

    fn command(&self, arguments: &[&str]) -> Command {
        let mut command = reveille(self.dir);
        command.args(arguments).envs(self.environment.iter().map(|(name, value)| (name, value))).kill_on_drop(true);
        command
    }

    async fn run(&self, arguments: &[&str]) -> CommandResult {
        CommandResult::of(self.command(arguments).output().await.expect("run the binary"))
    }

    /// A command that reads `text` from its standard input.
    async fn fed(&self, arguments: &[&str], text: &str) -> CommandResult {
        let mut command = self.command(arguments);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("run");
        child.stdin.take().expect("its stdin").write_all(text.as_bytes()).await.expect("feed it");
        CommandResult::of(child.wait_with_output().await.expect("run the binary"))
    }

    /// The output of a command that must succeed.
    async fn ok(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments).await;
        assert_eq!(done.code, 0, "{arguments:?}\n{}{}", done.out, done.err);
        done.out
    }

    /// The answer of a command that must succeed, with `--json`.
    async fn json(&self, arguments: &[&str]) -> Value {
        let printed = self.ok(&[arguments, &["--json"]].concat()).await;
        serde_json::from_str(&printed).unwrap_or_else(|error| panic!("{arguments:?}: {error}\n{printed}"))
    }

    /// The message of a command that must be refused.
    async fn refused(&self, arguments: &[&str]) -> String {
        let done = self.run(arguments).await;
        assert_eq!(done.code, 1, "{arguments:?}\n{}{}", done.out, done.err);
        done.err
    }
}

impl CommandResult {
    fn of(output: Output) -> CommandResult {
        let text = |bytes| String::from_utf8(bytes).expect("output in UTF-8");
        CommandResult {
            code: output.status.code().expect("an exit code"),
            out: text(output.stdout),
            err: text(output.stderr),
        }
    }
}
