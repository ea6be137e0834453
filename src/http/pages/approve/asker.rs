//! The server that asks in the middle of a call: its words, and the pages to which it sends a person.
//!
//! Nothing of it is fetched. An address is a link only where it leads to the host that the page names, as it was kept.

use serde::Serialize;
use url::{Host, Url};

use crate::domain::approval::{PartMode, QuestionPart};
use crate::http::pages::approve::item::ItemView;

/// The beginning of a part of a host that is written in letters beyond ASCII.
const PUNYCODE: &str = "xn--";

/// A server that asks.
#[derive(Debug, Serialize)]
pub struct Asker<'a> {
    server: &'a str,
    tool: &'a str,
    /// How often it has asked in this call, this time among them.
    round: u32,
    parts: Vec<AskedPart<'a>>,
}

/// One thing that it asks for.
#[derive(Debug, Serialize)]
struct AskedPart<'a> {
    message: &'a str,
    /// The page to which it sends the person.
    link: Option<AskedLink<'a>>,
}

#[derive(Debug, Serialize)]
struct AskedLink<'a> {
    host: &'a str,
    url: &'a str,
    /// Letters of its host may look like others.
    is_odd: bool,
    /// It may be followed; others are shown as text.
    is_safe: bool,
}

impl<'a> Asker<'a> {
    /// The server that asks this; `None`: none does.
    pub fn of(item: &'a ItemView) -> Option<Asker<'a>> {
        let proposal = &item.approval.proposal;
        let asked = proposal.server.as_ref()?;
        // nobody is sent anywhere by a question that is not shown whole
        let has_links = item.left_out.is_none();
        let part = |part: &'a QuestionPart| AskedPart {
            message: &part.message,
            link: AskedLink::of(&part.mode).filter(|_| has_links),
        };
        Some(Asker {
            server: &asked.server,
            tool: &proposal.tool,
            round: asked.continuation.round,
            parts: asked.parts.iter().map(part).collect(),
        })
    }
}

impl<'a> AskedLink<'a> {
    fn of(mode: &'a PartMode) -> Option<AskedLink<'a>> {
        let PartMode::Url { url, host } = mode else { return None };
        let is_odd = host.split('.').any(|label| label.starts_with(PUNYCODE));
        Some(AskedLink { host, url, is_odd, is_safe: leads_to(url, host) })
    }
}

/// Whether the address is one of https, or of this machine, that leads to this host and holds no name.
fn leads_to(kept: &str, host: &str) -> bool {
    let Ok(url) = Url::parse(kept) else { return false };
    let is_web = match url.scheme() {
        "https" => true,
        "http" => is_own_machine(&url),
        _ => false,
    };
    let named = match (url.host_str(), url.port()) {
        (Some(name), Some(port)) => format!("{name}:{port}"),
        (name, _) => name.unwrap_or_default().to_owned(),
    };
    let is_anonymous = url.username().is_empty() && url.password().is_none();
    is_web && is_anonymous && url.as_str() == kept && named == host
}

fn is_own_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

#[cfg(test)]
mod tests {
    use axum::http::StatusCode;
    use chrono::{DateTime, TimeDelta, Utc};
    use serde_json::{Value, json};
    use uuid::Uuid;

    use super::*;
    use crate::domain::approval::{
        Approval, ApprovalChoice, ApprovalStatus, CallOutcome, Proposal, ProposalIdentity, QuestionKind,
        ServerQuestion, VoterIdentities,
    };
    use crate::http::pages::approve::approval_page::{ApprovalPage, FormState};
    use crate::http::pages::approve::fixture::proposal;
    use crate::http::pages::approve::page_room::PageQuestion;
    use crate::http::pages::approve::submitted_fields::SubmittedFields;
    use crate::http::pages::approve::view;
    use crate::http::pages::tests::{assert_inert, text_of};
    use crate::ports::channel::templates::phrases::Catalogue;

    const DEPLOYMENT: &str = "https://login.example.org/device?a=1&b=2";

