//! `reveille demo`: the whole story on one screen, offline and in under a minute.
//!
//! The service is the real one: store, scheduler, worker, ReAct loop, HTTP and notifier, in a temporary directory that
//! goes with the demo. Only the model is scripted, and the world outside (an inbox, an outbox, Ann's phone) is played
//! in this process. Ann is asked before a mail goes out; where nobody sits there to answer, she is played, too. The
//! story is told from what the API answers, never from what was planned.

mod person;
mod screen;
mod world;

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, TimeDelta, Utc};
use chrono_tz::Tz;
use futures::StreamExt;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};

use crate::app::{App, Extras};
use crate::base::clock::{machine_now, pause};
use crate::base::secret::Secret;
use crate::cli::screen::{cut, text_of};
use crate::cli::{CliFailure, Client, Screen, Tone};
use crate::config::{Config, Environment, LoadedConfig};
use crate::domain::run::StreamEvent;
use crate::domain::trigger::zone::shown_in;
use screen::DemoScreen;
use world::{DemoArrival, DemoWorld};

/// The demo ends by itself, whatever happens.
const LONGEST: Duration = Duration::from_secs(55);
/// With `--wait`: a person has half an hour to answer, and then [`LOOKING`] to look around.
const LONGEST_WAIT: Duration = Duration::from_secs(32 * 60 + LOOKING.as_secs());
/// With `--wait`: how long the service goes on for its dashboard.
const LOOKING: Duration = Duration::from_secs(30 * 60);
/// How long the link stands on the screen before the demo opens it itself.
const READING: Duration = Duration::from_millis(1500);
/// How far ahead the task is due.
const AHEAD: TimeDelta = TimeDelta::seconds(4);
/// How often the API is asked for the run, and for its delivery.
const LOOK: Duration = Duration::from_millis(50);
/// Longest arguments and results of tools on the screen, in characters: a line.
const LONGEST_TOOL_LINE: usize = 70;
const ZONE: Tz = chrono_tz::Europe::Berlin;
const TENANT: &str = "ann";
const INSTRUCTION: &str = "Summarize my unread mails; say first what can't wait.";
const SCENARIO: &str = include_str!("demo/scenario.toml");

#[derive(Debug, clap::Args)]
pub struct Args {
    /// Wait until you have opened the link and answered yourself, instead of approving after a moment; then show the
    /// run in the dashboard
    #[arg(long)]
    wait: bool,
}

pub async fn run(Args { wait }: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let mut screen = DemoScreen::new(screen, ZONE);
    let played = tokio::time::timeout(if wait { LONGEST_WAIT } else { LONGEST }, play(&mut screen, wait));
    tokio::select! {
        played = played => played.unwrap_or_else(|_| Err(CliFailure::new("the demo took too long").into())),
        _ = tokio::signal::ctrl_c() => Ok(()),
    }
}

/// Builds the world and the service, tells the story, and takes both down again.
async fn play(screen: &mut DemoScreen<'_>, wait: bool) -> anyhow::Result<()> {
    screen.title("reveille demo", "offline, with a scripted model; nothing leaves this machine")?;
    let began = machine_now();
    let mut world = DemoWorld::start().await.context("open a port on 127.0.0.1")?;
    let home = Home::new().context("make a temporary directory")?;
    let loaded = configuration(&home, &world)?;
    let app = App::start(&loaded.config, Extras::default(), |_| {}).await?;
    let token = app.generated().admin_token.as_ref().context("the service made no admin token")?;
    let client = Client::to(&format!("http://{}", app.address()), Some(Secret::new(token.expose())))?;
    screen.print_event(machine_now(), "the service is up", Tone::Strong, "on SQLite, in a temporary directory")?;

    let told = tell(&client, &mut world, screen, wait, began).await;
    app.stop().await;
    told
}

