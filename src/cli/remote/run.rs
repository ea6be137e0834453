//! `reveille run`: what became of each fire, live or afterwards.

pub mod answer;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::base::clock::machine_now;
use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::moment::parse_moment;
use crate::cli::screen::{cut, text_of, time_of, tone_of};
use crate::cli::transcript::{self};
use crate::cli::{CliFailure, Client, ListOptions, LiveTranscript, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;
use crate::domain::approval::QuestionKind;
use crate::domain::run::RunState;
use crate::domain::run::skip_tally::TALLY_KEY;

/// Questions of a run that are shown at once; `reveille approval list` has all.
const MOST_SHOWN: usize = 10;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List runs, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a run and its transcript
    #[command(alias = "get")]
    Show(OneArgs),
    /// Follow a run until it ends; exits with 1 if it does not succeed
    Watch(OneArgs),
    /// Cancel a run that has not ended
    Cancel(OneArgs),
    /// Make a new run of one that has ended
    Retry(OneArgs),
    /// Tell a run what it needs to know, or show what that is
    Answer(answer::AnswerArgs),
    /// Say why a run ran, was skipped or waits, and why its calls were asked about
    Explain(OneArgs),
    /// Complete a run that waits for its webhook's runtime
    Complete(CompleteArgs),
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this task's: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    /// Only those in this state: queued, running, succeeded, failed, skipped, …
    #[arg(long)]
    state: Option<String>,
    /// Only those scheduled from this time on: RFC 3339, or how long ago, such as 2h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only those scheduled before this time: RFC 3339, or how long ago
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only those whose id, fire key or name of the task begins so
    #[arg(short, long, value_name = "TEXT")]
    query: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// The run: its id, or the beginning of it
    #[arg(value_name = "RUN")]
    id: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct CompleteArgs {
    /// The run: its id, or the beginning of it
    #[arg(value_name = "RUN")]
    id: String,
    /// Output of the run
    #[arg(long, value_name = "TEXT", conflicts_with = "error")]
    output: Option<String>,
    /// Why it failed; without this it succeeded
    #[arg(long, value_name = "TEXT")]
    error: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Watch(args) => {
            let client = Client::new(&args.service, environment)?;
            let id = client.id("runs", &args.id).await?;
            follow(&client, &id, args.service.json, screen).await
        }
        Command::Cancel(args) => act(args, "cancel", environment, screen).await,
        Command::Retry(args) => act(args, "retry", environment, screen).await,
        Command::Answer(args) => answer::run(args, environment, screen).await,
        Command::Explain(args) => explain(args, environment, screen).await,
        Command::Complete(args) => complete(args, environment, screen).await,
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let at = |typed: Option<String>| typed.map(|typed| parse_moment(&typed, machine_now())).transpose();
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::RUN_LIST);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let filters = given_filters([
        ("tenant_id", args.tenant),
        ("task_id", task),
        ("state", args.state),
        ("since", at(args.since)?),
        ("until", at(args.until)?),
        ("q", args.query),
    ]);
    let row = |run: &Value| {
        [
            text_of(&run["id"]),
            text_of(&run["tenant_id"]),
            time_of(&run["scheduled_for"]),
            text_of(&run["state"]),
            text_of(&run["attempt"]),
            cut(&answer_text(run), 60),
        ]
    };
    let heading = ["id", "tenant", "scheduled for", "state", "attempt", "outcome"];
    args.page.print(&client, &["v1", "runs"], &filters, (heading, row), screen).await
}

async fn show(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("runs", &args.id).await?;
    let run = client.get(&["v1", "runs", &id], &[]).await?;
    let entries = client.list(&["v1", "runs", &id, "transcript"], &[], usize::MAX).await?;
    if args.service.json {
        return Ok(screen.json(&json!({ "run": run, "transcript": entries }))?);
    }
    print_run(&run, false, screen)?;
    print_tool_calls(&run["result"], screen)?;
    transcript::print(&entries, screen)?;
    match run["inputs"].as_array() {
        Some(inputs) if !inputs.is_empty() => answer::print_inputs(&run, screen),
        _ => Ok(()),
    }
}

async fn act(args: OneArgs, verb: &str, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("runs", &args.id).await?;
    let run = client.post(&["v1", "runs", &id, verb], &json!({})).await?;
    print_run(&run, args.service.json, screen)
}

async fn explain(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?;
    let id = client.id("runs", &args.id).await?;
    let explained = client.get(&["v1", "runs", &id, "explain"], &[]).await?;
    if args.service.json {
        return Ok(screen.json(&explained)?);
    }
    sentences(&explained, screen)?;
    for call in explained["calls"].as_array().into_iter().flatten() {
        let tool = screen.tone(Tone::Strong, on_one_line(&text_of(&call["tool"])));
        screen.line(format!("\n{tool} (turn {})  {}", call["turn"], on_one_line(&text_of(&call["sentence"]))))?;
        for reason in call["reasons"].as_array().into_iter().flatten() {
            screen.line(format!("  because {}", on_one_line(&text_of(reason))))?;
        }
    }
    Ok(())
}

