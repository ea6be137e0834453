//! The process of an MCP server under its supervisor, with nothing of the service's environment but what it is given.

use std::io;
use std::path::Path;
use std::process::Stdio;

use tokio::process::{Child, ChildStdin, ChildStdout, Command};

use crate::base::secret::Secret;
use crate::ports::tool::mcp::output_budget::OutputBudget;
use crate::ports::tool::mcp::stdio::bounded_lines::BoundedLines;
use crate::ports::tool::mcp::stdio::stderr_tail::StderrTail;
use crate::ports::tool::mcp::stdio::supervisor;

/// The name that the supervisor has in lists of processes, whichever file it was started from.
const SHOWN_AS: &str = "reveille";

/// A server's process with its supervisor. Ends once the writing end of its input is dropped.
pub struct ServerProcess {
    child: Child,
    stderr: StderrTail,
}

/// Its output and its input.
pub type ServerPipes = (BoundedLines<ChildStdout>, ChildStdin);

impl ServerProcess {
    /// Starts it, with a budget of what it writes. Must run on the runtime of servers.
    ///
    /// # Errors
    /// The supervisor can't be started. A command that can't be ends with code 127, and says why on standard error.
    pub fn start(
        supervisor: &Path,
        command: &[String],
        env: &[(String, Secret)],
        budget: OutputBudget,
    ) -> io::Result<(ServerProcess, ServerPipes)> {
        let mut child = supervised(supervisor, command, env).spawn()?;
        let pipes = (child.stdin.take(), child.stdout.take(), child.stderr.take());
        let (Some(input), Some(output), Some(errors)) = pipes else {
            return Err(io::Error::other("the process has no pipes"));
        };
        let stderr = StderrTail::default();
        tokio::spawn(stderr.clone().read(errors));
        Ok((ServerProcess { child, stderr }, (BoundedLines::new(output, budget), input)))
    }

    /// The end of what it has written to its standard error.
    pub fn stderr(&self) -> StderrTail {
        self.stderr.clone()
    }

    /// Waits for its end; answers its exit code.
    pub async fn ended(mut self) -> Option<i32> {
        self.child.wait().await.ok()?.code()
    }
}

/// The supervisor is not killed when it is dropped: a kill would leave the server behind, while the end of its input
/// ends both in order.
fn supervised(program: &Path, command: &[String], env: &[(String, Secret)]) -> Command {
    let mut process = Command::new(program);
    process
        .arg0(SHOWN_AS)
        .arg(supervisor::WORD)
        .arg("--")
        .args(command)
        .env_clear()
        .envs(env.iter().map(|(name, value)| (name, value.expose())))
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        // signals that a terminal sends to the service are none of the servers' business
        .process_group(0);
    process
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::ffi::OsStr;

    use super::*;

    #[test]
    fn server_is_started_by_its_supervisor_with_its_own_environment_alone() {
        let env = [("TOKEN".to_owned(), Secret::new("canary"))];
        let command = ["npx".to_owned(), "--yes".to_owned()];
        let process = supervised(Path::new("/proc/self/exe"), &command, &env);
        let process = process.as_std();
        assert_eq!(process.get_program(), "/proc/self/exe");
        assert_eq!(process.get_args().collect::<Vec<_>>(), ["mcp-supervise", "--", "npx", "--yes"]);
        let given: BTreeMap<&OsStr, Option<&OsStr>> = process.get_envs().collect();
        assert_eq!(given, BTreeMap::from([(OsStr::new("TOKEN"), Some(OsStr::new("canary")))]));
    }

    #[tokio::test]
    async fn supervisor_that_is_not_there_is_an_error() {
        let started =
            ServerProcess::start(Path::new("/nowhere/at/all"), &["cat".to_owned()], &[], OutputBudget::default());
        assert_eq!(started.err().unwrap().kind(), io::ErrorKind::NotFound);
    }
}
