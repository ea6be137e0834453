//! How a failure reads: what was wrong, each fault with its place, and a hint at what to do.

use std::error::Error;
use std::fmt;
use std::io::ErrorKind;
use std::process::ExitCode;

use crate::base::invalid::hinted::HintedError;
use crate::store::OpenError;

/// A refusal or failure with what helps to get past it.
#[derive(Debug, Default)]
pub struct CliFailure {
    /// Lower case, no full stop, names the thing.
    message: String,
    details: Vec<String>,
    hint: Option<String>,
    /// The status with which the service refused.
    status: Option<u16>,
    /// The type of the problem with which it refused; empty: none.
    problem: String,
}

impl CliFailure {
    pub fn new(message: impl Into<String>) -> CliFailure {
        CliFailure { message: message.into(), ..CliFailure::default() }
    }

    /// A line below the message, such as one fault of several.
    pub fn detail(mut self, line: impl Into<String>) -> CliFailure {
        self.details.push(line.into());
        self
    }

    /// Names the status with which the service refused.
    pub fn with_status(self, status: u16) -> CliFailure {
        CliFailure { status: Some(status), ..self }
    }

    /// The status with which the service refused; `None`: the failure is none of its answers.
    pub fn status(&self) -> Option<u16> {
        self.status
    }

    /// Names the type of the problem with which the service refused.
    pub fn with_problem(self, problem: impl Into<String>) -> CliFailure {
        CliFailure { problem: problem.into(), ..self }
    }

    /// Whether the service refused with a problem of this word.
    pub fn is_problem(&self, word: &str) -> bool {
        self.problem.strip_prefix("urn:reveille:problem:") == Some(word)
    }

    /// Adds advice to the failure.
    pub fn hint(mut self, hint: impl Into<String>) -> CliFailure {
        self.hint = Some(hint.into());
        self
    }
}

impl CliFailure {
    /// The message and the lines below it, without the hint.
    fn without_hint(&self) -> String {
        let mut text = self.message.clone();
        for detail in &self.details {
            text.push_str("\n  ");
            text.push_str(detail);
        }
        text
    }
}

impl fmt::Display for CliFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.without_hint())?;
        match &self.hint {
            Some(hint) => write!(f, "\nhint: {hint}"),
            None => Ok(()),
        }
    }
}

impl Error for CliFailure {}

/// The text of an error without its hint, and its hint where it has one.
pub fn apart<'e>(error: &'e (dyn Error + 'static)) -> (String, Option<&'e str>) {
    if let Some(failure) = error.downcast_ref::<CliFailure>() {
        return (failure.without_hint(), failure.hint.as_deref());
    }
    let of_store = || error.downcast_ref::<OpenError>().and_then(OpenError::hinted);
    match error.downcast_ref::<HintedError>().or_else(of_store) {
        Some(hinted) => (hinted.message().to_owned(), Some(hinted.hint())),
        None => (error.to_string(), None),
    }
}

/// Prints a failure to standard error; the exit code that goes with it.
pub fn report(error: &anyhow::Error) -> ExitCode {
    if is_broken_pipe(error) {
        return ExitCode::SUCCESS; // `reveille run list | head` has seen enough
    }
    eprintln!("error: {}", render(error));
    ExitCode::FAILURE
}

/// A failure and its causes on one line, then the faults, and the hints last, wherever in the chain they came from.
fn render(error: &anyhow::Error) -> String {
    let (mut message, mut faults, mut hints) = (String::new(), String::new(), String::new());
    for cause in error.chain() {
        let (text, hint) = apart(cause);
        let (head, below) = text.split_once('\n').unwrap_or((&text, ""));
        // some errors say their cause themselves
        if !message.ends_with(head) {
            let joint = if message.is_empty() { "" } else { ": " };
            message.push_str(&format!("{joint}{head}"));
        }
        faults.extend(below.lines().map(|fault| format!("\n{fault}")));
        hints.extend(hint.map(|hint| format!("\nhint: {hint}")));
    }
    message + &faults + &hints
}

fn is_broken_pipe(error: &anyhow::Error) -> bool {
    let broken = |cause: &(dyn Error + 'static)| {
        cause.downcast_ref::<std::io::Error>().is_some_and(|error| error.kind() == ErrorKind::BrokenPipe)
    };
    error.chain().any(broken)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn failure_reads_from_the_message_over_its_faults_to_the_hint() {
        let failure = CliFailure::new("the request is not valid")
            .detail("trigger.timezone: unknown time zone `Europe/Berln`")
            .hint("see `reveille task create --help`");
        assert_eq!(
            failure.to_string(),
            "the request is not valid\n  trigger.timezone: unknown time zone `Europe/Berln`\nhint: see `reveille task create --help`"
        );
    }

    #[test]
    fn causes_stand_behind_what_failed_and_hints_come_last() {
        let taken = std::io::Error::from(ErrorKind::AddrInUse);
        let error = HintedError::new("the service can't listen", "is another one running?").caused_by(taken);
        let error = anyhow::Error::from(error);
        assert_eq!(render(&error), "the service can't listen: address in use\nhint: is another one running?");
        let failure = CliFailure::new("the task is not valid").detail("trigger: is missing").hint("see --help");
        let error = anyhow::Error::from(failure).context("create `a`");
        assert_eq!(render(&error), "create `a`: the task is not valid\n  trigger: is missing\nhint: see --help");
        let error = anyhow::Error::from(OpenError::Unfit(HintedError::new("it is too old", "use a later one")));
        let error = error.context("open the store");
        assert_eq!(render(&error), "open the store: it is too old\nhint: use a later one");
        // the service tells its hint in the text of a refusal
        let refused = CliFailure::new("the task is completed\nhint: edit its trigger");
        let error = anyhow::Error::from(refused).context("pause `a`");
        assert_eq!(render(&error), "pause `a`: the task is completed\nhint: edit its trigger");
        let twice = anyhow::anyhow!("permission denied").context("data: permission denied");
        assert_eq!(render(&twice), "data: permission denied");
    }

    #[test]
    fn reader_that_went_away_is_no_failure() {
        let error = anyhow::Error::from(std::io::Error::from(ErrorKind::BrokenPipe)).context("print the runs");
        assert!(is_broken_pipe(&error));
        assert!(!is_broken_pipe(&anyhow::anyhow!("another")));
    }
}
