//! Controls of one question: fields, comment, standing grants, and the buttons.

use std::collections::BTreeSet;

use serde::Serialize;

use crate::domain::approval::ApprovalChoice;
use crate::http::pages::approve::changes::{ArgumentChange, changes};
use crate::http::pages::approve::form::FormField;
use crate::http::pages::approve::item::{FaultPlace, ItemView, names};
use crate::http::pages::approve::kind::CallKind;
use crate::ports::channel::templates::phrases::Phrases;

/// For how many days something can be allowed.
const DAYS: [i64; 4] = [1, 7, 30, 90];

/// The form of one question.
#[derive(Debug, Serialize)]
pub struct Controls<'a> {
    /// Faults of the question itself.
    faults: Vec<&'a str>,
    change: Option<ReviewedChanges>,
    fields: Vec<Input<'a>>,
    /// The fields are open: something was changed, or is wrong.
    is_touched: bool,
    grant: Option<GrantChoice<'a>>,
    comment: Comment<'a>,
    confirmation: Option<Confirmation<'a>>,
    /// The phrase on the button, where the question may be approved.
    approve: Option<&'static str>,
    /// The phrase on the button, where the call may be kept from running.
    reject: Option<&'static str>,
    /// The phrase on the button, where it can be answered here.
    answer: Option<&'static str>,
    /// The server that asks can be told no.
    may_decline: bool,
}

/// Changes that the person has to look at before they are approved.
#[derive(Debug, Serialize)]
struct ReviewedChanges {
    has_focus: bool,
    changes: Vec<ArgumentChange>,
    /// Hash of the call with them.
    digest: Option<String>,
}

/// One argument.
#[derive(Debug, Serialize)]
struct Input<'a> {
    id: String,
    name: String,
    label: String,
    is_required: bool,
    description: &'a str,
    /// The phrase that tells how it is written, where that does not go without saying.
    note: Option<&'static str>,
    faults: Vec<&'a str>,
    has_focus: bool,
    /// `choice`, `several`, `line`, `number`, `lines` or `json`.
    control: &'static str,
    choices: Vec<ControlValue<'a>>,
    text: &'a str,
}

/// One value of a choice.
#[derive(Debug, Serialize)]
struct ControlValue<'a> {
    value: &'a str,
    label: &'a str,
    is_chosen: bool,
}

/// "Always allow this".
#[derive(Debug, Serialize)]
struct GrantChoice<'a> {
    is_wanted: bool,
    faults: Vec<&'a str>,
    tool: &'a str,
    arguments: Vec<Pin>,
    lengths: [i64; 4],
    days: i64,
    has_focus: bool,
}

/// An argument that may have to be the same.
#[derive(Debug, Serialize)]
struct Pin {
    is_pinned: bool,
    name: String,
}

#[derive(Debug, Serialize)]
struct Comment<'a> {
    text: &'a str,
    faults: Vec<&'a str>,
    has_focus: bool,
}

/// The text that the person has to type.
#[derive(Debug, Serialize)]
struct Confirmation<'a> {
    code: &'a str,
    text: &'a str,
    faults: Vec<&'a str>,
    has_focus: bool,
}

impl<'a> Controls<'a> {
    /// The form of one question as it stands.
    pub fn of(words: &'a Phrases, item: &'a ItemView) -> Controls<'a> {
        let number = item.number;
        let wrong = item.faults_by_field();
        let input = |(index, field): (usize, &'a FormField)| {
            Input::of(words, item, (index, field), wrong.get(&index).cloned().unwrap_or_default())
        };
        let change = item.fit_change().filter(|_| !item.is_input()).map(|changed| ReviewedChanges {
            has_focus: item.has_focus && !item.is_faulty(),
            changes: changes(&item.approval.proposal.arguments, changed),
            digest: item.changed_digest(),
        });
        let code = item.approval.proposal.confirmation.as_deref().filter(|_| item.left_out.is_none());
        let confirmation = code.map(|code| Confirmation {
            code,
            text: &item.confirmation,
            faults: item.faults_at(FaultPlace::Confirmation),
            has_focus: item.has_focus(&format!("i{number}code")),
        });
        let may_approve =
            !item.is_input() && (item.offers(ApprovalChoice::Approve) || item.offers(ApprovalChoice::Edit));
        let yes = if item.changed.is_some() { "approve_changes" } else { "approve" };
        let may_answer = item.is_input() && item.left_out.is_none();
        Controls {
            faults: item.faults_at(FaultPlace::Item),
            change,
            fields: item.fields.iter().enumerate().map(input).collect(),
            is_touched: item.changed.is_some() || !item.faults.is_empty(),
            grant: (item.may_grant() && item.offers(ApprovalChoice::Approve)).then(|| GrantChoice::of(item)),
            comment: Comment {
                text: &item.comment,
                faults: item.faults_at(FaultPlace::Comment),
                has_focus: item.has_focus(&format!("i{number}comment")),
            },
            confirmation,
            approve: may_approve.then_some(yes),
            reject: item.offers(ApprovalChoice::Cancel).then(|| no_phrase(item)),
            answer: may_answer.then(|| answer_phrase(item)),
            may_decline: item.offers(ApprovalChoice::Decline),
        }
    }
}