    fn now() -> DateTime<Utc> {
        "2026-11-21T00:00:00Z".parse().unwrap()
    }

    /// The question of a server with these parts.
    fn asked(server: &str, round: u32, parts: Value, parameters: Value) -> Proposal {
        let question = json!({
            "server": server, "parts": parts,
            "continuation": { "kind": "continue", "round": round, "request_state": "cy1wcm9k" },
        });
        let server: ServerQuestion = serde_json::from_value(question).unwrap();
        Proposal {
            kind: QuestionKind::Input,
            tool: "github_deploy".into(),
            summary: "Which branch?".into(),
            server: Some(server),
            options: vec![ApprovalChoice::Edit, ApprovalChoice::Cancel],
            ..proposal(parameters, json!({}))
        }
    }

    /// A form with a field of every kind, in another order than that of the names.
    fn survey() -> Proposal {
        let fields = ["zone", "branch", "checks", "mail", "count", "sure", "note"];
        let fields: Vec<Value> = fields.iter().map(|name| json!({ "name": name, "field": name })).collect();
        let titled = |value: &str, title: &str| json!({ "const": value, "title": title });
        let parameters = json!({
            "type": "object", "additionalProperties": false, "required": ["branch", "sure", "checks"],
            "properties": {
                "zone": { "type": "string", "enum": ["east", "west"], "default": "west" },
                "branch": { "type": "string", "title": "The branch", "oneOf": [titled("m", "main"), titled("d", "dev")] },
                "checks": { "type": "array", "items": { "anyOf": [titled("u", "units"), titled("l", "lints")] },
                            "default": ["l"] },
                "mail": { "type": "string", "format": "email", "maxLength": 10_000 },
                "count": { "type": "integer", "minimum": 1, "default": 3 },
                "sure": { "type": "boolean" },
                "note": { "type": "string", "maxLength": 10_000, "description": "For the log" },
            },
        });
        let parts = json!([{ "key": "a", "message": "Which branch?\nAnd how?", "mode": "form", "fields": fields }]);
        asked("github", 1, parts, parameters)
    }

    fn visit(url: &str, host: &str) -> Proposal {
        let part = json!({ "key": "a", "message": "Log in, please.", "mode": "url", "url": url, "host": host });
        asked("github", 2, json!([part]), json!({ "type": "object", "properties": {}, "required": [] }))
    }

    fn approval(proposal: Proposal) -> Approval {
        let identity = ProposalIdentity { tenant: "ann", run_id: Uuid::from_u128(3), turn: 1, call_id: "c" };
        let ids = (Uuid::from_u128(1), Uuid::from_u128(2));
        Approval::asked(ids, identity, Some(Uuid::from_u128(4)), proposal, now() - TimeDelta::minutes(5))
    }

    fn settled(proposal: Proposal, status: ApprovalStatus) -> Approval {
        let decided_by = Some("recipient:ann".to_owned());
        Approval { status, decided_at: Some(now()), decided_by, ..approval(proposal) }
    }

    fn item(locale: &str, approval: Approval) -> ItemView {
        ItemView::new(0, &PageQuestion::whole(approval), &Catalogue::embedded().of(locale))
    }

    fn filled(locale: &str, proposal: Proposal, fields: &[(&str, &str)]) -> ItemView {
        let sent = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
        item(locale, approval(proposal)).filled(&SubmittedFields::parse(sent.as_bytes()))
    }

    fn page(locale: &str, item: ItemView) -> String {
        let scene = ApprovalPage {
            now: now(),
            zone: chrono_tz::Tz::UTC,
            words: Catalogue::embedded().of(locale),
            tenant: "ann".into(),
            reader: "recipient:ann".into(),
            identities: VoterIdentities::of_name("recipient:ann"),
            run_id: Uuid::from_u128(3),
            task: Some("Deployment".into()),
            started: None,
            requester: None,
        };
        let form = FormState { action: "/approvals/x".into(), nonce: "n".into() };
        text_of(view::page(StatusCode::OK, &scene, &[item], None, Some(&form)))
    }

