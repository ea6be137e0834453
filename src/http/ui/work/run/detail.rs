//! The details of a row: arguments and result of a call, tokens and cost of an answer, and the reasons.

use axum::extract::Path;
use serde_json::{Value, json};

use crate::base::compute::steps_to_write;
use crate::http::ui::frame::{UiError, UiResult, Visit};
use crate::http::ui::work::run::cut::{SHOWN_BYTES, cut_text};
use crate::http::ui::work::run::entry::{RunEntry, list, text};
use crate::http::ui::work::run::pages::entries;
use crate::http::ui::work::run::raw::whole_text;
use crate::http::ui::work::run::sections::sections;
use crate::http::ui::work::run::timeline::items_of;
use crate::http::ui::work::run::words::words;

/// Entries before a result among which its call is looked for.
const LOOKED_BACK: u32 = 50;

/// An entry, and of a result the call that it answers.
struct DetailEntry {
    entry: Value,
    call: Option<Value>,
}

impl DetailEntry {
    /// The steps that it takes at most to go through it.
    fn steps(&self) -> u64 {
        steps_to_write(&self.entry).saturating_add(self.call.as_ref().map_or(0, steps_to_write))
    }

    /// The text of this name, whole.
    fn text(&self, part: &str) -> Option<String> {
        let all = sections(&RunEntry::of(&self.entry)?, self.call.as_ref());
        all.into_iter().find(|section| section.part == part).map(|section| section.text)
    }
}

/// The details of a row by themselves, for the script.
pub async fn show_detail(visit: Visit, Path((id, row)): Path<(String, String)>) -> UiResult {
    let seq: u32 = row.parse().map_err(|_| UiError::not_found())?;
    let asked = [("run_id", id.clone()), ("limit", "200".to_owned())];
    let approvals = visit.part(&["v1", "approvals"], &asked).await;
    let detail = detail(&visit, &id, seq, items_of(&approvals)).await?;
    visit.show("run_detail.html", format!("Row {seq}"), json!({ "detail": detail })).await
}

/// A text of a row, whole.
pub async fn show_body(visit: Visit, Path((id, row)): Path<(String, String)>) -> UiResult {
    let seq: u32 = row.parse().map_err(|_| UiError::not_found())?;
    let found = find(&visit, &id, seq).await?;
    let asked = visit.query("part").unwrap_or_default().to_owned();
    let text = visit.compute(found.steps(), move || found.text(&asked)).await?;
    whole_text(&visit, text.ok_or_else(UiError::not_found)?).await
}

/// The details of a row, as the template shows them.
///
/// # Errors
/// There is no such entry, or the reader may not see it.
pub async fn detail(visit: &Visit, id: &str, seq: u32, approvals: &[Value]) -> Result<Value, UiError> {
    let found = find(visit, id, seq).await?;
    let (id, approvals) = (id.to_owned(), approvals.to_vec());
    let view = visit.compute(found.steps(), move || view(&found, &id, &approvals)).await?;
    view.ok_or_else(UiError::not_found)
}

async fn find(visit: &Visit, id: &str, seq: u32) -> Result<DetailEntry, UiError> {
    let first = entries(visit, id, seq, 1).await?.items.into_iter().next();
    let entry = first.filter(|entry| entry["seq"] == seq).ok_or_else(UiError::not_found)?;
    let call = match entry["role"] == "tool" {
        true => call_of(visit, id, seq, &entry).await?,
        false => None,
    };
    Ok(DetailEntry { entry, call })
}

/// The call that a result answers, where it is near.
async fn call_of(visit: &Visit, id: &str, seq: u32, entry: &Value) -> Result<Option<Value>, UiError> {
    let Some(result) = RunEntry::of(entry) else { return Ok(None) };
    let before = entries(visit, id, seq.saturating_sub(LOOKED_BACK), LOOKED_BACK).await?;
    Ok(asked_call(&result, &before.items).cloned())
}

fn asked_call<'a>(result: &RunEntry, before: &'a [Value]) -> Option<&'a Value> {
    let key = result.key_of(result.text("call_id"));
    let answers = before.iter().rev().filter_map(RunEntry::of).filter(|entry| entry.role == "assistant");
    let mut calls = answers.flat_map(|entry| entry.calls().iter().map(move |call| (entry, call)));
    calls.find(|(entry, call)| entry.key_of(text(&call["id"])) == key).map(|(_, call)| call)
}

