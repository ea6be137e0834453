//! Runs an MCP server in a process group of its own, which ends when the service does. Runs in a process of its own
//! (`reveille mcp-supervise`). Keeps nothing.
//!
//! The service holds the writing end of the supervisor's standard input and writes to the server through it. Its end
//! means that the service has closed the connection, or is gone, however it ended. A server that goes on all the same
//! is told to stop, and then killed, with everything that it has started in its group.

use std::ffi::OsString;
use std::io;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{ChildStdin, Command, ExitStatus, Stdio};
use std::sync::mpsc::channel;
use std::thread;
use std::time::Duration;

use rustix::event::{PollFd, PollFlags, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, kill_process_group};

/// The word by which the binary becomes a supervisor: `reveille mcp-supervise -- COMMAND…`.
pub const WORD: &str = "mcp-supervise";
/// Time for a server to end by itself once its input has ended, and once more when it was told to.
const GRACE: Duration = Duration::from_secs(2);
/// Added to the number of a signal where a server's exit code is due.
const KILLED_BY: i32 = 128;

/// Runs a command until it ends or standard input does, and answers its exit code.
///
/// # Errors
/// It can't be started.
pub fn supervise(command: &[OsString]) -> io::Result<i32> {
    let no_command = || io::Error::new(io::ErrorKind::InvalidInput, "no command was given");
    let (program, arguments) = command.split_first().ok_or_else(no_command)?;
    let mut server = Command::new(program).args(arguments).stdin(Stdio::piped()).process_group(0).spawn()?;
    let (group, input) = (Pid::from_child(&server), server.stdin.take());
    let (handed_on, is_over) = channel();
    let hung_up = handed_on.clone();
    thread::spawn(move || {
        if let Some(input) = input {
            hand_on(input);
        }
        let _ = handed_on.send(());
    });
    // a server that reads nothing keeps the thread above from seeing the end of standard input
    thread::spawn(move || {
        if hangs_up() {
            let _ = hung_up.send(());
        }
    });
    thread::spawn(move || {
        let _ = is_over.recv();
        end(group);
    });
    let ended = server.wait()?;
    // what it has left behind in its group
    signal(group, Signal::KILL);
    Ok(exit_code(ended))
}

/// Copies standard input to the server until either of them has ended.
fn hand_on(mut input: ChildStdin) {
    // a server that closes its input has ended the conversation
    let _ = io::copy(&mut io::stdin().lock(), &mut input);
}

/// Returns once nobody can write to standard input any more, whatever is yet to be read of it; `false`: that can't be
/// known.
fn hangs_up() -> bool {
    let input = io::stdin();
    let mut watched = [PollFd::new(&input, PollFlags::empty())];
    loop {
        match poll(&mut watched, None) {
            Ok(_) => return true,
            Err(Errno::INTR) => {}
            Err(_) => return false,
        }
    }
}

/// Ends a group whose server has no input any more. This process ends before, where the server does.
fn end(group: Pid) {
    thread::sleep(GRACE);
    signal(group, Signal::TERM);
    thread::sleep(GRACE);
    signal(group, Signal::KILL);
}

/// A group that is empty by now can't be signalled, and need not be.
fn signal(group: Pid, signal: Signal) {
    let _ = kill_process_group(group, signal);
}

fn exit_code(ended: ExitStatus) -> i32 {
    ended.code().unwrap_or_else(|| KILLED_BY + ended.signal().unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_code_is_that_of_the_server_or_tells_the_signal_that_has_ended_it() {
        let codes = [(0, 0), (3 << 8, 3), (9, 137), (15, 143)];
        for (wait_status, code) in codes {
            assert_eq!(exit_code(ExitStatus::from_raw(wait_status)), code, "{wait_status}");
        }
    }

    #[test]
    fn supervisor_without_a_command_or_with_one_that_is_not_there_fails() {
        assert_eq!(supervise(&[]).unwrap_err().kind(), io::ErrorKind::InvalidInput);
        assert_eq!(supervise(&["/nowhere/at/all".into()]).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
