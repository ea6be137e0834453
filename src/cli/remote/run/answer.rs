//! `reveille run answer`: shows or answers a run's questions for input.

use serde_json::{Map, Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::approval::change;
use crate::cli::remote::run::print_run;
use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille run answer 0193f7a2                     show what it asks for
  reveille run answer 0193f7a2 4                   the value of the one field that is awaited
  reveille run answer 0193f7a2 --set party=4 --set name=Ann")]
pub struct AnswerArgs {
    /// The run: its id, or the beginning of it
    #[arg(value_name = "RUN")]
    id: String,
    /// The answer in words [default: show what is asked]
    #[arg(value_name = "MESSAGE", conflicts_with = "set")]
    message: Option<String>,
    /// A field and its value, as JSON or else as a text; may be given again
    #[arg(long, value_name = "NAME=VALUE")]
    set: Vec<String>,
    /// The question, where several are open: its id, or the beginning of it
    #[arg(long, value_name = "INPUT")]
    input: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: AnswerArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::RUN_ANSWER);
    let id = client.id("runs", &args.id).await?;
    let Some(mut answer) = answer(&args)? else {
        let run = client.get(&["v1", "runs", &id], &[]).await?;
        if args.service.json {
            return Ok(screen.json(&json!({ "items": run["inputs"] }))?);
        }
        return print_inputs(&run, screen);
    };
    if let Some(input) = args.input {
        answer["input_id"] = json!(client.open_input(&id, &input).await?);
    }
    let run = client.post(&["v1", "runs", &id, "input"], &answer).await?;
    print_run(&run, args.service.json, screen)
}

fn answer(args: &AnswerArgs) -> anyhow::Result<Option<Value>> {
    if let Some(message) = &args.message {
        return Ok(Some(json!({ "message": message })));
    }
    let fields = args.set.iter().map(|pair| change(pair)).collect::<anyhow::Result<Map<_, _>>>()?;
    Ok((!fields.is_empty()).then(|| json!({ "fields": fields })))
}

/// Prints a question for input, and what is said about it.
pub fn print_question(input: &Value, screen: &mut Screen) -> std::io::Result<()> {
    screen.line(format!("\n{}", screen.tone(Tone::Strong, on_one_line(&text_of(&input["question"])))))?;
    for line in text_of(&input["description"]).lines() {
        screen.line(format!("  {}", on_one_line(line)))?;
    }
    Ok(())
}

/// Prints what a run asks for, with the command that answers.
pub fn print_inputs(run: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let inputs = run["inputs"].as_array().map(Vec::as_slice).unwrap_or_default();
    if inputs.is_empty() {
        return Err(CliFailure::new("the run waits for no input").into());
    }
    for input in inputs {
        print_question(input, screen)?;
        let awaited: Vec<String> = input["awaited"].as_array().into_iter().flatten().map(text_of).collect();
        let flags: Vec<String> = awaited.iter().map(|name| format!("--set {name}=…")).collect();
        let named = if inputs.len() > 1 { format!(" --input {}", text_of(&input["id"])) } else { String::new() };
        screen.line(format!("  reveille run answer {} {}{named}", text_of(&input["run_id"]), flags.join(" ")))?;
    }
    Ok(())
}