/// Prints the sentences of an explanation, and those on needed conditions, a line each.
pub fn sentences(explained: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    for sentence in explained["sentences"].as_array().into_iter().flatten() {
        screen.line(on_one_line(&text_of(sentence)))?;
    }
    let needs = explained["needs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if !needs.is_empty() {
        screen.line(format!("\n{}", screen.tone(Tone::Strong, "Conditions that would have to hold")))?;
    }
    for need in needs {
        screen.line(format!("  {}", on_one_line(&text_of(need))))?;
    }
    Ok(())
}

async fn complete(args: CompleteArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let report = match &args.error {
        Some(error) => json!({ "state": "failed", "error": error }),
        None => json!({ "state": "succeeded", "output": args.output }),
    };
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::RUN_COMPLETE);
    let id = client.id("runs", &args.id).await?;
    let run = client.post(&["v1", "runs", &id, "complete"], &report).await?;
    print_run(&run, args.service.json, screen)
}

/// Prints a run's stream until it ends, then what became of it.
///
/// # Errors
/// The run did not succeed, or the stream broke off.
pub async fn follow(client: &Client, id: &str, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    let mut events = client.stream(&["v1", "runs", id, "stream"]).await?;
    let mut live = LiveTranscript::default();
    while let Some(event) = events.next().await {
        let event = event?;
        let (Some(name), Some(data)) = (event.event, event.data) else { continue };
        let data: Value = serde_json::from_str(&data)?;
        match as_json {
            true => screen.json_line(&json!({ "event": name, "data": data }))?,
            false => live.print(&name, &data, screen)?,
        }
        if !as_json && name == "state_change" && data["state"] == RunState::PendingApproval.as_str() {
            how_to_decide(client, id, screen).await?;
        }
        if !as_json && name == "state_change" && data["state"] == RunState::WaitingForInput.as_str() {
            answer::print_inputs(&client.get(&["v1", "runs", id], &[]).await?, screen)?;
        }
        screen.flush()?;
        if name == "execution_end" {
            break;
        }
    }
    let run = client.get(&["v1", "runs", id], &[]).await?;
    if !as_json {
        screen.line("")?;
        print_run(&run, false, screen)?;
    }
    match run["state"].as_str().and_then(RunState::parse) {
        Some(RunState::Succeeded | RunState::Skipped) => Ok(()),
        _ => Err(CliFailure::new(format!("the run is {}", text_of(&run["state"]))).into()),
    }
}

/// Prints the commands that decide the questions for which a run waits.
async fn how_to_decide(client: &Client, run_id: &str, screen: &mut Screen) -> anyhow::Result<()> {
    let filters = [("run_id", run_id.to_owned()), ("status", "pending".to_owned())];
    for approval in client.list(&["v1", "approvals"], &filters, MOST_SHOWN).await? {
        if approval["kind"] == QuestionKind::Input.as_str() {
            continue;
        }
        let (id, what) = (text_of(&approval["id"]), on_one_line(&text_of(&approval["action_summary"])));
        screen.line(format!("\n{}", screen.tone(Tone::Strong, what)))?;
        for verb in ["show", "approve", "cancel"] {
            screen.line(format!("  reveille approval {verb} {id}"))?;
        }
    }
    Ok(())
}

pub fn print_run(run: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(run)?);
    }
    let state = text_of(&run["state"]);
    let missed = match &run["missed"] {
        Value::Null => String::new(),
        missed => format!(
            "{} from {} to {}",
            missed["count"].as_u64().map_or("many".into(), |count| count.to_string()),
            time_of(&missed["from"]),
            time_of(&missed["to"])
        ),
    };
    screen.facts(&[
        ("id", text_of(&run["id"])),
        ("task", text_of(&run["task_id"])),
        ("tenant", text_of(&run["tenant_id"])),
        ("state", screen.tone(tone_of(&state), &state)),
        ("reason", text_of(&run["reason"])),
        ("scheduled", time_of(&run["scheduled_for"])),
        ("started", time_of(&run["started_at"])),
        ("finished", time_of(&run["finished_at"])),
        ("attempt", text_of(&run["attempt"])),
        (if is_tally(run) { "fires" } else { "missed" }, missed),
        ("retry of", text_of(&run["retry_of"])),
        ("usage", usage_of(&run["usage"])),
        ("error", error_of(run)),
        ("finish", text_of(&run["finish"])),
        ("output", text_of(&run["output"])),
    ])?;
    Ok(())
}

