//! The pages of a connection: the question, what came of it, and why it came to nothing; in the words of the reader.

use std::borrow::Cow;

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use chrono_tz::Tz;
use serde::Serialize;

use crate::http::pages::approve::moment::{instant, time_left};
use crate::http::pages::{PageRow, View, message_in, page};
use crate::ports::channel::templates::phrases::Phrases;
use crate::ports::vault::oauth::{CALLBACK, ConnectOffer, ConnectedAccount, OAuthFlow};

/// How much of a provider's own words is shown, in characters.
const SHOWN: usize = 300;

/// The page that names the account to connect, with the button.
#[derive(Debug, Serialize)]
struct ConsentQuestion<'a> {
    rows: Vec<PageRow<'a>>,
    replaces: bool,
    tenant: &'a str,
    action: &'static str,
    state: &'a str,
    code: &'a str,
    left: String,
}

impl View for ConsentQuestion<'_> {
    const TEMPLATE: &'static str = "connect.html";
}

/// The page for an error that the provider has sent.
#[derive(Debug, Serialize)]
struct DeclinedPage<'a> {
    reason: &'static str,
    rows: [PageRow<'a>; 2],
}

impl View for DeclinedPage<'_> {
    const TEMPLATE: &'static str = "connect_declined.html";
}

/// The page for an account that is connected.
#[derive(Debug, Serialize)]
struct ConnectedPage<'a> {
    account: String,
    tenant: &'a str,
    /// The phrase that says how long it stays so.
    lasts: &'static str,
    ends_at: String,
    rows: Vec<PageRow<'a>>,
    /// Names of the tasks that go on.
    resumed: Vec<&'a str>,
    /// How many more go on after them.
    resuming: u64,
}

impl View for ConnectedPage<'_> {
    const TEMPLATE: &'static str = "connect_done.html";
}

/// Asks whether the account is to be connected.
pub fn question(words: &Phrases, offer: &ConnectOffer, state: &str, code: &str, now: DateTime<Utc>) -> Response {
    let OAuthFlow { reference, tenant, expires_at, .. } = &offer.flow;
    let mut rows = vec![
        row("connect_service", &reference.service),
        row("connect_account", &reference.account),
        row("connect_owner", tenant),
        row("connect_hosts", offer.hosts.join(", ")),
    ];
    if !offer.scopes.is_empty() {
        rows.push(row("connect_scopes", offer.scopes.join(", ")));
    }
    let left = time_left(words, *expires_at, now);
    let view = ConsentQuestion { rows, replaces: offer.replaces, tenant, action: CALLBACK, state, code, left };
    page(words, StatusCode::OK, words.get("connect_title"), &view)
}

fn row<'a>(name: &'static str, value: impl Into<Cow<'a, str>>) -> PageRow<'a> {
    PageRow { name, value: value.into() }
}

/// The provider has sent an error.
pub fn declined(words: &Phrases, offer: &ConnectOffer, error: &str, description: Option<&str>) -> Response {
    let reason = match error {
        "access_denied" => "connect_denied",
        "temporarily_unavailable" | "server_error" => "connect_unavailable",
        _ => "connect_not_accepted",
    };
    let shown = match description {
        Some(description) => format!("{error}: {description}"),
        None => error.to_owned(),
    };
    let shown: String = shown.chars().take(SHOWN).collect();
    let rows = [row("connect_service", &offer.flow.reference.service), row("connect_words", shown)];
    page(words, StatusCode::OK, words.get("connect_nothing"), &DeclinedPage { reason, rows })
}

/// Tells that the account is connected.
pub fn connected(words: &Phrases, flow: &OAuthFlow, connected: &ConnectedAccount) -> Response {
    let (lasts, ends_at) = match (connected.is_renewable, connected.expires_at) {
        (true, _) => ("connect_stays", String::new()),
        (false, Some(end)) => ("connect_ends", instant(words, end, Tz::UTC)),
        (false, None) => ("connect_no_end", String::new()),
    };
    let view = ConnectedPage {
        account: flow.reference.to_string(),
        tenant: &flow.tenant,
        lasts,
        ends_at,
        rows: connected.scope.iter().map(|scope| row("connect_granted", scope)).collect(),
        resumed: connected.resumed.iter().map(|task| task.name.as_str()).collect(),
        resuming: connected.resuming,
    };
    page(words, StatusCode::OK, words.get("connect_done_title"), &view)
}

/// The button was pressed before.
pub fn used(words: &Phrases, flow: &OAuthFlow, connected: bool) -> Response {
    let account = flow.reference.to_string();
    let is_connected = words.with("connect_again", &[("account", &account), ("tenant", &flow.tenant)]);
    match connected {
        true => message_in(words, StatusCode::CONFLICT, words.get("connect_again_title"), &[&is_connected]),
        false => {
            let sentences = [words.get("connect_used"), words.get("connect_new_link")];
            message_in(words, StatusCode::CONFLICT, words.get("connect_used_title"), &sentences)
        }
    }
}

/// Nothing was connected, and these phrases say why.
fn not_connected(words: &Phrases, status: StatusCode, sentences: &[&str]) -> Response {
    message_in(words, status, words.get("connect_nothing"), sentences)
}

