//! One question: what runs, why somebody is asked, until when, and what came of it.

use std::borrow::Cow;

use serde::Serialize;
use serde_json::Value;

use crate::domain::actor::{Actor, SERVICE};
use crate::domain::approval::matrix::approval_level;
use crate::domain::approval::{
    Approval, ApprovalLevel, ApprovalStatus, Category, Consequence, POLICY, Proposal, ReasonCode, RuleBy,
};
use crate::http::pages::PageRow;
use crate::http::pages::approve::approval_page::{ApprovalPage, is_expired, is_open};
use crate::http::pages::approve::asker::Asker;
use crate::http::pages::approve::changes::{ArgumentChange, by_name, changes};
use crate::http::pages::approve::control::Controls;
use crate::http::pages::approve::form::flatten_arguments;
use crate::http::pages::approve::item::{FaultPlace, ItemView};
use crate::http::pages::approve::kind::{json, shown};
use crate::http::pages::approve::moment::{instant, time_left};
use crate::http::pages::approve::page_room::BEGINNING;

/// A question among others, with its form where there is one.
#[derive(Debug, Serialize)]
pub struct Card<'a> {
    number: usize,
    summary: &'a str,
    description: &'a str,
    /// It asks for what a call lacks.
    is_input: bool,
    /// The server that asks, where one does.
    asker: Option<Asker<'a>>,
    arguments: CardArguments,
    /// The page shows the beginning of the arguments alone.
    left_out: Option<OmittedArguments>,
    precheck: Option<String>,
    reasons: Reasons<'a>,
    deadline: Option<Deadline>,
    controls: Option<Controls<'a>>,
    settled: Option<SettledCard<'a>>,
    /// The call is held and can be stopped: the faults beside the button.
    stop: Option<Vec<&'a str>>,
    /// For operators: the tool, the run, and the rules as they are written.
    details: Vec<PageRow<'a>>,
}

/// Every argument, whole, as it runs: as it was proposed, as a person has changed it, or as it was decided.
#[derive(Debug, Serialize)]
struct CardArguments {
    heading: &'static str,
    /// Arguments that are no object, as JSON.
    json: Option<String>,
    rows: Vec<Argument>,
}

/// Arguments that are not shown whole: how large they are, and how they are seen and decided on elsewhere.
#[derive(Debug, Serialize)]
struct OmittedArguments {
    phrase: &'static str,
    bytes: u64,
    show: String,
    decide: String,
    path: String,
}

#[derive(Debug, Serialize)]
struct Argument {
    name: String,
    is_changed: bool,
    value: String,
}

/// Why somebody is asked, or nobody is, in sentences for a person.
#[derive(Debug, Serialize)]
struct Reasons<'a> {
    heading: &'static str,
    sentences: Vec<Sentence<'a>>,
}

#[derive(Debug, PartialEq, Serialize)]
struct Sentence<'a> {
    phrase: &'static str,
    credential: &'a str,
}

/// Until when it can be answered, and how many have agreed where several have to.
#[derive(Debug, Serialize)]
struct Deadline {
    left: String,
    at: String,
    votes: Option<Votes>,
}

#[derive(Debug, Serialize)]
struct Votes {
    phrase: &'static str,
    agreed: usize,
    wanted: u32,
}

/// The end of a question.
#[derive(Debug, Serialize)]
struct SettledCard<'a> {
    /// `good` or `bad`.
    tone: &'static str,
    word: &'static str,
    /// The end of its time, where nobody answered.
    over_at: Option<String>,
    decision: Option<ShownDecision<'a>>,
}

#[derive(Debug, Serialize)]
struct ShownDecision<'a> {
    phrase: &'static str,
    who: &'a str,
    at: String,
    comment: Option<&'a str>,
    changes: Option<Vec<ArgumentChange>>,
    result: Option<ShownResult<'a>>,
    fate: Fate,
}

#[derive(Debug, Serialize)]
struct ShownResult<'a> {
    /// `good` or `bad`.
    tone: &'static str,
    phrase: &'static str,
    text: &'a str,
}

/// The fate of a call that has no result.
#[derive(Debug, Serialize)]
struct Fate {
    phrase: &'static str,
    at: String,
}

impl<'a> Card<'a> {
    /// The card of a question; `has_form`: the page has a form.
    pub fn of(scene: &'a ApprovalPage, item: &'a ItemView, has_form: bool) -> Card<'a> {
        let approval: &'a Approval = &item.approval;
        let proposal = &approval.proposal;
        let is_open = is_open(approval, scene.now);
        let can_stop = !is_open && has_form && approval.is_held(scene.now);
        Card {
            number: item.number,
            summary: &proposal.summary,
            description: &proposal.description,
            is_input: item.is_input(),
            asker: Asker::of(item),
            arguments: CardArguments::of(scene, item),
            left_out: item.left_out.map(|bytes| OmittedArguments::of(item, bytes, is_open)),
            precheck: proposal.precheck.as_ref().map(shown),
            reasons: Reasons::of(proposal),
            deadline: is_open.then(|| Deadline::of(scene, approval)),
            controls: (is_open && has_form).then(|| Controls::of(&scene.words, item)),
            settled: (!is_open).then(|| SettledCard::of(scene, approval)),
            stop: can_stop.then(|| item.faults_at(FaultPlace::Item)),
            details: details(scene, proposal),
        }
    }
}

