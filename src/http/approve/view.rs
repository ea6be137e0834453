//! The page: who asks, what will happen, and what can be answered. It reads what it is given and changes nothing.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde_json::Value;
use uuid::Uuid;

use crate::approval::matrix::Category;
use crate::approval::voter::Marks;
use crate::approval::{Approval, ApprovalStatus, Choice, POLICY};
use crate::http::approve::control::{controls, stop};
use crate::http::approve::form::json;
use crate::http::approve::html::Html;
use crate::http::approve::item::Item;
use crate::http::approve::moment::{instant, left};

/// Who reads, and what led here.
#[derive(Debug)]
pub struct Scene {
    pub now: DateTime<Utc>,
    pub zone: Tz,
    pub tenant: String,
    /// As the record names the reader: `recipient:<id>`.
    pub reader: String,
    /// By what else the reader is known.
    pub marks: Marks,
    pub run_id: Uuid,
    /// The name of the task, as far as there is one.
    pub task: Option<String>,
    /// What made the run: `schedule`, `event`, …
    pub trigger: Option<String>,
    pub scheduled_for: Option<DateTime<Utc>>,
}

/// Where the form goes, and its proof that it came from here. `None`: nothing can be answered on this page.
#[derive(Debug)]
pub struct Form {
    pub action: String,
    pub nonce: String,
}

/// Whether the question can be answered now.
pub fn is_open(approval: &Approval, now: DateTime<Utc>) -> bool {
    approval.status == ApprovalStatus::Pending && now < approval.expires_at
}

/// Whether anything can be answered now: an open question, or a held call that can be stopped.
pub fn is_answerable(approval: &Approval, now: DateTime<Utc>) -> bool {
    is_open(approval, now) || approval.is_held(now)
}

/// The page's title.
pub fn title(items: &[Item], now: DateTime<Utc>) -> &'static str {
    let open = items.iter().filter(|item| is_open(item.approval, now)).count();
    match open {
        0 if items.iter().any(|item| item.approval.is_held(now)) => "This can still be stopped",
        0 if items.iter().all(|item| is_expired(item.approval)) => "The time to answer is over",
        0 => "This is decided",
        1 => "Your approval is needed",
        _ => "Your approvals are needed",
    }
}

/// All of the page but its frame.
pub fn body(scene: &Scene, items: &[Item], notice: Option<&str>, form: Option<&Form>) -> Html {
    let open: Vec<&Item> = items.iter().filter(|item| is_open(item.approval, scene.now)).collect();
    let mut html = Html::default();
    html.raw("<h1>").raw(title(items, scene.now)).raw("</h1>\n");
    who(&mut html, scene, items);
    if let Some(notice) = notice {
        html.raw("<p class=\"notice\" role=\"alert\">").text(notice).raw("</p>\n");
    }
    let form = form.filter(|_| items.iter().any(|item| is_answerable(item.approval, scene.now)));
    if let Some(form) = form {
        html.raw("<form method=\"post\" action=\"").exact(&form.action).raw("\" autocomplete=\"off\">\n");
        html.raw("<input type=\"hidden\" name=\"nonce\" value=\"").exact(&form.nonce).raw("\">\n");
        // what the Enter key in a field presses: it shows changes, and decides nothing
        html.raw("<button class=\"skip\" name=\"do\" value=\"review\" tabindex=\"-1\" aria-hidden=\"true\">");
        html.raw("Show what I changed</button>\n");
    }
    for item in items {
        card(&mut html, scene, item, items.len(), form.is_some());
    }
    if form.is_some() {
        if open.len() > 1 {
            html.raw("<section class=\"card\" aria-labelledby=\"all\">\n<h2 id=\"all\">All ")
                .number(open.len() as i64)
                .raw(" at once</h2>\n");
            html.raw("<div class=\"actions\">\n<button class=\"yes\" name=\"do\" value=\"approve:all\">Approve all</button>\n");
            html.raw("<button class=\"no\" name=\"do\" value=\"cancel:all\">Cancel all</button>\n</div>\n</section>\n");
        }
        html.raw("</form>\n");
        if !open.is_empty() {
            html.raw("<p class=\"soft\">Without an answer nothing happens: no answer is a no.</p>\n");
        }
    }
    html
}

