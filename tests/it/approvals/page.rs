//! The page behind a link: what it shows, what its form does, and what is left to see afterwards.

use std::cell::Cell;

use reveille::agent::configured::agent_tool::AgentTool;
use reveille::base::id::Scope;
use reveille::domain::approval::{ApprovalChoice, CallOutcome, Proposal, QuestionKind};
use reveille::domain::run::RunState;
use serde_json::json;
use tokio::task::yield_now;

use super::harness::{AskingRun, BrowserPage, TIME, ask, fetch, link, note, note_of, post};
use crate::api::service::{Api, on_both, table_booker};
use crate::support::computing::{HeldThreads, until_waiting};

on_both! {
    scanners_change_nothing_and_then_a_person_decides
    one_is_edited_one_cancelled_and_the_run_goes_on
    all_are_decided_at_once
    question_for_input_is_answered_with_its_fields_and_by_no_button_for_all
    answer_to_an_agent_is_held_against_its_validators
    fault_stands_beside_its_field_and_changes_nothing
    text_inside_of_an_object_is_edited_as_a_text
    page_speaks_the_language_of_its_recipient
    page_says_clearly_that_an_approval_was_decided_expired_or_is_unknown
    approved_call_that_is_held_can_be_stopped
    of_two_who_answer_one_is_told_that_the_other_was_first
    page_of_a_paused_run_says_so_and_takes_no_answer
    call_that_has_no_room_on_the_page_can_only_be_rejected_there
    call_that_has_no_room_on_the_page_is_decided_over_the_api
}

