//! A second process of a measurement: the same executable, told on its standard input which part it plays.
//!
//! It says what it has to say in lines of JSON, and ends when it is told to, or when its input ends: so none outlives
//! the measurement, however that ends.

use std::io::Write;
use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};
use uuid::Uuid;

use crate::app::{self, App, AppEnd, Built, Extras};
use crate::base::clock::Clock;
use crate::base::secret::SecretUrl;
use crate::bench::env;
use crate::bench::env::BenchEnv;
use crate::bench::figures::neighbours;
use crate::bench::limits::notify;
use crate::bench::noop::Noop;

/// Told in the first line. It comes by a pipe, because it may hold the database's password.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(tag = "part", rename_all = "snake_case")]
pub enum BenchPart {
    /// Listens for bare notifications.
    Listen { url: String, channel: String },
    /// A whole service, from its start on; `tells` each start of a run.
    Serve { url: String, dir: String, tells: bool },
    /// The services of an engine, once it is told to go.
    Engine { url: String, dir: String },
    /// A whole service with the default configuration, which says where it listens.
    Whole(neighbours::ServiceSettings),
}

impl BenchPart {
    /// A service on the tables of this place.
    pub fn serve(place: &BenchEnv, tells: bool) -> BenchPart {
        let (url, dir) = address(place);
        BenchPart::Serve { url, dir, tells }
    }

    /// An engine on the tables of this place.
    pub fn engine(place: &BenchEnv) -> BenchPart {
        let (url, dir) = address(place);
        BenchPart::Engine { url, dir }
    }
}

fn address(place: &BenchEnv) -> (String, String) {
    (place.config.database.url.expose().to_owned(), place.dir.display().to_string())
}

/// Lines that the part prints.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "said", rename_all = "snake_case")]
pub enum PartOutput {
    Ready,
    /// A service that can be called there.
    Listens {
        address: SocketAddr,
    },
    /// A run was started, by [`Clock::elapsed`].
    Started {
        run_id: Uuid,
        at: Duration,
    },
    /// CPU time on all processors since the part was started.
    Ran {
        cpu: Duration,
    },
    /// It has ended in order, and executed so many runs.
    Ended {
        executed: u64,
    },
}

/// Lines that the part is told later.
pub const GO: &str = "go";
pub const STOP: &str = "stop";
/// Asks for [`PartOutput::Ran`].
pub const RAN: &str = "ran";

/// Is what it is told to be.
///
/// # Errors
/// What the part came to.
pub async fn act() -> anyhow::Result<()> {
    let mut told = BufReader::new(tokio::io::stdin()).lines();
    let first = told.next_line().await?.unwrap_or_default();
    let executed = match serde_json::from_str(&first)? {
        BenchPart::Listen { url, channel } => {
            tokio::select! {
                listened = notify::listen(&url, &channel, say) => listened?,
                () = until_told(&mut told, STOP) => {}
            }
            0
        }
        BenchPart::Serve { url, dir, tells } => serve(url, &dir, tells, &mut told).await?,
        BenchPart::Whole(asked) => {
            let app = neighbours::serve(&asked).await?;
            say(&PartOutput::Ready);
            say(&PartOutput::Listens { address: app.address() });
            until_told(&mut told, STOP).await;
            app.stop().await;
            0
        }
        BenchPart::Engine { url, dir } => engine(url, &dir, &mut told).await?,
    };
    say(&PartOutput::Ended { executed });
    Ok(())
}

async fn serve(url: String, dir: &str, tells: bool, told: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<u64> {
    let noop = Noop::default();
    if tells {
        let mut starts = noop.listen();
        tokio::spawn(async move {
            while let Some(start) = starts.recv().await {
                say(&PartOutput::Started { run_id: start.run_id, at: start.at });
            }
        });
    }
    let config = env::config(SecretUrl::new(url), Path::new(dir));
    let app = App::start(&config, extras(&noop), |_| {}).await?;
    say(&PartOutput::Ready);
    until_told(told, STOP).await;
    app.stop().await;
    Ok(noop.executed())
}

async fn engine(url: String, dir: &str, told: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<u64> {
    let noop = Noop::default();
    let config = env::config(SecretUrl::new(url), Path::new(dir));
    let Built { store, engine, .. } =
        app::build(&config, Clock::system(), extras(&noop), AppEnd::default(), |_| {}).await?;
    say(&PartOutput::Ready);
    until_told(told, GO).await;
    let running = engine.start().await?;
    until_told(told, STOP).await;
    running.stop().await;
    store.close().await;
    Ok(noop.executed())
}

fn extras(noop: &Noop) -> Extras {
    Extras { executors: vec![std::sync::Arc::new(noop.clone())], ..Extras::default() }
}

fn say(said: &PartOutput) {
    let line = serde_json::to_string(said).unwrap_or_default();
    // whoever started it may be gone; then the end of the input says so
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Returns at this word, or at the end of the input; until then it answers.
async fn until_told(told: &mut Lines<BufReader<Stdin>>, word: &str) {
    while let Ok(Some(line)) = told.next_line().await {
        if line == word {
            return;
        }
        if line == RAN {
            let ran = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            say(&PartOutput::Ran { cpu: Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32) });
        }
    }
}
