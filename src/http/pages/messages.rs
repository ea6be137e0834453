//! The page behind the link of a message that was cut: the whole of what one delivery tells, for whoever has the link.
//!
//! It shows and offers nothing more; nothing is changed by it. The token is no row anywhere: it says itself what it is
//! for and until when, and stands in no log (the guard logs the route). Questions, which have a page of their own, and
//! codes are answered as if they were not there.

use std::net::IpAddr;
use std::sync::Arc;

use axum::Extension;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::Response;
use serde::Serialize;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::token::TokenHash;
use crate::domain::notification::recipient::Reader;
use crate::domain::notification::{Delivery, DigestItem, MessageKind, Recipient, References};
use crate::http::HttpState;
use crate::http::pages::{self, View, too_many, unavailable};
use crate::http::request::Id;
use crate::http::server::Peer;
use crate::ports::channel::full_message_url;
use crate::ports::channel::templates::Page;
use crate::ports::channel::templates::phrases::Phrases;
use crate::store::StoreError;

/// Messages of a digest that are shown, the oldest; more are counted.
const IN_A_DIGEST: i64 = 200;

/// Show a message in full
///
/// A page for people, behind the link of a message that was too long for its channel. Changes nothing.
#[utoipa::path(get, path = "/messages/{token}", tag = "notifications", params(("token" = String, Path)),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 404, description = "The link is not known, or not any more", body = String,
            content_type = "text/html"),
        (status = 429, description = "Too many wrong links; see Retry-After", body = String, content_type = "text/html")))]
pub async fn show_message(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    Id(token): Id,
) -> Result<Response, Response> {
    let (hash, since) = (TokenHash::of(&token), state.clock.elapsed());
    let peer: Option<IpAddr> = peer.map(|Extension(peer)| peer.0);
    if let Some(wait) = peer.and_then(|peer| state.wrong_tokens.wait(peer, &hash, since)) {
        return Err(too_many(wait.as_secs().max(1)));
    }
    let Some(delivery) = full_message_url::read(&state.vault, &token, state.clock.now()) else {
        if let Some(peer) = peer {
            state.wrong_tokens.record_failure(peer, since);
        }
        return Err(unknown());
    };
    state.wrong_tokens.record_success(&hash);
    page(&state, delivery)
        .await
        .map_err(unavailable)?
        .map(|page| shown(&state.channels.templates().phrases(page.lang), &page))
        .ok_or_else(unknown)
}

/// The page of a delivery, as it stands now; `None` where there is nothing to tell.
async fn page(state: &HttpState, id: Uuid) -> Result<Option<Page>, StoreError> {
    let shown = |delivery: &Delivery| !delivery.kind.asks() && delivery.kind != MessageKind::Code;
    let found = state.store.find_delivery_by_id(&Scope::Every, id).await?;
    let Some(delivery) = found.filter(shown) else { return Ok(None) };
    let recipient =
        state.store.find_recipient(&Scope::Every, &delivery.recipient).await?.map(|stored| stored.recipient);
    let recipient = Arc::new(recipient);
    match delivery.kind {
        MessageKind::Digest => digest(state, delivery, recipient).await,
        _ => single(state, delivery, recipient).await,
    }
}

/// The reader of a page, if known.
type PageReader = Arc<Option<Recipient>>;

fn reader(recipient: &Option<Recipient>) -> Reader<'_> {
    recipient.as_ref().map_or(Reader::NOBODY, Recipient::reader)
}

async fn single(state: &HttpState, delivery: Delivery, recipient: PageReader) -> Result<Option<Page>, StoreError> {
    let referred = state.store.referred(&delivery).await?;
    let (channels, tenant) = (state.channels.clone(), delivery.tenant_id.clone());
    let page = move || channels.templates().page(&delivery, referred.references(), reader(&recipient)).ok();
    state.store.compute(&tenant, page).await
}

/// The messages that a digest tells, the oldest first. A digest of one is that message.
async fn digest(state: &HttpState, delivery: Delivery, recipient: PageReader) -> Result<Option<Page>, StoreError> {
    let (mut members, count) = state.store.digest_messages(&delivery, IN_A_DIGEST).await?;
    if members.len() == 1 {
        return single(state, members.remove(0), recipient).await;
    }
    let tenant = delivery.tenant_id.clone();
    let mut items: Vec<DigestItem> = Vec::new();
    for member in members {
        let referred = state.store.referred(&member).await?;
        let (channels, recipient) = (state.channels.clone(), Arc::clone(&recipient));
        let item = move || channels.templates().item(&member, referred.references(), reader(&recipient));
        items.push(state.store.compute(&tenant, item).await?);
    }
    let more = usize::try_from(count).unwrap_or(0).saturating_sub(items.len());
    let channels = state.channels.clone();
    let page = move || {
        let about = References { digest: &items, more, ..References::default() };
        channels.templates().page(&delivery, about, reader(&recipient)).ok()
    };
    state.store.compute(&tenant, page).await
}

/// A message in full; its template has made it markup.
#[derive(Debug, Serialize)]
struct WholeMessage<'a> {
    about: &'a str,
    html: &'a str,
}

impl View for WholeMessage<'_> {
    const TEMPLATE: &'static str = "message.html";
}

fn shown(words: &Phrases, page: &Page) -> Response {
    pages::page(words, StatusCode::OK, &page.subject, &WholeMessage { about: &page.about, html: &page.html })
}

/// One page for a link that is wrong, for one whose time is over, and for a message that may not be read here.
fn unknown() -> Response {
    pages::message(
        StatusCode::NOT_FOUND,
        "This link is not known",
        &[
            "It may be cut off or mistyped, or it is older than thirty days, or what it showed is no longer kept.",
            "Open it again from the message that you got.",
        ],
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::http::pages::tests::{assert_inert, text_of};

    #[test]
    fn subject_and_origin_of_a_message_are_not_markup_and_its_text_is_what_its_template_made() {
        let shown = |text: &str| {
            let page = Page { lang: "en", subject: text.into(), about: [text; 9].concat(), html: "<p>made</p>".into() };
            text_of(shown(Phrases::english(), &page))
        };
        assert_inert(shown);
        assert!(shown("x").contains("</p>\n<p>made</p>\n</main>"), "{}", shown("x"));
    }
}
