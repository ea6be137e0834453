//! A run's conversation for people: who said what, which tools were called, what they gave.

use std::io;

use serde_json::Value;

use super::screen::{Screen, Tone, cut, text_of};
use crate::base::unicode_safety::on_one_line;

/// Longest tool arguments and results, in characters; `--json` has them whole.
const LONGEST: usize = 300;

/// Prints stored entries, oldest first.
pub fn print(entries: &[Value], screen: &mut Screen) -> io::Result<()> {
    for entry in entries {
        let speaker = text_of(&entry["role"]);
        match speaker.as_str() {
            "pipeline" => screen.line(screen.tone(Tone::Faint, "pipeline"))?,
            "step" => print_step(entry, "…", screen)?,
            "step_result" => print_outcome(entry, screen)?,
            "tool" => print_result(&entry["name"], &entry["content"], entry["is_error"] == true, screen)?,
            _ => {
                print_said(&speaker, &text_of(&entry["text"]), screen)?;
                if entry["text"].is_null() {
                    screen.line("")?;
                    screen.line(screen.tone(Tone::Strong, &speaker))?;
                }
                for call in entry["tool_calls"].as_array().into_iter().flatten() {
                    print_call(&call["name"], &call["arguments"], screen)?;
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

/// A stream as it comes; knows whether a line is open.
#[derive(Debug, Default)]
pub struct LiveTranscript {
    /// Text of the present turn has been printed and its line not ended.
    open: bool,
}

impl LiveTranscript {
    /// Prints one event of a run's stream.
    pub fn print(&mut self, name: &str, data: &Value, screen: &mut Screen) -> io::Result<()> {
        match name {
            "message_chunk" => {
                if !self.open {
                    screen.line("")?;
                }
                self.open = true;
                return screen.piece(&text_of(&data["text"]).replace(|c: char| c.is_control() && c != '\n', " "));
            }
            "message_end" if self.open => return self.close(screen),
            _ => self.close(screen)?,
        }
        match name {
            "message_end" => print_said("assistant", &text_of(&data["text"]), screen),
            "tool_call_start" => print_call(&data["tool"], &data["args"], screen),
            "tool_result" => print_result(&data["tool"], &data["result"], data["error"] == true, screen),
            "state_change" => screen.line(screen.tone(Tone::Faint, state_line(data))),
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
            _ => Ok(()),
        }
    }

    fn close(&mut self, screen: &mut Screen) -> io::Result<()> {
        match std::mem::take(&mut self.open) {
            true => screen.line(""),
            false => Ok(()),
        }
    }
}

fn print_said(speaker: &str, text: &str, screen: &mut Screen) -> io::Result<()> {
    if text.is_empty() {
        return Ok(());
    }
    screen.line("")?;
    screen.line(screen.tone(Tone::Strong, speaker))?;
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

fn state_line(data: &Value) -> String {
    match text_of(&data["reason"]) {
        reason if reason.is_empty() => format!("· {}", text_of(&data["state"])),
        reason => format!("· {} ({reason})", text_of(&data["state"])),
    }
}
