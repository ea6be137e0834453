//! The command line: what can be typed, and which part acts on it.
//!
//! Client commands speak HTTP to a running service and know nothing of its insides; `serve`, `demo`, `migrate`,
//! `check` and `audit verify` work on this machine. Exit codes: 0 done, 1 refused or failed, 2 wrong usage (clap's own).

mod approval;
mod audit;
mod bench;
mod check;
mod client;
mod completions;
mod condition;
mod confirm;
mod credential;
mod dead_letter;
mod delivery;
mod demo;
mod draft;
mod event;
mod failure;
mod flags;
mod grant;
mod list;
mod login;
mod memory;
mod migrate;
mod moment;
mod notify;
mod pipeline;
mod quota;
mod recipient;
mod run;
mod schedule;
mod screen;
mod serve;
mod setup;
mod task;
mod token;
mod transcript;
mod typed;
mod version;

use clap::{Parser, Subcommand};

use crate::config::{Config, Environment};
use crate::trigger::zone::Zones;
use client::Client;
pub use failure::report;
pub use memory::keep_private;
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
    Serve(serve::Args),
    /// See the whole story on one screen, offline
    Demo(demo::Args),
    /// Create, list, change and run tasks
    #[command(subcommand)]
    Task(Box<task::Command>),
    /// See when a schedule fires; needs no service
    #[command(subcommand)]
    Schedule(schedule::Command),
    /// Try a condition: poll once and see what its expressions say
    #[command(subcommand)]
    Condition(Box<condition::Command>),
    /// Try out the steps of a pipeline
    #[command(subcommand)]
    Pipeline(pipeline::Command),
    /// List, show, watch, cancel and retry runs
    #[command(subcommand)]
    Run(run::Command),
    /// See what waits for a person, and answer
    #[command(subcommand)]
    Approval(Box<approval::Command>),
    /// List and revoke what people have allowed for good
    #[command(subcommand)]
    Grant(grant::Command),
    /// See who did what, and check that the record is whole
    #[command(subcommand)]
    Audit(audit::Command),
    /// Publish events, and watch them come
    #[command(subcommand)]
    Event(Box<event::Command>),
    /// List, show, replay and drop events that could not be handled
    #[command(subcommand)]
    DeadLetter(dead_letter::Command),
    /// List deliveries, and send one again
    #[command(subcommand)]
    Delivery(delivery::Command),
    /// Set and show where a tenant is reached
    #[command(subcommand)]
    Recipient(recipient::Command),
    /// Try out notifications
    #[command(subcommand)]
    Notify(notify::Command),
    /// Set, list and delete secrets, and change the master key
    #[command(subcommand)]
    Credential(Box<credential::Command>),
    /// See what a tenant may have, and say it for one tenant
    #[command(subcommand)]
    Quota(quota::Command),
    /// Create, list and revoke API tokens
    #[command(subcommand)]
    Token(token::Command),
    /// Keep the address of a service and a token for it
    Login(login::Args),
    /// Bring the tables of the database up to date
    Migrate(migrate::Args),
    /// Look at the configuration and what it names, and say what is wrong
    Check(check::Args),
    /// Measure this machine against its own limits
    Bench(bench::Args),
    /// Print the versions of Reveille and of what is compiled in
    Version(version::Args),
    /// Print a completion script for a shell
    Completions(completions::Args),
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
        Command::Bench(args) => bench::run(args, screen).await,
        Command::Serve(args) => serve::run(args, environment, screen).await,
        Command::Demo(args) => demo::run(args, screen).await,
        Command::Task(command) => task::run(*command, environment, screen).await,
        Command::Schedule(command) => {
            adopt_zones(environment);
            schedule::run(command, screen)
        }
        Command::Condition(command) => condition::run(*command, environment, screen).await,
        Command::Pipeline(command) => pipeline::run(command, environment, screen).await,
        Command::Run(command) => run::run(command, environment, screen).await,
        Command::Approval(command) => approval::run(*command, environment, screen).await,
        Command::Grant(command) => grant::run(command, environment, screen).await,
        Command::Audit(command) => audit::run(command, environment, screen).await,
        Command::Event(command) => event::run(*command, environment, screen).await,
        Command::DeadLetter(command) => dead_letter::run(command, environment, screen).await,
        Command::Delivery(command) => delivery::run(command, environment, screen).await,
        Command::Recipient(command) => recipient::run(command, environment, screen).await,
        Command::Notify(command) => notify::run(command, environment, screen).await,
        Command::Credential(command) => credential::run(*command, environment, screen).await,
        Command::Quota(command) => quota::run(command, environment, screen).await,
        Command::Token(command) => token::run(command, environment, screen).await,
        Command::Login(args) => login::run(args, environment, screen).await,
        Command::Migrate(args) => migrate::run(args, environment, screen).await,
        Command::Check(args) => check::run(args, environment, screen).await,
        Command::Version(args) => {
            adopt_zones(environment);
            version::run(args, screen).await
        }
        Command::Completions(args) => completions::run(args, screen),
    }
}
