//! `reveille run answer`: shows or answers a run's questions for input.

use serde_json::{Map, Value, json};

use crate::base::unicode_safety::on_one_line;
use crate::cli::remote::approval::change;
use crate::cli::remote::run::print_run;
use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone, typed};
use crate::config::Environment;
use crate::http::api::runs::server_question::choices_of;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille run answer 0193f7a2                     show what it asks for
  reveille run answer 0193f7a2 4                   the value of the one field that is awaited
  reveille run answer 0193f7a2 --set party=4 --set name=Ann
  reveille run answer 0193f7a2 --decline           tell the MCP server that asks no; the call goes on")]
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
    /// Tell the MCP server that asks no; its call goes on
    #[arg(long, conflicts_with_all = ["message", "set", "cancel", "done"])]
    decline: bool,
    /// Stop the call that asks; the model is told
    #[arg(long, conflicts_with_all = ["message", "set", "done"])]
    cancel: bool,
    /// Say that you have done what an MCP server asks for on a page of its own
    #[arg(long, conflicts_with_all = ["message", "set"])]
    done: bool,
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
    let actions = [(args.decline, "decline"), (args.cancel, "cancel"), (args.done, "accept")];
    if let Some((_, action)) = actions.into_iter().find(|(is_said, _)| *is_said) {
        return Ok(Some(json!({ "action": action })));
    }
    let fields = args.set.iter().map(|pair| change(pair)).collect::<anyhow::Result<Map<_, _>>>()?;
    Ok((!fields.is_empty()).then(|| json!({ "fields": fields })))
}

/// Prints a question for input, and what is said about it: of a question of an MCP server the server, the tool and the
/// pages to which it sends the person, host first.
pub fn print_question(input: &Value, screen: &mut Screen) -> std::io::Result<()> {
    let asked = &input["server"];
    if asked.is_object() {
        let who = on_one_line(&format!("{} ({})", text_of(&asked["server"]), text_of(&asked["tool"])));
        screen.line(format!("\n{who} asks:"))?;
    }
    let above = if asked.is_object() { "" } else { "\n" };
    screen.line(format!("{above}{}", screen.tone(Tone::Strong, on_one_line(&text_of(&input["question"])))))?;
    for line in text_of(&input["description"]).lines() {
        screen.line(format!("  {}", on_one_line(line)))?;
    }
    for link in asked["links"].as_array().into_iter().flatten() {
        let (host, url) = (on_one_line(&text_of(&link["host"])), on_one_line(&text_of(&link["url"])));
        screen.line(format!("  {} (not opened): {url}", screen.tone(Tone::Notable, host)))?;
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
        if input["server"].is_object() {
            print_fields(input, screen)?;
        }
        let awaited: Vec<String> = input["awaited"].as_array().into_iter().flatten().map(text_of).collect();
        // where none has to be there, any of them is an answer
        let optional = || input["fields"]["properties"].as_object().into_iter().flatten().map(|(name, _)| name.clone());
        let names: Vec<String> = if awaited.is_empty() { optional().collect() } else { awaited };
        let flags: Vec<String> = names.iter().map(|name| format!("--set {}=…", on_one_line(name))).collect();
        let named = if inputs.len() > 1 { format!(" --input {}", text_of(&input["id"])) } else { String::new() };
        let is_page =
            input["server"].is_object() && input["fields"]["properties"].as_object().is_none_or(Map::is_empty);
        let answer = if is_page { "--done".to_owned() } else { flags.join(" ") };
        let more: &[&str] = if input["server"].is_object() { &["--decline", "--cancel"] } else { &[] };
        for how in [answer.as_str()].iter().chain(more) {
            screen.line(format!("  reveille run answer {} {how}{named}", text_of(&input["run_id"])))?;
        }
    }
    Ok(())
}

/// Prints a line for each field: its name, its title, what it takes, and whether it has to be there.
fn print_fields(input: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let required: Vec<&str> =
        input["fields"]["required"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    for (name, field) in input["fields"]["properties"].as_object().into_iter().flatten() {
        let title = field["title"].as_str().map(|title| format!(" {title}")).unwrap_or_default();
        let need = if required.contains(&name.as_str()) { "required" } else { "optional" };
        screen.line(format!("  {}", on_one_line(&format!("{name}:{title} ({}, {need})", taken_by(field)))))?;
    }
    Ok(())
}

/// The values that a field takes: the choices, or a type.
fn taken_by(field: &Value) -> String {
    let kind = field["type"].as_str().unwrap_or("any");
    let choices = choices_of(field);
    match (choices.is_empty(), kind) {
        (true, _) => kind.to_owned(),
        (false, "array") => format!("some of: {}", choices.join(", ")),
        (false, _) => format!("one of: {}", choices.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    fn printed(input: Value) -> String {
        let page = TextPage::default();
        print_inputs(&json!({ "inputs": [input] }), &mut Screen::plain(page.clone())).unwrap();
        page.text()
    }

    #[test]
    fn question_of_a_server_names_it_and_its_hosts_and_the_commands_that_answer() {
        let asked = |links: Value, properties: Value, awaited: Value| {
            printed(json!({
                "id": "i1", "run_id": "r1", "question": "Deploy\u{202e}?", "description": "", "awaited": awaited,
                "fields": { "properties": properties },
                "server": { "server": "one", "tool": "confirm", "links": links },
            }))
        };
        let others = "  reveille run answer r1 --decline\n  reveille run answer r1 --cancel\n";
        let form = asked(json!([]), json!({ "sure": {} }), json!(["sure"]));
        assert_eq!(
            form,
            format!(
                "\none (confirm) asks:\nDeploy⟦U+202E⟧?\n  sure: (any, optional)\n  \
                 reveille run answer r1 --set sure=…\n{others}"
            )
        );
        let optional = asked(json!([]), json!({ "note": {} }), json!([]));
        assert!(optional.contains("  reveille run answer r1 --set note=…\n"), "{optional}");
        let link = json!([{ "host": "example.org", "url": "https://example.org/a", "message": "Log in" }]);
        let page = asked(link, json!({}), json!([]));
        let shown = "  example.org (not opened): https://example.org/a\n  reveille run answer r1 --done\n";
        assert!(page.ends_with(&format!("{shown}{others}")), "{page}");
    }

    #[test]
    fn field_of_a_server_is_shown_with_its_title_and_type_or_choices_and_whether_it_is_required() {
        let shown = printed(json!({
            "id": "i1", "run_id": "r1", "question": "Deploy?", "description": "", "awaited": ["days"],
            "fields": { "required": ["days"], "properties": {
                "days": { "type": "integer", "title": "How\nlong\u{202e}" },
                "at": { "type": "string", "oneOf": [{ "const": "eu", "title": "Europe" }, { "const": "us" }] },
                "by": { "type": "array", "items": { "enum": ["a", "b"] } },
            } },
            "server": { "server": "one", "tool": "confirm", "links": [] },
        }));
        for line in [
            "  days: How long⟦U+202E⟧ (integer, required)",
            "  at: (one of: eu (Europe), us, optional)",
            "  by: (some of: a, b, optional)",
        ] {
            assert!(shown.lines().any(|shown| shown == line), "{line}: {shown}");
        }
    }

    #[test]
    fn question_of_an_agent_is_answered_by_its_fields_alone() {
        let input = json!({
            "id": "i1", "run_id": "r1", "question": "For how many?", "description": "party: is missing",
            "awaited": ["party"], "fields": { "properties": { "party": {} } }, "server": null,
        });
        assert_eq!(printed(input), "\nFor how many?\n  party: is missing\n  reveille run answer r1 --set party=…\n");
    }
}
