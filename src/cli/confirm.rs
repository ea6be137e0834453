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
        if self.yes || !can_ask(screen) {
            return Ok(());
        }
        match ask_yes_no(question, screen)? {
            true => Ok(()),
            false => Err(CliFailure::new("nothing was done").hint("--yes does not ask").into()),
        }
    }

    /// As [`YesArgs::confirm`], for what nothing may do by itself: where nobody can be asked it has to be said in the
    /// command.
    ///
    /// # Errors
    /// The person says no, or there is no terminal and no `--yes`.
    pub fn must_confirm(self, question: &str, screen: &mut Screen) -> anyhow::Result<()> {
        if !self.yes && !can_ask(screen) {
            let why = "nothing was done: it has to be confirmed, and there is no terminal to ask on";
            return Err(CliFailure::new(why).hint("--yes does not ask").into());
        }
        self.confirm(question, screen)
    }

    /// For what a person has to have looked at before, where it is not shown now: nobody is asked.
    ///
    /// # Errors
    /// There is no `--yes`; `why` says what was not shown.
    pub fn must_be_given(self, why: &str) -> anyhow::Result<()> {
        match self.yes {
            true => Ok(()),
            false => {
                Err(CliFailure::new(format!("nothing was done: {why}")).hint("give --yes, or leave out --json").into())
            }
        }
    }
}

/// Whether a person reads along and can answer.
fn can_ask(screen: &Screen) -> bool {
    screen.terminal && std::io::stdin().is_terminal()
}

/// Whether a person says yes; the end of the input is a no.
pub fn ask_yes_no(question: &str, screen: &mut Screen) -> anyhow::Result<bool> {
    screen.piece(&format!("{question} [y/N] "))?;
    let mut answer = String::new();
    std::io::stdin().lock().read_line(&mut answer).context("read the answer")?;
    Ok(matches!(answer.trim(), "y" | "Y" | "yes"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn question_that_must_be_asked_is_refused_where_nobody_reads_along() {
        let page = TextPage::default();
        let mut screen = Screen::plain(page.clone());
        let refused = YesArgs { yes: false }.must_confirm("call it?", &mut screen).unwrap_err();
        assert!(refused.to_string().starts_with("nothing was done") && refused.to_string().contains("--yes"));
        assert!(YesArgs { yes: true }.must_confirm("call it?", &mut screen).is_ok());
        assert!(YesArgs { yes: false }.confirm("delete it?", &mut screen).is_ok(), "a script need not say it");
        assert_eq!(page.text(), "");
    }
}
