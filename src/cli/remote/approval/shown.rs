//! An approval on the screen: everything that would run, whole, with nothing hidden in it.

use serde_json::Value;

use crate::base::unicode_safety::on_one_line;
use crate::cli::screen::{text_of, time_of, tone_of};
use crate::cli::{Screen, Tone};

/// Prints a question, and how it stands.
pub fn print(approval: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(approval)?);
    }
    let mut facts = of_call(approval, screen);
    facts.extend([
        ("asked", time_of(&approval["created_at"])),
        ("expires", time_of(&approval["expires_at"])),
        ("why", list(&approval["reasons"])),
        ("step", on_one_line(&text_of(&approval["step"]))),
        ("chain", list(&approval["delegation_chain"])),
        ("agreed", list(&approval["votes"])),
    ]);
    facts.extend(of_decision(approval, screen));
    Ok(screen.facts(&facts)?)
}

/// Prints the call that would run.
pub fn print_call(approval: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let facts = of_call(approval, screen);
    Ok(screen.facts(&facts)?)
}

/// How it stands.
pub fn print_decision(approval: &Value, screen: &mut Screen) -> anyhow::Result<()> {
    let facts = of_decision(approval, screen);
    Ok(screen.facts(&facts)?)
}

fn of_call(approval: &Value, screen: &Screen) -> Vec<(&'static str, String)> {
    let what = on_one_line(&text_of(&approval["action_summary"]));
    let asks = match approval["server"].as_object() {
        Some(asked) => on_one_line(&format!("{} ({})", text_of(&asked["server"]), text_of(&asked["tool"]))),
        None => String::new(),
    };
    vec![
        ("id", text_of(&approval["id"])),
        ("tenant", on_one_line(&text_of(&approval["tenant_id"]))),
        ("run", text_of(&approval["run_id"])),
        ("asks", asks),
        ("what", screen.tone(Tone::Strong, what)),
        ("tool", on_one_line(&text_of(&approval["agent_name"]))),
        ("does", on_one_line(&text_of(&approval["description"]))),
        ("risk", format!("{}, {} consequence", text_of(&approval["category"]), text_of(&approval["consequence"]))),
        ("args", arguments(&approval["details"])),
        ("finds", arguments(&approval["precheck"])),
        ("digest", text_of(&approval["digest"])),
    ]
}

fn of_decision(approval: &Value, screen: &Screen) -> Vec<(&'static str, String)> {
    let status = text_of(&approval["status"]);
    let tone = tone_of(&status);
    let status = match (status.as_str(), approval["agreed"].as_u64()) {
        ("pending", Some(people @ 1..)) => {
            format!("pending, {people} of {} people have agreed", approval["required_approvers"])
        }
        _ => status,
    };
    let outcome = match &approval["outcome"] {
        Value::Null => String::new(),
        outcome if outcome["is_error"] == true => format!("failed: {}", on_one_line(&text_of(&outcome["text"]))),
        outcome => on_one_line(&text_of(&outcome["text"])),
    };
    vec![
        ("status", screen.tone(tone, status)),
        ("decided", time_of(&approval["decided_at"])),
        ("by", on_one_line(&text_of(&approval["decided_by"]))),
        ("comment", on_one_line(&text_of(&approval["comment"]))),
        ("runs with", arguments(&approval["modifications"])),
        ("held until", time_of(&approval["hold_until"])),
        ("outcome", outcome),
        ("grant", text_of(&approval["grant_id"])),
    ]
}

/// JSON over several lines, each of its characters to be seen.
fn arguments(value: &Value) -> String {
    match value {
        Value::Null => String::new(),
        value => format!("{value:#}").lines().map(on_one_line).collect::<Vec<_>>().join("\n"),
    }
}

fn list(items: &Value) -> String {
    items.as_array().into_iter().flatten().map(|item| on_one_line(&text_of(item))).collect::<Vec<_>>().join("\n")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::cli::screen::TextPage;

    #[test]
    fn approval_is_shown_whole_and_nothing_hides_in_it() {
        let page = TextPage::default();
        let approval = json!({
            "id": "a1", "tenant_id": "ann", "run_id": "r1", "agent_name": "pay", "action_summary": "Pay 5\u{202e}0 to bob",
            "description": "Pays.", "category": "write", "consequence": "high", "digest": "d1", "status": "approved",
            "details": { "amount": 5, "to": "b\u{202e}ob\u{1b}[2J" }, "precheck": { "balance": 7 },
            "reasons": ["the matrix says confirm", "the task says confirm"],
            "created_at": "2027-03-01T08:00:00Z", "expires_at": "2027-03-01T08:30:00Z", "votes": [], "required_approvers": 1,
            "decided_at": "2027-03-01T08:10:00Z", "decided_by": "recipient:ann", "comment": "fine",
            "outcome": { "is_error": false, "text": "paid" }, "delegation_chain": [],
        });
        print(&approval, false, &mut Screen::plain(page.clone())).unwrap();
        insta::assert_snapshot!(page.text(), @r#"
        id          a1
        tenant      ann
        run         r1
        what        Pay 5⟦U+202E⟧0 to bob
        tool        pay
        does        Pays.
        risk        write, high consequence
        args        {
                      "amount": 5,
                      "to": "b⟦U+202E⟧ob\u001b[2J"
                    }
        finds       {
                      "balance": 7
                    }
        digest      d1
        asked       2027-03-01 08:00:00Z
        expires     2027-03-01 08:30:00Z
        why         the matrix says confirm
                    the task says confirm
        status      approved
        decided     2027-03-01 08:10:00Z
        by          recipient:ann
        comment     fine
        outcome     paid
        "#);
    }
}
