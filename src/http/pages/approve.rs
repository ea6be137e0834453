//! The link pages: what a person sees who opens the link of a message, and what their answer does.
//!
//! GET, HEAD and OPTIONS change nothing, whoever fetches them and how often. A POST decides only with the nonce of the
//! page that was shown, which binds the link, the questions and their digests, and only when it comes from that page.
//! The token is looked up by its hash, stands in no log (the guard logs the route), and is not in the address of the
//! page that shows what came of it. Nothing is kept in here.

pub(in crate::http) mod approval_page;
mod asker;
mod beginning;
mod card;
mod changes;
pub(in crate::http) mod control;
#[cfg(test)]
mod fixture;
mod form;
pub(in crate::http) mod item;
mod kind;
pub(in crate::http) mod moment;
pub(in crate::http) mod origin;
pub(in crate::http) mod outcome_url;
pub(in crate::http) mod page_room;
pub(in crate::http) mod press;
pub(in crate::http) mod press_outcome;
pub(in crate::http) mod submitted_fields;
pub(in crate::http) mod view;

use std::net::IpAddr;
use std::sync::Arc;

use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::{Extension, body};
use chrono_tz::Tz;

use crate::base::id::{Scope, Tenant};
use crate::base::token::TokenHash;
use crate::domain::actor::Actor;
use crate::domain::approval::{Approval, Via};
use crate::domain::notification::recipient::Reader;
use crate::http::HttpState;
use crate::http::api::approvals::decision::{Decider, Decision};
use crate::http::error::ApiError;
use crate::http::pages::approve::approval_page::{
    ApprovalPage, ApprovalReader, FormState, is_answerable, is_open, is_paused,
};
use crate::http::pages::approve::item::{FaultPlace, ItemView};
use crate::http::pages::approve::outcome_url::Ticket;
use crate::http::pages::approve::page_room::PageQuestion;
use crate::http::pages::approve::press::Press;
use crate::http::pages::approve::press_outcome::PressOutcome;
use crate::http::pages::approve::submitted_fields::SubmittedFields;
use crate::http::pages::{self, failed, too_many, unavailable};
use crate::http::request::{Id, JsonBody};
use crate::http::server::Peer;
use crate::ports::channel::templates::phrases::Phrases;
use crate::store::{ApprovalLink, DecisionOutcome, DecisionRefusal, StoreError};

/// Purpose of the nonce of a page.
const NONCE: &str = "approval-page";
/// Longest token that is looked up.
const TOKEN_LENGTH: usize = 200;

/// The questions behind a link.
struct LinkQuestion {
    hash: TokenHash,
    link: ApprovalLink,
    scope: Scope,
    /// In the order of the calls.
    questions: Vec<PageQuestion>,
    zone: Tz,
    /// In the recipient's language.
    words: Phrases,
}

/// Show what a link asks
///
/// A page for people: what is asked, by whom, until when, and a form to answer it. Changes nothing.
#[utoipa::path(get, path = "/approvals/{token}", tag = "approvals", params(("token" = String, Path)),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html"),
        (status = 410, description = "The question has changed, and is asked anew", body = String,
            content_type = "text/html"),
        (status = 429, description = "Too many wrong links; see Retry-After", body = String, content_type = "text/html")))]
pub async fn show_approvals(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    Id(token): Id,
) -> Result<Response, Response> {
    let asked = asked(&state, peer, &token).await?;
    let paused = is_paused(&state, &asked.scope, &asked.questions).await.map_err(unavailable)?;
    let notice = paused.then(|| asked.words.get("paused"));
    page(&state, &asked, &token, initial_items(&asked), notice, StatusCode::OK).await
}

