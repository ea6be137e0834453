//! `reveille mcp-supervise -- COMMAND…`, which the service starts beside each MCP server that it runs. No command for
//! people: it is in no help.

use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use crate::ports::tool::mcp::supervisor;

/// The program of a process of Linux, whatever has become of its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Exit code of a command that can't be started, as of a shell.
const NOT_STARTED: u8 = 127;

/// Supervises, where the arguments of the process ask for it; `None`: they ask for something else.
pub(crate) fn of_process() -> Option<ExitCode> {
    let command = supervised_command(std::env::args_os())?;
    Some(match supervisor::supervise(&command) {
        Ok(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Err(error) => {
            let name = command.first().map(|program| program.display().to_string()).unwrap_or_default();
            eprintln!("`{name}` can't be started: {error}");
            ExitCode::from(NOT_STARTED)
        }
    })
}

/// The program by which the service starts supervisors: this one, even where its file was replaced.
pub(crate) fn program() -> PathBuf {
    let own = Path::new(OWN_PROGRAM);
    match own.exists() {
        true => own.to_owned(),
        false => std::env::current_exe().unwrap_or_else(|_| own.to_owned()),
    }
}

/// The command behind the word and `--`.
fn supervised_command(arguments: impl IntoIterator<Item = OsString>) -> Option<Vec<OsString>> {
    let mut arguments = arguments.into_iter().skip(1);
    let (word, dashes) = (arguments.next()?, arguments.next()?);
    (word == supervisor::WORD && dashes == "--").then(|| arguments.collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn command(arguments: &[&str]) -> Option<Vec<OsString>> {
        supervised_command(arguments.iter().map(OsString::from))
    }

    #[test]
    fn command_stands_behind_the_word_and_two_dashes() {
        let words = |words: &[&str]| Some(words.iter().map(OsString::from).collect::<Vec<_>>());
        assert_eq!(command(&["reveille", "mcp-supervise", "--", "npx", "--", "-y"]), words(&["npx", "--", "-y"]));
        assert_eq!(command(&["reveille", "mcp-supervise", "--"]), words(&[]));
        for other in [
            &["reveille"][..],
            &["reveille", "mcp-supervise"],
            &["reveille", "mcp-supervise", "npx"],
            &["reveille", "serve", "--"],
            &["mcp-supervise", "--", "npx"],
        ] {
            assert_eq!(command(other), None, "{other:?}");
        }
    }

    #[test]
    fn supervisors_are_started_by_the_program_that_runs() {
        let own = std::fs::canonicalize(std::env::current_exe().unwrap()).unwrap();
        assert_eq!(std::fs::canonicalize(program()).unwrap(), own);
    }
}
