//! One question: what runs, why somebody is asked, until when, and what came of it.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value};

use crate::approval::matrix::{Category, Consequence, Gate, gate};
use crate::approval::why::{RuleBy, Why};
use crate::approval::{Approval, ApprovalStatus, Choice, POLICY, Proposal};
use crate::channel::templates::phrases::Phrases;
use crate::http::approve::control::{controls, stop};
use crate::http::approve::form::leaves;
use crate::http::approve::html::{Html, apart, around};
use crate::http::approve::item::Item;
use crate::http::approve::kind::{json, shown};
use crate::http::approve::moment::{instant, left};
use crate::http::approve::view::{Scene, is_expired, is_open};

/// A question among so many, with its form where there is one.
pub fn card(html: &mut Html, scene: &Scene, item: &Item, of: usize, form: bool) {
    let (approval, proposal, words) = (item.approval, &item.approval.proposal, &scene.words);
    let number = item.number as i64;
    html.raw("<section class=\"card\" aria-labelledby=\"h").number(number).raw("\">\n<h2 id=\"h").number(number);
    html.raw("\">");
    let summary = around("<span class=\"value\" dir=\"auto\">", &proposal.summary, "</span>");
    match of > 1 {
        true => {
            let parts = [("number", (number + 1).to_string()), ("count", of.to_string()), ("what", summary)];
            html.say(words.get("numbered"), &parts)
        }
        false => html.markup(&summary),
    };
    html.raw("</h2>\n");
    if !proposal.description.is_empty() {
        html.raw("<p class=\"soft value\" dir=\"auto\">").text(&proposal.description).raw("</p>\n");
    }
    arguments_that_run(html, scene, item);
    if let Some(found) = &proposal.precheck {
        html.raw("<h3>").text(words.get("found_before")).raw("</h3>\n<p class=\"value json\" dir=\"auto\">");
        html.text(&shown(found)).raw("</p>\n");
    }
    why(html, scene, proposal);
    if is_open(approval, scene.now) {
        deadline(html, scene, approval);
        if form {
            controls(html, words, item);
        }
    } else {
        settled(html, scene, approval);
        if form && approval.is_held(scene.now) {
            stop(html, words, item);
        }
    }
    details(html, scene, proposal);
    html.raw("</section>\n");
}

/// Every argument, whole, as it runs: as it was proposed, as a person has changed it, or as it was decided.
fn arguments_that_run(html: &mut Html, scene: &Scene, item: &Item) {
    let (approval, words) = (item.approval, &scene.words);
    let (heading, arguments) = match (is_open(approval, scene.now), approval.status.allows()) {
        (true, _) => ("will_run", item.fit_change().unwrap_or(&approval.proposal.arguments)),
        (false, true) => ("approved_to_run", approval.arguments()),
        (false, false) => ("was_asked", &approval.proposal.arguments),
    };
    html.raw("<h3>").text(words.get(heading)).raw("</h3>\n");
    let Some(fields) = arguments.as_object() else {
        html.raw("<p class=\"value json\" dir=\"auto\">").text(&json(arguments)).raw("</p>\n");
        return;
    };
    if fields.is_empty() {
        html.raw("<p>").text(words.get("no_arguments")).raw("</p>\n");
        return;
    }
    let proposed = by_name(&approval.proposal.arguments);
    html.raw("<dl>\n");
    for (name, value) in leaves(fields) {
        html.raw("<dt><bdi>").text(&name).raw("</bdi>");
        if item.fit_change().is_some() && proposed.get(&name) != Some(&value) {
            html.raw(" <span class=\"hint\">(").text(words.get("changed_by_you")).raw(")</span>");
        }
        html.raw("</dt>\n<dd class=\"value\" dir=\"auto\">").text(&shown(value)).raw("</dd>\n");
    }
    html.raw("</dl>\n");
}

fn by_name(arguments: &Value) -> BTreeMap<String, &Value> {
    arguments.as_object().map(leaves).into_iter().flatten().collect()
}

