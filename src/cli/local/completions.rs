//! `reveille completions`: a script that lets a shell complete commands and flags.

use clap::CommandFactory;
use clap_complete::Shell;

use crate::cli::{Cli, Screen};

#[derive(Debug, clap::Args)]
pub struct Args {
    /// The shell
    #[arg(value_name = "SHELL")]
    shell: Shell,
}

pub fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "reveille", &mut script);
    Ok(screen.bytes(&script)?)
}
