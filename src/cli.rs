//! The command line: what can be typed, and which part acts on it.
//!
//! Client commands speak HTTP to a running service and know nothing of its insides; `serve`, `demo`, `migrate`,
//! `check` and `audit verify` work on this machine. Exit codes: 0 done, 1 refused or failed, 2 wrong usage (clap's own).

mod client;
mod confirm;
mod draft;
mod failure;
mod flags;
mod list;
pub mod local;
mod moment;
mod profiles;
pub mod remote;
mod screen;
mod transcript;
mod typed;

use clap::{Parser, Subcommand};

use crate::config::{Config, Environment};
use crate::domain::trigger::zone::Zones;
use client::Client;
pub use failure::report;
pub use local::memory::keep_private;
use screen::Screen;

/// Wakes AI agents: on time, once, and with a person's consent.
#[derive(Debug, Parser)]
#[command(
    name = "reveille",
    version,
    max_term_width = 100,
    after_help = "\
First steps:
  reveille demo                         the whole story on one screen, offline, in under a minute
  reveille serve                        runs the service; no configuration needed
  reveille schedule preview '@daily'    when a schedule would fire

Client commands talk to the service at REVEILLE_URL (http://127.0.0.1:7700) with the token in REVEILLE_TOKEN, or to that
of a profile which `reveille login` has kept."
)]
pub struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the service
    Serve(local::serve::Args),
    /// See the whole story on one screen, offline
    Demo(local::demo::Args),
    /// Create, list, change and run tasks
    #[command(subcommand)]
    Task(Box<remote::task::Command>),
    /// See when a schedule fires; needs no service
    #[command(subcommand)]
    Schedule(local::schedule::Command),
    /// Try a condition: poll once and see what its expressions say
    #[command(subcommand)]
    Condition(Box<remote::condition::Command>),
    /// Try out the steps of a pipeline
    #[command(subcommand)]
    Pipeline(remote::pipeline::Command),
    /// List, show, watch, cancel and retry runs
    #[command(subcommand)]
    Run(remote::run::Command),
    /// See what waits for a person, and answer
    #[command(subcommand)]
    Approval(Box<remote::approval::Command>),
    /// List and revoke what people have allowed for good
    #[command(subcommand)]
    Grant(remote::grant::Command),
    /// See who did what, and check that the record is whole
    #[command(subcommand)]
    Audit(remote::audit::Command),
    /// Publish events, and watch them come
    #[command(subcommand)]
    Event(Box<remote::event::Command>),
    /// List, show, replay and drop events that could not be handled
    #[command(subcommand)]
    DeadLetter(remote::dead_letter::Command),
    /// List deliveries, and send one again
    #[command(subcommand)]
    Delivery(remote::delivery::Command),
    /// Set and show where a tenant is reached
    #[command(subcommand)]
    Recipient(remote::recipient::Command),
    /// Try out notifications
    #[command(subcommand)]
    Notify(remote::notify::Command),
    /// Set, list and delete secrets, and change the master key
    #[command(subcommand)]
    Credential(Box<remote::credential::Command>),
    /// See what a tenant may have, and say it for one tenant
    #[command(subcommand)]
    Quota(remote::quota::Command),
    /// Create, list and revoke API tokens
    #[command(subcommand)]
    Token(remote::token::Command),
    /// Keep the address of a service and a token for it
    Login(remote::login::Args),
    /// Bring the tables of the database up to date
    Migrate(local::migrate::Args),
    /// Look at the configuration and what it names, and say what is wrong
    Check(local::check::Args),
    /// Measure this machine against its own limits
    Bench(local::bench::Args),
    /// Print the versions of Reveille and of what is compiled in
    Version(local::version::Args),
    /// Print a completion script for a shell
    Completions(local::completions::Args),
}

/// Adopts the zone rules of a service with the usual configuration for computations of the command line.
fn adopt_zones(environment: &Environment) {
    let settings = Config::load(None, environment).map(|loaded| loaded.config.time).unwrap_or_default();
    for warning in settings.renew(&Zones::of_process()) {
        tracing::warn!("{warning}");
    }
}

/// Does what was asked.
///
/// # Errors
/// What [`report`] shows to a person; the process then exits with 1.
pub async fn run(cli: Cli, environment: &Environment) -> anyhow::Result<()> {
    let mut screen = Screen::of_process(environment);
    let done = act(cli.command, environment, &mut screen).await;
    // what was printed is shown even when the command failed after it
    done.and(screen.flush().map_err(anyhow::Error::from))
}

async fn act(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Bench(args) => local::bench::run(args, screen).await,
        Command::Serve(args) => local::serve::run(args, environment, screen).await,
        Command::Demo(args) => local::demo::run(args, screen).await,
        Command::Task(command) => remote::task::run(*command, environment, screen).await,
        Command::Schedule(command) => {
            adopt_zones(environment);
            local::schedule::run(command, screen)
        }
        Command::Condition(command) => remote::condition::run(*command, environment, screen).await,
        Command::Pipeline(command) => remote::pipeline::run(command, environment, screen).await,
        Command::Run(command) => remote::run::run(command, environment, screen).await,
        Command::Approval(command) => remote::approval::run(*command, environment, screen).await,
        Command::Grant(command) => remote::grant::run(command, environment, screen).await,
        Command::Audit(command) => remote::audit::run(command, environment, screen).await,
        Command::Event(command) => remote::event::run(*command, environment, screen).await,
        Command::DeadLetter(command) => remote::dead_letter::run(command, environment, screen).await,
        Command::Delivery(command) => remote::delivery::run(command, environment, screen).await,
        Command::Recipient(command) => remote::recipient::run(command, environment, screen).await,
        Command::Notify(command) => remote::notify::run(command, environment, screen).await,
        Command::Credential(command) => remote::credential::run(*command, environment, screen).await,
        Command::Quota(command) => remote::quota::run(command, environment, screen).await,
        Command::Token(command) => remote::token::run(command, environment, screen).await,
        Command::Login(args) => remote::login::run(args, environment, screen).await,
        Command::Migrate(args) => local::migrate::run(args, environment, screen).await,
        Command::Check(args) => local::check::run(args, environment, screen).await,
        Command::Version(args) => {
            adopt_zones(environment);
            local::version::run(args, screen).await
        }
        Command::Completions(args) => local::completions::run(args, screen),
    }
}
