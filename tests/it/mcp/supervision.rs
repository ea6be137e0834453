//! Processes of MCP servers: each has a supervisor, one process serves all runs, and none is left behind, however the
//! service or the server ends.

use std::path::Path;
use std::process::Stdio;
use std::time::Duration;

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::{Child, ChildStdin, ChildStdout, Command};
use tokio::time::timeout;

use super::agents::{config, model_of_calls};
use super::harness::until_listed;
use crate::agent::wire::fakes::Wire;
use crate::support::api::Api;
use crate::support::binary::{Service, TempDir, reveille};
use crate::support::mcp::{McpFixture, alive, hostile_command};
use crate::support::servers::drill_mcp_runs;

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often something that comes by itself is looked for.
const LOOK: Duration = Duration::from_millis(20);

/// A supervisor of a shell that runs this script, with its input and output.
fn supervised(script: &str) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = supervisor(&["sh", "-c", script]).spawn().expect("start a supervisor");
    let (input, output) = (child.stdin.take().expect("its input"), child.stdout.take().expect("its output"));
    (child, input, BufReader::new(output))
}

fn supervisor(command: &[&str]) -> Command {
    let mut supervisor = Command::new(env!("CARGO_BIN_EXE_reveille"));
    supervisor.args(["mcp-supervise", "--"]).args(command).kill_on_drop(true);
    supervisor.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    supervisor
}

async fn line(output: &mut BufReader<ChildStdout>) -> String {
    let mut line = String::new();
    timeout(PATIENCE, output.read_line(&mut line)).await.expect("a line in time").expect("a line of text");
    line.trim_end().to_owned()
}

async fn exit_code(child: &mut Child) -> Option<i32> {
    timeout(PATIENCE, child.wait()).await.expect("an end in time").expect("an exit status").code()
}

