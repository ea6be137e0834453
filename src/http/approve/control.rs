//! Controls of one question: fields, comment, standing grants, and the buttons.

use std::collections::BTreeSet;

use crate::approval::Choice;
use crate::channel::templates::phrases::Phrases;
use crate::http::approve::card::{differences, offers};
use crate::http::approve::form::Field;
use crate::http::approve::html::{Html, around};
use crate::http::approve::item::{Item, Place, names};
use crate::http::approve::kind::Kind;

/// For how many days something can be allowed.
const DAYS: [i64; 4] = [1, 7, 30, 90];

/// The form of one question.
pub fn controls(html: &mut Html, words: &Phrases, item: &Item) {
    let number = item.number as i64;
    faults(html, item, Place::Item);
    if let Some(changed) = item.fit_change() {
        html.raw("<div class=\"notice\" role=\"status\" tabindex=\"-1\" id=\"c").number(number).raw("\"");
        html.raw(if item.has_focus && !item.is_faulty() { " autofocus>\n<h3>" } else { ">\n<h3>" });
        html.text(words.get("your_changes")).raw("</h3>\n");
        differences(html, words, &item.approval.proposal.arguments, changed);
        html.raw("<p>").text(words.get("look_and_approve")).raw("</p>\n</div>\n");
        if let Some(digest) = item.changed_digest() {
            html.raw("<input type=\"hidden\" name=\"").number(number).raw(".reviewed\" value=\"");
            html.exact(&digest).raw("\">\n");
        }
    }
    if !item.fields.is_empty() {
        let touched = item.changed.is_some() || !item.faults.is_empty();
        html.raw("<details").raw(if touched { " open" } else { "" }).raw(">\n<summary>").text(words.get("change"));
        html.raw("</summary>\n<fieldset>\n<legend class=\"skip\">").text(words.get("arguments")).raw("</legend>\n");
        let wrong = item.faults_by_field();
        for (index, field) in item.fields.iter().enumerate() {
            field_of(html, words, item, (index, field), wrong.get(&index).map_or(&[][..], Vec::as_slice));
        }
        html.raw("</fieldset>\n<div class=\"actions\">\n<button name=\"do\" value=\"review\">");
        html.text(words.get("show_changes")).raw("</button>\n</div>\n</details>\n");
    }
    if item.may_grant() && offers(item.approval, Choice::Approve) {
        grant(html, words, item);
    }
    comment(html, words, item);
    if let Some(code) = &item.approval.proposal.confirmation {
        confirmation(html, words, item, code);
    }
    buttons(html, words, item);
}

fn field_of(html: &mut Html, words: &Phrases, item: &Item, (index, field): (usize, &Field), faults: &[&str]) {
    let text = &item.texts[index];
    let name = format!("{}.f{index}", item.number);
    let id = format!("i{}f{index}", item.number);
    html.raw("<label for=\"").exact(&id).raw("\"><bdi>").text(&field.label()).raw("</bdi>");
    if !field.required {
        html.raw(" <span class=\"hint\">").text(words.get("optional")).raw("</span>");
    }
    html.raw("</label>\n<p class=\"hint\" id=\"").exact(&id).raw("h\" dir=\"auto\">");
    html.text(field.description.as_deref().unwrap_or_default());
    match field.kind {
        Kind::Json => drop(html.raw(" ").text(words.get("as_json"))),
        Kind::List => drop(html.raw(" ").text(words.get("one_a_line"))),
        _ => {}
    }
    html.raw("</p>\n");
    for fault in faults {
        html.raw("<p class=\"error\" role=\"alert\" id=\"").exact(&id).raw("e\">").text(fault).raw("</p>\n");
    }
    let mut shared = Html::default();
    shared.raw(" id=\"").exact(&id).raw("\" name=\"").exact(&name).raw("\" aria-describedby=\"").exact(&id).raw("h");
    match faults.is_empty() {
        true => shared.raw("\""),
        false => shared.raw(" ").exact(&id).raw("e\" aria-invalid=\"true\""),
    };
    shared.raw(focus(item, &id));
    input(html, words, field, text, &shared.into_string());
}

/// The element itself; `shared` is markup of ours.
fn input(html: &mut Html, words: &Phrases, field: &Field, text: &str, shared: &str) {
    let choose = |html: &mut Html, options: &[(&str, &str)]| {
        html.raw("<select").markup(shared).raw(">\n");
        for (value, label) in options {
            html.raw("<option value=\"").exact(value).raw(if *value == text { "\" selected>" } else { "\">" });
            html.text(label).raw("</option>\n");
        }
        html.raw("</select>\n");
    };
    let nothing = (!field.required || field.proposed.is_none()).then_some(("", words.get("not_given")));
    match &field.kind {
        Kind::YesNo => {
            let both = [("true", words.get("yes")), ("false", words.get("no"))];
            choose(html, &nothing.into_iter().chain(both).collect::<Vec<_>>());
        }
        Kind::OneOf(choices) => {
            let choices = choices.iter().map(|word| (word.as_str(), word.as_str()));
            choose(html, &nothing.into_iter().chain(choices).collect::<Vec<_>>());
        }
        Kind::Line | Kind::Number => {
            html.raw("<input type=\"text\" dir=\"auto\"").markup(shared);
            html.raw(if field.kind == Kind::Number { " inputmode=\"decimal\"" } else { "" });
            html.raw(" value=\"").exact(text).raw("\">\n");
        }
        Kind::Lines | Kind::List | Kind::Json => {
            html.raw("<textarea dir=\"auto\"").markup(shared);
            html.raw(if field.kind == Kind::Json { " class=\"json\" spellcheck=\"false\"" } else { "" });
            // a line break right behind the tag is not part of the text
            html.raw(">\n").exact(text).raw("</textarea>\n");
        }
    }
}

