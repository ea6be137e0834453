//! The pages of a connection: the question, what came of it, and why it came to nothing.

use axum::http::StatusCode;
use axum::response::Response;
use chrono::{DateTime, Utc};
use chrono_tz::Tz;

use crate::channel::templates::phrases::Phrases;
use crate::http::approve::frame::{message, page};
use crate::http::approve::html::Html;
use crate::http::approve::moment::{instant, left};
use crate::vault::oauth::{CALLBACK, Connected, Flow, Offer};

/// How much of a provider's own words is shown, in characters.
const SHOWN: usize = 300;

/// What is about to be connected, and the button.
pub fn question(offer: &Offer, state: &str, code: &str, now: DateTime<Utc>) -> Response {
    let Flow { reference, tenant, expires_at, .. } = &offer.flow;
    let mut html = Html::default();
    html.raw("<h1>Connect your account?</h1>\n<section class=\"card\">\n<dl>\n");
    row(&mut html, "Service", &reference.service);
    row(&mut html, "The account will be called", &reference.account);
    row(&mut html, "It will belong to", tenant);
    row(&mut html, "It will be used at", &offer.hosts.join(", "));
    if !offer.scopes.is_empty() {
        row(&mut html, "What was asked for", &offer.scopes.join(", "));
    }
    html.raw("</dl>\n");
    if offer.replaces {
        html.raw("<p>An account of this name is there already. It will be replaced.</p>\n");
    }
    html.raw("<p class=\"notice\" role=\"note\">Tasks of <bdi>").text(tenant);
    html.raw(
        "</bdi> will act with your account. Go on only if that is you, and you have asked for this yourself.</p>\n",
    );
    html.raw("<form method=\"post\" action=\"").exact(CALLBACK).raw("\" autocomplete=\"off\">\n");
    for (name, value) in [("state", state), ("code", code)] {
        html.raw("<input type=\"hidden\" name=\"").exact(name).raw("\" value=\"").exact(value).raw("\">\n");
    }
    html.raw("<div class=\"actions\">\n<button class=\"yes\">Connect</button>\n</div>\n</form>\n</section>\n<p class=\"soft\">");
    html.text(&left(Phrases::english(), *expires_at, now)).raw(" left. Without an answer nothing is connected.</p>\n");
    page(Phrases::english(), StatusCode::OK, "Connect your account?", html)
}

fn row(html: &mut Html, name: &'static str, value: &str) {
    html.raw("<dt>").raw(name).raw("</dt>\n<dd class=\"value\" dir=\"auto\">").text(value).raw("</dd>\n");
}

/// The provider has sent an error.
pub fn declined(offer: &Offer, error: &str, description: Option<&str>) -> Response {
    let title = "Nothing was connected";
    let why = match error {
        "access_denied" => "The provider says that access was not granted.",
        "temporarily_unavailable" | "server_error" => "The provider has trouble. Try it again later.",
        _ => "The provider did not accept the request. Whoever runs this service has to look at it.",
    };
    let said = match description {
        Some(description) => format!("{error}: {description}"),
        None => error.to_owned(),
    };
    let mut html = Html::default();
    html.raw("<h1>").raw(title).raw("</h1>\n<div class=\"card\" role=\"status\">\n<p>").raw(why).raw("</p>\n<dl>\n");
    row(&mut html, "Service", &offer.flow.reference.service);
    row(&mut html, "The provider’s words", &said.chars().take(SHOWN).collect::<String>());
    html.raw("</dl>\n</div>\n");
    page(Phrases::english(), StatusCode::OK, title, html)
}

