//! The page: who asks, and what can be answered, all at once or each question by itself. It reads what it is given and
//! changes nothing.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use serde::Serialize;
use serde_json::Value;

use crate::http::pages::approve::approval_page::{ApprovalPage, FormState, is_answerable, is_expired, is_open};
use crate::http::pages::approve::card::Card;
use crate::http::pages::approve::item::{ItemView, PlacedFault};
use crate::http::pages::approve::moment::instant;
use crate::http::pages::{self, View};
use crate::ports::channel::templates::phrases::Phrases;

/// The page of a link, or of what came of an answer.
#[derive(Debug, Serialize)]
struct Approvals<'a> {
    tenant: &'a str,
    notice: Option<ApprovalNotice<'a>>,
    origin: Origin<'a>,
    start: Option<ApprovalStart<'a>>,
    form: Option<&'a FormState>,
    /// The number of the one open question, where it asks for what a call lacks: the Enter key answers it.
    answered_by_enter: Option<usize>,
    /// The open questions about calls, where there are several.
    together: Vec<ApprovalQuestionView<'a>>,
    /// Each of them is shown whole.
    may_approve_all: bool,
    cards: Vec<Card<'a>>,
    /// A question about a call is open, and no answer is a no.
    waits: bool,
    /// A question for what a call lacks is open.
    waits_for_input: bool,
    /// A question of a server is open.
    waits_for_server: bool,
}

impl View for Approvals<'_> {
    const TEMPLATE: &'static str = "approval.html";
}

/// The result of the last answer, with a link to each place that it is about.
#[derive(Debug, Serialize)]
struct ApprovalNotice<'a> {
    text: &'a str,
    spots: Vec<PlacedFault>,
}

/// By whom it is asked.
#[derive(Debug, Serialize)]
struct Origin<'a> {
    phrase: &'static str,
    task: &'a str,
    step: &'a str,
    agents: String,
}

/// How the run began.
#[derive(Debug, Serialize)]
struct ApprovalStart<'a> {
    phrase: &'static str,
    at: String,
    who: &'a str,
}

#[derive(Debug, Serialize)]
struct ApprovalQuestionView<'a> {
    number: usize,
    summary: &'a str,
}

/// The questions for the templates of another frame, as [`page`] has them.
pub fn content(
    scene: &ApprovalPage,
    items: &[ItemView],
    notice: Option<&str>,
    form: Option<&FormState>,
) -> serde_json::Result<Value> {
    serde_json::to_value(Approvals::of(scene, items, notice, form))
}

/// The page with these questions; without a form nothing can be answered on it.
pub fn page(
    status: StatusCode,
    scene: &ApprovalPage,
    items: &[ItemView],
    notice: Option<&str>,
    form: Option<&FormState>,
) -> Response {
    let title = title(&scene.words, items, scene.now);
    pages::page(&scene.words, status, title, &Approvals::of(scene, items, notice, form))
}

/// Nobody knows this link, or not any more. One page for both: nothing is learnt from it.
pub fn unknown() -> Response {
    pages::message(
        StatusCode::NOT_FOUND,
        "This link is not known",
        &[
            "It may be cut off or mistyped, or it is so old that it was forgotten.",
            "Open it again from the message that you got. Nothing was decided by opening it.",
        ],
    )
}

/// The page that tells that the link's question was asked anew, because something has changed meanwhile.
pub fn replaced(words: &Phrases) -> Response {
    let sentences = [words.get("replaced_why"), words.get("replaced_link")];
    pages::message_in(words, StatusCode::GONE, words.get("replaced"), &sentences)
}

/// Title of the page, by what can be answered on it.
pub fn title<'a>(words: &'a Phrases, items: &[ItemView], now: DateTime<Utc>) -> &'a str {
    let open: Vec<&ItemView> = items.iter().filter(|item| is_open(&item.approval, now)).collect();
    if !open.is_empty() && open.iter().all(|item| item.is_input()) {
        return words.get("title_input");
    }
    words.get(match open.len() {
        0 if items.iter().any(|item| item.approval.is_held(now)) => "title_held",
        0 if items.iter().all(|item| is_expired(&item.approval)) => "title_expired",
        0 => "title_decided",
        1 => "title_one",
        _ => "title_many",
    })
}

