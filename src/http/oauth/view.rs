//! The pages of a connection: the question, what came of it, and why it came to nothing; in the words of the reader.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use crate::channel::templates::phrases::Phrases;
use crate::http::approve::frame::{message_in, page};
use crate::http::approve::html::{Html, apart, around};
use crate::http::approve::moment::{instant, left};
use crate::vault::oauth::{CALLBACK, Connected, Flow, Offer};

/// How much of a provider's own words is shown, in characters.
const SHOWN: usize = 300;

/// The page that names the account to connect, with the button.
pub fn question(words: &Phrases, offer: &Offer, state: &str, code: &str, now: DateTime<Utc>) -> Response {
    let Flow { reference, tenant, expires_at, .. } = &offer.flow;
    let title = words.get("connect_title");
    let mut html = Html::default();
    html.raw("<h1>").text(title).raw("</h1>\n<section class=\"card\">\n<dl>\n");
    row(&mut html, words.get("connect_service"), &reference.service);
    row(&mut html, words.get("connect_account"), &reference.account);
    row(&mut html, words.get("connect_owner"), tenant);
    row(&mut html, words.get("connect_hosts"), &offer.hosts.join(", "));
    if !offer.scopes.is_empty() {
        row(&mut html, words.get("connect_scopes"), &offer.scopes.join(", "));
    }
    html.raw("</dl>\n");
    if offer.replaces {
        html.raw("<p>").text(words.get("connect_replaces")).raw("</p>\n");
    }
    html.raw("<p class=\"notice\" role=\"note\">").say(words.get("connect_acts"), &[("tenant", apart(tenant))]);
    html.raw("</p>\n<form method=\"post\" action=\"").exact(CALLBACK).raw("\" autocomplete=\"off\">\n");
    for (name, value) in [("state", state), ("code", code)] {
        html.raw("<input type=\"hidden\" name=\"").exact(name).raw("\" value=\"").exact(value).raw("\">\n");
    }
    html.raw("<div class=\"actions\">\n<button class=\"yes\">").text(words.get("connect_button"));
    html.raw("</button>\n</div>\n</form>\n</section>\n<p class=\"soft\">");
    html.text(&words.with("connect_left", &[("left", &left(words, *expires_at, now))])).raw("</p>\n");
    page(words, StatusCode::OK, title, html)
}

fn row(html: &mut Html, name: &str, value: &str) {
    html.raw("<dt>").text(name).raw("</dt>\n<dd class=\"value\" dir=\"auto\">").text(value).raw("</dd>\n");
}

/// The provider has sent an error.
pub fn declined(words: &Phrases, offer: &Offer, error: &str, description: Option<&str>) -> Response {
    let title = words.get("connect_nothing");
    let why = words.get(match error {
        "access_denied" => "connect_denied",
        "temporarily_unavailable" | "server_error" => "connect_trouble",
        _ => "connect_not_accepted",
    });
    let said = match description {
        Some(description) => format!("{error}: {description}"),
        None => error.to_owned(),
    };
    let mut html = Html::default();
    html.raw("<h1>").text(title).raw("</h1>\n<div class=\"card\" role=\"status\">\n<p>").text(why).raw("</p>\n<dl>\n");
    row(&mut html, words.get("connect_service"), &offer.flow.reference.service);
    row(&mut html, words.get("connect_words"), &said.chars().take(SHOWN).collect::<String>());
    html.raw("</dl>\n</div>\n");
    page(words, StatusCode::OK, title, html)
}

