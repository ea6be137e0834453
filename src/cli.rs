//! The command line: what can be typed, and which part acts on it.
//!
//! Client commands speak HTTP to a running service and know nothing of its insides; `serve`, `demo`, `migrate`,
//! `check` and `audit verify` work on this machine. Exit codes: 0 done, 1 refused or failed, 2 wrong usage (clap's
//! own).

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

use std::future::ready;
use std::process::ExitCode;

use clap::{Parser, Subcommand};
use futures::future::LocalBoxFuture;

use crate::base::threads;
use crate::config::{Config, Environment};
use crate::domain::trigger::zone::Zones;

pub(crate) use client::{Client, RawAnswer, ServiceArgs, ServicePlace};
pub(crate) use confirm::YesArgs;
pub(crate) use draft::{ConditionArgs, SpecArgs, TaskFile, TriggerArgs};
pub(crate) use failure::CliFailure;
pub(crate) use list::ListOptions;
pub(crate) use screen::{Screen, Tone};
pub(crate) use transcript::LiveTranscript;
pub(crate) use typed::FieldFlags;

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

Client commands talk to the service at REVEILLE_URL (http://127.0.0.1:7700) with the token in
REVEILLE_TOKEN, or to the address and with the token of a profile which `reveille login` has kept."
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
    /// List agents, and pause, resume and cancel those that wait for people
    #[command(subcommand)]
    Agent(remote::agent::Command),
    /// List tools, see whether a model is offered them, accept their definitions, and try them
    #[command(subcommand)]
    Tool(remote::tool::Command),
    /// List the skills that agents may use, and check folders of them
    #[command(subcommand)]
    Skill(remote::skill::Command),
    /// Try out the steps of a pipeline
    #[command(subcommand)]
    Pipeline(remote::pipeline::Command),
    /// Talk to the agent
    Chat(remote::conversation::chat::Args),
    /// List, show and delete conversations
    #[command(subcommand)]
    Conversation(remote::conversation::Command),
    /// See, correct and delete what agents know of tenants
    #[command(subcommand)]
    Fact(Box<remote::tenant::fact::Command>),
    /// List, show, watch, answer, cancel and retry runs
    #[command(subcommand)]
    Run(remote::run::Command),
    /// See what waits for a person, and answer
    #[command(subcommand)]
    Approval(Box<remote::approval::Command>),
    /// List and revoke what people have allowed for good
    #[command(subcommand)]
    Grant(remote::approval::grant::Command),
    /// Say for a while whether a tool asks a person first
    #[command(subcommand)]
    Override(Box<remote::approval::overrides::Command>),
    /// See who did what, and check that the record is whole
    #[command(subcommand)]
    Audit(remote::audit::Command),
    /// Publish events, and watch them come
    #[command(subcommand)]
    Event(Box<remote::event::Command>),
    /// List, show, replay and drop events that could not be handled
    #[command(subcommand)]
    DeadLetter(remote::delivery::dead_letter::Command),
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
    Quota(remote::tenant::quota::Command),
    /// See what a tenant's runs may spend on models, and say it for one tenant
    #[command(subcommand)]
    Budget(remote::tenant::budget::Command),
    /// See what runs have used of models and tools
    Stats(remote::stats::Args),
    /// Disable and enable a tenant
    #[command(subcommand)]
    Tenant(remote::tenant::Command),
    /// Stop the work of all tenants, or of one, within a second
    Stop(remote::tenant::StopArgs),
    /// Start what `reveille stop` has stopped
    Start(remote::tenant::StartArgs),
    /// Create, list and revoke API tokens
    #[command(subcommand)]
    Token(remote::token::Command),
    /// Keep the address of a service and a token for it
    Login(remote::login::Args),
    /// Make a link that signs a browser in to the dashboard
    Ui(remote::login::ui::Args),
    /// Serve MCP hosts over standard input and output
    Mcp(remote::mcp::Args),
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

/// Reads the command line, does what it says, and turns a failure into a message and an exit code.
///
/// It is no generic function and no future: the binary that calls it compiles nothing of the library again.
pub fn main() -> ExitCode {
    if let Err(error) = local::memory::keep_private() {
        eprintln!("warning: core dumps could not be turned off: {error}");
    }
    if let Some(code) = local::mcp_supervise::of_process() {
        return code;
    }
    let cli = Cli::parse();
    // one provider for all TLS; a second call would only say that it is there
    let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().thread_stack_size(threads::STACK).build();
    let done = runtime.map_err(anyhow::Error::from).and_then(|runtime| {
        let done = runtime.block_on(run(cli, &Environment::of_process()));
        runtime.shutdown_background(); // a blocked read of standard input must not hold the exit up
        done
    });
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => failure::report(&error),
    }
}

