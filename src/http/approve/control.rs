//! What a person can do about one question: fields, comment, what is allowed for good, and the buttons.

use crate::approval::Choice;
use crate::http::approve::form::{Field, Kind};
use crate::http::approve::html::Html;
use crate::http::approve::item::{Item, Place, names};
use crate::http::approve::view::{differences, offers};

/// For how many days something can be allowed.
const DAYS: [i64; 4] = [1, 7, 30, 90];

/// The form of one question.
pub fn controls(html: &mut Html, item: &Item) {
    faults(html, item, Place::Item);
    if let Some(changed) = &item.changed {
        html.raw("<div class=\"notice\" role=\"status\">\n<h3>What you changed</h3>\n");
        differences(html, &item.approval.proposal.arguments, changed);
        html.raw("<p>Look at it, then approve the changes.</p>\n</div>\n");
        if let Some(digest) = item.changed_digest() {
            html.raw("<input type=\"hidden\" name=\"").number(item.number as i64).raw(".reviewed\" value=\"");
            html.exact(&digest).raw("\">\n");
        }
    }
    if !item.fields.is_empty() {
        let touched = item.changed.is_some() || !item.faults.is_empty();
        html.raw("<details")
            .raw(if touched { " open" } else { "" })
            .raw(">\n<summary>Change before it runs</summary>\n");
        html.raw("<fieldset>\n<legend class=\"skip\">Arguments</legend>\n");
        for (index, field) in item.fields.iter().enumerate() {
            field_of(html, item, index, field);
        }
        html.raw(
            "</fieldset>\n<div class=\"actions\">\n<button name=\"do\" value=\"review\">Show what I changed</button>\n",
        );
        html.raw("</div>\n</details>\n");
    }
    if item.may_grant() && offers(item.approval, Choice::Approve) {
        grant(html, item);
    }
    comment(html, item);
    if let Some(code) = &item.approval.proposal.confirmation {
        confirmation(html, item, code);
    }
    buttons(html, item);
}

fn field_of(html: &mut Html, item: &Item, index: usize, field: &Field) {
    let (text, faults) = (&item.texts[index], item.faults.iter().filter(|(number, _)| *number == index));
    let faults: Vec<&str> = faults.map(|(_, fault)| fault.as_str()).collect();
    let name = format!("{}.f{index}", item.number);
    let id = format!("i{}f{index}", item.number);
    html.raw("<label for=\"").exact(&id).raw("\"><bdi>").text(&field.name).raw("</bdi>");
    html.raw(if field.required { "" } else { " <span class=\"hint\">(optional)</span>" }).raw("</label>\n");
    html.raw("<p class=\"hint\" id=\"").exact(&id).raw("h\" dir=\"auto\">");
    html.text(field.description.as_deref().unwrap_or_default());
    html.raw(if field.kind == Kind::Json { " As JSON." } else { "" }).raw("</p>\n");
    for fault in &faults {
        html.raw("<p class=\"error\" role=\"alert\" id=\"").exact(&id).raw("e\">").text(fault).raw("</p>\n");
    }
    let mut shared = Html::default();
    shared.raw(" id=\"").exact(&id).raw("\" name=\"").exact(&name).raw("\" aria-describedby=\"").exact(&id).raw("h");
    match faults.is_empty() {
        true => shared.raw("\""),
        false => shared.raw(" ").exact(&id).raw("e\" aria-invalid=\"true\""),
    };
    input(html, field, text, &shared.into_string());
}

/// The element itself; `shared` is markup of ours.
fn input(html: &mut Html, field: &Field, text: &str, shared: &str) {
    let choose = |html: &mut Html, options: &[(&str, &str)]| {
        html.raw("<select").markup(shared).raw(">\n");
        for (value, label) in options {
            html.raw("<option value=\"").exact(value).raw(if *value == text { "\" selected>" } else { "\">" });
            html.text(label).raw("</option>\n");
        }
        html.raw("</select>\n");
    };
    let nothing = (!field.required || field.proposed.is_none()).then_some(("", "(not given)"));
    match &field.kind {
        Kind::YesNo => {
            let options: Vec<_> = nothing.into_iter().chain([("true", "yes"), ("false", "no")]).collect();
            choose(html, &options);
        }
        Kind::OneOf(words) => {
            let words = words.iter().map(|word| (word.as_str(), word.as_str()));
            choose(html, &nothing.into_iter().chain(words).collect::<Vec<_>>());
        }
        Kind::Line | Kind::Number => {
            html.raw("<input type=\"text\" dir=\"auto\"").markup(shared);
            html.raw(if field.kind == Kind::Number { " inputmode=\"decimal\"" } else { "" });
            html.raw(" value=\"").exact(text).raw("\">\n");
        }
        Kind::Lines | Kind::Json => {
            html.raw("<textarea dir=\"auto\"").markup(shared);
            html.raw(if field.kind == Kind::Json { " class=\"json\" spellcheck=\"false\"" } else { "" });
            // a line break right behind the tag is not part of the text
            html.raw(">\n").exact(text).raw("</textarea>\n");
        }
    }
}

