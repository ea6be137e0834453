//! `reveille tool call`: a tool that is tried. A call that acts is shown, and made once a person has said yes.

use std::io::Read;

use anyhow::Context;
use serde_json::{Map, Value, json};

use crate::base::unicode_safety::{escape_hidden, on_one_line};
use crate::cli::client::given_filters;
use crate::cli::screen::text_of;
use crate::cli::{CliFailure, Client, Screen, ServiceArgs, Tone, YesArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille tool call current_time --tenant ann
  reveille tool call github.create_issue --tenant ann --args '{\"title\": \"Broken\"}'
  reveille tool call send_note --tenant ann --args @note.json --yes

A call that only reads is made at once. Any other is shown, and made once it is confirmed: on a
terminal by an answer, elsewhere by --yes.")]
pub struct CallArgs {
    /// The tool; that of an MCP server is named `server.tool`
    #[arg(value_name = "NAME")]
    name: String,
    /// Its arguments as a JSON object; `@FILE` has them, and so has standard input with `@-` [default: none]
    #[arg(long = "args", value_name = "JSON")]
    arguments: Option<String>,
    /// For whom, and with whose credentials; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    yes: YesArgs,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: CallArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::TOOL_CALL);
    let arguments = read_arguments(args.arguments.as_deref())?;
    let filters = given_filters([("tenant_id", args.tenant.clone())]);
    let tool = client.get(&["v1", "tools", &args.name], &filters).await?;
    let mut asked = json!({ "arguments": arguments, "version": tool["version"] });
    if let Some(tenant) = &args.tenant {
        asked["tenant_id"] = json!(tenant);
    }
    let path = ["v1", "tools", args.name.as_str(), "call"];
    let trial = match client.post_once(&path, &asked).await {
        Err(refused) if needs_confirmation(&refused) => {
            match args.service.json {
                true => args.yes.must_be_given("--json does not show the call that is made")?,
                false => {
                    show_call(&tool, &refused, &asked["arguments"], screen)?;
                    args.yes.must_confirm("make this call?", screen)?;
                }
            }
            asked["confirmed"] = json!(true);
            client.post_once(&path, &asked).await?
        }
        answered => answered?,
    };
    match args.service.json {
        true => screen.json(&trial)?,
        false => show_trial(&trial, screen)?,
    }
    match &trial["error"] {
        Value::Null => Ok(()),
        _ => Err(CliFailure::new("the tool failed").into()),
    }
}

/// The arguments that were typed, or that stand in a file or on standard input.
fn read_arguments(typed: Option<&str>) -> anyhow::Result<Map<String, Value>> {
    let text = match typed {
        None => return Ok(Map::new()),
        Some("@-") => {
            let mut text = String::new();
            std::io::stdin().read_to_string(&mut text).context("read standard input")?;
            text
        }
        Some(typed) => match typed.strip_prefix('@') {
            Some(file) => std::fs::read_to_string(file).with_context(|| format!("read {file}"))?,
            None => typed.to_owned(),
        },
    };
    let no_object = |why: String| -> anyhow::Error {
        CliFailure::new(format!("--args: {why}")).hint("such as --args '{\"name\": \"value\"}', or --args @FILE").into()
    };
    match serde_json::from_str(&text) {
        Ok(Value::Object(arguments)) => Ok(arguments),
        Ok(_) => Err(no_object("must be a JSON object".to_owned())),
        Err(error) => Err(no_object(format!("is no JSON: {error}"))),
    }
}

fn needs_confirmation(error: &anyhow::Error) -> bool {
    error.downcast_ref::<CliFailure>().is_some_and(|failure| failure.is_problem("confirmation_required"))
}

/// Prints the call that is to be confirmed, and why it has to be.
fn show_call(tool: &Value, why: &anyhow::Error, arguments: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let word = |field: &str| on_one_line(&text_of(&tool[field]));
    screen.facts(&[
        ("tool", word("name")),
        ("category", word("category")),
        ("consequence", word("consequence")),
        ("reason", on_one_line(&why.to_string())),
        ("arguments", pretty(arguments)),
    ])?;
    Ok(())
}

/// Prints what was called, and what came of it.
fn show_trial(trial: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let error = &trial["error"];
    let failed = match error {
        Value::Null => String::new(),
        _ => {
            let message = escape_hidden(text_of(&error["message"]).trim());
            screen.tone(Tone::Bad, format!("{message} ({})", on_one_line(&text_of(&error["code"]))))
        }
    };
    let result = match &trial["result"] {
        Value::Null => String::new(),
        Value::String(text) => escape_hidden(text.trim_end()),
        result => pretty(result),
    };
    let request = match &trial["request"] {
        Value::Null => String::new(),
        Value::String(beginning) => escape_hidden(beginning),
        request => pretty(request),
    };
    screen.facts(&[
        ("tool", on_one_line(&text_of(&trial["tool"]))),
        ("version", on_one_line(&text_of(&trial["version"]))),
        ("arguments", pretty(&trial["arguments"])),
        ("request", request),
        ("took", format!("{} ms", text_of(&trial["duration_ms"]))),
        ("result", result),
        ("error", failed),
    ])?;
    if trial["truncated"] == true {
        screen.line(screen.tone(Tone::Faint, "the result is longer than what is shown"))?;
    }
    Ok(())
}

fn pretty(value: &Value) -> String {
    escape_hidden(&format!("{value:#}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn arguments_are_an_object_typed_or_in_a_file() {
        assert_eq!(read_arguments(None).unwrap(), Map::new());
        assert_eq!(Value::from(read_arguments(Some(r#"{"n": 1}"#)).unwrap()), json!({ "n": 1 }));
        for (typed, told) in [("[1]", "--args: must be a JSON object"), ("{n", "--args: is no JSON: ")] {
            let refused = read_arguments(Some(typed)).unwrap_err().to_string();
            assert!(refused.starts_with(told) && refused.contains("\nhint: "), "{refused}");
        }
        let missing = read_arguments(Some("@/nowhere/at/all")).unwrap_err();
        assert_eq!(missing.to_string(), "read /nowhere/at/all");
    }

    #[test]
    fn trial_is_shown_with_its_result_or_its_error_and_moves_no_cursor() {
        let shown = |more: Value| {
            let mut trial = json!({ "tool": "look", "version": "1", "arguments": {}, "duration_ms": 7 });
            trial.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            let page = TextPage::default();
            show_trial(&trial, &mut Screen::plain(page.clone())).unwrap();
            page.text()
        };
        let head = "tool       look\nversion    1\narguments  {}\ntook       7 ms\n";
        let cut = "the result is longer than what is shown\n";
        let told = shown(json!({ "result": "a\u{1b}[2J\nb\n", "truncated": true }));
        assert_eq!(told, format!("{head}result     a␛[2J\n           b\n{cut}"));
        let sent = shown(json!({ "request": { "server": "github\u{1b}" }, "result": 1 }));
        assert!(sent.contains("request    {\n") && sent.contains("\"server\": \"github\\u001b\""), "{sent}");
        let error = json!({ "kind": "not_found", "code": "http_404", "message": "nothing is there" });
        assert_eq!(shown(json!({ "error": error })), format!("{head}error      nothing is there (http_404)\n"));
    }

    #[test]
    fn only_a_refusal_that_asks_for_it_is_confirmed() {
        let refused = |problem: &str| anyhow::Error::from(CliFailure::new("no").with_problem(problem));
        assert!(needs_confirmation(&refused("urn:reveille:problem:confirmation_required")));
        assert!(!needs_confirmation(&refused("urn:reveille:problem:conflict")));
        assert!(!needs_confirmation(&anyhow::anyhow!("confirmation_required")));
    }
}