async fn run(cli: Cli, environment: &Environment) -> anyhow::Result<()> {
    let mut screen = Screen::of_process(environment);
    let done = dispatch(cli.command, environment, &mut screen).await;
    // what was printed is shown even when the command failed after it
    done.and(screen.flush().map_err(anyhow::Error::from))
}

fn dispatch<'a>(
    command: Command,
    environment: &'a Environment,
    screen: &'a mut Screen,
) -> LocalBoxFuture<'a, anyhow::Result<()>> {
    match command {
        Command::Bench(args) => Box::pin(local::bench::run(args, screen)),
        Command::Serve(args) => Box::pin(local::serve::run(args, environment, screen)),
        Command::Demo(args) => Box::pin(local::demo::run(args, screen)),
        Command::Task(command) => Box::pin(remote::task::run(*command, environment, screen)),
        Command::Schedule(command) => {
            adopt_zones(environment);
            Box::pin(ready(local::schedule::run(command, screen)))
        }
        Command::Condition(command) => Box::pin(remote::condition::run(*command, environment, screen)),
        Command::Agent(command) => Box::pin(remote::agent::run(command, environment, screen)),
        Command::Tool(command) => Box::pin(remote::tool::run(command, environment, screen)),
        Command::Skill(command) => Box::pin(remote::skill::run(command, environment, screen)),
        Command::Pipeline(command) => Box::pin(remote::pipeline::run(command, environment, screen)),
        Command::Chat(args) => Box::pin(remote::conversation::chat::run(args, environment, screen)),
        Command::Conversation(command) => Box::pin(remote::conversation::run(command, environment, screen)),
        Command::Fact(command) => Box::pin(remote::tenant::fact::run(*command, environment, screen)),
        Command::Run(command) => Box::pin(remote::run::run(command, environment, screen)),
        Command::Approval(command) => Box::pin(remote::approval::run(*command, environment, screen)),
        Command::Grant(command) => Box::pin(remote::approval::grant::run(command, environment, screen)),
        Command::Override(command) => Box::pin(remote::approval::overrides::run(*command, environment, screen)),
        Command::Audit(command) => Box::pin(remote::audit::run(command, environment, screen)),
        Command::Event(command) => Box::pin(remote::event::run(*command, environment, screen)),
        Command::DeadLetter(command) => Box::pin(remote::delivery::dead_letter::run(command, environment, screen)),
        Command::Delivery(command) => Box::pin(remote::delivery::run(command, environment, screen)),
        Command::Recipient(command) => Box::pin(remote::recipient::run(command, environment, screen)),
        Command::Notify(command) => Box::pin(remote::notify::run(command, environment, screen)),
        Command::Credential(command) => Box::pin(remote::credential::run(*command, environment, screen)),
        Command::Budget(command) => Box::pin(remote::tenant::budget::run(command, environment, screen)),
        Command::Quota(command) => Box::pin(remote::tenant::quota::run(command, environment, screen)),
        Command::Stats(args) => Box::pin(remote::stats::run(args, environment, screen)),
        Command::Tenant(command) => Box::pin(remote::tenant::run(command, environment, screen)),
        Command::Stop(args) => Box::pin(remote::tenant::stop(args, environment, screen)),
        Command::Start(args) => Box::pin(remote::tenant::start(args, environment, screen)),
        Command::Token(command) => Box::pin(remote::token::run(command, environment, screen)),
        Command::Login(args) => Box::pin(remote::login::run(args, environment, screen)),
        Command::Ui(args) => Box::pin(remote::login::ui::run(args, environment, screen)),
        Command::Mcp(args) => Box::pin(remote::mcp::run(args, environment)),
        Command::Migrate(args) => Box::pin(local::migrate::run(args, environment, screen)),
        Command::Check(args) => Box::pin(local::check::run(args, environment, screen)),
        Command::Version(args) => {
            adopt_zones(environment);
            Box::pin(local::version::run(args, screen))
        }
        Command::Completions(args) => Box::pin(ready(local::completions::run(args, screen))),
    }
}