    #[track_caller]
    fn assert_shows(html: &str, shown: &[&str], hidden: &[&str]) {
        for text in shown {
            assert!(html.contains(text), "{text} is not in\n{html}");
        }
        for text in hidden {
            assert!(!html.contains(text), "{text} is in\n{html}");
        }
    }

    #[test]
    fn page_names_the_server_the_tool_and_the_task_and_has_a_button_for_each_answer() {
        let html = page("en", item("en", approval(survey())));
        let shown = [
            "<title>Something is needed from you</title>",
            "<bdi>github</bdi> asks you something",
            "<strong><bdi>github</bdi></strong> asks this in the middle of a call of its tool <code>github_deploy</code>.",
            "<strong><bdi>Deployment</bdi></strong>",
            "Which branch?\nAnd how?",
            "Never give a password or a token here.",
            "value=\"answer:0\" aria-describedby=\"h0\">Send the answer<",
            "value=\"decline:0\" aria-describedby=\"h0\">No, tell <bdi>github</bdi> so<",
            "value=\"cancel:0\" aria-describedby=\"h0\">Stop this call<",
            "Without an answer the call is not made again.",
            "<bdi>github</bdi> is not told it.",
        ];
        assert_shows(&html, &shown, &["approve:0", "cy1wcm9k", "It has asked in this call", "href=\"http", "<script"]);
        let german = page("de", item("de", approval(survey())));
        let shown = ["<bdi>github</bdi> fragt Sie etwas", "Antwort senden", "Diesen Aufruf beenden"];
        assert_shows(&german, &shown, &["Send the answer"]);
    }

    #[test]
    fn fields_are_in_the_order_of_the_server_and_hold_what_it_suggests() {
        let asked = item("en", approval(survey()));
        let labels: Vec<String> = asked.fields.iter().map(|field| field.label()).collect();
        assert_eq!(labels, ["zone", "The branch", "checks", "mail", "count", "sure", "note"]);
        assert_eq!(asked.texts, ["west", "", "l", "", "3", "", ""]);
        assert_eq!(asked.approval.proposal.arguments, json!({}), "nothing is answered by it");
        let html = page("en", asked);
        let shown = [
            "<option value=\"west\" selected>west</option>",
            "<option value=\"m\">main</option>",
            "name=\"0.f2.0\" value=\"yes\"> <span><bdi>units</bdi>",
            "name=\"0.f2.1\" value=\"yes\" checked> <span><bdi>lints</bdi>",
            "Tick as many as apply.",
            "<fieldset id=\"i0f2\"",
            "inputmode=\"decimal\" value=\"3\"",
            "<input type=\"text\" dir=\"auto\" id=\"i0f3\"",
            "<textarea dir=\"auto\" id=\"i0f6\"",
            "For the log",
        ];
        assert_shows(&html, &shown, &["<option value=\"m\" selected>"]);
    }

    #[test]
    fn answer_is_what_was_sent_and_never_what_was_only_suggested() {
        let all = [
            ("0.f0", "east"),
            ("0.f1", "d"),
            ("0.f2.0", "yes"),
            ("0.f2.1", "yes"),
            ("0.f3", ""),
            ("0.f4", "7"),
            ("0.f5", "true"),
            ("0.f6", "a\r\nb"),
        ];
        let answered = |fields: &[(&str, &str)]| filled("en", survey(), fields).answer().unwrap().arguments.unwrap();
        assert_eq!(
            answered(&all),
            json!({ "zone": "east", "branch": "d", "checks": ["u", "l"], "count": 7, "sure": true, "note": "a\nb" })
        );
        // no box is ticked, and nothing else came back
        assert_eq!(answered(&[("0.f1", "m")]), json!({ "branch": "m", "checks": [] }));
        let strange = filled("en", survey(), &[("0.f1", "main"), ("0.f0", "north")]);
        assert_eq!(strange.answer(), None);
        let html = page("en", strange);
        assert_shows(&html, &["must be one of main, dev", "must be one of east, west"], &[]);
        let required = filled("en", survey(), &[]);
        let faults = required.answer().unwrap().faults(&required.approval);
        let mut places: Vec<&str> = faults.iter().map(|fault| fault.pointer.as_str()).collect();
        places.sort_unstable();
        assert_eq!(places, ["/modifications/branch", "/modifications/sure"]);
    }