async fn call_that_has_no_room_on_the_page_can_only_be_rejected_there(api: Api) {
    let large = |bytes: usize| note_of(json!({ "room": "lobby", "text": "x".repeat(bytes) }));
    // one that fits is approved; those that are read in part look like those that have no room
    let asked = ask(&api, "ann", vec![note(), large(262_144), large(10 << 20), large(100_000)]).await;
    let page = asked.open(&api).await.expect(200);
    assert!(page.html.len() < 300_000, "{}", page.html.len());
    for (number, length) in [(1, 262_144), (2, 10 << 20)] {
        let id = asked.approvals[number].id;
        page.shows(&format!("<code>reveille approval show {id}</code>"));
        page.shows(&format!("<code>reveille approval approve {id}</code>"));
        page.shows(&format!("<code>/v1/approvals/{id}</code>"));
        page.hides(&format!("value=\"approve:{number}\""));
        page.shows(&format!("value=\"cancel:{number}\""));
        page.hides(&format!("name=\"{number}.f0\""));
        page.hides(&format!("name=\"{number}.grant\""));
        let bytes = length + r#"{"room":"lobby","text":""}"#.len();
        let is_told = |bytes: usize| page.html.contains(&format!("have {bytes} bytes"));
        // PostgreSQL measures what it has of a large one: with a space behind each colon and comma
        assert!(is_told(bytes) || is_told(bytes + 3), "{bytes}");
    }
    for offered in ["approve:0", "approve:3", "cancel:all"] {
        page.shows(&format!("value=\"{offered}\""));
    }
    page.hides("value=\"approve:all\"");
    // a form that says otherwise changes nothing
    for press in ["approve:1", "approve:2", "approve:all"] {
        let refused = asked.send(&api, &[("do", press), ("1.f0", "attic")]).await.expect(422);
        refused.shows("is too large to be shown whole, so it can only be rejected here");
        assert_eq!(asked.statuses(&api).await, ["pending"; 4], "{press}");
    }
    asked.send(&api, &[("do", "approve:3")]).await.expect(303);
    asked.send(&api, &[("do", "cancel:1")]).await.expect(303);
    asked.send(&api, &[("do", "cancel:all")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["cancelled", "cancelled", "cancelled", "approved"]);
    asked.open(&api).await.expect(200).shows("Only the beginning is shown");
}

async fn call_that_has_no_room_on_the_page_is_decided_over_the_api(api: Api) {
    let asked = ask(&api, "ann", vec![note_of(json!({ "room": "lobby", "text": "x".repeat(300_000) }))]).await;
    let [approval] = &asked.approvals[..] else { panic!("one") };
    let path = format!("/v1/approvals/{}", approval.id);
    let read = api.admin("GET", &path, None).await.expect(200);
    assert_eq!(read["details"]["text"].as_str().unwrap().len(), 300_000);
    let decision = json!({ "decision": "approve", "digest": read["digest"] });
    api.admin("POST", &format!("{path}/decision"), Some(decision)).await.expect(200);
    let page = asked.open(&api).await.expect(200);
    page.shows("Only the beginning is shown");
    assert_eq!(asked.statuses(&api).await, ["approved"]);
}

#[tokio::test]
async fn page_of_a_link_is_made_on_computing_threads() {
    let api = Api::new().await;
    let asked = ask(&api, "ann", vec![note()]).await;
    let computing = api.store.computing().clone();
    let mut threads = HeldThreads::all_of(&computing, "ann").await;
    let meanwhile = async {
        // the questions are read there, and then the page is made
        until_waiting(&computing, 1).await;
        threads.let_pass().await;
        until_waiting(&computing, 1).await;
        api.admin("GET", "/v1/tasks", None).await.expect(200);
        drop(threads);
    };
    let (page, ()) = tokio::join!(asked.open(&api), meanwhile);
    page.expect(200).shows("The build is broken");
}

/// A press of a button while the computing threads of the tenant are held, and how many computations it has waited for.
async fn computed(api: &Api, asked: &AskingRun, press: &[(&str, &str)]) -> (BrowserPage, usize) {
    let nonce = asked.open(api).await.hidden("nonce").expect("a form");
    let fields: Vec<_> = [("nonce", nonce.as_str())].into_iter().chain(press.iter().copied()).collect();
    let computing = api.store.computing().clone();
    let mut threads = HeldThreads::all_of(&computing, "ann").await;
    let path = asked.path();
    let is_answered = Cell::new(false);
    let sent = async {
        let seen = post(api, &path, &fields, &[("origin", "null"), ("sec-fetch-site", "same-origin")]).await;
        is_answered.set(true);
        seen
    };
    let meanwhile = async {
        let mut passed = 0;
        while !is_answered.get() {
            match computing.queued() {
                0 => yield_now().await,
                _ => {
                    threads.let_pass().await;
                    passed += 1;
                }
            }
        }
        passed
    };
    tokio::join!(sent, meanwhile)
}

#[tokio::test]
async fn arguments_of_a_press_are_judged_on_computing_threads() {
    let api = Api::new().await;
    let asked = ask(&api, "ann", vec![note()]).await;
    // the questions are read, their items are made, the arguments are judged, and the page is made that says why not
    let long = "x".repeat(31);
    for button in ["review", "approve:0"] {
        let (page, computations) = computed(&api, &asked, &[("do", button), ("0.f1", long.as_str())]).await;
        page.expect(422).shows("the value is longer than 30 characters");
        assert_eq!(computations, 4, "{button}");
    }
    computed(&api, &asked, &[("do", "approve:0")]).await.0.expect(303);
    assert_eq!(asked.statuses(&api).await, ["approved"]);
}

async fn scanners_change_nothing_and_then_a_person_decides(api: Api) {
    let recipient = json!({ "timezone": "Asia/Shanghai", "addresses": { "email": "ann@example.org" } });
    api.admin("PUT", "/v1/recipients/ann", Some(recipient)).await.expect(200);
    let asked = ask(&api, "ann", vec![note()]).await;
    let before = api.written().await;
    for _ in 0..20 {
        asked.open(&api).await.expect(200);
        let head = fetch(&api, "HEAD", &asked.path()).await.expect(200);
        assert_eq!(head.html, "");
        fetch(&api, "OPTIONS", &asked.path()).await.expect(405);
    }
    assert_eq!(api.written().await, before, "to look is to change nothing");

    api.advance(60);
    let page = asked.open(&api).await.expect(200);
    for shown in [
        "Your approval is needed",
        "Morning mail",
        "Send a note to the room lobby",
        "The build is broken",
        "<li>It sends data to another service.</li>",
        "the matrix says confirm for side_effect of medium consequence",
        "29 minutes left, until 21 November 2026, 08:30 (Asia/Shanghai)",
        "Run by hand, asked for on 21 November 2026, 08:00 (Asia/Shanghai)",
        "Reject</button>",
    ] {
        page.shows(shown);
    }
    // rules as they are written are for whoever runs the service, behind a fold
    let (person, operator) = page.html.split_once("Technical details").unwrap();
    assert!(!person.contains("the matrix says") && operator.contains("the matrix says"), "{person}");
    page.hides("Cancel");
    let done = asked.send(&api, &[("do", "approve:0"), ("0.comment", " go ahead ")]).await.expect(303);
    let approval = asked.only(&api).await;
    assert_eq!(
        (approval.status.as_str(), approval.decided_by.as_deref(), approval.comment.as_deref(), approval.modifications),
        ("approved", Some("recipient:ann"), Some("go ahead"), None)
    );
    assert_eq!(asked.run_state(&api).await, RunState::Queued);

    // what came of it is shown at an address that can't decide
    let place = done.header("location").to_owned();
    assert!(place.starts_with("/approvals/outcome/") && !place.contains(&asked.token), "{place}");
    let outcome = fetch(&api, "GET", &place).await.expect(200);
    outcome.shows("Decided by you, 21 November 2026, 08:01 (Asia/Shanghai).");
    outcome.shows("It is being executed.");
    outcome.hides("<form");
    let result = CallOutcome { is_error: false, text: "sent to <b>9</b>".into() };
    api.store.note_outcome(approval.id, &result).await.unwrap();
    fetch(&api, "GET", &place).await.expect(200).shows("sent to &lt;b&gt;9&lt;/b&gt;");
    let made_up = place.replacen(&place[20..24], "0000", 1);
    fetch(&api, "GET", &made_up).await.expect(404);
}

async fn one_is_edited_one_cancelled_and_the_run_goes_on(api: Api) {
    let asked = ask(&api, "ann", vec![note(), note_of(json!({ "room": "attic", "text": "two" }))]).await;
    let page = asked.open(&api).await.expect(200);
    page.shows("Your approvals are needed");
    page.shows("Approve all");
    // a change is shown first, and decides nothing
    let change = [("do", "approve:0"), ("0.f0", "lobby"), ("0.f1", "It is green")];
    let shown = asked.send(&api, &change).await.expect(200);
    shown.shows("Nothing was decided yet: look at what you changed, then approve it.");
    shown.shows("<del class=\"value\" dir=\"auto\">The build is broken</del>");
    shown.shows("<ins class=\"value\" dir=\"auto\">It is green</ins>");
    // what will run is what was changed, and the person is led to the change
    assert_eq!(first_value(&shown, "What will run", "text"), "It is green");
    shown.shows("<bdi>text</bdi> <span class=\"hint\">(changed by you)</span>");
    shown.shows("<a href=\"#c0\">");
    shown.shows("id=\"c0\" autofocus>");
    assert_eq!(asked.statuses(&api).await, ["pending", "pending"]);
    // the decision is about the change that was looked at: another one is shown again
    let reviewed = shown.hidden("0.reviewed").unwrap();
    let other = [("do", "approve:0"), ("0.f1", "It is blue"), ("0.reviewed", reviewed.as_str())];
    asked.send(&api, &other).await.expect(200).shows("It is blue");
    assert_eq!(asked.statuses(&api).await, ["pending", "pending"]);

    let again = [change.as_slice(), &[("0.reviewed", reviewed.as_str())]].concat();
    let next = asked.send(&api, &again).await.expect(303);
    assert_eq!(next.header("location"), asked.path(), "the other question is open still");
    assert_eq!(asked.statuses(&api).await, ["edited", "pending"]);
    let edited = asked.only(&api).await;
    assert_eq!(edited.modifications, Some(json!({ "room": "lobby", "text": "It is green" })));

    let page = asked.open(&api).await.expect(200);
    page.shows("Approved with changes");
    assert_eq!(first_value(&page, "What was approved", "text"), "It is green");
    page.hides("value=\"approve:0\"");
    let done = asked.send(&api, &[("do", "cancel:1"), ("1.f1", "x".repeat(99).as_str())]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["edited", "cancelled"]);
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
    let outcome = fetch(&api, "GET", done.header("location")).await.expect(200);
    outcome.shows("It was not executed. The agent was told.");
    outcome.shows("What was changed");
}

async fn all_are_decided_at_once(api: Api) {
    for (press, status) in [("approve:all", "approved"), ("cancel:all", "cancelled")] {
        let asked = ask(&api, "ann", vec![note(), note(), note()]).await;
        // the buttons for all stand before the first question, beside a link to each
        let page = asked.open(&api).await.expect(200);
        let (before, _) = page.html.split_once("id=\"h0\"").unwrap();
        assert!(before.contains("value=\"approve:all\"") && before.contains("value=\"cancel:all\""), "{before}");
        assert!((0..3).all(|n| before.contains(&format!("<a href=\"#h{n}\">"))), "{before}");
        // one that is faulty or changed holds all of them up
        if press == "approve:all" {
            asked.send(&api, &[("do", press), ("1.f1", "")]).await.expect(200);
            asked.send(&api, &[("do", press), ("1.f0", "attic")]).await.expect(200);
            asked.send(&api, &[("do", press), ("1.f1", "x".repeat(31).as_str())]).await.expect(422);
        }
        asked.send(&api, &[("do", "review")]).await.expect(200);
        asked.send(&api, &[("do", "aprove:all")]).await.expect(422);
        asked.send(&api, &[]).await.expect(422);
        assert_eq!(asked.statuses(&api).await, ["pending"; 3]);
        asked.send(&api, &[("do", press)]).await.expect(303);
        assert_eq!(asked.statuses(&api).await, [status; 3]);
    }
}

async fn question_for_input_is_answered_with_its_fields_and_by_no_button_for_all(api: Api) {
    let arguments = json!({ "room": "lobby" });
    let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
    let input = Proposal { kind: QuestionKind::Input, options, arguments, ..note() };
    let asked = ask(&api, "ann", vec![note(), note(), input]).await;
    asked.send(&api, &[("do", "cancel:all")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["cancelled", "cancelled", "pending"]);
    let page = asked.open(&api).await.expect(200);
    page.shows("value=\"answer:2\"");
    page.hides("value=\"approve:2\"");
    for (text, copies, fault) in [
        ("x".repeat(31), "", "the value is longer than 30 characters"),
        (String::new(), "", "id=\"i2f3e\">"),
        ("It is green".to_owned(), "many", "must be a number such as 12 or 12.5"),
    ] {
        let fields = [("do", "answer:2"), ("2.f1", copies), ("2.f3", text.as_str())];
        let page = asked.send(&api, &fields).await.expect(422);
        page.shows(fault);
        page.hides("the arguments that are to be otherwise");
    }
    assert_eq!(asked.statuses(&api).await, ["cancelled", "cancelled", "pending"]);
    asked.send(&api, &[("do", "answer:2"), ("2.f3", "It is green")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["cancelled", "cancelled", "edited"]);
    assert_eq!(asked.run_state(&api).await, RunState::Queued);
}

async fn answer_to_an_agent_is_held_against_its_validators(api: Api) {
    let parameters = json!({
        "type": "object", "required": ["party", "email"], "additionalProperties": false,
        "properties": { "party": { "type": "integer" }, "email": { "type": "string" } },
    });
    let question = Proposal {
        kind: QuestionKind::Input,
        tool: "BookTable".into(),
        version: AgentTool::all(&[table_booker()])[0].schema_version().to_owned(),
        arguments: json!({ "party": 4 }),
        parameters,
        options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
        ..note()
    };
    let asked = ask(&api, "ann", vec![question]).await;
    let refused = asked.send(&api, &[("do", "answer:0"), ("0.f1", "ann")]).await.expect(422);
    refused.shows("id=\"i0f1e\">an address with an @</p>");
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    asked.send(&api, &[("do", "answer:0"), ("0.f1", "ann@example.org")]).await.expect(303);
    let answered = asked.only(&api).await;
    assert_eq!(answered.modifications, Some(json!({ "party": 4, "email": "ann@example.org" })));
    assert_eq!((answered.status.as_str(), asked.run_state(&api).await), ("edited", RunState::Queued));
}

async fn fault_stands_beside_its_field_and_changes_nothing(api: Api) {
    let proposal = Proposal { confirmation: Some("SEND".into()), ..note() };
    let asked = ask(&api, "ann", vec![proposal]).await;
    let long = "x".repeat(31);
    let number = field(&asked.open(&api).await, "copies");
    let fields = [("do", "approve:0"), ("0.f1", long.as_str()), (number.as_str(), "many"), ("0.confirmation", "SEND")];
    let page = asked.send(&api, &fields).await.expect(422);
    let id = format!("i{}", number.replace('.', ""));
    page.shows(&format!("id=\"{id}e\">must be a number such as 12 or 12.5</p>"));
    page.shows(&format!("{id}e\" aria-invalid=\"true\" autofocus"));
    page.shows(&format!("<a href=\"#{id}\"><bdi>copies</bdi>: <bdi>must be a number such as 12 or 12.5</bdi></a>"));
    page.shows(&long);
    let fields = [("do", "approve:0"), ("0.f1", long.as_str()), (number.as_str(), "0"), ("0.confirmation", "SEND")];
    let page = asked.send(&api, &fields).await.expect(422);
    page.shows("id=\"i0f1e\">the value is longer than 30 characters</p>");
    page.shows(&format!("id=\"{id}e\">"));
    page.shows("<a href=\"#i0f1\">");
    // what does not fit will not run, and is not to be approved
    assert_eq!(first_value(&page, "What will run", "text"), "The build is broken");
    page.hides("What you changed");
    assert_eq!(page.html.matches(" autofocus").count(), 1, "one place alone has the focus");
    // what can't be undone is approved by who types what is shown, and by nobody else
    for typed in ["", "send"] {
        let page = asked.send(&api, &[("do", "approve:0"), ("0.confirmation", typed)]).await.expect(422);
        page.shows("To approve it, type <code>SEND</code>");
        page.shows("aria-invalid=\"true\" autofocus");
        page.shows("<a href=\"#i0code\">");
    }
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    asked.send(&api, &[("do", "approve:0"), ("0.confirmation", "SEND")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["approved"]);
}

async fn text_inside_of_an_object_is_edited_as_a_text(api: Api) {
    let mut proposal = note_of(json!({ "url": "https://example.org", "body": { "text": "It is \"red\"", "n": 1 } }));
    proposal.parameters = json!({ "type": "object", "properties": { "url": { "type": "string" }, "body": {} } });
    let asked = ask(&api, "ann", vec![proposal]).await;
    let page = asked.open(&api).await.expect(200);
    page.shows("<dt><bdi>body › text</bdi></dt>\n<dd class=\"value\" dir=\"auto\">It is &quot;red&quot;</dd>");
    page.shows("<label for=\"i0f1\"><bdi>body › text</bdi></label>");
    page.hides("As JSON.");
    let change = [("do", "approve:0"), ("0.f1", "It is \"green\"")];
    let shown = asked.send(&api, &change).await.expect(200);
    let reviewed = shown.hidden("0.reviewed").unwrap();
    asked.send(&api, &[change.as_slice(), &[("0.reviewed", reviewed.as_str())]].concat()).await.expect(303);
    let runs = json!({ "url": "https://example.org", "body": { "text": "It is \"green\"", "n": 1 } });
    assert_eq!(asked.only(&api).await.modifications, Some(runs));
}

async fn page_speaks_the_language_of_its_recipient(api: Api) {
    let recipient = json!({ "timezone": "Europe/Vienna", "locale": "de-AT", "addresses": {} });
    api.admin("PUT", "/v1/recipients/ann", Some(recipient)).await.expect(200);
    let two = Proposal { approvers: 2, undo_seconds: Some(60), confirmation: Some("SEND".into()), ..note() };
    let asked = ask(&api, "ann", vec![two, note()]).await;
    let page = asked.open(&api).await.expect(200);
    for shown in [
        "<html lang=\"de\" dir=\"ltr\">",
        "Ihre Freigaben werden gebraucht",
        "Von Hand gestartet am 21. November 2026, 01:00 Uhr (Europe/Vienna) mit dem Token admin",
        "Noch 30 Minuten, bis 21. November 2026, 01:30 Uhr (Europe/Vienna)",
        "Es sendet Daten an einen anderen Dienst.",
        "0 von 2 Personen haben zugestimmt.",
        "Freigeben</button>",
        "Ablehnen</button>",
        "Alle freigeben</button>",
    ] {
        page.shows(shown);
    }
    let fault = asked.send(&api, &[("do", "approve:0"), ("0.confirmation", "SENT")]).await.expect(422);
    fault.shows("Noch wurde nichts entschieden: berichtigen Sie, was markiert ist.");
    fault.shows("ist nicht, was gezeigt ist");
    let (long, copies) = ("x".repeat(31), field(&page, "copies"));
    let fields = [("do", "review"), ("0.f1", long.as_str()), (copies.as_str(), "0.5")];
    let fault = asked.send(&api, &fields).await.expect(422);
    fault.shows("id=\"i0f1e\">ist länger als 30 Zeichen</p>");
    fault.hides("the value");
    asked.send(&api, &[("do", "approve:0"), ("0.confirmation", "SEND")]).await.expect(303);
    asked.open(&api).await.expect(200).shows("1 von 2 Personen haben zugestimmt, darunter Sie.");
    asked.send(&api, &[("do", "cancel:0")]).await.expect(303);
    let done = asked.send(&api, &[("do", "cancel:1")]).await.expect(303);
    let outcome = fetch(&api, "GET", done.header("location")).await.expect(200);
    outcome.shows("Abgelehnt");
    outcome.shows("Entschieden von Ihnen, 21. November 2026, 01:00 Uhr (Europe/Vienna).");
    for english in ["Approve", "Reject", "decided", "What", "You", "people"] {
        page.hides(english);
        outcome.hides(english);
    }
}

/// The text under a heading at the name of an argument, first.
fn first_value<'a>(page: &'a BrowserPage, heading: &str, argument: &str) -> &'a str {
    let (_, rest) = page.html.split_once(&format!("<h3>{heading}</h3>")).expect("the heading");
    let (_, rest) = rest.split_once(&format!("<dt><bdi>{argument}</bdi>")).expect("the argument");
    let (_, rest) = rest.split_once("dir=\"auto\">").expect("its value");
    rest.split_once("</dd>").expect("its end").0
}

/// The form's name of the field of an argument.
fn field(page: &BrowserPage, argument: &str) -> String {
    let (before, _) = page.html.split_once(&format!("\"><bdi>{argument}</bdi> <span")).expect("the field");
    let id = before.rsplit_once('"').unwrap().1;
    let (number, index) = id.strip_prefix('i').unwrap().split_once('f').unwrap();
    format!("{number}.f{index}")
}

async fn page_says_clearly_that_an_approval_was_decided_expired_or_is_unknown(api: Api) {
    let decided = ask(&api, "ann", vec![note()]).await;
    let escalated = link(&api, "ann", decided.batch, "carol").await;
    decided.send(&api, &[("do", "cancel:0")]).await.expect(303);
    let page = decided.open(&api).await.expect(200);
    page.shows("This is decided");
    page.shows("Decided by you, 21 November 2026, 00:00 (UTC).");
    page.hides("<form");
    let other = fetch(&api, "GET", &format!("/approvals/{escalated}")).await.expect(200);
    other.shows("Decided by ann, 21 November 2026, 00:00 (UTC).");

    let expired = ask(&api, "ann", vec![note()]).await;
    let nonce = expired.open(&api).await.hidden("nonce").unwrap();
    api.clock.advance(TIME);
    let page = expired.open(&api).await.expect(200);
    page.shows("The time to answer is over");
    page.hides("<form");
    let late = post(&api, &expired.path(), &[("nonce", &nonce), ("do", "approve:0")], &[]).await.expect(409);
    late.shows("Nothing was changed: this was settled before your answer came.");
    assert_eq!(expired.only(&api).await.decided_by, None);

    let unknown = fetch(&api, "GET", "/approvals/0123456789abcdef").await.expect(404);
    unknown.shows("This link is not known");
    post(&api, "/approvals/0123456789abcdef", &[("do", "approve:0")], &[]).await.expect(404);
    // a link ends, and is then as unknown as one that never was
    api.clock.advance(chrono::TimeDelta::days(8));
    assert_eq!(expired.open(&api).await.expect(404).html, unknown.html);
}

async fn approved_call_that_is_held_can_be_stopped(api: Api) {
    let proposal = Proposal { undo_seconds: Some(60), ..note() };
    let asked = ask(&api, "ann", vec![proposal]).await;
    let next = asked.send(&api, &[("do", "approve:0")]).await.expect(303);
    assert_eq!(next.header("location"), asked.path());
    let page = asked.open(&api).await.expect(200);
    page.shows("It is held until 21 November 2026, 00:01 (UTC), and then executed.");
    page.shows("Stop it</button>");
    asked.send(&api, &[("do", "approve:0")]).await.expect(409);
    asked.send(&api, &[("do", "cancel:0")]).await.expect(303);
    assert_eq!(asked.statuses(&api).await, ["cancelled"]);

    let asked = ask(&api, "ann", vec![Proposal { undo_seconds: Some(60), ..note() }]).await;
    asked.send(&api, &[("do", "approve:0")]).await.expect(303);
    let nonce = asked.open(&api).await.hidden("nonce").unwrap();
    api.advance(60);
    asked.open(&api).await.expect(200).hides("Stop it");
    post(&api, &asked.path(), &[("nonce", &nonce), ("do", "cancel:0")], &[]).await.expect(409);
    assert_eq!(asked.statuses(&api).await, ["approved"]);
}

async fn page_of_a_paused_run_says_so_and_takes_no_answer(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    asked.open(&api).await.expect(200).hides("This is paused");
    api.store.pause_suspended(&Scope::Every, asked.run, "token:t").await.unwrap();
    // long after its time would have been over
    api.clock.advance(TIME * 3);
    asked.open(&api).await.expect(200).shows("This is paused: it takes no answer until it is resumed.");
    let refused = asked.send(&api, &[("do", "approve:0")]).await.expect(409);
    refused.shows("this is paused and takes no answer until it is resumed.");
    assert_eq!(asked.statuses(&api).await, ["pending"]);
    api.store.resume_suspended(&Scope::Every, asked.run, "token:t").await.unwrap();
    asked.open(&api).await.expect(200).hides("This is paused");
    asked.send(&api, &[("do", "approve:0")]).await.expect(303);
}

async fn of_two_who_answer_one_is_told_that_the_other_was_first(api: Api) {
    let asked = ask(&api, "ann", vec![note()]).await;
    let nonce = asked.open(&api).await.hidden("nonce").unwrap();
    let path = asked.path();
    let yes = [("nonce", nonce.as_str()), ("do", "approve:0")];
    let no = [("nonce", nonce.as_str()), ("do", "cancel:0")];
    let answers =
        futures::future::join_all((0..10).map(|n| post(&api, &path, if n % 2 == 0 { &yes } else { &no }, &[]))).await;
    let won = answers.iter().filter(|answer| answer.status == 303).count();
    let told = answers.iter().filter(|answer| answer.status == 409).count();
    assert_eq!((won, told), (1, 9));
    // a question that offers no cancel offers none
    let fixed = Proposal { options: vec![ApprovalChoice::Approve], ..note() };
    let asked = ask(&api, "ann", vec![fixed]).await;
    asked.open(&api).await.expect(200).hides("cancel:0");
    asked.send(&api, &[("do", "cancel:0")]).await.expect(422);
    assert_eq!(asked.statuses(&api).await, ["pending"]);
}
