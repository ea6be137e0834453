//! `reveille chat`: messages to the agent, its answers as they come, and the calls that it asks about.
//!
//! A run goes on whoever listens. Ctrl-C while one is answered cancels it; at the prompt it ends the command.

use std::io::IsTerminal;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Map, Value, json};

use crate::base::clock::pause;
use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::conversation::{messages_of, print_messages};
use crate::cli::screen::text_of;
use crate::cli::typed::{self};
use crate::cli::{CliFailure, Client, LiveTranscript, Screen, ServiceArgs, Tone};
use crate::config::Environment;
use crate::domain::approval::QuestionKind;
use crate::domain::approval::reply::typed_value;
use crate::domain::run::RunState;

/// Messages of an earlier conversation that are shown before it goes on.
const SHOWN: usize = 10;
/// After so long without an answer a message that is queued is shown as such.
const QUEUE_SHOWN_AFTER: Duration = Duration::from_secs(2);
/// Questions of a run that are asked one after the other.
const MOST_ASKED: usize = 50;
const PROMPT: &str = "> ";
const CHOICES: &str = "approve, cancel, edit, later? ";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille chat --tenant ann 'What is on for today?'    one message and its answer
  reveille chat --tenant ann                            message after message, until Ctrl-D
  reveille chat --conversation 0193f7a2                 goes on with one

Ctrl-C cancels the run that is answering. A call that waits for a person is shown, and decided in
line; what the agent needs to know is asked for.")]
pub struct Args {
    /// The message [default: what is typed, line by line]
    #[arg(value_name = "MESSAGE")]
    message: Option<String>,
    /// Go on with this conversation: its id, or the beginning of it
    #[arg(long, value_name = "CONVERSATION")]
    conversation: Option<String>,
    /// The tenant whose agent it is; an admin token names it for a new conversation
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// A conversation that goes on.
struct Talk {
    client: Client,
    tenant: Option<String>,
    conversation: Option<String>,
    as_json: bool,
}

/// How a message was answered.
enum ChatOutcome {
    Ended(RunState),
    /// A call waits, and is decided later.
    Left,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CHAT);
    let conversation = client.optional_id("conversations", args.conversation.as_deref()).await?;
    let mut talk = Talk { client, tenant: args.tenant, conversation, as_json: args.service.json };
    if let Some(message) = args.message {
        return match talk.say(&message, screen).await? {
            ChatOutcome::Ended(RunState::Succeeded | RunState::Skipped) | ChatOutcome::Left => Ok(()),
            ChatOutcome::Ended(state) => Err(CliFailure::new(format!("the run is {}", state.as_str())).into()),
        };
    }
    talk.recall(screen).await?;
    while let Some(message) = ask(PROMPT, screen).await? {
        if message.trim().is_empty() {
            continue;
        }
        talk.say(&message, screen).await?;
        screen.line("")?;
    }
    Ok(())
}

impl Talk {
    /// Shows what was said before.
    async fn recall(&self, screen: &mut Screen) -> anyhow::Result<()> {
        let Some(id) = self.conversation.as_deref().filter(|_| !self.as_json) else { return Ok(()) };
        print_messages(&messages_of(&self.client, id, SHOWN).await?, screen)?;
        Ok(screen.line("")?)
    }