fn grant(html: &mut Html, words: &Phrases, item: &Item) {
    let number = item.number as i64;
    let wanted = item.grant.wanted;
    html.raw("<details").raw(if wanted { " open" } else { "" }).raw(">\n<summary>").text(words.get("always"));
    html.raw("</summary>\n");
    faults(html, item, Place::Grant);
    html.raw("<fieldset>\n<legend class=\"skip\">").text(words.get("always")).raw("</legend>\n");
    html.raw("<label class=\"tick\"><input type=\"checkbox\" name=\"").number(number).raw(".grant\" value=\"yes\"");
    html.raw(if wanted { " checked" } else { "" }).raw("> <span>");
    html.say(words.get("always_tool"), &[("tool", around("<code>", &item.approval.proposal.tool, "</code>"))]);
    html.raw("</span></label>\n<p class=\"hint\">").text(words.get("always_where")).raw("</p>\n");
    let pinned: BTreeSet<&String> = item.grant.pinned.iter().collect();
    for (index, name) in names(item.approval).iter().enumerate() {
        html.raw("<label class=\"tick\"><input type=\"checkbox\" name=\"")
            .number(number)
            .raw(".g")
            .number(index as i64);
        html.raw("\" value=\"yes\"").raw(if pinned.contains(name) { " checked" } else { "" });
        html.raw("> <span><bdi>").text(name).raw("</bdi></span></label>\n");
    }
    html.raw("<label for=\"i").number(number).raw("days\">").text(words.get("always_how_long")).raw("</label>\n");
    html.raw("<select id=\"i").number(number).raw("days\" name=\"").number(number).raw(".days\"");
    html.raw(focus(item, &format!("i{number}days"))).raw(">\n");
    for days in DAYS {
        html.raw("<option value=\"").number(days).raw(if days == item.grant.days { "\" selected>" } else { "\">" });
        let count = days.to_string();
        html.text(&if days == 1 { words.get("day").to_owned() } else { words.with("days", &[("count", &count)]) });
        html.raw("</option>\n");
    }
    html.raw("</select>\n<p class=\"hint\">").text(words.get("always_ends")).raw("</p>\n</fieldset>\n</details>\n");
}

fn comment(html: &mut Html, words: &Phrases, item: &Item) {
    let number = item.number as i64;
    html.raw("<details").raw(if item.comment.is_empty() { "" } else { " open" });
    html.raw(">\n<summary>").text(words.get("add_comment")).raw("</summary>\n");
    faults(html, item, Place::Comment);
    html.raw("<label for=\"i").number(number).raw("comment\">").text(words.get("comment"));
    html.raw(" <span class=\"hint\">").text(words.get("optional")).raw("</span></label>\n");
    html.raw("<textarea dir=\"auto\" id=\"i").number(number).raw("comment\" name=\"").number(number);
    html.raw(".comment\" maxlength=\"2000\"").raw(focus(item, &format!("i{number}comment")));
    html.raw(">\n").exact(&item.comment).raw("</textarea>\n</details>\n");
}

fn confirmation(html: &mut Html, words: &Phrases, item: &Item, code: &str) {
    let number = item.number as i64;
    html.raw("<label for=\"i").number(number).raw("code\">");
    html.say(words.get("type_code"), &[("code", around("<code>", code, "</code>"))]).raw("</label>\n");
    let wrong = faults(html, item, Place::Confirmation);
    html.raw("<input type=\"text\" id=\"i").number(number).raw("code\" name=\"").number(number);
    html.raw(".confirmation\" autocapitalize=\"off\" spellcheck=\"false\"");
    html.raw(if wrong { " aria-invalid=\"true\"" } else { "" }).raw(focus(item, &format!("i{number}code")));
    html.raw(" value=\"").exact(&item.confirmation).raw("\">\n");
}

/// The first thing that is wrong has the focus when the page is there: on a small screen it may lie far below.
fn focus(item: &Item, id: &str) -> &'static str {
    if item.leads_to(id) { " autofocus" } else { "" }
}

/// Writes the button that stops a call that was approved and is held.
pub fn stop(html: &mut Html, words: &Phrases, item: &Item) {
    let number = item.number as i64;
    faults(html, item, Place::Item);
    html.raw("<div class=\"actions\">\n<button class=\"no\" name=\"do\" value=\"cancel:").number(number);
    html.raw("\" aria-describedby=\"h").number(number).raw("\">").text(words.get("stop")).raw("</button>\n</div>\n");
}

fn buttons(html: &mut Html, words: &Phrases, item: &Item) {
    let number = item.number as i64;
    let yes = if item.changed.is_some() { "approve_changes" } else { "approve" };
    html.raw("<div class=\"actions\">\n");
    if offers(item.approval, Choice::Approve) || offers(item.approval, Choice::Edit) {
        html.raw("<button class=\"yes\" name=\"do\" value=\"approve:").number(number).raw("\" aria-describedby=\"h");
        html.number(number).raw("\">").text(words.get(yes)).raw("</button>\n");
    }
    if offers(item.approval, Choice::Cancel) {
        html.raw("<button class=\"no\" name=\"do\" value=\"cancel:").number(number).raw("\" aria-describedby=\"h");
        html.number(number).raw("\">").text(words.get("reject")).raw("</button>\n");
    }
    html.raw("</div>\n");
}

/// The faults of a place; answers whether there are some.
fn faults(html: &mut Html, item: &Item, place: Place) -> bool {
    let faults: Vec<&str> =
        item.other_faults.iter().filter(|(at, _)| *at == place).map(|(_, fault)| fault.as_str()).collect();
    for fault in &faults {
        html.raw("<p class=\"error\" role=\"alert\">").text(fault).raw("</p>\n");
    }
    !faults.is_empty()
}