    #[test]
    fn faults_of_formats_stand_beside_their_fields_in_the_language_of_the_reader() {
        let wrong = |locale: &str| {
            let parameters = json!({ "type": "object", "properties": {
                "a": { "type": "string", "format": "email" }, "b": { "type": "string", "format": "uri" },
                "c": { "type": "string", "format": "date" }, "d": { "type": "string", "format": "date-time" },
            } });
            let fields = ["a", "b", "c", "d"].map(|name| json!({ "name": name, "field": name }));
            let parts = json!([{ "key": "k", "message": "Say it.", "mode": "form", "fields": fields }]);
            let mut item = filled(
                locale,
                asked("github", 1, parts, parameters.clone()),
                &[("0.f0", "ann"), ("0.f1", "there"), ("0.f2", "today"), ("0.f3", "2026-07-28")],
            );
            let answer = item.answer().unwrap();
            let server = item.approval.proposal.server.clone().unwrap();
            let unfit = server.invalid_fields(&parameters, &answer.arguments.unwrap()).into_iter().map(|unfit| {
                crate::domain::approval::ArgumentFault {
                    pointer: format!("/modifications/{}", unfit.name),
                    ..unfit.fault
                }
            });
            item.assign_faults(unfit.collect());
            page(locale, item)
        };
        let english = [
            "id=\"i0f0e\">must be an e-mail address<",
            "id=\"i0f1e\">must be an address such as https://example.org/page<",
            "id=\"i0f2e\">must be a date such as 2026-07-28<",
            "id=\"i0f3e\">must be a time such as 2026-07-28T09:30:00Z<",
        ];
        assert_shows(&wrong("en"), &english, &[]);
        assert_shows(&wrong("de"), &["id=\"i0f0e\">muss eine E-Mail-Adresse sein<"], &["must be"]);
    }

    #[test]
    fn page_of_a_server_is_a_link_with_its_host_in_front_and_is_answered_without_fields() {
        let asked = visit(DEPLOYMENT, "login.example.org");
        let html = page("en", item("en", approval(asked.clone())));
        let shown = [
            "It sends you to a page of <strong><bdi>login.example.org</bdi></strong>:",
            "<a href=\"https://login.example.org/device?a=1&amp;b=2\" rel=\"noopener noreferrer external\" \
             target=\"_blank\">https://login.example.org/device?a=1&amp;b=2</a>",
            "We have not opened it.",
            "value=\"answer:0\" aria-describedby=\"h0\">I have done it there<",
            "this is its question 2.",
        ];
        assert_shows(&html, &shown, &["Letters of this address", "Never give a password", "<legend>Your answer"]);
        let answer = filled("en", asked, &[]).answer().unwrap();
        assert_eq!((answer.choice, answer.arguments), (ApprovalChoice::Edit, Some(json!({}))));
        let odd = page("en", item("en", approval(visit("https://xn--pple-43d.com/", "xn--pple-43d.com"))));
        assert_shows(&odd, &["Letters of this address", "href=\"https://xn--pple-43d.com/\""], &[]);
    }

    #[test]
    fn address_that_leads_elsewhere_is_no_link() {
        let rows = [
            ("https://example.org/", "example.org", true),
            ("https://example.org:8443/", "example.org:8443", true),
            ("http://127.0.0.1:7/", "127.0.0.1:7", true),
            ("http://localhost/", "localhost", true),
            ("http://example.org/", "example.org", false),
            ("https://example.org/", "example.com", false),
            ("https://example.org", "example.org", false),
            ("https://example.org:8443/", "example.org", false),
            ("https://ann@example.org/", "example.org", false),
            ("https://example.org/\"><script>alert(1)</script>", "example.org", false),
            ("javascript:alert(1)", "example.org", false),
            ("data:text/html,<script>alert(1)</script>", "", false),
            ("file:///etc/passwd", "", false),
        ];
        for (url, host, is_link) in rows {
            let html = page("en", item("en", approval(visit(url, host))));
            assert_eq!(html.contains("target=\"_blank\""), is_link, "{url}");
            assert_shows(&html, &[], &["<script", "href=\"javascript", "href=\"data"]);
        }
    }

