//! A second process of a measurement: the same executable, told on its standard input which part it plays.
//!
//! It says what it has to say in lines of JSON, and ends when it is told to, or when its input ends: so none outlives
//! the measurement, however that ends.

use std::io::Write;
use std::path::Path;
use std::time::Duration;

use tokio::io::{AsyncBufReadExt, BufReader, Lines, Stdin};

use crate::app::{self, App, AppEnd, BuiltApp, Extras};
use crate::base::clock::Clock;
use crate::base::secret::SecretUrl;
use crate::bench::limits::notify;
use crate::bench::process::service;
use crate::bench::protocol::{GO, RAN, STOP};
use crate::bench::{ExecutorProbe, Part, PartMessage, env};

/// Is what it is told to be.
///
/// # Errors
/// What the part came to.
pub async fn run() -> anyhow::Result<()> {
    let mut commands = BufReader::new(tokio::io::stdin()).lines();
    let first = commands.next_line().await?.unwrap_or_default();
    let executed = match serde_json::from_str(&first)? {
        Part::Listen { url, channel } => {
            tokio::select! {
                listened = notify::listen(&url, &channel, send) => listened?,
                () = wait_for_command(&mut commands, STOP) => {}
            }
            0
        }
        Part::Serve { url, dir, tells } => serve(url, &dir, tells, &mut commands).await?,
        Part::Whole(asked) => {
            let (app, telemetry) = service::serve(&asked).await?;
            send(&PartMessage::Ready);
            send(&PartMessage::Listens { address: app.address() });
            wait_for_command(&mut commands, STOP).await;
            app.stop().await;
            if let Some(telemetry) = telemetry {
                telemetry.stop().await;
            }
            0
        }
        Part::Engine { url, dir } => engine(url, &dir, &mut commands).await?,
    };
    send(&PartMessage::Ended { executed });
    Ok(())
}

async fn serve(url: String, dir: &str, tells: bool, commands: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<u64> {
    let probe = ExecutorProbe::default();
    if tells {
        let mut starts = probe.listen();
        tokio::spawn(async move {
            while let Some(start) = starts.recv().await {
                send(&PartMessage::Started { run_id: start.run_id, at: start.at });
            }
        });
    }
    let config = env::config(SecretUrl::new(url), Path::new(dir));
    let app = App::start(&config, extras(&probe), |_| {}).await?;
    send(&PartMessage::Ready);
    wait_for_command(commands, STOP).await;
    app.stop().await;
    Ok(probe.executed())
}

async fn engine(url: String, dir: &str, commands: &mut Lines<BufReader<Stdin>>) -> anyhow::Result<u64> {
    let probe = ExecutorProbe::default();
    let config = env::config(SecretUrl::new(url), Path::new(dir));
    let BuiltApp { store, engine, .. } =
        app::build(&config, Clock::system(), extras(&probe), AppEnd::default(), |_| {}).await?;
    send(&PartMessage::Ready);
    wait_for_command(commands, GO).await;
    let running = engine.start().await?;
    wait_for_command(commands, STOP).await;
    running.stop().await;
    store.close().await;
    Ok(probe.executed())
}

fn extras(probe: &ExecutorProbe) -> Extras {
    Extras { executors: vec![std::sync::Arc::new(probe.clone())], ..Extras::default() }
}

fn send(said: &PartMessage) {
    let line = serde_json::to_string(said).unwrap_or_default();
    // whoever started it may be gone; then the end of the input says so
    let mut out = std::io::stdout().lock();
    let _ = writeln!(out, "{line}").and_then(|()| out.flush());
}

/// Returns at this word, or at the end of the input; until then it answers.
async fn wait_for_command(commands: &mut Lines<BufReader<Stdin>>, word: &str) {
    while let Ok(Some(line)) = commands.next_line().await {
        if line == word {
            return;
        }
        if line == RAN {
            let ran = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
            send(&PartMessage::Ran { cpu: Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32) });
        }
    }
}
