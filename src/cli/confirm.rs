//! A question before what cannot be taken back.

use std::io::{BufRead, IsTerminal};

use anyhow::Context;

use super::failure::CliFailure;
use super::screen::Screen;

/// The flag of commands that destroy something.
#[derive(Debug, Clone, Copy, clap::Args)]
pub struct YesArgs {
    /// Do not ask before it is done
    #[arg(short, long)]
    yes: bool,
}

impl YesArgs {
    /// Asks on a terminal; where nobody reads along (a script, a pipe) there is nobody to ask.
    ///
    /// # Errors
    /// The person says no.
    pub fn confirm(self, question: &str, screen: &mut Screen) -> anyhow::Result<()> {
        if self.yes || !screen.terminal || !std::io::stdin().is_terminal() {
            return Ok(());
        }
        match ask_yes_no(question, screen)? {
            true => Ok(()),
            false => Err(CliFailure::new("nothing was done").hint("--yes does not ask").into()),
        }
    }
}

/// Whether a person says yes; the end of the input is a no.
pub fn ask_yes_no(question: &str, screen: &mut Screen) -> anyhow::Result<bool> {
    screen.piece(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}