/// Answer what a link asks
///
/// The form of the page, which carries its nonce. Leads on to what came of it.
#[utoipa::path(post, path = "/approvals/{token}", tag = "approvals", params(("token" = String, Path)),
    request_body(content = String, content_type = "application/x-www-form-urlencoded"),
    responses((status = 303, description = "Decided; the outcome is at Location"),
        (status = 200, description = "The page with what was changed, to be looked at", body = String,
            content_type = "text/html"),
        (status = 400, description = "The request can't be read", body = String, content_type = "text/html"),
        (status = 403, description = "It does not come from the page", body = String, content_type = "text/html"),
        (status = 404, description = "The link is not known", body = String, content_type = "text/html"),
        (status = 410, description = "The question has changed, and is asked anew", body = String,
            content_type = "text/html"),
        (status = 408, description = "It came too slowly", body = String, content_type = "text/html"),
        (status = 413, description = "It is too large", body = String, content_type = "text/html"),
        (status = 409, description = "Somebody was first", body = String, content_type = "text/html"),
        (status = 422, description = "The page with the faults beside the fields", body = String,
            content_type = "text/html"),
        (status = 429, description = "Too many wrong links; see Retry-After", body = String, content_type = "text/html")))]
pub async fn answer_approvals(
    State(state): State<HttpState>,
    peer: Option<Extension<Peer>>,
    Id(token): Id,
    headers: HeaderMap,
    body: Result<JsonBody, ApiError>,
) -> Result<Response, Response> {
    let asked = asked(&state, peer, &token).await?;
    let body = body.map_err(failed)?;
    let read = body.in_name_of(&asked.link.tenant_id).read_by(|sent| Ok(SubmittedFields::parse(sent.bytes()))).await;
    let sent = Arc::new(read.map_err(failed)?);
    let nonce = sent.get("nonce").unwrap_or_default();
    let is_ours = origin::is_own(&headers, &state.settings.public_url()) && origin::is_form(&headers);
    if !is_ours || !state.vault.is_tag(NONCE, &nonce_subject(&asked), nonce) {
        return page_with_error(&state, &asked, &token, "nothing_foreign", StatusCode::FORBIDDEN).await;
    }
    let Some(press) = sent.get("do").and_then(Press::read) else {
        return page_with_error(&state, &asked, &token, "nothing_pressed", StatusCode::UNPROCESSABLE_ENTITY).await;
    };
    let (fill, fields) = (initial_items(&asked), Arc::clone(&sent));
    let filled = move || fill().into_iter().map(|item| item.filled(&fields)).collect::<Vec<_>>();
    let items = state.compute_for(&asked.link.tenant_id, filled).await.map_err(failed)?;
    match press.outcome(&state, items, &sent).await.map_err(failed)? {
        PressOutcome::Settled(_) => {
            page_with_error(&state, &asked, &token, "nothing_settled", StatusCode::CONFLICT).await
        }
        PressOutcome::Shown { items, phrase, status } => {
            page(&state, &asked, &token, move || items, Some(asked.words.get(phrase)), status).await
        }
        PressOutcome::Decided(decisions) => settle(&state, &asked, &token, decisions).await,
    }
}

/// Show what came of an answer
///
/// A page for people, which shows and offers nothing more: what is open is answered by the link of its message. Its
/// address holds no token.
#[utoipa::path(get, path = "/approvals/outcome/{ticket}", tag = "approvals", params(("ticket" = String, Path)),
    responses((status = 200, description = "The page", body = String, content_type = "text/html"),
        (status = 404, description = "The address is not known", body = String, content_type = "text/html"),
        (status = 410, description = "The question has changed, and is asked anew", body = String,
            content_type = "text/html")))]