    #[test]
    fn settled_question_says_how_the_server_was_answered() {
        let answer = Some(json!({ "branch": "m" }));
        let answered = Approval { modifications: answer, ..settled(survey(), ApprovalStatus::Edited) };
        let told = "The server is told, and the call goes on.";
        let html = page("en", item("en", answered.clone()));
        assert_shows(&html, &[">Answered<", "<bdi>branch</bdi>", told, "Which branch?"], &["decline:0", "answer:0"]);
        let html = page("en", item("en", settled(survey(), ApprovalStatus::Approved)));
        assert_shows(&html, &[">Declined<", told], &[">Approved<"]);
        let html = page("en", item("en", settled(survey(), ApprovalStatus::Cancelled)));
        assert_shows(&html, &[">Not answered<", "The call is not made again."], &[told]);
        let html = page("en", item("en", settled(survey(), ApprovalStatus::Expired)));
        assert_shows(&html, &["The call was not made again."], &["It was not executed"]);
        let outcome = Some(CallOutcome { is_error: false, text: "deployed".into() });
        let html = page("en", item("en", Approval { outcome, ..answered }));
        assert_shows(&html, &["It was done:", "deployed"], &[told]);
    }

    #[test]
    fn question_that_is_not_shown_whole_sends_nobody_anywhere_and_can_only_be_stopped() {
        let question = PageQuestion {
            left_out: Some(300_000),
            has_fields: false,
            ..PageQuestion::whole(approval(visit(DEPLOYMENT, "login.example.org")))
        };
        let item = ItemView::new(0, &question, &Catalogue::embedded().of("en"));
        let html = page("en", item);
        assert_shows(&html, &["value=\"cancel:0\""], &["target=\"_blank\"", "decline:0", "value=\"answer:0\""]);
    }

    #[test]
    fn no_text_of_a_server_is_markup_in_any_state_of_the_page() {
        let with = |text: &str| {
            let titled = json!([{ "const": text, "title": text }]);
            let described = |mut schema: Value| {
                schema["title"] = json!(text);
                schema["description"] = json!(text);
                schema["default"] = json!(text);
                schema
            };
            let properties = json!({
                "a": described(json!({ "type": "string" })), "b": described(json!({ "type": "string", "oneOf": titled })),
                "c": described(json!({ "type": "array", "items": { "anyOf": titled } })),
                "d": described(json!({ "type": "string", "enum": [text] })), text: { "type": "string" },
            });
            let fields = ["a", "b", "c", "d", text].map(|name| json!({ "name": name, "field": text }));
            let parts = json!([
                { "key": text, "message": text, "mode": "form", "fields": fields },
                { "key": "u", "message": text, "mode": "url", "url": text, "host": text },
            ]);
            let parameters = json!({ "type": "object", "properties": properties });
            Proposal { tool: text.into(), summary: text.into(), ..asked(text, 2, parts, parameters) }
        };
        for locale in ["en", "de"] {
            assert_inert(|text| {
                let answer = Some(json!({ "a": text, text: [text] }));
                let answered = Approval { modifications: answer, ..settled(with(text), ApprovalStatus::Edited) };
                let mut pages = vec![
                    page(locale, item(locale, approval(with(text)))),
                    page(locale, item(locale, answered)),
                    page(locale, filled(locale, with(text), &[("0.f1", "x"), ("0.f3", "x"), ("0.f0", text)])),
                ];
                for status in [ApprovalStatus::Approved, ApprovalStatus::Cancelled, ApprovalStatus::Expired] {
                    pages.push(page(locale, item(locale, settled(with(text), status))));
                }
                pages.concat()
            });
        }
    }
}
