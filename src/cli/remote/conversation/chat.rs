//! `reveille chat`: messages to the agent, its answers as they come, and the calls that it asks about.
//!
//! A run goes on whoever listens. Ctrl-C while one is answered, or asks, cancels it; at the prompt it ends the command.

mod input;

use std::collections::HashSet;
use std::time::Duration;

use futures::StreamExt;
use serde_json::{Value, json};

use crate::base::clock::pause;
use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::conversation::keyboard::{InputStop, Keyboard};
use crate::cli::remote::conversation::{messages_of, print_messages};
use crate::cli::screen::text_of;
use crate::cli::typed::{self};
use crate::cli::{CliFailure, Client, LiveTranscript, Screen, ServiceArgs, Tone};
use crate::config::Environment;
use crate::domain::approval::matrix::is_irreversible;
use crate::domain::approval::{ApprovalStatus, Category, Consequence, QuestionKind};
use crate::domain::run::RunState;

/// Messages of an earlier conversation that are shown before it goes on.
const SHOWN: usize = 10;
/// After so long without an answer a message that is queued is shown as such.
const QUEUE_SHOWN_AFTER: Duration = Duration::from_secs(2);
const PROMPT: &str = "> ";
const CHOICES: &str = "approve, cancel, edit, later? ";
const CHANGES: &str = "arguments to change, as a JSON object: ";
const CONFIRMATION: &str = "its name: ";

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille chat --tenant ann 'What is on for today?'    one message and its answer
  reveille chat --tenant ann                            message after message, until Ctrl-D
  reveille chat --conversation 0193f7a2                 goes on with one

Ctrl-C cancels the run that is answering or asking, and ends the command where no run does. A call
that waits for a person is shown, and decided in line: one that may be impossible to undo once the
name of its tool is typed. Questions of the agent itself are asked in line, too.")]
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

/// The loop that keeps up a conversation.
struct ChatLoop {
    client: Client,
    tenant: Option<String>,
    conversation: Option<String>,
    as_json: bool,
    keyboard: Keyboard,
}

/// How a message was answered.
enum ChatOutcome {
    Ended(RunState),
    /// A call waits, and is decided later.
    Left,
}

/// How a question of a run was dealt with.
enum QuestionOutcome {
    Answered,
    /// The service took no answer: the question is asked again where it is open still.
    Refused,
    /// It can't be answered with this token.
    Forbidden,
    Unanswered(InputStop),
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CHAT);
    let conversation = client.optional_id("conversations", args.conversation.as_deref()).await?;
    let keyboard = Keyboard::listen()?;
    let mut chat = ChatLoop { client, tenant: args.tenant, conversation, as_json: args.service.json, keyboard };
    if let Some(message) = args.message {
        return match chat.say(&message, screen).await? {
            ChatOutcome::Ended(RunState::Succeeded) | ChatOutcome::Left => Ok(()),
            ChatOutcome::Ended(state) => Err(CliFailure::new(format!("the run is {}", state.as_str())).into()),
        };
    }
    chat.recall(screen).await?;
    while let Ok(message) = chat.keyboard.line(PROMPT, screen).await? {
        if message.trim().is_empty() {
            continue;
        }
        chat.say(&message, screen).await?;
        screen.line("")?;
    }
    Ok(())
}