/// Prints the calls of tools of a run as a table, if there are any, and their warnings below it.
fn print_tool_calls(result: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let Some(calls) = result["tool_calls"].as_array().filter(|calls| !calls.is_empty()) else { return Ok(()) };
    screen.line("")?;
    screen.table(&["tool", "called by", "turn", "state", "ms", "characters"], calls.iter().map(tool_row).collect())?;
    for warning in calls.iter().flat_map(call_warnings) {
        screen.line(screen.tone(Tone::Notable, warning))?;
    }
    Ok(())
}

/// A line for each warning of a call: the tool, and the warning.
fn call_warnings(call: &Value) -> Vec<String> {
    let tool = text_of(&call["name"]);
    let line = |warning: &Value| on_one_line(&format!("! {tool}: {}", text_of(warning)));
    call["warnings"].as_array().into_iter().flatten().map(line).collect()
}

fn tool_row(call: &Value) -> Vec<String> {
    let caller = &call["attribution"];
    let names = [text_of(&caller["step"]), text_of(&caller["agent"])];
    let state = if call["success"] == true { "succeeded" } else { "failed" };
    vec![
        on_one_line(&text_of(&call["name"])),
        on_one_line(&names.into_iter().filter(|name| !name.is_empty()).collect::<Vec<_>>().join(" / ")),
        text_of(&caller["turn"]),
        state.to_owned(),
        text_of(&call["duration_ms"]),
        text_of(&call["result_chars"]),
    ]
}

fn answer_text(run: &Value) -> String {
    let texts = [text_of(&run["output"]), error_of(run), text_of(&run["reason"])];
    let text = texts.into_iter().find(|text| !text.is_empty()).unwrap_or_default();
    match run["missed"]["count"].as_u64().filter(|_| is_tally(run)) {
        Some(fires) => format!("{text} ({fires} fires)"),
        None => text,
    }
}

/// Whether it is the one record of fires that were skipped together.
fn is_tally(run: &Value) -> bool {
    run["fire_key"].as_str().is_some_and(|key| key.starts_with(TALLY_KEY))
}

fn error_of(run: &Value) -> String {
    match &run["error"] {
        Value::Object(error) => format!("{}: {}", text_of(&error["code"]), text_of(&error["message"])),
        other => text_of(other),
    }
}

fn usage_of(usage: &Value) -> String {
    let is_zero = |name: &str| usage[name].as_i64().unwrap_or_default() == 0;
    if is_zero("turns") && is_zero("tool_calls") {
        return String::new();
    }
    format!(
        "{} turns, {} tool calls, {} + {} tokens, ${:.4}",
        usage["turns"],
        usage["tool_calls"],
        usage["input_tokens"],
        usage["output_tokens"],
        usage["cost_usd"].as_f64().unwrap_or_default()
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn call_of_a_tool_is_shown_with_its_caller_and_how_it_ended() {
        let call = json!({
            "name": "look", "duration_ms": 40, "success": false, "result_chars": 900,
            "attribution": { "agent": "clerk", "step": "order", "turn": 2001 },
        });
        assert_eq!(tool_row(&call), ["look", "order / clerk", "2001", "failed", "40", "900"]);
    }

    #[test]
    fn warnings_of_a_call_stand_below_the_table_of_calls() {
        let call = |name: &str, warnings: Value| json!({ "name": name, "success": true, "warnings": warnings });
        let calls = json!({ "tool_calls": [
            call("fetch", json!(["it was tried again", "it is deprecated:\nuse `look`"])),
            json!({ "name": "look", "success": true }),
        ] });
        let page = TextPage::default();
        print_tool_calls(&calls, &mut Screen::plain(page.clone())).unwrap();
        let below: Vec<String> = page.text().lines().filter(|line| line.starts_with('!')).map(str::to_owned).collect();
        assert_eq!(below, ["! fetch: it was tried again", "! fetch: it is deprecated: use `look`"]);
        assert!(page.text().ends_with("use `look`\n"), "{}", page.text());
    }

    #[test]
    fn fires_that_were_skipped_together_are_listed_with_their_number() {
        let tally =
            json!({ "fire_key": "h:2027-03-01T08:00:00.000Z/quota", "reason": "quota", "missed": { "count": 4321 } });
        assert_eq!(answer_text(&tally), "quota (4321 fires)");
        let uncounted =
            json!({ "fire_key": "h:2027-03-01T08:00:00.000Z/quota", "reason": "quota", "missed": { "count": null } });
        assert_eq!(answer_text(&uncounted), "quota");
        let range = json!({ "fire_key": "r:a/b", "reason": "missed_window", "missed": { "count": 7 } });
        assert_eq!(answer_text(&range), "missed_window");
    }
}
