//! A run's conversation for people: who said what, which tools were called, what they gave.

use std::io;

use serde_json::Value;

use super::screen::{Screen, Tone, cut, text_of};
use crate::base::unicode_safety::{escape_hidden, on_one_line};
use crate::domain::run::RunFinish;

/// Longest tool arguments and results, in characters; `--json` has them whole.
const LONGEST: usize = 300;
/// Longest number of a tool that tells how far it is, in characters.
const LONGEST_NUMBER: usize = 20;

/// Prints stored entries, oldest first.
pub fn print(entries: &[Value], screen: &mut Screen) -> io::Result<()> {
    for entry in entries {
        let speaker = text_of(&entry["role"]);
        match speaker.as_str() {
            "pipeline" => screen.line(screen.tone(Tone::Faint, "pipeline"))?,
            "step" => print_step(entry, "…", screen)?,
            "step_result" => print_outcome(entry, screen)?,
            "unusable" => {
                print_speaker("unusable answer", &entry["model_call"], screen)?;
                print_text(&text_of(&entry["code"]), screen)?;
            }
            "verdict" => {
                let findings =
                    ["warnings", "flags"].into_iter().flat_map(|kind| entry[kind].as_array().into_iter().flatten());
                print_speaker("verdict", &Value::Null, screen)?;
                findings.map(text_of).try_for_each(|finding| print_text(&finding, screen))?;
            }
            "compaction" => {
                print_speaker("compaction", &Value::Null, screen)?;
                let (from, to, by) = (&entry["from"], &entry["to"], text_of(&entry["by"]["kind"]));
                print_text(&format!("entries {from} to {to}: {by}"), screen)?;
            }
            "tool" => {
                print_result(&entry["name"], &entry["content"], entry["is_error"] == true, screen)?;
                for notice in entry["notices"].as_array().into_iter().flatten() {
                    print_text(&text_of(&notice["text"]), screen)?;
                }
            }
            _ => {
                let chain = entry["delegation"]["chain"].as_array().into_iter().flatten().map(text_of);
                let speaker = chain.map(|agent| on_one_line(&agent)).chain([speaker]).collect::<Vec<_>>().join(" › ");
                print_speaker(&speaker, &entry["model_call"], screen)?;
                print_text(&text_of(&entry["text"]), screen)?;
                for call in entry["tool_calls"].as_array().into_iter().flatten() {
                    print_call(&call["name"], &call["args"], screen)?;
                }
            }
        }
    }
    Ok(())
}

/// A step of a pipeline: its name, which item, and what of it.
fn print_step(entry: &Value, what: &str, screen: &mut Screen) -> io::Result<()> {
    let index = entry["index"].as_u64().map_or(String::new(), |index| format!("[{index}]"));
    screen.line(format!("  {}{index} {what}", text_of(&entry["name"])))
}

fn print_outcome(entry: &Value, screen: &mut Screen) -> io::Result<()> {
    let outcome = &entry["outcome"];
    let told = match outcome["status"].as_str() {
        Some("done") => format!("✓ {}", cut(&outcome["value"].to_string(), LONGEST)),
        status => {
            let again = if status == Some("again") { ", to be tried again" } else { "" };
            let error = &outcome["error"];
            format!("✗ {} ({}{again})", cut(&text_of(&error["message"]), LONGEST), text_of(&error["code"]))
        }
    };
    print_step(entry, &told, screen)
}

/// The line behind the answer of an agent that had used up its turns.
const STOPPED_AT_LIMIT: &str = "! the agent was stopped at its limit of turns: this is as far as it came";

/// A stream as it comes; knows whether a line is open.
#[derive(Debug, Default)]
pub struct LiveTranscript {
    /// Text of the present turn that has been printed, and its line not ended; `None`: none.
    open: Option<String>,
}