impl ChatLoop {
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
        let mut events = tokio::select! {
            events = self.client.post_stream(&["v1", "chat"], &body, &key) => events?,
            // nobody knows yet whether there is a run to be cancelled
            () = self.keyboard.interrupt() => {
                return Err(CliFailure::new("interrupted before the service answered; the message may have arrived").into());
            }
        };
        let (mut live, mut run_id, mut is_cancelled) = (LiveTranscript::default(), String::new(), false);
        let mut is_queued = false;
        // questions that were answered here, or can't be: they may stay open for others
        let mut dealt_with = HashSet::new();
        loop {
            let event = tokio::select! {
                event = events.next() => event,
                () = pause(QUEUE_SHOWN_AFTER), if is_queued => {
                    is_queued = false;
                    live.print("state_change", &json!({ "state": RunState::Queued.as_str() }), screen)?;
                    screen.flush()?;
                    continue;
                }
                () = self.keyboard.interrupt() => {
                    // before it is known, it is cancelled as soon as it is
                    is_cancelled = true;
                    if !run_id.is_empty() {
                        self.cancel(&run_id, screen).await?;
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
                        self.cancel(&run_id, screen).await?;
                    }
                    self.conversation =
                        data["conversation_id"].as_str().map(str::to_owned).or(self.conversation.take());
                }
                "state_change" => {
                    let waits = is_in_state(RunState::PendingApproval) || is_in_state(RunState::WaitingForInput);
                    if waits && !self.as_json && !self.attend(&run_id, &mut dealt_with, screen).await? {
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

    /// Asks about all that the run waits for, the oldest question first; whether nothing is left for later.
    async fn attend(
        &mut self,
        run_id: &str,
        dealt_with: &mut HashSet<String>,
        screen: &mut Screen,
    ) -> anyhow::Result<bool> {
        let mut is_left = false;
        loop {
            let run = self.client.get(&["v1", "runs", run_id], &[]).await?;
            let asked = run["approvals"].as_array().into_iter().flatten();
            let mut open = asked.filter(|question| question["status"] == ApprovalStatus::Pending.as_str());
            let Some(question) = open.find(|question| !dealt_with.contains(&text_of(&question["id"]))) else {
                return Ok(!is_left);
            };
            let id = text_of(&question["id"]);
            let is_input = question["kind"] == QuestionKind::Input.as_str();
            let outcome = match is_input {
                true => self.supply(&run, &id, screen).await?,
                false => self.decide(&id, screen).await?,
            };
            let later = match is_input {
                true => format!("later: reveille run answer {run_id}"),
                false => format!("later: reveille approval show {id}"),
            };
            match outcome {
                QuestionOutcome::Answered => {
                    dealt_with.insert(id);
                }
                QuestionOutcome::Refused => {}
                QuestionOutcome::Forbidden => {
                    screen.line(later)?;
                    dealt_with.insert(id);
                    is_left = true;
                }
                QuestionOutcome::Unanswered(InputStop::End) => {
                    screen.line(format!("\n{later}"))?;
                    return Ok(false);
                }
                QuestionOutcome::Unanswered(InputStop::Interrupt) => {
                    self.cancel(run_id, screen).await?;
                    return Ok(true);
                }
            }
        }
    }

    /// Cancels the run; one that has ended meanwhile stays as it is.
    async fn cancel(&self, run_id: &str, screen: &mut Screen) -> anyhow::Result<()> {
        match self.client.post(&["v1", "runs", run_id, "cancel"], &json!({})).await {
            // among lines of JSON there is no place for a sentence; the run's end says the rest
            Err(error) if self.as_json && refusal_of(&error).is_some() => Ok(()),
            cancelled => outcome_of(cancelled.map(drop), screen).map(drop),
        }
    }

    /// Shows a call that waits, and asks whether it may be executed.
    async fn decide(&mut self, id: &str, screen: &mut Screen) -> anyhow::Result<QuestionOutcome> {
        let approval = match self.client.get(&["v1", "approvals", id], &[]).await {
            Ok(approval) => approval,
            // asked for at once again, it would be refused again
            Err(error) => return outcome_of(Err(error), screen).map(|_| QuestionOutcome::Forbidden),
        };
        let answer = match self.answer_about(&approval, screen).await? {
            Ok(answer) => answer,
            Err(none) => return Ok(QuestionOutcome::Unanswered(none)),
        };
        let decided = self.client.post(&["v1", "approvals", id, "decision"], &answer).await;
        if let Ok(decided) = &decided
            && decided["status"] == ApprovalStatus::Pending.as_str()
        {
            let (agreed, needed) = (text_of(&decided["agreed"]), text_of(&decided["required_approvers"]));
            screen.line(format!("{agreed} of {needed} people have agreed"))?;
        }
        outcome_of(decided.map(drop), screen)
    }

    /// The decision about one call.
    async fn answer_about(
        &mut self,
        approval: &Value,
        screen: &mut Screen,
    ) -> anyhow::Result<Result<Value, InputStop>> {
        let what = on_one_line(&text_of(&approval["action_summary"]));
        screen.line(format!("\n{}", screen.tone(Tone::Strong, what)))?;
        screen.line(format!("  {}", on_one_line(&approval["details"].to_string())))?;
        if !approval["precheck"].is_null() {
            screen.line(format!("  {}", on_one_line(&approval["precheck"].to_string())))?;
        }
        loop {
            let choice = match self.keyboard.line(CHOICES, screen).await? {
                Ok(choice) => choice,
                Err(none) => return Ok(Err(none)),
            };
            let decision = choice.trim().to_lowercase();
            let answer = match decision.as_str() {
                "approve" | "cancel" => json!({ "decision": decision, "digest": approval["digest"] }),
                "edit" => {
                    let changes = match self.keyboard.line(CHANGES, screen).await? {
                        Ok(changes) => changes,
                        Err(none) => return Ok(Err(none)),
                    };
                    match serde_json::from_str::<Value>(&changes) {
                        Ok(changes @ Value::Object(_)) => {
                            json!({ "decision": "edit", "digest": approval["digest"], "modifications": changes })
                        }
                        _ => {
                            screen.line("that is no JSON object, such as {\"amount\": 80}")?;
                            continue;
                        }
                    }
                }
                "later" => return Ok(Err(InputStop::End)),
                _ => continue,
            };
            let is_meant = match decision.as_str() {
                "cancel" => Ok(true),
                _ => self.confirm(approval, screen).await?,
            };
            match is_meant {
                Ok(true) => return Ok(Ok(answer)),
                Ok(false) => {}
                Err(none) => return Ok(Err(none)),
            }
        }
    }

    /// Whether a call may be executed: one that may be impossible to undo may once the person has typed the name of its
    /// tool.
    async fn confirm(&mut self, approval: &Value, screen: &mut Screen) -> anyhow::Result<Result<bool, InputStop>> {
        if !may_be_irreversible(approval) {
            return Ok(Ok(true));
        }
        let tool = on_one_line(&text_of(&approval["agent_name"]));
        screen.line(format!("this may be impossible to undo; type `{tool}` to confirm it"))?;
        let typed = match self.keyboard.line(CONFIRMATION, screen).await? {
            Ok(typed) => typed,
            Err(none) => return Ok(Err(none)),
        };
        let is_confirmed = typed.trim() == tool;
        if !is_confirmed {
            screen.line("it is not confirmed: nothing is decided")?;
        }
        Ok(Ok(is_confirmed))
    }
}

/// Whether a call may be impossible to undo; one of which that is not known here is taken for such a call.
fn may_be_irreversible(approval: &Value) -> bool {
    let category = approval["category"].as_str().and_then(Category::parse);
    let consequence = approval["consequence"].as_str().and_then(Consequence::parse);
    category.zip(consequence).is_none_or(|(category, consequence)| is_irreversible(category, consequence))
}

/// The outcome of an answer that was sent. A refusal is shown, and ends nothing; a service that is away does.
fn outcome_of(sent: anyhow::Result<()>, screen: &mut Screen) -> anyhow::Result<QuestionOutcome> {
    let Err(error) = sent else { return Ok(QuestionOutcome::Answered) };
    let Some(outcome) = refusal_of(&error) else { return Err(error) };
    error.to_string().lines().try_for_each(|line| screen.line(on_one_line(line)))?;
    Ok(outcome)
}

/// How an answer was refused; `None`: it is unknown whether the service has it.
fn refusal_of(error: &anyhow::Error) -> Option<QuestionOutcome> {
    match error.downcast_ref::<CliFailure>().and_then(CliFailure::status) {
        Some(403) => Some(QuestionOutcome::Forbidden),
        Some(400 | 402 | 404..500) => Some(QuestionOutcome::Refused),
        _ => None,
    }
}