impl OmittedArguments {
    fn of(item: &ItemView, bytes: u64, is_open: bool) -> OmittedArguments {
        let (id, run_id) = (item.approval.id, item.approval.run_id);
        // what has no room is then what stands beside the arguments
        let has_all_arguments = bytes <= BEGINNING as u64;
        let (phrase, decide) = match (is_open, item.is_input()) {
            (true, false) if has_all_arguments => ("too_much_to_approve", format!("reveille approval approve {id}")),
            (true, false) => ("too_large_to_approve", format!("reveille approval approve {id}")),
            (true, true) if has_all_arguments => ("too_much_to_answer", format!("reveille run answer {run_id}")),
            (true, true) => ("too_large_to_answer", format!("reveille run answer {run_id}")),
            (false, _) => ("shown_in_part", String::new()),
        };
        let show = format!("reveille approval show {id}");
        OmittedArguments { phrase, bytes, show, decide, path: format!("/v1/approvals/{id}") }
    }
}

impl CardArguments {
    fn of(scene: &ApprovalPage, item: &ItemView) -> CardArguments {
        let approval = &item.approval;
        let (heading, arguments) = match (item.is_input(), approval.status.allows()) {
            (true, true) => ("was_answered", approval.arguments()),
            (true, false) => ("is_known", &approval.proposal.arguments),
            (false, _) => CardArguments::of_call(scene, item),
        };
        CardArguments::shown(item, heading, arguments)
    }

    fn of_call<'a>(scene: &ApprovalPage, item: &'a ItemView) -> (&'static str, &'a Value) {
        let approval = &item.approval;
        match (is_open(approval, scene.now), approval.status.allows()) {
            (true, _) => ("will_run", item.fit_change().unwrap_or(&approval.proposal.arguments)),
            (false, true) => ("approved_to_run", approval.arguments()),
            (false, false) => ("was_asked", &approval.proposal.arguments),
        }
    }

    fn shown(item: &ItemView, heading: &'static str, arguments: &Value) -> CardArguments {
        if item.left_out.is_some() {
            let mut beginning = arguments.as_str().unwrap_or_default().to_owned();
            if beginning.chars().count() >= BEGINNING {
                beginning.push('…');
            }
            return CardArguments { heading, json: Some(beginning), rows: Vec::new() };
        }
        let Some(fields) = arguments.as_object() else {
            return CardArguments { heading, json: Some(json(arguments)), rows: Vec::new() };
        };
        let proposed = by_name(&item.approval.proposal.arguments);
        let row = |(name, value): (String, _)| Argument {
            is_changed: !item.is_input() && item.fit_change().is_some() && proposed.get(&name) != Some(&value),
            value: shown(value),
            name,
        };
        CardArguments { heading, json: None, rows: flatten_arguments(fields).into_iter().map(row).collect() }
    }
}