pub async fn show_outcome(State(state): State<HttpState>, Id(ticket): Id) -> Result<Response, Response> {
    let ticket = Ticket::read(&state.vault, &ticket).filter(|ticket| state.clock.now() < ticket.expires_at);
    let Some(Ticket { batch_id, recipient, .. }) = ticket else { return Err(view::unknown()) };
    let tenant = state.store.tenant_of_batch(batch_id).await.map_err(unavailable)?;
    let Some(tenant) = tenant else { return Err(view::unknown()) };
    // those that were replaced aside
    let read = state.store.approvals_of_batch(&tenant, batch_id).await.map_err(unavailable)?;
    let questions: Vec<PageQuestion> = read.into_iter().map(PageQuestion::from).collect();
    let reader = reader(&state, &recipient).await?;
    let Some(first) = questions.first() else { return Err(view::replaced(&reader.1)) };
    let scope = scope(&tenant).map_err(failed)?;
    let scene = scene(&state, &scope, (&recipient, reader), &first.approval).await?;
    let shown = move || {
        let items = ItemView::of_batch(&questions, &scene.words);
        let waits = items.iter().any(|item| is_open(&item.approval, scene.now));
        let notice = waits.then(|| scene.words.get("decide_in_message"));
        view::page(StatusCode::OK, &scene, &items, notice, None)
    };
    state.compute_for(&tenant, shown).await.map_err(failed)
}

/// Looks a link up. Guessing costs the guesser.
async fn asked(state: &HttpState, peer: Option<Extension<Peer>>, token: &str) -> Result<LinkQuestion, Response> {
    let (hash, now) = (TokenHash::of(token), state.clock.elapsed());
    let peer: Option<IpAddr> = peer.map(|Extension(peer)| peer.0);
    if let Some(wait) = peer.and_then(|peer| state.wrong_tokens.wait(peer, &hash, now)) {
        return Err(too_many(wait.as_secs().max(1)));
    }
    let found = match token.len() {
        1..=TOKEN_LENGTH => state.store.approvals_by_link(hash.as_bytes(), state.clock.now()).await,
        _ => Err(StoreError::NotFound),
    };
    match found {
        Ok((link, read)) => {
            state.wrong_tokens.record_success(&hash);
            let (zone, words) = reader(state, &link.recipient).await?;
            let questions = read.into_iter().map(PageQuestion::from).collect();
            Ok(LinkQuestion { hash, scope: scope(&link.tenant_id).map_err(failed)?, link, questions, zone, words })
        }
        Err(StoreError::NotFound) => {
            if let Some(peer) = peer {
                state.wrong_tokens.record_failure(peer, now);
            }
            Err(view::unknown())
        }
        Err(error) => Err(unavailable(error)),
    }
}

/// Puts the decisions one after the other, and leads on.
async fn settle(
    state: &HttpState,
    asked: &LinkQuestion,
    token: &str,
    decisions: Vec<(Arc<Approval>, Decision)>,
) -> Result<Response, Response> {
    let mut refused = Vec::new();
    for (approval, decision) in decisions {
        let who = Decider { by: Actor::Recipient(&asked.link.recipient).to_string(), via: Via::Link };
        match decision.put(state, &asked.scope, &approval, who).await {
            Ok((DecisionOutcome::Done(_) | DecisionOutcome::Counted(_), _)) => {}
            Ok((DecisionOutcome::Refused(refusal, _), _)) => {
                refused.push((approval.id, asked.words.get(of_refusal(refusal)).to_owned()));
            }
            Err(ApiError::Invalid(faults)) => refused.push((approval.id, faults.to_string())),
            Err(error) => return Err(failed(error)),
        }
    }
    let again = self::asked(state, None, token).await?;
    let now = state.clock.now();
    if !refused.is_empty() {
        let why: Vec<&str> = refused.iter().map(|(_, why)| why.as_str()).collect();
        let notice = again.words.with("refused", &[("why", &why.join(" "))]);
        let initial = initial_items(&again);
        let items = move || {
            let mut items = initial();
            for item in &mut items {
                let of = refused.iter().filter(|(id, _)| *id == item.approval.id);
                item.other_faults.extend(of.map(|(_, why)| (FaultPlace::Item, why.clone())));
            }
            items
        };
        return page(state, &again, token, items, Some(&notice), StatusCode::CONFLICT).await;
    }
    let place = match again.questions.iter().any(|question| is_answerable(&question.approval, now)) {
        true => format!("/approvals/{token}"),
        false => Ticket::of(&asked.link).address(&state.vault),
    };
    let mut response = (StatusCode::SEE_OTHER, [(header::LOCATION, place)], body::Body::empty()).into_response();
    pages::guard(&mut response);
    Ok(response)
}