/// Writes the differences, value by value.
pub fn differences(html: &mut Html, words: &Phrases, proposed: &Value, decided: &Value) {
    let empty = Map::new();
    let (before, after) = (proposed.as_object().unwrap_or(&empty), decided.as_object().unwrap_or(&empty));
    let (old, new) = (by_name(proposed), by_name(decided));
    let names = leaves(before).into_iter().chain(leaves(after)).map(|(name, _)| name);
    let mut told: BTreeSet<String> = BTreeSet::new();
    html.raw("<dl>\n");
    for name in names {
        let (old, new) = (old.get(&name), new.get(&name));
        if old == new || told.contains(&name) {
            continue;
        }
        let value = |value: Option<&&Value>, open: &'static str, close: &'static str, nothing: &str| match value {
            Some(value) => around(open, &shown(value), close),
            None => around("<span class=\"soft\">", words.get(nothing), "</span>"),
        };
        let was = value(old, "<del class=\"value\" dir=\"auto\">", "</del>", "was_not_given");
        let is = value(new, "<ins class=\"value\" dir=\"auto\">", "</ins>", "left_out");
        html.raw("<dt><bdi>").text(&name).raw("</bdi></dt>\n<dd>").say(words.get("proposed"), &[("value", was)]);
        html.raw("</dd>\n<dd>").say(words.get("instead"), &[("value", is)]).raw("</dd>\n");
        told.insert(name);
    }
    html.raw("</dl>\n");
}

/// Why somebody is asked, or nobody is, in sentences for a person.
fn why(html: &mut Html, scene: &Scene, proposal: &Proposal) {
    let words = &scene.words;
    let asks = !proposal.asks_nobody();
    let mut sentences: Vec<(&str, &str)> = Vec::new();
    // what a rule alone has asked about is not made to look worse than it is
    let by_kind = gate(proposal.category, proposal.consequence, false) == Gate::Confirm;
    if asks && (by_kind || proposal.why.is_empty()) {
        sentences.push((of_category(proposal.category), ""));
    }
    if asks && proposal.consequence == Consequence::High {
        sentences.push(("why_high", ""));
    }
    for why in &proposal.why {
        let sentence = match why {
            Why::Rule { by, gate: Gate::Confirm } if asks => (rule_asks(*by), ""),
            Why::Rule { by, gate: Gate::Auto } if !asks => (rule_allows(*by), ""),
            Why::Rule { .. } => continue,
            Why::Credential { reference } if asks => ("why_credential", reference.as_str()),
            Why::Credential { .. } => continue,
            Why::Unjudged => ("why_unjudged", ""),
            Why::Always => ("why_always", ""),
            Why::ToolChanged => ("why_tool_changed", ""),
            Why::CheckChanged => ("why_check_changed", ""),
            Why::Grant => ("why_grant", ""),
            Why::Held => continue,
        };
        if !sentences.contains(&sentence) {
            sentences.push(sentence);
        }
    }
    if !asks && sentences.is_empty() {
        sentences.push(("why_usual", ""));
    }
    if !asks {
        sentences.push(("why_held", ""));
    }
    let heading = if asks { "why_asked" } else { "why_not_asked" };
    html.raw("<h3>").text(words.get(heading)).raw("</h3>\n<ul>\n");
    for (phrase, credential) in sentences {
        let parts = [("tenant", apart(&scene.tenant)), ("credential", around("<code>", credential, "</code>"))];
        html.raw("<li>").say(words.get(phrase), &parts).raw("</li>\n");
    }
    html.raw("</ul>\n");
}

/// The phrase for a tool of this category.
fn of_category(category: Category) -> &'static str {
    match category {
        Category::Read => "why_read",
        Category::Write => "why_write",
        Category::Delete => "why_delete",
        Category::SideEffect => "why_side_effect",
        Category::Analysis => "why_analysis",
        Category::Internal => "why_internal",
    }
}

fn rule_asks(by: RuleBy) -> &'static str {
    match by {
        RuleBy::Operator => "why_rule_operator",
        RuleBy::Tenant => "why_rule_tenant",
        RuleBy::Agent => "why_rule_agent",
        RuleBy::Task => "why_rule_task",
    }
}

fn rule_allows(by: RuleBy) -> &'static str {
    match by {
        RuleBy::Operator => "why_allowed_operator",
        RuleBy::Tenant => "why_allowed_tenant",
        RuleBy::Agent => "why_allowed_agent",
        RuleBy::Task => "why_allowed_task",
    }
}

/// Writes the details for operators: the tool, the run, and the rules as they are written.
fn details(html: &mut Html, scene: &Scene, proposal: &Proposal) {
    let words = &scene.words;
    html.raw("<details>\n<summary>").text(words.get("details")).raw("</summary>\n<dl>\n");
    let mut row = |name: &str, value: &str| {
        html.raw("<dt>")
            .text(words.get(name))
            .raw("</dt>\n<dd class=\"value\" dir=\"auto\">")
            .text(value)
            .raw("</dd>\n");
    };
    row("tool", &format!("{} {}", proposal.tool, proposal.version));
    row("effect", &format!("{}, {}", proposal.category.as_str(), proposal.consequence.as_str()));
    row("run", &scene.run_id.to_string());
    for reason in &proposal.reasons {
        row("rules", reason);
    }
    html.raw("</dl>\n</details>\n");
}

