//! Lines that a person types to `reveille chat`, and interrupts in their place.

use std::io::IsTerminal;

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::task::JoinHandle;

use crate::cli::Screen;

/// Why the input of a line stopped before its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum InputStop {
    /// The input has ended, or is left for later.
    End,
    Interrupt,
}

/// Lines of standard input, and interrupts in their place.
pub struct Keyboard {
    /// Ctrl-C, from the beginning on: one that comes while nobody waits for it is not lost.
    interrupts: Signal,
    /// The line that is being read. An interrupt leaves it: the next prompt takes what is typed.
    reading: Option<JoinHandle<std::io::Result<Option<String>>>>,
}

impl Keyboard {
    /// Listens from now on.
    pub fn listen() -> std::io::Result<Keyboard> {
        Ok(Keyboard { interrupts: signal(SignalKind::interrupt())?, reading: None })
    }

    /// The next interrupt.
    pub async fn interrupt(&mut self) {
        self.interrupts.recv().await;
    }

    /// The next line that is typed.
    pub async fn line(&mut self, prompt: &str, screen: &mut Screen) -> anyhow::Result<Result<String, InputStop>> {
        if std::io::stdin().is_terminal() {
            screen.piece(prompt)?;
        }
        screen.flush()?;
        let reading = self.reading.get_or_insert_with(|| tokio::task::spawn_blocking(read_line));
        let line = tokio::select! {
            biased;
            _ = self.interrupts.recv() => {
                // behind the ^C that the terminal shows
                if std::io::stdin().is_terminal() {
                    screen.line("")?;
                }
                return Ok(Err(InputStop::Interrupt));
            }
            line = reading => line,
        };
        self.reading = None;
        Ok(line??.ok_or(InputStop::End))
    }
}

/// A line of standard input; `None` at its end.
fn read_line() -> std::io::Result<Option<String>> {
    let mut line = String::new();
    let length = std::io::stdin().read_line(&mut line)?;
    Ok((length > 0).then(|| line.trim_end_matches(['\n', '\r']).to_owned()))
}