/// The provider does not accept the code.
pub fn code_rejected(words: &Phrases, why: &str) -> Response {
    let why = words.with("connect_words_are", &[("why", why)]);
    not_connected(words, StatusCode::CONFLICT, &[words.get("connect_spent"), &why, words.get("connect_new_link")])
}

/// The provider refuses this service.
pub fn client_rejected(words: &Phrases, why: &str) -> Response {
    not_connected(words, StatusCode::BAD_GATEWAY, &[words.get("connect_misconfigured"), why])
}

/// The provider is away.
pub fn provider_unavailable(words: &Phrases, why: &str) -> Response {
    let why = words.with("connect_later", &[("why", why)]);
    not_connected(words, StatusCode::SERVICE_UNAVAILABLE, &[&why, words.get("connect_new_link")])
}

/// Nobody knows this state, and so nobody who reads it.
pub fn unknown() -> Response {
    let words = Phrases::english();
    let sentences = [words.get("connect_unknown"), words.get("connect_new_link")];
    message_in(words, StatusCode::NOT_FOUND, words.get("connect_unknown_title"), &sentences)
}

/// The operator has taken the service out of the configuration.
pub fn service_removed() -> Response {
    let words = Phrases::english();
    message_in(words, StatusCode::NOT_FOUND, words.get("connect_unknown_title"), &[words.get("connect_gone")])
}

/// The time is over.
pub fn expired(words: &Phrases) -> Response {
    let sentences = [words.get("connect_expired"), words.get("connect_new_link")];
    message_in(words, StatusCode::GONE, words.get("connect_expired_title"), &sentences)
}

/// The browser was not shown the page, or has not kept its cookie.
pub fn missing_cookie(words: &Phrases) -> Response {
    not_connected(words, StatusCode::FORBIDDEN, &[words.get("connect_unmarked"), words.get("connect_cookies")])
}

/// Another provider has sent the person back.
pub fn issuer_mismatch(words: &Phrases) -> Response {
    not_connected(words, StatusCode::FORBIDDEN, &[words.get("connect_mixed_up"), words.get("connect_operator")])
}

/// The form was sent from elsewhere.
pub fn wrong_account() -> Response {
    let words = Phrases::english();
    not_connected(words, StatusCode::FORBIDDEN, &[words.get("connect_foreign"), words.get("connect_new_link")])
}

#[cfg(test)]
mod tests {
    use chrono::TimeDelta;
    use uuid::Uuid;

    use super::*;
    use crate::domain::credential::Reference;
    use crate::domain::task::{DependentTask, TaskStatus};
    use crate::http::pages::tests::{assert_inert, text_of};
    use crate::ports::channel::templates::phrases::Catalogue;

    /// Every page, with this text in each place for a text from outside.
    fn pages(locale: &str, text: &str) -> String {
        let words = Catalogue::embedded().of(locale);
        let now: DateTime<Utc> = "2026-11-21T00:00:00Z".parse().unwrap();
        let reference = Reference { service: text.into(), account: text.into() };
        let known = Reference::parse("calendar").unwrap();
        let mut flow = OAuthFlow::begin(Uuid::from_u128(7), text, &known, "token:t", now).unwrap();
        flow.reference = reference;
        let offer =
            ConnectOffer { flow: flow.clone(), hosts: vec![text.into()], scopes: vec![text.into()], replaces: true };
        let plain = ConnectOffer { scopes: vec![], replaces: false, ..offer.clone() };
        let task = DependentTask {
            id: Uuid::from_u128(8),
            name: text.into(),
            status: TaskStatus::Active,
            status_reason: None,
        };
        let done = ConnectedAccount {
            expires_at: Some(now + TimeDelta::hours(1)),
            is_renewable: false,
            scope: Some(text.into()),
            resumed: vec![task],
            resuming: 3,
        };
        let renewed =
            ConnectedAccount { is_renewable: true, scope: None, resumed: vec![], resuming: 0, ..done.clone() };
        let endless = ConnectedAccount { expires_at: None, is_renewable: false, ..renewed.clone() };
        let long = format!("{text} {}", "x".repeat(SHOWN));
        let pages = [
            question(&words, &offer, text, text, now),
            question(&words, &plain, text, text, now),
            declined(&words, &offer, "access_denied", Some(text)),
            declined(&words, &offer, text, Some(&long)),
            declined(&words, &offer, "server_error", None),
            connected(&words, &flow, &done),
            connected(&words, &flow, &renewed),
            connected(&words, &flow, &endless),
            used(&words, &flow, true),
            used(&words, &flow, false),
            code_rejected(&words, text),
            client_rejected(&words, text),
            provider_unavailable(&words, text),
            unknown(),
            service_removed(),
            expired(&words),
            missing_cookie(&words),
            issuer_mismatch(&words),
            wrong_account(),
        ];
        pages.map(text_of).join("\n=====\n")
    }

    #[test]
    fn every_page_of_a_connection_in_both_languages() {
        insta::with_settings!({ prepend_module_to_snapshot => false, omit_expression => true }, {
            insta::assert_snapshot!("connection_pages_en", pages("en", "zq text"));
            insta::assert_snapshot!("connection_pages_de", pages("de", "zq text"));
        });
    }

    #[test]
    fn no_text_from_outside_is_markup_on_any_page() {
        for locale in ["en", "de"] {
            assert_inert(|text| pages(locale, text));
        }
    }
}