fn who(html: &mut Html, scene: &Scene, items: &[Item]) {
    html.raw("<p>");
    match &scene.task {
        Some(task) => html.raw("Asked by the task <strong><bdi>").text(task).raw("</bdi></strong>"),
        None => html.raw("Asked by a conversation"),
    };
    html.raw(" of <bdi>").text(&scene.tenant).raw("</bdi>");
    let chain = items.first().map(|item| item.approval.proposal.delegation_chain.as_slice()).unwrap_or_default();
    if !chain.is_empty() {
        html.raw(", through <bdi>").text(&chain.join(" → ")).raw("</bdi>");
    }
    html.raw(".</p>\n<p class=\"soft\">");
    if let Some(trigger) = &scene.trigger {
        html.raw("Run by ").text(trigger);
    }
    if let Some(at) = scene.scheduled_for {
        html.raw(" for ").text(&instant(at, scene.zone));
    }
    html.raw(", run <code>").text(&scene.run_id.to_string()).raw("</code></p>\n");
}

fn card(html: &mut Html, scene: &Scene, item: &Item, of: usize, form: bool) {
    let (approval, proposal) = (item.approval, &item.approval.proposal);
    html.raw("<section class=\"card\" aria-labelledby=\"h").number(item.number as i64).raw("\">\n<h2 id=\"h");
    html.number(item.number as i64).raw("\">");
    if of > 1 {
        html.number(item.number as i64 + 1).raw(" of ").number(of as i64).raw(": ");
    }
    html.raw("<span class=\"value\" dir=\"auto\">").text(&proposal.summary).raw("</span></h2>\n");
    if !proposal.description.is_empty() {
        html.raw("<p class=\"soft value\" dir=\"auto\">").text(&proposal.description).raw("</p>\n");
    }
    html.raw("<p class=\"soft\">Tool <code>").text(&proposal.tool).raw("</code> ").text(&proposal.version);
    html.raw(": it ").raw(does(proposal.category)).raw("; ").raw(proposal.consequence.as_str());
    html.raw(" consequence</p>\n<h3>What will run</h3>\n");
    arguments(html, &proposal.arguments);
    if let Some(found) = &proposal.precheck {
        html.raw("<h3>What a look beforehand found</h3>\n<p class=\"value json\" dir=\"auto\">");
        html.text(&shown(found)).raw("</p>\n");
    }
    if !proposal.reasons.is_empty() {
        let heading = if proposal.asks_nobody() { "Why nobody is asked" } else { "Why you are asked" };
        html.raw("<h3>").raw(heading).raw("</h3>\n<ul>\n");
        for reason in &proposal.reasons {
            html.raw("<li dir=\"auto\">").text(reason).raw("</li>\n");
        }
        html.raw("</ul>\n");
    }
    if is_open(approval, scene.now) {
        deadline(html, scene, approval);
        if form {
            controls(html, item);
        }
    } else {
        settled(html, scene, approval);
        if form && approval.is_held(scene.now) {
            stop(html, item);
        }
    }
    html.raw("</section>\n");
}

/// What a tool of this category does, in words.
fn does(category: Category) -> &'static str {
    match category {
        Category::Read => "reads",
        Category::Write => "writes",
        Category::Delete => "deletes",
        Category::SideEffect => "acts elsewhere",
        Category::Analysis => "analyses",
        Category::Internal => "changes things inside Reveille",
    }
}

/// Every argument, whole.
fn arguments(html: &mut Html, arguments: &Value) {
    match arguments.as_object() {
        Some(fields) if fields.is_empty() => drop(html.raw("<p>It takes no arguments.</p>\n")),
        Some(fields) => {
            html.raw("<dl>\n");
            for (name, value) in fields {
                html.raw("<dt><bdi>").text(name).raw("</bdi></dt>\n<dd class=\"value\" dir=\"auto\">");
                html.text(&shown(value)).raw("</dd>\n");
            }
            html.raw("</dl>\n");
        }
        None => drop(html.raw("<p class=\"value json\" dir=\"auto\">").text(&json(arguments)).raw("</p>\n")),
    }
}

/// What is different, value by value.
pub fn differences(html: &mut Html, proposed: &Value, decided: &Value) {
    let empty = serde_json::Map::new();
    let (before, after) = (proposed.as_object().unwrap_or(&empty), decided.as_object().unwrap_or(&empty));
    html.raw("<dl>\n");
    for name in before.keys().chain(after.keys().filter(|name| !before.contains_key(*name))) {
        let (old, new) = (before.get(name), after.get(name));
        if old == new {
            continue;
        }
        html.raw("<dt><bdi>").text(name).raw("</bdi></dt>\n");
        html.raw("<dd>proposed: ");
        match old {
            Some(old) => html.raw("<del class=\"value\" dir=\"auto\">").text(&shown(old)).raw("</del>"),
            None => html.raw("<span class=\"soft\">not given</span>"),
        };
        html.raw("</dd>\n<dd>instead: ");
        match new {
            Some(new) => html.raw("<ins class=\"value\" dir=\"auto\">").text(&shown(new)).raw("</ins>"),
            None => html.raw("<span class=\"soft\">left out</span>"),
        };
        html.raw("</dd>\n");
    }
    html.raw("</dl>\n");
}