/// Done.
pub fn connected(flow: &Flow, connected: &Connected) -> Response {
    let title = "Connected";
    let mut html = Html::default();
    html.raw("<h1>").raw(title).raw("</h1>\n<section class=\"card\" role=\"status\">\n<p class=\"state good\"><bdi>");
    html.text(&flow.reference.to_string()).raw("</bdi> of <bdi>").text(&flow.tenant);
    html.raw("</bdi> is connected.</p>\n");
    match (connected.is_renewable, connected.expires_at) {
        (true, _) => html.raw("<p>It stays so until you take it back at the provider.</p>\n"),
        (false, Some(end)) => html
            .raw("<p>The provider has given no way to renew it. It ends at ")
            .text(&instant(Phrases::english(), end, Tz::UTC))
            .raw(", and has to be connected again then.</p>\n"),
        (false, None) => html.raw("<p>The provider has given no way to renew it, and no end.</p>\n"),
    };
    if let Some(scope) = &connected.scope {
        html.raw("<dl>\n");
        row(&mut html, "What was granted", scope);
        html.raw("</dl>\n");
    }
    if !connected.resumed.is_empty() {
        html.raw("<p>These tasks were paused for want of it, and go on now:</p>\n<ul>\n");
        for task in &connected.resumed {
            html.raw("<li><bdi>").text(&task.name).raw("</bdi></li>\n");
        }
        html.raw("</ul>\n");
    }
    html.raw("</section>\n<p class=\"soft\">You can close this page.</p>\n");
    page(Phrases::english(), StatusCode::OK, title, html)
}

/// The button was pressed before.
pub fn used(flow: &Flow, connected: bool) -> Response {
    let what = format!("{} of {}", flow.reference, flow.tenant);
    match connected {
        true => message(
            StatusCode::CONFLICT,
            "This was done already",
            &[&format!("{what} is connected. Nothing was done now.")],
        ),
        false => message(
            StatusCode::CONFLICT,
            "This link was used already",
            &["Nothing was connected by it, and nothing was done now.", AGAIN],
        ),
    }
}

const AGAIN: &str = "Ask for a new link, and open it from where you got it.";

/// The provider does not accept the code.
pub fn spent(why: &str) -> Response {
    let why = format!("The provider’s words: {why}");
    let sentences =
        ["The provider does not accept its answer any more: it is used up, too old, or not for us.", &why, AGAIN];
    message(StatusCode::CONFLICT, "Nothing was connected", &sentences)
}

/// The provider refuses this service.
pub fn misconfigured(why: &str) -> Response {
    let sentences = ["Whoever runs this service has to correct how it is registered at the provider.", why];
    message(StatusCode::BAD_GATEWAY, "Nothing was connected", &sentences)
}

/// The provider is away.
pub fn later(why: &str) -> Response {
    let why = format!("The provider can’t be asked now: {why}.");
    message(StatusCode::SERVICE_UNAVAILABLE, "Nothing was connected", &[&why, AGAIN])
}

/// Nobody knows this state.
pub fn unknown() -> Response {
    let sentences = ["It may be cut off, or not from here. Nothing was connected.", AGAIN];
    message(StatusCode::NOT_FOUND, "This link is not known", &sentences)
}

/// The operator has taken the service out of the configuration.
pub fn gone() -> Response {
    let sentences = ["The service can’t be connected here any more. Nothing was connected."];
    message(StatusCode::NOT_FOUND, "This link is not known", &sentences)
}

/// The time is over.
pub fn expired() -> Response {
    let sentences = ["There were ten minutes from the link to the button. Nothing was connected.", AGAIN];
    message(StatusCode::GONE, "The time is over", &sentences)
}

/// The browser was not shown the page, or has not kept its cookie.
pub fn unmarked() -> Response {
    let sentences = [
        "This browser was not shown the page that asks for it, or does not keep its cookie. Nothing was connected.",
        "Allow cookies for this address, ask for a new link, and open it in the browser in which you go on.",
    ];
    message(StatusCode::FORBIDDEN, "Nothing was connected", &sentences)
}

/// Another provider has sent the person back.
pub fn mixed_up() -> Response {
    let sentences = [
        "Another provider than the one that was asked has sent you here. Nothing was connected.",
        "Whoever runs this service has to look at it.",
    ];
    message(StatusCode::FORBIDDEN, "Nothing was connected", &sentences)
}

/// The form was sent from elsewhere.
pub fn foreign() -> Response {
    let sentences = ["This did not come from the page that asks for it. Nothing was connected.", AGAIN];
    message(StatusCode::FORBIDDEN, "Nothing was connected", &sentences)
}