fn no_phrase(item: &ItemView) -> &'static str {
    match (item.is_of_server(), item.is_input()) {
        (true, _) => "stop_call",
        (false, true) => "decline",
        (false, false) => "reject",
    }
}

/// Without a form there is nothing to send: the person says that they were on the server's pages.
fn answer_phrase(item: &ItemView) -> &'static str {
    match &item.approval.proposal.server {
        Some(server) if !server.has_form() => "done_there",
        _ => "send_answer",
    }
}

impl<'a> Input<'a> {
    fn of(
        words: &'a Phrases,
        item: &'a ItemView,
        (index, field): (usize, &'a FormField),
        faults: Vec<&'a str>,
    ) -> Input<'a> {
        let id = format!("i{}f{index}", item.number);
        let text = item.texts[index].as_str();
        let (control, choices) = control(words, field, text);
        Input {
            name: format!("{}.f{index}", item.number),
            label: field.label(),
            is_required: field.required,
            description: field.description.as_deref().unwrap_or_default(),
            note: match field.kind {
                CallKind::Json => Some("as_json"),
                CallKind::List => Some("one_a_line"),
                CallKind::Several(_) => Some("choose_several"),
                _ => None,
            },
            faults,
            // the first thing that is wrong has the focus when the page is there: on a small screen it may lie far
            // below
            has_focus: item.has_focus(&id),
            control,
            choices,
            text,
            id,
        }
    }
}

/// How a field is edited, and the values of a choice.
fn control<'a>(words: &'a Phrases, field: &'a FormField, text: &str) -> (&'static str, Vec<ControlValue<'a>>) {
    let option = |(value, label): (&'a str, &'a str)| ControlValue { value, label, is_chosen: value == text };
    let nothing = (!field.required || field.proposed.is_none()).then_some(("", words.get("not_given")));
    match &field.kind {
        CallKind::YesNo => {
            let both = [("true", words.get("yes")), ("false", words.get("no"))];
            ("choice", nothing.into_iter().chain(both).map(option).collect())
        }
        CallKind::OneOf(choices) => {
            let choices = choices.iter().map(|word| (word.as_str(), word.as_str()));
            ("choice", nothing.into_iter().chain(choices).map(option).collect())
        }
        CallKind::Choice(choices) => {
            let choices = choices.iter().map(|(value, title)| (value.as_str(), title.as_str()));
            ("choice", nothing.into_iter().chain(choices).map(option).collect())
        }
        CallKind::Several(choices) => {
            let chosen: BTreeSet<&str> = text.lines().collect();
            let choice = |(value, title): &'a (String, String)| ControlValue {
                value: value.as_str(),
                label: title.as_str(),
                is_chosen: chosen.contains(value.as_str()),
            };
            ("several", choices.iter().map(choice).collect())
        }
        CallKind::Line => ("line", Vec::new()),
        CallKind::Number => ("number", Vec::new()),
        CallKind::Lines | CallKind::List => ("lines", Vec::new()),
        CallKind::Json => ("json", Vec::new()),
    }
}

impl<'a> GrantChoice<'a> {
    fn of(item: &'a ItemView) -> GrantChoice<'a> {
        let pinned: BTreeSet<&String> = item.grant.pinned.iter().collect();
        let pin = |name: String| Pin { is_pinned: pinned.contains(&name), name };
        GrantChoice {
            is_wanted: item.grant.wanted,
            faults: item.faults_at(FaultPlace::Grant),
            tool: &item.approval.proposal.tool,
            arguments: names(&item.approval).into_iter().map(pin).collect(),
            lengths: DAYS,
            days: item.grant.days,
            has_focus: item.has_focus(&format!("i{}days", item.number)),
        }
    }
}