fn shown(value: &Value) -> String {
    value.as_str().map_or_else(|| json(value), str::to_owned)
}

fn deadline(html: &mut Html, scene: &Scene, approval: &Approval) {
    html.raw("<p class=\"state\">").text(&left(approval.expires_at, scene.now)).raw(" left, until ");
    html.text(&instant(approval.expires_at, scene.zone)).raw("</p>\n");
    if approval.proposal.approvers > 1 {
        html.raw("<p>").number(approval.agreed() as i64).raw(" of ").number(approval.proposal.approvers);
        html.raw(" people have agreed").raw(match approval.votes.iter().any(|vote| vote.may_be_of(&scene.marks)) {
            true => ", you among them",
            false => "",
        });
        html.raw(".</p>\n");
    }
}

fn settled(html: &mut Html, scene: &Scene, approval: &Approval) {
    let (class, word) = match approval.status {
        ApprovalStatus::Approved if by_policy(approval) => ("<p class=\"state good\">", "Needs no approval"),
        ApprovalStatus::Approved => ("<p class=\"state good\">", "Approved"),
        ApprovalStatus::Edited => ("<p class=\"state good\">", "Approved with changes"),
        ApprovalStatus::Cancelled => ("<p class=\"state bad\">", "Cancelled"),
        ApprovalStatus::Pending | ApprovalStatus::Expired => {
            ("<p class=\"state bad\">", "Expired: nobody answered in time")
        }
    };
    html.raw(class).raw(word).raw("</p>\n");
    if is_expired(approval) {
        html.raw("<p>The time was over at ").text(&instant(approval.expires_at, scene.zone));
        html.raw(". It was not executed.</p>\n");
        return;
    }
    html.raw(if by_policy(approval) { "<p>Let through by " } else { "<p>Decided by " });
    html.text(&name(approval, scene));
    if let Some(at) = approval.decided_at {
        html.raw(", ").text(&instant(at, scene.zone));
    }
    html.raw(".</p>\n");
    if let Some(comment) = &approval.comment {
        html.raw("<p>Comment: <span class=\"value\" dir=\"auto\">").text(comment).raw("</span></p>\n");
    }
    if let Some(modifications) = &approval.modifications {
        html.raw("<h3>What was changed</h3>\n");
        differences(html, &approval.proposal.arguments, modifications);
    }
    outcome(html, scene, approval);
}

fn outcome(html: &mut Html, scene: &Scene, approval: &Approval) {
    html.raw("<h3>What came of it</h3>\n");
    match (&approval.outcome, approval.status.allows(), approval.hold_until) {
        (Some(outcome), ..) => {
            html.raw(if outcome.is_error {
                "<p class=\"bad\">It failed:</p>\n"
            } else {
                "<p class=\"good\">It was done:</p>\n"
            });
            html.raw("<p class=\"value\" dir=\"auto\">").text(&outcome.text).raw("</p>\n");
        }
        (None, false, _) => drop(html.raw("<p>It was not executed. The agent was told.</p>\n")),
        (None, true, Some(until)) if scene.now < until => {
            html.raw("<p>It is held until ").text(&instant(until, scene.zone)).raw(", and then executed.</p>\n");
        }
        (None, true, _) => {
            html.raw("<p>It is being executed. Load this page again in a moment to see what came of it.</p>\n");
        }
    }
}

/// Who decided, for a reader.
fn name(approval: &Approval, scene: &Scene) -> String {
    let by = approval.decided_by.as_deref().unwrap_or("service");
    match by.split_once(':') {
        _ if by == scene.reader => "you".into(),
        Some(("recipient", who)) => who.to_owned(),
        Some(("token", _)) => "somebody over the API".into(),
        _ if by_policy(approval) => "the rules".into(),
        _ => "the service".into(),
    }
}

fn by_policy(approval: &Approval) -> bool {
    approval.decided_by.as_deref() == Some(POLICY)
}

fn is_expired(approval: &Approval) -> bool {
    matches!(approval.status, ApprovalStatus::Pending | ApprovalStatus::Expired)
}

/// Whether the question offers this.
pub fn offers(approval: &Approval, choice: Choice) -> bool {
    approval.proposal.options.contains(&choice)
}