impl LiveTranscript {
    /// Prints one event of a run's stream.
    pub fn print(&mut self, name: &str, data: &Value, screen: &mut Screen) -> io::Result<()> {
        match name {
            "message_chunk" => {
                if self.open.is_none() {
                    screen.line("")?;
                }
                self.open.get_or_insert_default().push_str(&text_of(&data["text"]));
                return screen.piece(&printable(&data["text"]));
            }
            // some pieces may have been lost, and some be no part of the answer
            "message_end" if self.has_printed(&text_of(&data["text"])) => {
                self.close(screen)?;
                return print_model_call(&data["model_call"], screen);
            }
            _ => self.close(screen)?,
        }
        match name {
            "message_end" if text_of(&data["text"]).is_empty() => {
                print_speaker("assistant", &data["model_call"], screen)
            }
            // it looks as if it had come piece by piece: whether it did is a matter of milliseconds
            "message_end" => {
                screen.line("")?;
                screen.line(printable(&data["text"]))?;
                print_model_call(&data["model_call"], screen)
            }
            "tool_call_start" => print_call(&of_agent(data, "tool"), &data["args"], screen),
            "tool_result" => print_result(&of_agent(data, "tool"), &data["result"], data["error"] == true, screen),
            "tool_progress" => screen.line(screen.tone(Tone::Faint, progress_line(data))),
            "state_change" => screen.line(screen.tone(Tone::Faint, state_line(data))),
            "input_required" => {
                let what = on_one_line(&text_of(&data["question"]));
                let asks = if data["server"].is_string() { " asks" } else { "" };
                screen.line(screen.tone(Tone::Notable, format!("? {}{asks}: {what}", text_of(&data["tool"]))))
            }
            "approval_required" => {
                let what = on_one_line(&text_of(&data["summary"]));
                screen.line(screen.tone(Tone::Notable, format!("? {}: {what}", text_of(&data["tool"]))))
            }
            "tool_warning" => {
                let line = format!("! {}: {}", text_of(&data["tool"]), text_of(&data["message"]));
                screen.line(screen.tone(Tone::Notable, line))
            }
            "error" => {
                let line = format!("✗ {}: {}", text_of(&data["code"]), text_of(&data["message"]));
                screen.line(screen.tone(Tone::Bad, line))
            }
            "execution_end" if data["finish"] == RunFinish::MaxTurns.as_str() => {
                screen.line(screen.tone(Tone::Notable, STOPPED_AT_LIMIT))
            }
            _ => Ok(()),
        }
    }

    /// Whether what is printed ends with this.
    fn has_printed(&self, text: &str) -> bool {
        self.open.as_ref().is_some_and(|printed| printed.trim_end().ends_with(text.trim()))
    }

    fn close(&mut self, screen: &mut Screen) -> io::Result<()> {
        match self.open.take() {
            Some(_) => screen.line(""),
            None => Ok(()),
        }
    }
}

/// A text on as many lines as it has, without what a terminal would obey or nobody would see.
fn printable(text: &Value) -> String {
    let line = |line: &str| escape_hidden(&line.replace(char::is_control, " "));
    text_of(text).split('\n').map(line).collect::<Vec<_>>().join("\n")
}

/// The line above a message: the speaker, and of a model which one and its tokens.
fn print_speaker(speaker: &str, model_call: &Value, screen: &mut Screen) -> io::Result<()> {
    screen.line("")?;
    let call = model_call_text(model_call).map(|call| format!("  {}", screen.tone(Tone::Faint, call)));
    screen.line(format!("{}{}", screen.tone(Tone::Strong, speaker), call.unwrap_or_default()))
}

fn print_model_call(model_call: &Value, screen: &mut Screen) -> io::Result<()> {
    match model_call_text(model_call) {
        Some(call) => screen.line(screen.tone(Tone::Faint, call)),
        None => Ok(()),
    }
}

/// `main, 400 (300 cached) (50 to cache) + 24 (10 thinking) tokens`; `None`: the entry does not say.
fn model_call_text(model_call: &Value) -> Option<String> {
    let (model, tokens) = (model_call["model"].as_str()?, &model_call["tokens"]);
    let count = |name: &str| tokens[name].as_i64().unwrap_or_default();
    let part = |count: i64, what: &str| if count > 0 { format!(" ({count} {what})") } else { String::new() };
    let caches = part(count("cache_read"), "cached") + &part(count("cache_write"), "to cache");
    let input = format!("{}{caches}", count("input"));
    let output = format!("{}{}", count("output"), part(count("reasoning"), "thinking"));
    Some(format!("{}, {input} + {output} tokens", on_one_line(model)))
}

/// Name of a tool, behind that of the configured agent that calls it.
fn of_agent(data: &Value, name: &str) -> Value {
    match data["agent"].as_str() {
        Some(agent) => Value::String(format!("{agent} › {}", text_of(&data[name]))),
        None => data[name].clone(),
    }
}

fn print_text(text: &str, screen: &mut Screen) -> io::Result<()> {
    text.lines().try_for_each(|line| screen.line(format!("  {}", on_one_line(line)).trim_end()))
}

fn print_call(tool: &Value, arguments: &Value, screen: &mut Screen) -> io::Result<()> {
    let arguments = if arguments.is_null() { String::new() } else { arguments.to_string() };
    screen.line(format!("→ {} {}", screen.tone(Tone::Strong, text_of(tool)), cut(&on_one_line(&arguments), LONGEST)))
}

fn print_result(tool: &Value, result: &Value, failed: bool, screen: &mut Screen) -> io::Result<()> {
    let tone = if failed { Tone::Bad } else { Tone::Faint };
    let line = format!("← {} {}", text_of(tool), cut(&on_one_line(&text_of(result)), LONGEST));
    screen.line(screen.tone(tone, line))
}