impl<'a> Approvals<'a> {
    fn of(
        scene: &'a ApprovalPage,
        items: &'a [ItemView],
        notice: Option<&'a str>,
        form: Option<&'a FormState>,
    ) -> Approvals<'a> {
        let open_items: Vec<&'a ItemView> = items.iter().filter(|item| is_open(&item.approval, scene.now)).collect();
        let answered_by_enter = match open_items[..] {
            [one] if one.is_input() && one.left_out.is_none() => Some(one.number),
            _ => None,
        };
        let open: Vec<ApprovalQuestionView> = open_items
            .iter()
            .filter(|item| !item.is_input())
            .map(|item| ApprovalQuestionView { number: item.number, summary: &item.approval.proposal.summary })
            .collect();
        let are_whole = open_items.iter().all(|item| item.is_input() || item.left_out.is_none());
        let form = form.filter(|_| items.iter().any(|item| is_answerable(&item.approval, scene.now)));
        Approvals {
            tenant: &scene.tenant,
            notice: notice.map(|text| ApprovalNotice { text, spots: spots(&scene.words, items) }),
            origin: Origin::of(scene, items),
            start: scene.started.map(|(phrase, at)| ApprovalStart {
                phrase,
                at: instant(&scene.words, at, scene.zone),
                who: scene.requester.as_deref().unwrap_or_default(),
            }),
            form,
            answered_by_enter,
            waits: !open.is_empty(),
            waits_for_input: open_items.iter().any(|item| item.is_input() && !item.is_of_server()),
            waits_for_server: open_items.iter().any(|item| item.is_of_server()),
            together: if open.len() > 1 { open } else { Vec::new() },
            may_approve_all: are_whole,
            cards: items.iter().map(|item| Card::of(scene, item, form.is_some())).collect(),
        }
    }
}

/// The places to which a notice leads: what is wrong, else what was changed.
fn spots(words: &Phrases, items: &[ItemView]) -> Vec<PlacedFault> {
    if items.iter().any(ItemView::is_faulty) {
        return items.iter().flat_map(ItemView::placed_faults).collect();
    }
    let changed = items.iter().filter(|item| item.changed.is_some() && !item.is_input()).map(|item| PlacedFault {
        id: format!("c{}", item.number),
        label: words.get("your_changes").to_owned(),
        fault: item.approval.proposal.summary.clone(),
    });
    changed.collect()
}