/// Done.
pub fn connected(words: &Phrases, flow: &Flow, connected: &Connected) -> Response {
    let title = words.get("connect_done_title");
    let (account, tenant) = (apart(&flow.reference.to_string()), apart(&flow.tenant));
    let mut html = Html::default();
    html.raw("<h1>").text(title).raw("</h1>\n<section class=\"card\" role=\"status\">\n<p class=\"state good\">");
    html.say(words.get("connect_done"), &[("account", account), ("tenant", tenant)]).raw("</p>\n<p>");
    match (connected.is_renewable, connected.expires_at) {
        (true, _) => html.text(words.get("connect_stays")),
        (false, Some(end)) => {
            html.say(words.get("connect_ends"), &[("at", around("", &instant(words, end, Tz::UTC), ""))])
        }
        (false, None) => html.text(words.get("connect_no_end")),
    };
    html.raw("</p>\n");
    if let Some(scope) = &connected.scope {
        html.raw("<dl>\n");
        row(&mut html, words.get("connect_granted"), scope);
        html.raw("</dl>\n");
    }
    if !connected.resumed.is_empty() {
        html.raw("<p>").text(words.get("connect_resumed")).raw("</p>\n<ul>\n");
        for task in &connected.resumed {
            html.raw("<li><bdi>").text(&task.name).raw("</bdi></li>\n");
        }
        if connected.resuming > 0 {
            let more = words.with("connect_more", &[("count", &connected.resuming.to_string())]);
            html.raw("<li>").text(&more).raw("</li>\n");
        }
        html.raw("</ul>\n");
    }
    html.raw("</section>\n<p class=\"soft\">").text(words.get("connect_close")).raw("</p>\n");
    page(words, StatusCode::OK, title, html)
}

/// The button was pressed before.
pub fn used(words: &Phrases, flow: &Flow, connected: bool) -> Response {
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
fn nothing(words: &Phrases, status: StatusCode, sentences: &[&str]) -> Response {
    message_in(words, status, words.get("connect_nothing"), sentences)
}

/// The provider does not accept the code.
pub fn spent(words: &Phrases, why: &str) -> Response {
    let why = words.with("connect_words_are", &[("why", why)]);
    nothing(words, StatusCode::CONFLICT, &[words.get("connect_spent"), &why, words.get("connect_new_link")])
}

/// The provider refuses this service.
pub fn misconfigured(words: &Phrases, why: &str) -> Response {
    nothing(words, StatusCode::BAD_GATEWAY, &[words.get("connect_misconfigured"), why])
}

/// The provider is away.
pub fn later(words: &Phrases, why: &str) -> Response {
    let why = words.with("connect_later", &[("why", why)]);
    nothing(words, StatusCode::SERVICE_UNAVAILABLE, &[&why, words.get("connect_new_link")])
}

/// Nobody knows this state, and so nobody who reads it.
pub fn unknown() -> Response {
    let words = Phrases::english();
    let sentences = [words.get("connect_unknown"), words.get("connect_new_link")];
    message_in(words, StatusCode::NOT_FOUND, words.get("connect_unknown_title"), &sentences)
}

/// The operator has taken the service out of the configuration.
pub fn gone() -> Response {
    let words = Phrases::english();
    message_in(words, StatusCode::NOT_FOUND, words.get("connect_unknown_title"), &[words.get("connect_gone")])
}

/// The time is over.
pub fn expired(words: &Phrases) -> Response {
    let sentences = [words.get("connect_expired"), words.get("connect_new_link")];
    message_in(words, StatusCode::GONE, words.get("connect_expired_title"), &sentences)
}

/// The browser was not shown the page, or has not kept its cookie.
pub fn unmarked(words: &Phrases) -> Response {
    nothing(words, StatusCode::FORBIDDEN, &[words.get("connect_unmarked"), words.get("connect_cookies")])
}

/// Another provider has sent the person back.
pub fn mixed_up(words: &Phrases) -> Response {
    nothing(words, StatusCode::FORBIDDEN, &[words.get("connect_mixed_up"), words.get("connect_operator")])
}

/// The form was sent from elsewhere.
pub fn foreign() -> Response {
    let words = Phrases::english();
    nothing(words, StatusCode::FORBIDDEN, &[words.get("connect_foreign"), words.get("connect_new_link")])
}