/// `… climb 2/3: halfway up`.
fn progress_line(data: &Value) -> String {
    let number = |name: &str| data[name].as_f64().map(|number| cut(&number.to_string(), LONGEST_NUMBER));
    let total = number("total").map_or(String::new(), |total| format!("/{total}"));
    let message = data["message"].as_str().map_or(String::new(), |message| format!(": {}", on_one_line(message)));
    let (tool, done) = (text_of(&of_agent(data, "tool")), number("progress").unwrap_or_default());
    format!("… {tool} {done}{total}{}", cut(&message, LONGEST))
}

fn state_line(data: &Value) -> String {
    match text_of(&data["reason"]) {
        reason if reason.is_empty() => format!("· {}", text_of(&data["state"])),
        reason => format!("· {} ({reason})", text_of(&data["state"])),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn model_call_names_the_model_and_the_parts_of_its_tokens() {
        let text = |tokens: Value| model_call_text(&json!({ "model": "main", "tokens": tokens })).unwrap();
        assert_eq!(text(json!({ "input": 400, "output": 24 })), "main, 400 + 24 tokens");
        let whole = json!({ "input": 400, "output": 24, "cache_read": 300, "cache_write": 50, "reasoning": 10 });
        assert_eq!(text(whole), "main, 400 (300 cached) (50 to cache) + 24 (10 thinking) tokens");
        assert_eq!(model_call_text(&Value::Null), None, "an entry of format 1");
    }

    /// The screen behind these events.
    fn shown(events: &[(&str, Value)]) -> String {
        let (page, mut live) = (TextPage::default(), LiveTranscript::default());
        let mut screen = Screen::plain(page.clone());
        events.iter().for_each(|(name, data)| live.print(name, data, &mut screen).unwrap());
        page.text()
    }

    #[test]
    fn message_looks_alike_whether_its_pieces_were_seen_or_only_its_end() {
        let piece = |text: &str| ("message_chunk", json!({ "text": text }));
        let call = json!({ "model": "main", "tokens": { "input": 4, "output": 2 } });
        let end = |text: &str| ("message_end", json!({ "text": text, "model_call": call }));
        let alike = "\nAt the window,\nas ever.\nmain, 4 + 2 tokens\n";
        let whole = "At the window,\nas ever.";
        assert_eq!(shown(&[piece("At the win"), piece("dow,\nas ever."), end(whole)]), alike);
        assert_eq!(shown(&[end(whole)]), alike);
        let thought_first = shown(&[piece("Let me see. "), piece(whole), end(whole)]);
        assert_eq!(thought_first, alike.replace("At the window", "Let me see. At the window"));
        let lost = shown(&[piece("At the win"), end(whole)]);
        assert!(lost.ends_with(alike), "{lost}");
        assert_eq!(shown(&[piece("a\u{202e}b\u{7}")]), "\n⟦U+202E⟧".replace("⟦", "a⟦") + "b ");
        assert_eq!(shown(&[end("")]), "\nassistant  main, 4 + 2 tokens\n", "it only calls");
    }

    #[test]
    fn question_of_a_server_is_told_apart_from_what_an_agent_lacks() {
        let asked = |server: Value| {
            let question = json!({ "tool": "one.confirm", "question": "Deploy?", "server": server });
            shown(&[("input_required", question)])
        };
        assert_eq!(asked(json!("one")), "? one.confirm asks: Deploy?\n");
        assert_eq!(asked(Value::Null), "? one.confirm: Deploy?\n");
    }

    #[test]
    fn progress_of_a_call_is_a_line_with_what_is_known_of_it() {
        let told = |data: Value| shown(&[("tool_progress", data)]);
        let whole = json!({ "tool": "one.climb", "progress": 2.0, "total": 3, "message": "halfway\n\u{202e}up" });
        assert_eq!(told(whole), "… one.climb 2/3: halfway ⟦U+202E⟧up\n");
        assert_eq!(told(json!({ "tool": "climb", "agent": "sherpa", "progress": 0.5 })), "… sherpa › climb 0.5\n");
        let endless = told(json!({ "tool": "climb", "progress": 1e300 }));
        assert!(endless.chars().count() < 40, "{endless}");
    }

    #[test]
    fn answer_of_an_agent_that_was_stopped_at_its_limit_is_marked_as_such() {
        let ended = |finish: Value| {
            let end = json!({ "text": "So far.", "model_call": null });
            shown(&[("message_end", end), ("execution_end", json!({ "state": "succeeded", "finish": finish }))])
        };
        assert_eq!(ended(json!("max_turns")), format!("\nSo far.\n{STOPPED_AT_LIMIT}\n"));
        assert_eq!(ended(json!("answer")), "\nSo far.\n");
        assert_eq!(ended(Value::Null), "\nSo far.\n", "the run has no model");
    }
}