/// Returns once this holds.
async fn until(holds: impl Fn() -> bool, why: &str) {
    let waited = timeout(PATIENCE, async {
        while !holds() {
            pause(LOOK).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{why}"));
}

async fn until_gone(processes: &[u32]) {
    until(|| !processes.iter().any(|pid| alive(*pid)), "a process is left behind").await;
}

#[tokio::test]
async fn supervisor_hands_on_what_is_written_and_what_is_answered() {
    let (mut child, mut input, mut output) = supervised("cat; echo over");
    for said in ["one", "two"] {
        input.write_all(format!("{said}\n").as_bytes()).await.unwrap();
        assert_eq!(line(&mut output).await, said);
    }
    drop(input);
    assert_eq!(line(&mut output).await, "over", "the server ends by itself, and takes its time for it");
    assert_eq!(exit_code(&mut child).await, Some(0));
}

#[tokio::test]
async fn supervisor_ends_with_its_server_and_tells_how_that_ended() {
    for (script, code) in [("exit 3", 3), ("kill -9 $$", 137)] {
        let (mut child, input, _output) = supervised(script);
        assert_eq!(exit_code(&mut child).await, Some(code), "{script}");
        drop(input);
    }
    let done = supervisor(&["/nowhere/at/all"]).output().await.unwrap();
    let said = String::from_utf8(done.stderr).unwrap();
    assert_eq!(done.status.code(), Some(127), "{said}");
    assert!(said.starts_with("`/nowhere/at/all` can't be started: No such file"), "{said}");
}

#[tokio::test]
async fn supervisor_kills_what_its_server_has_left_behind() {
    let (mut child, input, mut output) = supervised("sleep 1000 & echo $!");
    let left: u32 = line(&mut output).await.parse().unwrap();
    assert_eq!(exit_code(&mut child).await, Some(0));
    until_gone(&[left]).await;
    drop(input);
}

#[tokio::test]
async fn supervisor_kills_a_server_that_goes_on_when_its_input_has_ended() {
    let deaf = "trap '' TERM; sleep 1000 & echo $$ $!; while true; do sleep 1; done";
    let (mut child, input, mut output) = supervised(deaf);
    let started: Vec<u32> = line(&mut output).await.split(' ').map(|pid| pid.parse().unwrap()).collect();
    assert!(started.iter().all(|pid| alive(*pid)));
    drop(input);
    assert_eq!(exit_code(&mut child).await, Some(137));
    until_gone(&started).await;
}

#[tokio::test]
async fn supervisor_ends_a_server_that_reads_nothing_while_there_is_more_for_it() {
    let (mut child, mut input, mut output) = supervised("echo $$; exec sleep 1000");
    let server: u32 = line(&mut output).await.parse().unwrap();
    // more than the pipe to the server holds, and less than that and the pipe to its supervisor do
    let unread = "x".repeat(100 * 1_024);
    timeout(PATIENCE, input.write_all(unread.as_bytes())).await.expect("room for it").unwrap();
    drop(input);
    assert_eq!(exit_code(&mut child).await, Some(143));
    until_gone(&[server]).await;
}

/// A section of the configuration, with a tool `echo` that nobody is asked about.
fn section(name: &str, command: &[String]) -> String {
    let echo = "[mcp_servers.tools.echo]\ncategory = \"read\"\nconsequence = \"low\"\n";
    format!("[[mcp_servers]]\nname = \"{name}\"\ncommand = {}\n{echo}", json!(command))
}

/// A service with a server that ignores its end, and one that starts a process that does; and all processes of both.
async fn with_stubborn_servers() -> (Service, Vec<u32>) {
    let service = Service::new();
    let journals = ["deaf", "child"].map(|mode| (mode, service.dir.path().join(format!("{mode}.jsonl"))));
    let hostile = |mode: &str, journal: &Path| hostile_command(&format!("{mode}={}", journal.display()));
    let config: String = journals.iter().map(|(mode, journal)| section(mode, &hostile(mode, journal))).collect();
    let mut service = service.with_config(&config);
    service.start().await;
    let is_up = |journal: &Path| std::fs::read_to_string(journal).is_ok_and(|text| text.contains("started"));
    until(|| journals.iter().all(|(_, journal)| is_up(journal)), "the servers do not start").await;
    let started = descendants(service.process_id());
    assert_eq!(started.len(), 5, "two servers with their supervisors, and one of them with a process: {started:?}");
    (service, started)
}

/// The processes that a process has started, and those that these have.
fn descendants(pid: u32) -> Vec<u32> {
    let pids = std::fs::read_dir("/proc").expect("processes").flatten();
    let pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok());
    let children: Vec<u32> = pids.filter(|child| parent(*child) == Some(pid)).collect();
    children.iter().flat_map(|child| std::iter::once(*child).chain(descendants(*child))).collect()
}

fn parent(pid: u32) -> Option<u32> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    // behind the name, which may hold anything: `S 1 …`
    let (_, rest) = stat.rsplit_once(") ")?;
    rest.split(' ').nth(1)?.parse().ok()
}

#[tokio::test]
async fn killed_service_leaves_no_process() {
    let (mut service, started) = with_stubborn_servers().await;
    service.kill().await;
    until_gone(&started).await;
}

#[tokio::test]
async fn stopped_service_leaves_no_process() {
    let (mut service, started) = with_stubborn_servers().await;
    assert!(service.terminate().await.success());
    until_gone(&started).await;
}

/// A task whose runs call `echo` of both servers.
fn echoing_task() -> Value {
    let echo = |server: &str| {
        let tool = json!({ "name": format!("{server}.echo"), "args": { "text": "hello" } });
        json!({ "name": server, "tool": tool })
    };
    json!({
        "tenant_id": "ann", "name": "Echo", "executor": "pipeline",
        "trigger": { "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" },
        "action": { "config": { "steps": [echo("one"), echo("two")] } },
    })
}

/// The run, once it has ended well.
async fn until_succeeded(api: &Api, run: &str) {
    let waited = timeout(PATIENCE, async {
        loop {
            let run = api.get(&format!("/v1/runs/{run}")).await;
            match run["state"].as_str() {
                Some("queued" | "running") => pause(LOOK).await,
                state => return assert_eq!(state, Some("succeeded"), "{run:#}"),
            }
        }
    });
    waited.await.expect("it ends in time");
}

/// A task whose agent calls `echo` of both servers.
fn agent_task() -> Value {
    json!({
        "tenant_id": "ann", "name": "Ask",
        "trigger": { "type": "schedule", "cron": "0 0 1 1 *", "overlap": "allow" },
        "action": { "instruction": "Echo hello.", "config": { "tools": ["one.echo", "two.echo"] } },
    })
}

/// How many files and connections a process has open.
fn open_files(pid: u32) -> usize {
    std::fs::read_dir(format!("/proc/{pid}/fd")).expect("its open files").count()
}

/// Starts these runs, and returns once all have ended well. The processes of the service are these all the time.
async fn run_all(api: &Api, starts: &[&str], (service, processes): (u32, &[u32])) {
    let mut runs = Vec::new();
    for start in starts {
        runs.push(api.post(start, &json!({})).await["id"].as_str().unwrap().to_owned());
        assert_eq!(descendants(service), processes, "after the start of run {}", runs.len());
    }
    for run in &runs {
        until_succeeded(api, run).await;
        assert_eq!(descendants(service), processes, "after the end of run {run}");
    }
}

#[tokio::test]
async fn runs_share_one_process_per_server() {
    /// Of so many runs one is an agent's.
    const AGENTS: usize = 5;
    /// Connections that may be kept open for what comes next.
    const KEPT_OPEN: usize = 8;
    const ECHOES: [(&str, &str, &str); 2] =
        [("c1", "one__echo", r#"{"text":"hello"}"#), ("c2", "two__echo", r#"{"text":"hello"}"#)];
    let (one, two) = (McpFixture::new(), McpFixture::new());
    let model = model_of_calls(&ECHOES, "It said hello.").await;
    let config = config(Wire::Chat, &model, &one.command()) + &section("two", &two.command());
    let mut service = Service::new().with_config(&config);
    service.start().await;
    let api = Api::of(&service);
    until_listed(&api, &["one.echo", "two.echo"]).await;
    let start = async |task: Value| {
        let task = api.post("/v1/tasks", &task).await;
        format!("/v1/tasks/{}/run", task["id"].as_str().unwrap())
    };
    let (steps, agent) = (start(echoing_task()).await, start(agent_task()).await);
    let pid = service.process_id();
    let processes = descendants(pid);
    assert_eq!(processes.len(), 4, "two servers, each with its supervisor: {processes:?}");

    let start_of = |number: usize| if number.is_multiple_of(AGENTS) { agent.as_str() } else { steps.as_str() };
    let starts: Vec<&str> = (0..drill_mcp_runs()).map(start_of).collect();
    // the first of each kind open what is kept open
    let (first, others) = starts.split_at(starts.len().min(AGENTS + 1));
    run_all(&api, first, (pid, &processes)).await;
    let before = open_files(pid);
    run_all(&api, others, (pid, &processes)).await;
    let more = format!("open files: {before} before");
    until(|| open_files(pid) <= before + KEPT_OPEN, &more).await;
    for fixture in [&one, &two] {
        assert_eq!(fixture.noted("echo").len(), starts.len());
        assert_eq!(fixture.pids().len(), 1, "all runs are served by one process");
    }
    assert!(service.terminate().await.success());
    until_gone(&processes).await;
}

#[tokio::test]
async fn word_of_the_supervisor_is_in_no_help_and_without_a_command_is_refused() {
    let dir = TempDir::new();
    let typed = async |arguments: &[&str]| reveille(dir.path()).args(arguments).output().await.unwrap();
    let help = typed(&["--help"]).await;
    assert!(help.status.success() && !String::from_utf8_lossy(&help.stdout).contains("supervise"));
    assert_eq!(typed(&["mcp-supervise", "sh"]).await.status.code(), Some(2), "as any unknown word");
    assert_eq!(typed(&["mcp-supervise", "--"]).await.status.code(), Some(127));
}