/// The page of a link. It is made of what tenants wrote, so it is made where that is computed.
async fn page(
    state: &HttpState,
    asked: &LinkQuestion,
    token: &str,
    items: impl FnOnce() -> Vec<ItemView> + Send + 'static,
    notice: Option<&str>,
    status: StatusCode,
) -> Result<Response, Response> {
    let Some(first) = asked.questions.first() else { return Err(view::replaced(&asked.words)) };
    let reader = (asked.zone, asked.words.clone());
    let scene = scene(state, &asked.scope, (&asked.link.recipient, reader), &first.approval).await?;
    let form =
        FormState { action: format!("/approvals/{token}"), nonce: state.vault.tag(NONCE, &nonce_subject(asked)) };
    let notice = notice.map(str::to_owned);
    let shown = move || view::page(status, &scene, &items(), notice.as_deref(), Some(&form));
    state.compute_for(&asked.link.tenant_id, shown).await.map_err(failed)
}

/// The page as it is at first, with why nothing came of an answer.
async fn page_with_error(
    state: &HttpState,
    asked: &LinkQuestion,
    token: &str,
    phrase: &str,
    status: StatusCode,
) -> Result<Response, Response> {
    page(state, asked, token, initial_items(asked), Some(asked.words.get(phrase)), status).await
}

/// Why an answer changed nothing, as the name of a phrase.
fn of_refusal(refusal: DecisionRefusal) -> &'static str {
    match refusal {
        DecisionRefusal::Settled => "refused_settled",
        DecisionRefusal::Expired => "refused_expired",
        DecisionRefusal::OtherDigest => "refused_other",
        DecisionRefusal::Excluded => "refused_excluded",
        DecisionRefusal::NotOffered => "refused_not_offered",
        DecisionRefusal::Paused => "refused_paused",
    }
}

/// The text to which a nonce is bound: the link, and every question with its digest, in order.
fn nonce_subject(asked: &LinkQuestion) -> String {
    hex::encode(asked.hash.as_bytes()) + &page_room::digests(&asked.questions)
}

/// Makes the questions of a link as they are at first; this is computed.
fn initial_items(asked: &LinkQuestion) -> impl FnOnce() -> Vec<ItemView> + Send + use<> {
    let (questions, words) = (asked.questions.clone(), asked.words.clone());
    move || ItemView::of_batch(&questions, &words)
}

/// In which zone and words a recipient reads.
async fn reader(state: &HttpState, recipient: &str) -> Result<(Tz, Phrases), Response> {
    let stored = state.store.find_recipient(&Scope::Every, recipient).await.map_err(unavailable)?;
    let reader = stored.as_ref().map_or(Reader::NOBODY, |stored| stored.recipient.reader());
    Ok((reader.timezone, state.channels.templates().phrases(reader.locale)))
}

/// The page of a recipient.
async fn scene(
    state: &HttpState,
    scope: &Scope,
    (recipient, (zone, words)): (&str, (Tz, Phrases)),
    first: &Approval,
) -> Result<ApprovalPage, Response> {
    let reader = ApprovalReader { name: Actor::Recipient(recipient).to_string(), zone, words };
    ApprovalPage::of(state, scope, reader, first).await.map_err(unavailable)
}

fn scope(tenant: &str) -> Result<Scope, ApiError> {
    Tenant::stored(tenant).map(Scope::Only).map_err(|log| ApiError::Internal { log })
}