impl<'a> Origin<'a> {
    fn of(scene: &'a ApprovalPage, items: &'a [ItemView]) -> Origin<'a> {
        let first = items.first().map(|item| &item.approval.proposal);
        let chain = first.map_or(&[] as &[String], |proposal| &proposal.delegation_chain);
        let step = first.and_then(|proposal| proposal.step.as_deref());
        let phrase = match (&scene.task, step, chain) {
            (Some(_), None, []) => "by_task",
            (Some(_), None, _) => "by_task_through",
            (Some(_), Some(_), []) => "by_step",
            (Some(_), Some(_), _) => "by_step_through",
            (None, _, []) => "by_chat",
            (None, _, _) => "by_chat_through",
        };
        let task = scene.task.as_deref().unwrap_or_default();
        Origin { phrase, task, step: step.unwrap_or_default(), agents: chain.join(" → ") }
    }
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;
    use crate::domain::approval::{
        Approval, ApprovalChoice, ApprovalLevel, ApprovalStatus, CallOutcome, Category, Consequence, Proposal,
        ProposalIdentity, QuestionKind, ReasonCode, RuleBy, Vote, VoterIdentities,
    };
    use crate::http::pages::approve::item::FaultPlace;
    use crate::http::pages::approve::page_room::PageQuestion;
    use crate::http::pages::approve::submitted_fields::SubmittedFields;
    use crate::http::pages::tests::{assert_inert, text_of};
    use crate::ports::channel::templates::phrases::Catalogue;

    /// A call in which every text from outside is this one.
    fn proposal(text: &str) -> Proposal {
        let kind = Default::default();
        let described = |kind: &str| json!({ "type": kind, "description": text });
        Proposal {
            kind,
            tool: text.into(),
            version: text.into(),
            definition: "d".into(),
            summary: text.into(),
            description: text.into(),
            arguments: json!({
                text: text, "lines": format!("{text}\n{text}"), "list": [text, text], "json": [{ text: text }], "count": 7,
                "flag": true, "how": text, "nested": { text: text, "empty": {} },
            }),
            parameters: json!({
                "type": "object", "required": ["flag", "count"],
                "properties": {
                    text: described("string"), "lines": described("string"), "list": described("array"), "count": described("integer"),
                    "flag": described("boolean"), "how": { "type": "string", "enum": [text, "fax"] }, "more": described("string"),
                    "maybe": described("boolean"),
                },
            }),
            lacks: vec![],
            server: None,
            category: Category::SideEffect,
            consequence: Consequence::High,
            reasons: vec![text.into(), "a rule".into()],
            reason_codes: vec![
                ReasonCode::Rule { by: RuleBy::Tenant, gate: ApprovalLevel::Confirm },
                ReasonCode::Credential { reference: text.into() },
                ReasonCode::Always,
            ],
            options: vec![ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel],
            allow_modification: true,
            source: "trigger".into(),
            delegation_chain: vec![text.into(), "helper".into()],
            step: Some(text.into()),
            on_expiry: Default::default(),
            approvers: 1,
            excluded_approver: None,
            confirmation: None,
            undo_seconds: None,
            precheck: Some(json!({ text: [text] })),
            timeout_seconds: 1800,
        }
    }

    fn now() -> DateTime<Utc> {
        "2026-11-21T00:00:00Z".parse().unwrap()
    }

    fn approval(proposal: Proposal) -> Approval {
        let identity = ProposalIdentity { tenant: "ann", run_id: Uuid::from_u128(3), turn: 1, call_id: "c" };
        let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
        Approval::asked(ids, identity, Some(Uuid::from_u128(4)), proposal, now() - TimeDelta::minutes(5))
    }

    fn settled(text: &str, status: ApprovalStatus, by: &str) -> Approval {
        Approval {
            status,
            decided_at: Some(now()),
            decided_by: Some(by.to_owned()),
            comment: Some(text.to_owned()),
            ..approval(proposal(text))
        }
    }

    fn html(scene: &ApprovalPage, items: &[ItemView], notice: Option<&str>, form: Option<&FormState>) -> String {
        text_of(page(StatusCode::OK, scene, items, notice, form))
    }

    /// Every state of the page, with this text in each place for a text from outside.
    fn pages(locale: &str, text: &str) -> String {
        let words = Catalogue::embedded().of(locale);
        let scene = ApprovalPage {
            now: now(),
            zone: chrono_tz::Europe::Vienna,
            words: words.clone(),
            tenant: text.into(),
            reader: "recipient:ann".into(),
            identities: VoterIdentities::of_name("recipient:ann"),
            run_id: Uuid::from_u128(3),
            task: Some(text.into()),
            started: Some(("run_hand_by", now())),
            requester: Some(text.into()),
        };
        let form = FormState { action: format!("/approvals/{text}"), nonce: text.into() };
        let code = Proposal { confirmation: Some(text.into()), approvers: 2, ..proposal(text) };
        let bare = Proposal {
            arguments: json!({}),
            parameters: Value::Null,
            options: vec![ApprovalChoice::Cancel],
            consequence: Consequence::Low,
            precheck: None,
            description: String::new(),
            ..proposal(text)
        };
        let vote = Vote { by: "recipient:ann".into(), identities: VoterIdentities::of_name("recipient:ann") };
        let open = [
            approval(proposal(text)),
            Approval { votes: vec![vote], ..approval(code) },
            approval(bare),
            approval(Proposal { arguments: json!([text]), delegation_chain: vec![], ..proposal(text) }),
        ];
        let fresh = |approvals: &'_ [Approval]| -> String {
            let item =
                |(number, one): (usize, &Approval)| ItemView::new(number, &PageQuestion::whole(one.clone()), &words);
            let items: Vec<ItemView> = approvals.iter().enumerate().map(item).collect();
            html(&scene, &items, Some(text), Some(&form)) + &html(&scene, &items, None, None)
        };
        let sent = |fields: &[(&str, &str)], press: bool| -> String {
            let fields = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
            let sent = SubmittedFields::parse(fields.as_bytes());
            let mut items: Vec<ItemView> = open
                .iter()
                .enumerate()
                .map(|(number, one)| ItemView::new(number, &PageQuestion::whole(one.clone()), &words).filled(&sent))
                .collect();
            if press {
                for item in &mut items {
                    let faults = item.approve().faults(&item.approval);
                    item.assign_faults(faults);
                }
                items[0]
                    .other_faults
                    .extend([FaultPlace::Item, FaultPlace::Grant].map(|place| (place, text.to_owned())));
            }
            items[0].take_focus();
            html(&scene, &items, Some(text), Some(&form))
        };
        let changed = settled(text, ApprovalStatus::Edited, "recipient:ann");
        let mut arguments = changed.proposal.arguments.clone();
        arguments["lines"] = json!(text);
        arguments["added"] = json!({ text: text });
        arguments.as_object_mut().unwrap().remove("list");
        let outcome = |is_error| Some(CallOutcome { is_error, text: text.to_owned() });
        let held_until = Some(now() + TimeDelta::minutes(1));
        let over = [
            Approval { modifications: Some(arguments), outcome: outcome(false), ..changed },
            Approval {
                outcome: outcome(true),
                ..settled(text, ApprovalStatus::Approved, &format!("recipient:{text}"))
            },
            settled(text, ApprovalStatus::Approved, "token:1"),
            Approval { hold_until: held_until, ..settled(text, ApprovalStatus::Approved, "service") },
            settled(text, ApprovalStatus::Cancelled, "recipient:ann"),
            settled(text, ApprovalStatus::Expired, "service"),
        ];
        let of = ProposalIdentity { tenant: "ann", run_id: Uuid::from_u128(3), turn: 1, call_id: "c" };
        let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
        let granted = Proposal { reason_codes: vec![ReasonCode::Grant, ReasonCode::UndoWindow], ..proposal(text) };
        let held = [Approval::new_hold(ids, of, None, granted, (TimeDelta::minutes(1), now()))];
        let in_part = || {
            let beginning = || Proposal { arguments: json!(text), ..proposal(text) };
            let input = Proposal { kind: QuestionKind::Input, ..beginning() };
            let decided = Some(json!(text));
            let over = Approval { modifications: decided, ..settled(text, ApprovalStatus::Edited, "recipient:ann") };
            let parts = [approval(beginning()), approval(beginning()), approval(input), over];
            let item = |(number, one): (usize, Approval)| {
                let question = PageQuestion { left_out: Some(300_000), has_fields: false, ..PageQuestion::whole(one) };
                ItemView::new(number, &question, &words)
            };
            let items: Vec<ItemView> = parts.into_iter().enumerate().map(item).collect();
            html(&scene, &items, None, Some(&form))
        };
        let changes = [
            ("0.f0", "3"),
            ("0.f3", text),
            ("0.comment", text),
            ("0.grant", "yes"),
            ("0.g1", "yes"),
            ("0.days", "7"),
            ("1.confirmation", text),
            ("1.f1", "false"),
        ];
        let long = "x".repeat(2_001);
        let wrong = [
            ("0.f0", "many"),
            ("0.f1", ""),
            ("0.f2", text),
            ("0.f3", text),
            ("0.f4", text),
            ("0.f5", text),
            ("0.f6", text),
            ("0.f7", text),
            ("0.grant", "yes"),
            ("0.days", "1"),
            ("0.comment", &long),
            ("1.f2", "fax"),
            ("1.confirmation", text),
        ];
        let pages = [
            fresh(&open),
            fresh(&open[..1]),
            sent(&changes, false),
            sent(&wrong, false),
            sent(&wrong, true),
            fresh(&over),
            fresh(&over[5..]),
            fresh(&held),
            in_part(),
        ];
        pages.join("\n=====\n")
    }

    #[test]
    fn every_state_of_the_page_in_both_languages() {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("approval_page_en", pages("en", "zq text"));
            // an open and a decided page are enough to see the other language
            let german = pages("de", "zq text");
            let german: Vec<&str> = german.split("\n=====\n").collect();
            insta::assert_snapshot!("approval_page_de", [german[0], german[5]].join("\n=====\n"));
        });
    }

    #[test]
    fn no_text_from_outside_is_markup_in_any_state_of_the_page() {
        for locale in ["en", "de"] {
            assert_inert(|text| pages(locale, text));
        }
    }
}