impl<'a> Reasons<'a> {
    fn of(proposal: &'a Proposal) -> Reasons<'a> {
        let asks = !proposal.is_auto_approved();
        let mut sentences: Vec<(&str, &str)> = Vec::new();
        // what a rule alone has asked about is not made to look worse than it is
        let by_kind = approval_level(proposal.category, proposal.consequence, false) == ApprovalLevel::Confirm;
        if asks && (by_kind || proposal.reason_codes.is_empty()) {
            sentences.push((of_category(proposal.category), ""));
        }
        if asks && proposal.consequence == Consequence::High {
            sentences.push(("why_high", ""));
        }
        for code in &proposal.reason_codes {
            let sentence = match code {
                ReasonCode::Rule { by, gate: ApprovalLevel::Confirm } if asks => (rule_asks(*by), ""),
                ReasonCode::Rule { by, gate: ApprovalLevel::Auto } if !asks => (rule_allows(*by), ""),
                ReasonCode::Rule { .. } => continue,
                ReasonCode::Credential { reference } if asks => ("why_credential", reference.as_str()),
                ReasonCode::Credential { .. } => continue,
                ReasonCode::Unjudged => ("why_unjudged", ""),
                ReasonCode::Always => ("why_always", ""),
                ReasonCode::ToolChanged => ("why_tool_changed", ""),
                ReasonCode::CheckChanged => ("why_check_changed", ""),
                ReasonCode::Grant => ("why_grant", ""),
                ReasonCode::UndoWindow => continue,
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
        Reasons {
            heading: if asks { "why_asked" } else { "why_not_asked" },
            sentences: sentences.into_iter().map(|(phrase, credential)| Sentence { phrase, credential }).collect(),
        }
    }
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

fn details<'a>(scene: &ApprovalPage, proposal: &'a Proposal) -> Vec<PageRow<'a>> {
    let row = |name, value: String| PageRow { name, value: Cow::Owned(value) };
    let tool = row("tool", format!("{} {}", proposal.tool, proposal.version));
    let effect = row("effect", format!("{}, {}", proposal.category.as_str(), proposal.consequence.as_str()));
    let rules = proposal.reasons.iter().map(|reason| PageRow { name: "rules", value: Cow::Borrowed(reason) });
    [tool, effect, row("run", scene.run_id.to_string())].into_iter().chain(rules).collect()
}

impl Deadline {
    fn of(scene: &ApprovalPage, approval: &Approval) -> Deadline {
        let (words, until) = (&scene.words, approval.expires_at);
        let votes = || {
            let is_among = approval.votes.iter().any(|vote| vote.may_be_of(&scene.identities));
            Votes {
                phrase: if is_among { "agreed_with_you" } else { "agreed" },
                agreed: approval.agreed_count(),
                wanted: approval.proposal.approvers,
            }
        };
        Deadline {
            left: time_left(words, until, scene.now),
            at: instant(words, until, scene.zone),
            votes: (approval.proposal.approvers > 1).then(votes),
        }
    }
}

impl<'a> SettledCard<'a> {
    fn of(scene: &'a ApprovalPage, approval: &'a Approval) -> SettledCard<'a> {
        let is_input = approval.proposal.is_input();
        let (tone, word) = match approval.status {
            ApprovalStatus::Approved if approval.proposal.is_of_server() => ("bad", "told_no"),
            ApprovalStatus::Approved | ApprovalStatus::Edited if is_input => ("good", "answered"),
            ApprovalStatus::Cancelled if is_input => ("bad", "declined"),
            ApprovalStatus::Approved if by_policy(approval) => ("good", "needs_none"),
            ApprovalStatus::Approved => ("good", "approved"),
            ApprovalStatus::Edited => ("good", "approved_changed"),
            ApprovalStatus::Cancelled => ("bad", "rejected"),
            ApprovalStatus::Pending | ApprovalStatus::Expired => ("bad", "expired"),
        };
        if is_expired(approval) {
            let over_at = instant(&scene.words, approval.expires_at, scene.zone);
            return SettledCard { tone, word, over_at: Some(over_at), decision: None };
        }
        SettledCard { tone, word, over_at: None, decision: Some(ShownDecision::of(scene, approval)) }
    }
}

impl<'a> ShownDecision<'a> {
    fn of(scene: &'a ApprovalPage, approval: &'a Approval) -> ShownDecision<'a> {
        let changed = |decided| changes(&approval.proposal.arguments, decided);
        let result = approval.outcome.as_ref().map(|outcome| {
            let (tone, phrase) = if outcome.is_error { ("bad", "failed") } else { ("good", "done") };
            ShownResult { tone, phrase, text: &outcome.text }
        });
        let at = |at| instant(&scene.words, at, scene.zone);
        let is_input = approval.proposal.is_input();
        let fate = match (approval.status.allows(), approval.hold_until) {
            (true, _) if approval.proposal.is_of_server() => Fate { phrase: "told_server", at: String::new() },
            (false, _) if approval.proposal.is_of_server() => Fate { phrase: "not_called_again", at: String::new() },
            (true, _) if is_input => Fate { phrase: "told_agent", at: String::new() },
            (false, _) => Fate { phrase: "not_executed", at: String::new() },
            (true, Some(until)) if scene.now < until => Fate { phrase: "held_until", at: at(until) },
            (true, _) => Fate { phrase: "executing", at: String::new() },
        };
        ShownDecision {
            phrase: if by_policy(approval) { "let_through" } else { "decided" },
            who: name(approval, scene),
            at: approval.decided_at.map(at).unwrap_or_default(),
            comment: approval.comment.as_deref(),
            // those of a call that is not shown whole are a text
            changes: approval.modifications.as_ref().filter(|decided| !is_input && decided.is_object()).map(changed),
            result,
            fate,
        }
    }
}

/// The person who decided, for a reader.
fn name<'a>(approval: &'a Approval, scene: &'a ApprovalPage) -> &'a str {
    let by = approval.decided_by.as_deref().unwrap_or(SERVICE);
    let phrase = match Actor::parse(by) {
        _ if by == scene.reader => "you",
        Actor::Recipient(tenant) => return tenant,
        Actor::Admin | Actor::Token(_) | Actor::Embedder | Actor::Caller(_) => "by_api",
        Actor::Service => "by_service",
    };
    scene.words.get(phrase)
}

fn by_policy(approval: &Approval) -> bool {
    approval.decided_by.as_deref() == Some(POLICY)
}