/// The story, and behind it, where a person sits before the screen, its run in the dashboard.
async fn tell(
    client: &Client,
    world: &mut DemoWorld,
    screen: &mut DemoScreen<'_>,
    wait: bool,
    began: DateTime<Utc>,
) -> anyhow::Result<()> {
    let run = run_story(client, world, screen, wait).await?;
    let took = (machine_now() - began).as_seconds_f64();
    screen.paragraph(&format!(
        "That took {took:.1} seconds. Store, scheduler, ReAct loop, tools, approval and delivery were the real ones; only the \
         model was scripted, and the mails and the phone were played."
    ))?;
    let decide = if wait { "" } else { "`reveille demo --wait` lets you decide, " };
    screen.paragraph(&format!(
        "Next: {decide}`reveille serve` runs the service, `reveille task create --help` shows what a task can be."
    ))?;
    if wait { show_dashboard(client, &run, screen).await } else { Ok(()) }
}

/// The story, step by step; answers its run.
async fn run_story(
    client: &Client,
    world: &mut DemoWorld,
    screen: &mut DemoScreen<'_>,
    wait: bool,
) -> anyhow::Result<Value> {
    create_recipient(client, world, screen).await?;
    let task = create_task(client, screen).await?;
    let run = await_fire(client, &task, screen).await?;
    follow(client, world, &run, screen, wait).await?;
    await_result(client, world, &run, screen).await?;
    Ok(run)
}

/// A link to the run, and the service for as long as somebody looks at it: until Enter, or the end of the input.
async fn show_dashboard(client: &Client, run: &Value, screen: &mut DemoScreen<'_>) -> anyhow::Result<()> {
    let link = client.post_once(&["v1", "login-links"], &json!({})).await?;
    screen.paragraph(
        "The service goes on until you press Enter. This is the run in the dashboard; the link signs one browser in, \
         once, within 10 minutes:",
    )?;
    screen.link(&format!("{}?next=/ui/runs/{}", text_of(&link["url"]), text_of(&run["id"])))?;
    let (mut line, mut input) = (String::new(), BufReader::new(tokio::io::stdin()));
    if let Ok(read) = tokio::time::timeout(LOOKING, input.read_line(&mut line)).await {
        read.context("read standard input")?;
    }
    Ok(())
}

async fn create_recipient(client: &Client, world: &DemoWorld, screen: &mut DemoScreen<'_>) -> anyhow::Result<()> {
    let webhook = json!({ "url": world.phone_url(), "secret": world.secret });
    let recipient = json!({ "timezone": ZONE.name(), "addresses": { "webhook": webhook }, "fallback": ["webhook"] });
    client.put(&["v1", "recipients", TENANT], &recipient).await?;
    let how = format!("by webhook, signed: {}", world.phone_url());
    Ok(screen.print_event(machine_now(), "Ann can be reached", Tone::Strong, &how)?)
}

/// A task that is due every day at a time that is a few seconds away.
async fn create_task(client: &Client, screen: &mut DemoScreen<'_>) -> anyhow::Result<Value> {
    let due = shown_in(machine_now() + AHEAD, ZONE);
    let cron = due.format("%-S %-M %-H * * *").to_string();
    let task = json!({
        "tenant_id": TENANT,
        "name": "Morning mail",
        "trigger": { "type": "schedule", "cron": cron, "timezone": ZONE.name() },
        "action": { "instruction": INSTRUCTION },
    });
    let task = client.post(&["v1", "tasks"], &task).await?;
    let how =
        format!("\"Morning mail\": {INSTRUCTION}\ncron {cron} in {ZONE}: every day at {}", due.format("%H:%M:%S"));
    screen.print_event(machine_now(), "a task is created", Tone::Strong, &how)?;
    Ok(task)
}

/// The run of the task's first fire, once it has started.
async fn await_fire(client: &Client, task: &Value, screen: &mut DemoScreen<'_>) -> anyhow::Result<Value> {
    let due = instant(&task["next_fire_at"])?;
    let filter = [("task_id", text_of(&task["id"]))];
    let run = loop {
        let left = (due - machine_now()).as_seconds_f64();
        screen.show_progress(&format!("due in {:.1} s", left.max(0.0)))?;
        let runs = client.list(&["v1", "runs"], &filter, 1).await?;
        match runs.into_iter().next() {
            Some(run) if !run["started_at"].is_null() => break run,
            _ => pause(LOOK).await,
        }
    };
    screen.clear_progress()?;
    let started = instant(&run["started_at"])?;
    let late = (started - instant(&run["scheduled_for"])?).num_milliseconds();
    let how = format!("{late} ms after its instant; run {}", text_of(&run["id"]));
    screen.print_event(started, "the schedule fires", Tone::Good, &how)?;
    Ok(run)
}