fn view(found: &DetailEntry, id: &str, approvals: &[Value]) -> Option<Value> {
    let entry = RunEntry::of(&found.entry)?;
    let json = entry.json;
    let words = words(&entry);
    let texts = sections(&entry, found.call.as_ref()).into_iter().map(|section| {
        let cut = cut_text(&section.text, SHOWN_BYTES);
        json!({
            "name": section.name,
            "shown": cut.shown,
            "is_cut": cut.is_cut,
            "bytes": section.text.len(),
            "href": format!("/ui/runs/{id}/rows/{}/body?part={}", entry.seq, section.part),
        })
    });
    Some(json!({
        "seq": entry.seq,
        "kind": words.kind,
        "label": words.label,
        "failed": entry.is_failure(),
        "turn": entry.turn,
        "agents": entry.chain(),
        "at": json["at"],
        "took_ms": entry.took(),
        "fetched_at": json["fetched_at"],
        "model": json["model_call"]["model"],
        "tokens": json["model_call"]["tokens"],
        "cost_usd": json["cost_usd"],
        "finish": json["finish"],
        "call_id": json["call_id"],
        "reasons": list(&json["reasons"]),
        "notices": list(&json["notices"]),
        "has_no_call": entry.role == "tool" && found.call.is_none(),
        "questions": questions(&entry, approvals),
        "texts": texts.collect::<Vec<_>>(),
    }))
}

/// The questions to people about a call, and the reasons for them.
fn questions(entry: &RunEntry, approvals: &[Value]) -> Vec<Value> {
    let is_about = |approval: &&Value| {
        approval["turn"] == entry.turn
            && list(&approval["delegation_chain"]) == entry.chain()
            && (entry.role == "assistant" || approval["agent_name"] == entry.json["name"])
    };
    let asked = approvals.iter().filter(is_about).filter(|_| matches!(entry.role, "assistant" | "tool"));
    let question = |approval: &Value| {
        json!({
            "id": approval["id"],
            "summary": approval["action_summary"],
            "status": approval["status"],
            "decided_by": approval["decided_by"],
            "decided_at": approval["decided_at"],
            "comment": approval["comment"],
            "reasons": approval["reasons"],
        })
    };
    asked.map(question).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn result(seq: i64) -> Value {
        json!({ "seq": seq, "turn": 1, "at": "2026-11-21T00:00:02Z", "role": "tool", "call_id": "a", "name": "look",
            "content": "x".repeat(SHOWN_BYTES + 1), "reasons": ["a grant covers it"] })
    }

    fn answer(turn: i64, n: i64) -> Value {
        json!({ "seq": turn, "turn": turn, "at": "2026-11-21T00:00:01Z", "role": "assistant",
            "tool_calls": [{ "id": "a", "name": "look", "args": { "n": n } }] })
    }

    #[test]
    fn result_is_shown_with_the_arguments_of_its_call() {
        let (result, before) = (result(5), [answer(1, 7), answer(2, 8)]);
        let call = asked_call(&RunEntry::of(&result).unwrap(), &before).cloned();
        assert_eq!(call.as_ref().unwrap()["args"], json!({ "n": 7 }), "that of its own turn");
        let view = view(&DetailEntry { entry: result, call }, "9", &[]).unwrap();
        assert_eq!((&view["texts"][0]["shown"], &view["has_no_call"]), (&json!("{\n  \"n\": 7\n}"), &json!(false)));
        assert_eq!((&view["texts"][1]["is_cut"], &view["texts"][0]["is_cut"]), (&json!(true), &json!(false)));
        assert_eq!(view["texts"][1]["href"], "/ui/runs/9/rows/5/body?part=result");
        assert_eq!(view["reasons"], json!(["a grant covers it"]));
    }

    #[test]
    fn question_about_a_call_is_told_with_its_reasons() {
        let asked = |turn: i64, tool: &str| json!({ "id": "q", "turn": turn, "delegation_chain": [], "agent_name": tool, "reasons": ["it sends"] });
        let told = |approval: Value| {
            let found = DetailEntry { entry: result(5), call: None };
            view(&found, "9", &[approval]).unwrap()["questions"].clone()
        };
        assert_eq!(told(asked(1, "look"))[0]["reasons"], json!(["it sends"]));
        assert_eq!((told(asked(2, "look")), told(asked(1, "send"))), (json!([]), json!([])));
    }
}