fn grant(html: &mut Html, item: &Item) {
    let number = item.number as i64;
    let wanted = item.grant.wanted;
    html.raw("<details").raw(if wanted { " open" } else { "" }).raw(">\n<summary>Always allow this</summary>\n");
    faults(html, item, Place::Grant);
    html.raw("<fieldset>\n<legend class=\"skip\">Always allow this</legend>\n");
    html.raw("<label class=\"tick\"><input type=\"checkbox\" name=\"").number(number).raw(".grant\" value=\"yes\"");
    html.raw(if wanted { " checked" } else { "" }).raw("> <span>With my approval, allow <code>");
    html.text(&item.approval.proposal.tool).raw("</code> for this task from now on, without asking</span></label>\n");
    html.raw("<p class=\"hint\">Only where these are as they are now:</p>\n");
    for (index, name) in names(item.approval).iter().enumerate() {
        html.raw("<label class=\"tick\"><input type=\"checkbox\" name=\"")
            .number(number)
            .raw(".g")
            .number(index as i64);
        html.raw("\" value=\"yes\"").raw(if item.grant.pinned.contains(name) { " checked" } else { "" });
        html.raw("> <span><bdi>").text(name).raw("</bdi></span></label>\n");
    }
    html.raw("<label for=\"i").number(number).raw("days\">For how long</label>\n<select id=\"i").number(number);
    html.raw("days\" name=\"").number(number).raw(".days\">\n");
    for days in DAYS {
        html.raw("<option value=\"").number(days).raw(if days == item.grant.days { "\" selected>" } else { "\">" });
        html.number(days).raw(if days == 1 { " day" } else { " days" }).raw("</option>\n");
    }
    html.raw("</select>\n<p class=\"hint\">It ends when the task is edited, and can be revoked.</p>\n</fieldset>\n</details>\n");
}

fn comment(html: &mut Html, item: &Item) {
    let number = item.number as i64;
    html.raw("<details").raw(if item.comment.is_empty() { "" } else { " open" });
    html.raw(">\n<summary>Add a comment</summary>\n");
    faults(html, item, Place::Comment);
    html.raw("<label for=\"i").number(number).raw("comment\">Comment <span class=\"hint\">(optional)</span></label>\n");
    html.raw("<textarea dir=\"auto\" id=\"i").number(number).raw("comment\" name=\"").number(number);
    html.raw(".comment\" maxlength=\"2000\">\n").exact(&item.comment).raw("</textarea>\n</details>\n");
}

fn confirmation(html: &mut Html, item: &Item, code: &str) {
    let number = item.number as i64;
    html.raw("<label for=\"i").number(number).raw("code\">This can’t be undone. To approve it, type <code>").text(code);
    html.raw("</code></label>\n");
    let wrong = faults(html, item, Place::Confirmation);
    html.raw("<input type=\"text\" id=\"i").number(number).raw("code\" name=\"").number(number);
    html.raw(".confirmation\" autocapitalize=\"off\" spellcheck=\"false\"");
    html.raw(if wrong { " aria-invalid=\"true\"" } else { "" }).raw(" value=\"").exact(&item.confirmation).raw("\">\n");
}

/// What can be done about a call that was approved and is held.
pub fn stop(html: &mut Html, item: &Item) {
    let number = item.number as i64;
    faults(html, item, Place::Item);
    html.raw("<div class=\"actions\">\n<button class=\"no\" name=\"do\" value=\"cancel:").number(number);
    html.raw("\" aria-describedby=\"h").number(number).raw("\">Stop it</button>\n</div>\n");
}

fn buttons(html: &mut Html, item: &Item) {
    let number = item.number as i64;
    let yes = if item.changed.is_some() { "Approve the changes" } else { "Approve" };
    html.raw("<div class=\"actions\">\n");
    if offers(item.approval, Choice::Approve) || offers(item.approval, Choice::Edit) {
        html.raw("<button class=\"yes\" name=\"do\" value=\"approve:").number(number).raw("\" aria-describedby=\"h");
        html.number(number).raw("\">").raw(yes).raw("</button>\n");
    }
    if offers(item.approval, Choice::Cancel) {
        html.raw("<button class=\"no\" name=\"do\" value=\"cancel:").number(number).raw("\" aria-describedby=\"h");
        html.number(number).raw("\">Cancel</button>\n");
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