fn deadline(html: &mut Html, scene: &Scene, approval: &Approval) {
    let words = &scene.words;
    let (left, at) = (left(words, approval.expires_at, scene.now), instant(words, approval.expires_at, scene.zone));
    html.raw("<p class=\"state\">").text(&words.with("left", &[("left", &left), ("at", &at)])).raw("</p>\n");
    if approval.proposal.approvers > 1 {
        let is_among = approval.votes.iter().any(|vote| vote.may_be_of(&scene.marks));
        let phrase = if is_among { "agreed_with_you" } else { "agreed" };
        let (agreed, wanted) = (approval.agreed().to_string(), approval.proposal.approvers.to_string());
        html.raw("<p>").text(&words.with(phrase, &[("agreed", &agreed), ("wanted", &wanted)])).raw("</p>\n");
    }
}

fn settled(html: &mut Html, scene: &Scene, approval: &Approval) {
    let words = &scene.words;
    let (class, word) = match approval.status {
        ApprovalStatus::Approved if by_policy(approval) => ("<p class=\"state good\">", "needs_none"),
        ApprovalStatus::Approved => ("<p class=\"state good\">", "approved"),
        ApprovalStatus::Edited => ("<p class=\"state good\">", "approved_changed"),
        ApprovalStatus::Cancelled => ("<p class=\"state bad\">", "rejected"),
        ApprovalStatus::Pending | ApprovalStatus::Expired => ("<p class=\"state bad\">", "expired"),
    };
    html.raw(class).text(words.get(word)).raw("</p>\n");
    if is_expired(approval) {
        let at = instant(words, approval.expires_at, scene.zone);
        html.raw("<p>").text(&words.with("over_at", &[("at", &at)])).raw("</p>\n");
        return;
    }
    let at = approval.decided_at.map(|at| instant(words, at, scene.zone)).unwrap_or_default();
    let phrase = if by_policy(approval) { "let_through" } else { "decided" };
    html.raw("<p>").say(words.get(phrase), &[("who", name(approval, scene)), ("at", around("", &at, ""))]);
    html.raw("</p>\n");
    if let Some(comment) = &approval.comment {
        let comment = around("<span class=\"value\" dir=\"auto\">", comment, "</span>");
        html.raw("<p>").say(words.get("their_comment"), &[("comment", comment)]).raw("</p>\n");
    }
    if let Some(modifications) = &approval.modifications {
        html.raw("<h3>").text(words.get("what_changed")).raw("</h3>\n");
        differences(html, words, &approval.proposal.arguments, modifications);
    }
    outcome(html, scene, approval);
}

fn outcome(html: &mut Html, scene: &Scene, approval: &Approval) {
    let words = &scene.words;
    html.raw("<h3>").text(words.get("came_of_it")).raw("</h3>\n");
    match (&approval.outcome, approval.status.allows(), approval.hold_until) {
        (Some(outcome), ..) => {
            let (class, phrase) =
                if outcome.is_error { ("<p class=\"bad\">", "failed") } else { ("<p class=\"good\">", "done") };
            html.raw(class).text(words.get(phrase)).raw("</p>\n<p class=\"value\" dir=\"auto\">");
            html.text(&outcome.text).raw("</p>\n");
        }
        (None, false, _) => drop(html.raw("<p>").text(words.get("not_executed")).raw("</p>\n")),
        (None, true, Some(until)) if scene.now < until => {
            let at = instant(words, until, scene.zone);
            html.raw("<p>").text(&words.with("held_until", &[("at", &at)])).raw("</p>\n");
        }
        (None, true, _) => drop(html.raw("<p>").text(words.get("executing")).raw("</p>\n")),
    }
}

/// The person who decided, for a reader.
fn name(approval: &Approval, scene: &Scene) -> String {
    let by = approval.decided_by.as_deref().unwrap_or("service");
    let phrase = match by.split_once(':') {
        _ if by == scene.reader => "you",
        Some(("recipient", who)) => return around("", who, ""),
        Some(("token", _)) => "by_api",
        _ => "by_service",
    };
    around("", scene.words.get(phrase), "")
}

fn by_policy(approval: &Approval) -> bool {
    approval.decided_by.as_deref() == Some(POLICY)
}

/// Whether the question offers this.
pub fn offers(approval: &Approval, choice: Choice) -> bool {
    approval.proposal.options.contains(&choice)
}
