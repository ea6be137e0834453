//! The page: who asks, and what can be answered, all at once or each question by itself. It reads what it is given and
//! changes nothing.

use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use uuid::Uuid;

use crate::approval::voter::Marks;
use crate::approval::{Approval, ApprovalStatus};
use crate::channel::templates::phrases::Phrases;
use crate::http::approve::card::card;
use crate::http::approve::html::{Html, apart, around};
use crate::http::approve::item::{Item, Spot};
use crate::http::approve::moment::instant;

/// The reader of a page, and the way to it.
#[derive(Debug)]
pub struct Scene {
    pub now: DateTime<Utc>,
    pub zone: Tz,
    /// In the reader's language.
    pub words: Phrases,
    pub tenant: String,
    /// As the record names the reader: `recipient:<id>`.
    pub reader: String,
    /// By what else the reader is known.
    pub marks: Marks,
    pub run_id: Uuid,
    /// The name of the task, as far as there is one.
    pub task: Option<String>,
    /// The cause of the run, as the name of a phrase, and its instant.
    pub started: Option<(&'static str, DateTime<Utc>)>,
    /// By whom it was asked for by hand, as far as that is known: the name of a token.
    pub requester: Option<String>,
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

/// Whether nobody has answered in time.
pub fn is_expired(approval: &Approval) -> bool {
    matches!(approval.status, ApprovalStatus::Pending | ApprovalStatus::Expired)
}

/// The page's title.
pub fn title<'a>(words: &'a Phrases, items: &[Item], now: DateTime<Utc>) -> &'a str {
    let open = items.iter().filter(|item| is_open(item.approval, now)).count();
    words.get(match open {
        0 if items.iter().any(|item| item.approval.is_held(now)) => "title_held",
        0 if items.iter().all(|item| is_expired(item.approval)) => "title_expired",
        0 => "title_decided",
        1 => "title_one",
        _ => "title_many",
    })
}

/// All of the page but its frame.
pub fn body(scene: &Scene, items: &[Item], notice: Option<&str>, form: Option<&Form>) -> Html {
    let words = &scene.words;
    let open: Vec<&Item> = items.iter().filter(|item| is_open(item.approval, scene.now)).collect();
    let mut html = Html::default();
    html.raw("<h1>").text(title(words, items, scene.now)).raw("</h1>\n");
    if let Some(text) = notice {
        notice_of(&mut html, words, items, text);
    }
    origin(&mut html, scene, items);
    let form = form.filter(|_| items.iter().any(|item| is_answerable(item.approval, scene.now)));
    if let Some(form) = form {
        html.raw("<form method=\"post\" action=\"").exact(&form.action).raw("\" autocomplete=\"off\">\n");
        html.raw("<input type=\"hidden\" name=\"nonce\" value=\"").exact(&form.nonce).raw("\">\n");
        // what the Enter key in a field presses: it shows changes, and decides nothing
        html.raw("<button class=\"skip\" name=\"do\" value=\"review\" tabindex=\"-1\" aria-hidden=\"true\">");
        html.text(words.get("show_changes")).raw("</button>\n");
        if open.len() > 1 {
            together(&mut html, words, &open, true);
        }
    }
    for item in items {
        card(&mut html, scene, item, items.len(), form.is_some());
    }
    if form.is_some() {
        if open.len() > 1 {
            together(&mut html, words, &open, false);
        }
        html.raw("</form>\n");
        if !open.is_empty() {
            html.raw("<p class=\"soft\">").text(words.get("no_answer")).raw("</p>\n");
        }
    }
    html
}

/// Writes the result of the last answer, with a link to each place that it is about.
fn notice_of(html: &mut Html, words: &Phrases, items: &[Item], text: &str) {
    html.raw("<div class=\"notice\" role=\"alert\">\n<p>").text(text).raw("</p>\n");
    let changed = items.iter().filter(|item| item.changed.is_some() && !item.is_faulty()).map(|item| Spot {
        id: format!("c{}", item.number),
        label: words.get("your_changes").to_owned(),
        fault: item.approval.proposal.summary.clone(),
    });
    let faulty = items.iter().any(Item::is_faulty);
    let spots: Vec<Spot> = match faulty {
        true => items.iter().flat_map(Item::spots).collect(),
        false => changed.collect(),
    };
    if !spots.is_empty() {
        html.raw("<ul>\n");
        for Spot { id, label, fault } in spots {
            html.raw("<li><a href=\"#").exact(&id).raw("\">");
            if !label.is_empty() {
                html.raw("<bdi>").text(&label).raw("</bdi>: ");
            }
            html.raw("<bdi>").text(&fault).raw("</bdi></a></li>\n");
        }
        html.raw("</ul>\n");
    }
    html.raw("</div>\n");
}

/// The buttons for all open questions; before the questions with a link to each.
fn together(html: &mut Html, words: &Phrases, open: &[&Item], is_first: bool) {
    let id = if is_first { "all" } else { "all-again" };
    html.raw("<section class=\"card\" aria-labelledby=\"").raw(id).raw("\">\n<h2 id=\"").raw(id).raw("\">");
    html.text(&words.with("all", &[("count", &open.len().to_string())])).raw("</h2>\n");
    if is_first {
        html.raw("<ol>\n");
        for item in open {
            html.raw("<li><a href=\"#h").number(item.number as i64).raw("\"><bdi>");
            html.text(&item.approval.proposal.summary).raw("</bdi></a></li>\n");
        }
        html.raw("</ol>\n");
    }
    html.raw("<div class=\"actions\">\n<button class=\"yes\" name=\"do\" value=\"approve:all\">");
    html.text(words.get("approve_all")).raw("</button>\n<button class=\"no\" name=\"do\" value=\"cancel:all\">");
    html.text(words.get("reject_all")).raw("</button>\n</div>\n</section>\n");
}

fn origin(html: &mut Html, scene: &Scene, items: &[Item]) {
    let words = &scene.words;
    let chain = items.first().map(|item| item.approval.proposal.delegation_chain.as_slice()).unwrap_or_default();
    let phrase = match (&scene.task, chain) {
        (Some(_), []) => "by_task",
        (Some(_), _) => "by_task_through",
        (None, []) => "by_chat",
        (None, _) => "by_chat_through",
    };
    let task = scene.task.as_deref().unwrap_or_default();
    let task = around("<strong><bdi>", task, "</bdi></strong>");
    let parts = [("task", task), ("tenant", apart(&scene.tenant)), ("agents", apart(&chain.join(" → ")))];
    html.raw("<p>").say(words.get(phrase), &parts).raw("</p>\n");
    if let Some((phrase, at)) = scene.started {
        html.raw("<p class=\"soft\">").text(&words.with(
            phrase,
            &[("at", &instant(words, at, scene.zone)), ("who", scene.requester.as_deref().unwrap_or_default())],
        ));
        html.raw("</p>\n");
    }
}
