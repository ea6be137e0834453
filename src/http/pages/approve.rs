//! The link pages: what a person sees who opens the link of a message, and what their answer does.
//!
//! GET, HEAD and OPTIONS change nothing, whoever fetches them and how often. A POST decides only with the nonce of the
//! page that was shown, which binds the link, the questions and their digests, and only when it comes from that page.
//! The token is looked up by its hash, stands in no log (the guard logs the route), and is not in the address of the
//! page that shows what came of it. Nothing is kept in here.

mod approval_page;
mod asker;
mod beginning;
mod card;
mod changes;
mod control;
#[cfg(test)]
mod fixture;
mod form;
mod item;
mod kind;
pub(in crate::http) mod moment;
pub(in crate::http) mod origin;
pub(in crate::http) mod outcome_url;
mod page_room;
mod press;
mod submitted_fields;
mod view;

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
use crate::http::pages::approve::approval_page::{ApprovalPage, FormState, is_answerable, is_open};
use crate::http::pages::approve::item::{FaultPlace, ItemView};
use crate::http::pages::approve::outcome_url::Ticket;
use crate::http::pages::approve::page_room::PageQuestion;
use crate::http::pages::approve::press::Press;
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
    let notice = is_paused(&state, &asked).await?.then(|| asked.words.get("paused"));
    page(&state, &asked, &token, initial_items(&asked), notice, StatusCode::OK).await
}

/// Whether what could be answered is paused.
async fn is_paused(state: &HttpState, asked: &LinkQuestion) -> Result<bool, Response> {
    let now = state.clock.now();
    let mut approvals = asked.questions.iter().map(|question| &question.approval);
    let Some(open) = approvals.find(|approval| is_answerable(approval, now)) else { return Ok(false) };
    let place = state.store.locate_run(&asked.scope, open.run_id, None).await.map_err(unavailable)?;
    Ok(place.parked.is_some_and(|parked| parked.paused_until.is_some()))
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
    let now = state.clock.now();
    let (fill, fields) = (initial_items(&asked), Arc::clone(&sent));
    let filled = move || fill().into_iter().map(|item| item.filled(&fields)).collect::<Vec<_>>();
    let mut items = state.compute_for(&asked.link.tenant_id, filled).await.map_err(failed)?;
    let mut decisions = Vec::new();
    let mut waits = press == Press::Review;
    for item in items.iter_mut().filter(|item| press.is_about(item)) {
        let stops = matches!(press, Press::Cancel(Some(_))) && item.approval.is_held(now);
        if !is_open(&item.approval, now) && !stops && press.is_for_one_question() {
            return page_with_error(&state, &asked, &token, "nothing_settled", StatusCode::CONFLICT).await;
        }
        if !is_open(&item.approval, now) && !stops {
            continue;
        }
        let reviewed = sent.get(&format!("{}.reviewed", item.number));
        match press.decision(item, &state).await.map_err(failed)? {
            // what was changed is looked at once more, as a whole, before it runs
            Some(_) if item.changed.is_some() && press.approves() && item.changed_digest().as_deref() != reviewed => {
                waits = true;
            }
            Some(decision) => {
                let unfit = decision.invalid_fields(&state, &item.approval).await.map_err(failed)?;
                match unfit.is_empty() {
                    true => decisions.push((Arc::clone(&item.approval), decision)),
                    false => item.assign_faults(unfit),
                }
            }
            None => {}
        }
    }
    let faulty = items.iter().any(|item| press.is_about(item) && item.is_faulty());
    if faulty || waits {
        let (status, phrase) = match faulty {
            true => (StatusCode::UNPROCESSABLE_ENTITY, "nothing_faulty"),
            false => (StatusCode::OK, "nothing_changed"),
        };
        set_focus(&mut items);
        return page(&state, &asked, &token, move || items, Some(asked.words.get(phrase)), status).await;
    }
    settle(&state, &asked, &token, decisions).await
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
        let items = items_of(&questions, &scene.words);
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

/// Marks where the person is led: to the first thing that is wrong, else to the first that was changed.
fn set_focus(items: &mut [ItemView]) {
    let faulty = items.iter().position(ItemView::is_faulty);
    let first = faulty.or_else(|| items.iter().position(|item| item.changed.is_some() && !item.is_input()));
    if let Some(first) = first {
        items[first].take_focus();
    }
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
    let mut text = hex::encode(asked.hash.as_bytes());
    for PageQuestion { approval, .. } in &asked.questions {
        text.push_str(&format!("|{}:{}", approval.id, approval.digest));
    }
    text
}

/// Makes the questions of a link as they are at first; this is computed.
fn initial_items(asked: &LinkQuestion) -> impl FnOnce() -> Vec<ItemView> + Send + use<> {
    let (questions, words) = (asked.questions.clone(), asked.words.clone());
    move || items_of(&questions, &words)
}

fn items_of(questions: &[PageQuestion], words: &Phrases) -> Vec<ItemView> {
    let told: Vec<PageQuestion> = questions.iter().map(|question| question.clone().in_language_of(words)).collect();
    let fitted = page_room::fit(&told);
    fitted.iter().enumerate().map(|(number, question)| ItemView::new(number, question, words)).collect()
}

/// In which zone and words a recipient reads.
async fn reader(state: &HttpState, recipient: &str) -> Result<(Tz, Phrases), Response> {
    let stored = state.store.find_recipient(&Scope::Every, recipient).await.map_err(unavailable)?;
    let reader = stored.as_ref().map_or(Reader::NOBODY, |stored| stored.recipient.reader());
    Ok((reader.timezone, state.channels.templates().phrases(reader.locale)))
}

/// The scene of a page: its reader, and the way to it.
async fn scene(
    state: &HttpState,
    scope: &Scope,
    (recipient, (zone, words)): (&str, (Tz, Phrases)),
    first: &Approval,
) -> Result<ApprovalPage, Response> {
    let run = state.store.find_run(scope, first.run_id).await.map_err(unavailable)?;
    let task = match first.task_id {
        Some(task) => state.store.find_task(scope, task).await.map_err(unavailable)?,
        None => None,
    };
    let reader = Actor::Recipient(recipient).to_string();
    let requester = beginning::requester(state, scope, first).await.map_err(unavailable)?;
    Ok(ApprovalPage {
        now: state.clock.now(),
        zone,
        words,
        tenant: first.tenant_id.clone(),
        identities: state.store.voter_identities(&reader).await.map_err(unavailable)?,
        reader,
        run_id: first.run_id,
        task: task.map(|task| task.name),
        started: run.map(|run| (beginning::of(&run, requester.is_some()), run.scheduled_for)),
        requester,
    })
}

fn scope(tenant: &str) -> Result<Scope, ApiError> {
    Tenant::stored(tenant).map(Scope::Only).map_err(|log| ApiError::Internal { log })
}