/// Tells the run's stream until it ends; where it waits, somebody answers.
async fn follow(
    client: &Client,
    world: &mut DemoWorld,
    run: &Value,
    screen: &mut DemoScreen<'_>,
    wait: bool,
) -> anyhow::Result<()> {
    let id = text_of(&run["id"]);
    let mut events = client.stream(&["v1", "runs", &id, "stream"]).await?;
    let mut spoken: Option<SpokenText> = None;
    while let Some(event) = events.next().await {
        let Some(data) = event?.data else { continue };
        let event = serde_json::from_str(&data)?;
        let goes_on = matches!(
            event,
            StreamEvent::MessageStart { .. } | StreamEvent::MessageEnd { .. } | StreamEvent::ToolCallStart { .. }
        );
        if let Some(spoken) = spoken.take_if(|_| goes_on) {
            spoken.print(screen)?;
        }
        match event {
            StreamEvent::MessageEnd { turn, text, .. } => spoken = Some(SpokenText { at: machine_now(), turn, text }),
            StreamEvent::ToolCallStart { tool, args, .. } => {
                screen.print_details(Tone::Notable, &cut(&format!("→ {tool} {args}"), LONGEST_TOOL_LINE))?;
            }
            StreamEvent::ToolResult { tool, result, error, .. } => {
                let tone = if error { Tone::Bad } else { Tone::Faint };
                let result = result.split_whitespace().collect::<Vec<_>>().join(" ");
                screen.print_details(tone, &cut(&format!("← {tool} {result}"), LONGEST_TOOL_LINE))?;
            }
            StreamEvent::StateChange { state, .. } if state == "pending_approval" => {
                if let Some(spoken) = spoken.take() {
                    spoken.print(screen)?;
                }
                answer_question(client, world, run, screen, wait).await?;
            }
            StreamEvent::Error { code, message } => return Err(CliFailure::new(format!("{code}: {message}")).into()),
            StreamEvent::ExecutionEnd { .. } => break,
            _ => {}
        }
    }
    let run = client.get(&["v1", "runs", &id], &[]).await?;
    let finished = instant(&run["finished_at"])?;
    if let Some(mut spoken) = spoken {
        spoken.at = spoken.at.min(finished); // a turn is over before its run is
        spoken.print(screen)?;
    }
    let usage = &run["usage"];
    let tokens =
        usage["input_tokens"].as_i64().unwrap_or_default() + usage["output_tokens"].as_i64().unwrap_or_default();
    let how = format!("{} turns, {} tool calls, {tokens} tokens", usage["turns"], usage["tool_calls"]);
    Ok(screen.print_event(finished, &format!("the run has {}", text_of(&run["state"])), Tone::Good, &how)?)
}

/// Words of the model, kept until it is known which event comes next.
struct SpokenText {
    /// When it was heard; the stream may tell the last turn a little after the run has ended.
    at: DateTime<Utc>,
    turn: i64,
    text: String,
}

impl SpokenText {
    fn print(self, screen: &mut DemoScreen<'_>) -> anyhow::Result<()> {
        Ok(screen.print_event(self.at, &format!("turn {}: the model", self.turn), Tone::Strong, &self.text)?)
    }
}

/// The run waits: the question arrives on Ann's phone with its link, and is answered there.
async fn answer_question(
    client: &Client,
    world: &mut DemoWorld,
    run: &Value,
    screen: &mut DemoScreen<'_>,
    wait: bool,
) -> anyhow::Result<()> {
    let seen = machine_now();
    let arrival = world.next_arrival().await.context("the phone is gone")?;
    // the question is sent in the moment in which the run is parked, and may be here before its state is heard of
    let how = "a person has to agree to this call; nothing is held open";
    screen.print_event(seen.min(arrival.at), "the run waits", Tone::Notable, how)?;
    print_arrival(client, &arrival, run, screen).await?;
    let data = &arrival.body["data"];
    let link = text_of(&data["link"]);
    let asked: Vec<String> =
        data["items"].as_array().into_iter().flatten().map(|item| text_of(&item["summary"])).collect();
    screen.note(&format!("{} asks for your approval", text_of(&data["task_name"])), &asked.join("\n"))?;
    screen.link(&link)?;
    if wait {
        screen.print_event(
            machine_now(),
            "your turn",
            Tone::Strong,
            "open the link and decide: approve, change it, or cancel",
        )?;
        return Ok(());
    }
    pause(READING).await;
    let pressed = person::approve(&link).await?;
    let how = "nobody answered here, so the demo opened the link and pressed the button itself";
    Ok(screen.print_event(pressed, "the page: Approve", Tone::Good, how)?)
}

