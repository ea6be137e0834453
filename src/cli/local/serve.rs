//! `reveille serve`: runs the service until it is told to stop.
//!
//! Standard output gets what a person or a program has to know once (address, first admin token, a link to the
//! dashboard); the log goes to standard error. The first SIGTERM or SIGINT stops in order, the second at once.

use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::time::timeout;

use super::mcp_supervise;
use super::setup::{ConfigArgs, with_config_place};
use crate::app::{App, Extras};
use crate::base::metrics::Metrics;
use crate::cli::{Screen, Tone};
use crate::config::{Config, Environment, LoadedConfig};
use crate::telemetry;

/// The first admin token's file in the data directory, where standard output is no terminal.
const TOKEN_FILE: &str = "admin.token";
/// The file of the first link to the dashboard, beside it.
const LINK_FILE: &str = "login.link";
/// How a link is good.
const LINK_NOTE: &str = "good once, within 10 minutes";
/// Exit code of a process that did not end in order.
const STOPPED_AT_ONCE: i32 = 1;
/// A start that is nearly done is let through: it may have stored a token that nobody has read yet.
const NEARLY_DONE: Duration = Duration::from_secs(1);

#[derive(Debug, clap::Args)]
pub struct Args {
    #[command(flatten)]
    config: ConfigArgs,
    /// Address and port, over the configuration's; port 0 takes a free one
    #[arg(long, value_name = "ADDR")]
    listen: Option<String>,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let mut loaded = args.config.load(environment)?;
    if let Some(listen) = args.listen {
        loaded.config.server.listen = listen;
    }
    let metrics = Metrics::new();
    let telemetry = telemetry::start(&loaded.config.telemetry, &metrics);
    let served = serve(&loaded, metrics, screen).await;
    telemetry.stop().await;
    served
}

async fn serve(loaded: &LoadedConfig, metrics: Metrics, screen: &mut Screen) -> anyhow::Result<()> {
    let mut stop = ServeStop::listen()?;
    let waiting = |why: &str| tracing::warn!("{why}");
    let extras = Extras { metrics, mcp_supervisor: Some(mcp_supervise::program()), ..Extras::default() };
    let mut starting = Box::pin(App::start(&loaded.config, extras, waiting));
    let (started, stopped_early) = tokio::select! {
        started = &mut starting => (started, false),
        () = stop.stop_requested() => match timeout(NEARLY_DONE, &mut starting).await {
            Ok(started) => (started, true),
            Err(_) => return Ok(()), // it waits for its database
        },
    };
    let app = started.map_err(|error| with_config_place(error, loaded))?;
    print_address(&app, &loaded.config, screen)?;
    if !stopped_early {
        stop.stop_requested().await;
    }
    let grace = loaded.config.engine.shutdown_grace().as_secs();
    tracing::info!("stopping: runs may go on for {grace} s; a second signal stops at once");
    tokio::select! {
        () = app.stop() => {}
        () = stop.stop_requested() => {
            tracing::warn!("stopped at once; runs go on elsewhere, or at the next start, from their last checkpoint");
            std::process::exit(STOPPED_AT_ONCE);
        }
    }
    Ok(())
}

/// Says where the service is. The address comes last: who reads it can rely on all before it.
fn print_address(app: &App, config: &Config, screen: &mut Screen) -> std::io::Result<()> {
    let made = app.generated();
    screen.line(screen.tone(Tone::Strong, format!("reveille {}", env!("CARGO_PKG_VERSION"))))?;
    screen.line(format!("database     {}", config.database.shown(&config.server.data_dir)))?;
    if let Some(file) = &made.key_file {
        screen.line(format!(
            "key file     {}  (made now: keep a copy, secrets can't be read without it)",
            file.display()
        ))?;
    }
    let data_dir = Path::new(&config.server.data_dir);
    if let Some(token) = &made.admin_token {
        let notes = ("shown this once", "read it, then delete the file");
        screen.line(format!("admin token  {}", show(token.expose(), &data_dir.join(TOKEN_FILE), notes, screen)))?;
    }
    if let Some(link) = &made.login_link {
        let notes = (LINK_NOTE, LINK_NOTE);
        screen.line(format!("sign in      {}", show(link.expose(), &data_dir.join(LINK_FILE), notes, screen)))?;
    }
    if config.llm.models.is_empty() {
        screen.line("model        none yet: tasks can be made, but runs of the orchestrator fail until [llm.models.main] is set")?;
    }
    screen.line(format!("listening on http://{}", app.address()))?;
    screen.flush()
}

/// Shows a secret on a terminal. Elsewhere standard output ends in a log that many may read, so the secret goes into a
/// file that only this user may read. One that can't be written is shown: it is made once. The notes are for either.
fn show(secret: &str, file: &Path, (on_screen, in_file): (&str, &str), screen: &Screen) -> String {
    let shown = || format!("{}  ({on_screen})", screen.tone(Tone::Strong, secret));
    if screen.terminal {
        return shown();
    }
    match write_private(file, secret) {
        Ok(()) => format!("in {}  ({in_file})", file.display()),
        Err(error) => {
            tracing::warn!(file = %file.display(), %error, "a secret of the first start can't be written to its file");
            shown()
        }
    }
}

fn write_private(path: &Path, text: &str) -> std::io::Result<()> {
    let _ = std::fs::remove_file(path);
    let mut file = std::fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)?;
    writeln!(file, "{text}")?;
    file.sync_all()
}

/// The signals that ask for an end.
struct ServeStop {
    terminate: Signal,
    interrupt: Signal,
}

impl ServeStop {
    fn listen() -> anyhow::Result<ServeStop> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(ServeStop { terminate: listen(SignalKind::terminate())?, interrupt: listen(SignalKind::interrupt())? })
    }

    async fn stop_requested(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}