    /// Sends a message, and prints its answer as it comes.
    async fn say(&mut self, message: &str, screen: &mut Screen) -> anyhow::Result<ChatOutcome> {
        let mut body = json!({ "message": message });
        let fields = [("tenant_id", &self.tenant), ("conversation_id", &self.conversation)];
        for (field, value) in fields.into_iter().filter_map(|(field, value)| Some((field, value.as_ref()?))) {
            body[field] = json!(value);
        }
        let key = format!("{:032x}", fastrand::u128(..));
        let mut events = self.client.post_stream(&["v1", "chat"], &body, &key).await?;
        let (mut live, mut run_id, mut is_cancelled) = (LiveTranscript::default(), String::new(), false);
        let mut is_queued = false;
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = pause(QUEUE_SHOWN_AFTER), if is_queued => {
                    is_queued = false;
                    live.print("state_change", &json!({ "state": RunState::Queued.as_str() }), screen)?;
                    screen.flush()?;
                    continue;
                }
                _ = tokio::signal::ctrl_c() => {
                    // before it is known, it is cancelled as soon as it is
                    is_cancelled = true;
                    if !run_id.is_empty() {
                        self.cancel(&run_id).await?;
                    }
                    continue;
                }
            };
            let Some(event) = event.transpose()? else { break };
            let (Some(name), Some(data)) = (event.event, event.data) else { continue };
            let data: Value = serde_json::from_str(&data)?;
            let is_in_state = |state: RunState| name == "state_change" && data["state"] == state.as_str();
            match self.as_json {
                true => screen.json_line(&json!({ "event": name, "data": data }))?,
                // how soon a run starts is of no interest to the person who waits for its answer
                false if is_in_state(RunState::Queued) => is_queued = true,
                false if is_in_state(RunState::Running) => is_queued = false,
                false => live.print(&name, &data, screen)?,
            }
            screen.flush()?;
            match name.as_str() {
                "session" => {
                    run_id = text_of(&data["run_id"]);
                    if is_cancelled {
                        self.cancel(&run_id).await?;
                    }
                    self.conversation =
                        data["conversation_id"].as_str().map(str::to_owned).or(self.conversation.take());
                }
                "state_change" => {
                    let waits = |state: RunState| !self.as_json && data["state"] == state.as_str();
                    let is_settled = match () {
                        _ if waits(RunState::PendingApproval) => self.decide(&run_id, screen).await?,
                        _ if waits(RunState::WaitingForInput) => self.supply(&run_id, screen).await?,
                        _ => true,
                    };
                    if !is_settled {
                        return Ok(ChatOutcome::Left);
                    }
                }
                "execution_end" => break,
                _ => {}
            }
        }
        let run = self.client.get(&["v1", "runs", &run_id], &[]).await?;
        let state = run["state"].as_str().and_then(RunState::parse);
        let state = state.ok_or_else(|| CliFailure::new("the service names a state that is not known here"))?;
        Ok(ChatOutcome::Ended(state))
    }

    /// Asks for what the run lacks until it is said; whether it is.
    async fn supply(&self, run_id: &str, screen: &mut Screen) -> anyhow::Result<bool> {
        let run = self.client.get(&["v1", "runs", run_id], &[]).await?;
        for input in run["inputs"].as_array().into_iter().flatten() {
            let question = on_one_line(&text_of(&input["question"]));
            screen.line(format!("\n{}", screen.tone(Tone::Strong, question)))?;
            for line in text_of(&input["description"]).lines() {
                screen.line(format!("  {}", on_one_line(line)))?;
            }
            let mut given = Map::new();
            for name in input["awaited"].as_array().into_iter().flatten().map(text_of) {
                let Some(value) = ask(&format!("{name}: "), screen).await? else {
                    screen.line(format!("\nlater: reveille run answer {run_id}"))?;
                    return Ok(false);
                };
                let field = &input["fields"]["properties"][&name];
                given.insert(name, typed_value(value.trim(), field));
            }
            let answer = json!({ "input_id": input["id"], "fields": given });
            if let Err(refused) = self.client.post(&["v1", "runs", run_id, "input"], &answer).await {
                screen.line(refused.to_string())?;
                return Box::pin(self.supply(run_id, screen)).await;
            }
        }
        Ok(true)
    }

    async fn cancel(&self, run_id: &str) -> anyhow::Result<()> {
        self.client.post(&["v1", "runs", run_id, "cancel"], &json!({})).await?;
        Ok(())
    }

    /// Asks about each call that waits; whether all of them are decided.
    async fn decide(&self, run_id: &str, screen: &mut Screen) -> anyhow::Result<bool> {
        let filters = [("run_id", run_id.to_owned()), ("status", "pending".to_owned())];
        for approval in self.client.list(&["v1", "approvals"], &filters, MOST_ASKED).await? {
            if approval["kind"] == QuestionKind::Input.as_str() {
                continue;
            }
            let id = text_of(&approval["id"]);
            let approval = self.client.get(&["v1", "approvals", &id], &[]).await?;
            let Some(answer) = self.answer_about(&approval, screen).await? else {
                screen.line(format!("\nlater: reveille approval show {id}"))?;
                return Ok(false);
            };
            self.client.post(&["v1", "approvals", &id, "decision"], &answer).await?;
        }
        Ok(true)
    }

    /// The answer to one question; `None`: later.
    async fn answer_about(&self, approval: &Value, screen: &mut Screen) -> anyhow::Result<Option<Value>> {
        let what = on_one_line(&text_of(&approval["action_summary"]));
        screen.line(format!("\n{}", screen.tone(Tone::Strong, what)))?;
        screen.line(format!("  {}", on_one_line(&approval["details"].to_string())))?;
        if !approval["precheck"].is_null() {
            screen.line(format!("  {}", on_one_line(&approval["precheck"].to_string())))?;
        }
        loop {
            let Some(choice) = ask(CHOICES, screen).await? else { return Ok(None) };
            let decision = choice.trim().to_lowercase();
            match decision.as_str() {
                "approve" | "cancel" => {
                    return Ok(Some(json!({ "decision": decision, "digest": approval["digest"] })));
                }
                "edit" => {
                    let Some(changes) = ask("arguments to change, as a JSON object: ", screen).await? else {
                        return Ok(None);
                    };
                    match serde_json::from_str::<Value>(&changes) {
                        Ok(changes @ Value::Object(_)) => {
                            let digest = &approval["digest"];
                            return Ok(Some(json!({ "decision": "edit", "digest": digest, "modifications": changes })));
                        }
                        _ => screen.line("that is no JSON object, such as {\"amount\": 80}")?,
                    }
                }
                "later" => return Ok(None),
                _ => {}
            }
        }
    }
}

/// A line of standard input; `None` at its end.
async fn ask(prompt: &str, screen: &mut Screen) -> anyhow::Result<Option<String>> {
    if std::io::stdin().is_terminal() {
        screen.piece(prompt)?;
    }
    screen.flush()?;
    let read = tokio::task::spawn_blocking(|| {
        let mut line = String::new();
        std::io::stdin().read_line(&mut line).map(|length| (length > 0).then_some(line))
    });
    let line = read.await??;
    Ok(line.map(|line| line.trim_end_matches(['\n', '\r']).to_owned()))
}