/// Something has arrived on Ann's phone: what the service knows of it.
async fn print_arrival(
    client: &Client,
    arrival: &DemoArrival,
    run: &Value,
    screen: &mut DemoScreen<'_>,
) -> anyhow::Result<()> {
    if !arrival.genuine {
        return Err(CliFailure::new("a notification arrived with a wrong signature").into());
    }
    let filter = [("run_id", text_of(&run["id"]))];
    let delivery = loop {
        let deliveries = client.list(&["v1", "deliveries"], &filter, 10).await?;
        match deliveries.into_iter().find(|delivery| text_of(&delivery["id"]) == arrival.id) {
            Some(delivery) if delivery["state"] != "pending" => break delivery,
            _ => pause(LOOK).await,
        }
    };
    let how = format!("its signature is right; the delivery is {}", text_of(&delivery["state"]));
    Ok(screen.print_event(arrival.at, "Ann's phone rings", Tone::Good, &how)?)
}

/// Waits for the result of the run on Ann's phone. A reminder may come before it.
async fn await_result(
    client: &Client,
    world: &mut DemoWorld,
    run: &Value,
    screen: &mut DemoScreen<'_>,
) -> anyhow::Result<()> {
    loop {
        let arrival = world.next_arrival().await.context("the phone is gone")?;
        print_arrival(client, &arrival, run, screen).await?;
        let data = &arrival.body["data"];
        if arrival.body["type"] == "run.finished" {
            return Ok(screen.note(&text_of(&data["task_name"]), &text_of(&data["output"]))?);
        }
    }
}

/// The configuration of the demo's service, as an operator would set it.
fn configuration(home: &Home, world: &DemoWorld) -> anyhow::Result<LoadedConfig> {
    let scenario = home.0.join("scenario.toml");
    let script = SCENARIO.replace("{INBOX}", &world.inbox_url()).replace("{OUTBOX}", &world.outbox_url());
    std::fs::write(&scenario, script).context("write the scenario")?;
    // links name the port, so it has to be known before the service listens
    let listen = free_address().context("find a free port on 127.0.0.1")?;
    let environment = Environment::of(&[
        ("REVEILLE_SERVER__LISTEN", &listen.to_string()),
        ("REVEILLE_SERVER__DATA_DIR", &display_path(&home.0)),
        ("REVEILLE_ENGINE__SHUTDOWN_GRACE_SECONDS", "1.0"),
        ("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "scripted"),
        ("REVEILLE_LLM__MODELS__MAIN__SCENARIO", &display_path(&scenario)),
        // loopback is closed to tools and webhooks, but for the world that is played
        ("REVEILLE_EGRESS__ALLOW", &format!("[\"{}\"]", world.egress_allow())),
    ]);
    Ok(Config::read("demo", "", &environment)?)
}

/// An address that was free a moment ago.
fn free_address() -> std::io::Result<SocketAddr> {
    std::net::TcpListener::bind("127.0.0.1:0")?.local_addr()
}

fn display_path(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

fn instant(value: &Value) -> anyhow::Result<DateTime<Utc>> {
    let text = text_of(value);
    let read = DateTime::parse_from_rfc3339(&text).with_context(|| format!("read the time `{text}`"));
    Ok(read?.to_utc())
}

/// A directory that goes with the demo.
struct Home(PathBuf);

impl Home {
    fn new() -> std::io::Result<Home> {
        use std::os::unix::fs::DirBuilderExt;
        let path = std::env::temp_dir().join(format!("reveille-demo-{:016x}", fastrand::u64(..)));
        std::fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Home(path))
    }
}

impl Drop for Home {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}
