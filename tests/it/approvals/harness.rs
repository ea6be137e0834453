//! A run that waits for people, put there through the store as the engine does, and a browser that reads its page.

use axum::body::Body;
use axum::http::{HeaderMap, Request, header};
use chrono::TimeDelta;
use reveille::base::id::{Scope, new_id};
use reveille::base::token::TokenHash;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::domain::approval::{Approval, ApprovalChoice, OnExpiry, Proposal, ProposalIdentity};
use reveille::domain::run::RunState;
use reveille::http::server::Peer;
use reveille::store::{ApprovalLink, Finish, Park};
use serde_json::{Value, json};
use tower::ServiceExt;
use uuid::Uuid;

use crate::api::service::{Api, daily_of};
use crate::support::world::claim_ready;

/// How long there is to answer.
pub const TIME: TimeDelta = TimeDelta::minutes(30);

/// A run that has asked.
pub struct AskingRun {
    pub task: String,
    pub run: Uuid,
    pub batch: Uuid,
    /// In the order of the calls.
    pub approvals: Vec<Approval>,
    /// The text of a link to all of them, for the tenant itself.
    pub token: String,
}

/// The proposal: a note to a room.
pub fn note() -> Proposal {
    Proposal {
        kind: Default::default(),
        tool: "send_note".into(),
        version: "1.0.0".into(),
        definition: "0".repeat(64),
        summary: "Send a note to the room lobby".into(),
        description: "Send a note to a room.".into(),
        arguments: json!({ "room": "lobby", "text": "The build is broken" }),
        parameters: json!({
            "type": "object", "required": ["room", "text"], "additionalProperties": false,
            "properties": {
                "room": { "type": "string", "description": "Where to" },
                "text": { "type": "string", "maxLength": 30 },
                "loud": { "type": "boolean" },
                "copies": { "type": "integer", "minimum": 1 },
            },
        }),
        lacks: vec![],
        server: None,
        category: Category::SideEffect,
        consequence: Consequence::Medium,
        reasons: vec!["the matrix says confirm for side_effect of medium consequence".into()],
        reason_codes: vec![],
        options: vec![ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel],
        allow_modification: true,
        source: "trigger".into(),
        delegation_chain: vec![],
        step: None,
        on_expiry: OnExpiry::Expire,
        approvers: 1,
        excluded_approver: None,
        confirmation: None,
        undo_seconds: None,
        precheck: None,
        timeout_seconds: 1800,
    }
}

/// A note with other arguments.
pub fn note_of(arguments: Value) -> Proposal {
    Proposal { arguments, ..note() }
}

/// Makes a run of this tenant that waits for an answer to each of these.
pub async fn ask(api: &Api, tenant: &str, proposals: Vec<Proposal>) -> AskingRun {
    let text = |body: &Value| body["id"].as_str().expect("an id").to_owned();
    let task = text(&api.admin("POST", "/v1/tasks", Some(daily_of(tenant))).await.expect(201));
    let run = text(&api.admin("POST", &format!("/v1/tasks/{task}/run"), None).await.expect(201));
    let run: Uuid = run.parse().expect("an id");
    let now = api.clock.now();
    let claims = claim_ready(&api.store, Uuid::from_u128(7), now, 1000).await;
    let lease = claims.iter().map(|claim| claim.lease).find(|lease| lease.run_id == run).expect("the run's lease");
    let starts = api.store.start_runs(&[lease], now + TimeDelta::seconds(45)).await.expect("a start");
    let batch = new_id(now);
    let asks = proposals
        .into_iter()
        .enumerate()
        .map(|(index, proposal)| approval(api, tenant, &task, run, batch, index, proposal));
    let approvals: Vec<Approval> = asks.collect();
    let started = &starts.started[0];
    let finish = Finish {
        park: Some(Park::Approval {
            wake_at: now + TIME,
            asks: approvals.iter().cloned().map(|approval| (approval, None)).collect(),
            open: Vec::new(),
        }),
        ..Finish::of(started.lease, started.run.task_id, RunState::PendingApproval)
    };
    let lost = api.store.finish_runs(&[finish]).await.expect("parked");
    assert!(lost.is_empty(), "the lease was lost");
    let token = link(api, tenant, batch, tenant).await;
    AskingRun { task, run, batch, approvals, token }
}

fn approval(api: &Api, tenant: &str, task: &str, run: Uuid, batch: Uuid, index: usize, proposal: Proposal) -> Approval {
    let now = api.clock.now();
    let call_id = format!("call_{index}");
    let identity = ProposalIdentity { tenant, run_id: run, turn: 1, call_id: &call_id };
    let task_id = Some(task.parse().expect("an id"));
    Approval { expires_at: now + TIME, ..Approval::asked((new_id(now), batch), identity, task_id, proposal, now) }
}

/// A link to a batch; answers the text of its token.
pub async fn link(api: &Api, tenant: &str, batch: Uuid, recipient: &str) -> String {
    let token = format!("{:016x}{:016x}{:016x}{:016x}", fastrand::u64(..), fastrand::u64(..), fastrand::u64(..), 7);
    let expires_at = api.clock.now() + TimeDelta::days(7);
    let link = ApprovalLink {
        batch_id: batch,
        tenant_id: tenant.into(),
        recipient: recipient.into(),
        channel: "email".into(),
        expires_at,
    };
    api.store.remember_link(TokenHash::of(&token).as_bytes(), &link).await.expect("a link");
    token
}

/// A page as a browser gets it.
#[derive(Debug)]
pub struct BrowserPage {
    pub status: u16,
    pub headers: HeaderMap,
    pub html: String,
}

impl BrowserPage {
    #[track_caller]
    pub fn expect(self, status: u16) -> BrowserPage {
        assert_eq!(self.status, status, "{}", self.html);
        self
    }

    #[track_caller]
    pub fn shows(&self, text: &str) {
        assert!(self.html.contains(text), "{text} is not in\n{}", self.html);
    }

    #[track_caller]
    pub fn hides(&self, text: &str) {
        assert!(!self.html.contains(text), "{text} is in\n{}", self.html);
    }

    pub fn header(&self, name: &str) -> &str {
        self.headers.get(name).map_or("", |value| value.to_str().expect("a text"))
    }

    /// The value of a hidden input.
    pub fn hidden(&self, name: &str) -> Option<String> {
        let (_, rest) = self.html.split_once(&format!("type=\"hidden\" name=\"{name}\" value=\""))?;
        rest.split_once('"').map(|(value, _)| value.to_owned())
    }
}

impl AskingRun {
    pub fn path(&self) -> String {
        format!("/approvals/{}", self.token)
    }

    /// Opens the link.
    pub async fn open(&self, api: &Api) -> BrowserPage {
        fetch(api, "GET", &self.path()).await
    }

    /// Sends the form of the page with its nonce and these fields, as a browser does.
    pub async fn send(&self, api: &Api, fields: &[(&str, &str)]) -> BrowserPage {
        let nonce = self.open(api).await.hidden("nonce").unwrap_or_default();
        let fields: Vec<_> = [("nonce", nonce.as_str())].into_iter().chain(fields.iter().copied()).collect();
        post(api, &self.path(), &fields, &[("origin", "null"), ("sec-fetch-site", "same-origin")]).await
    }

    /// The approvals as they are now.
    pub async fn now(&self, api: &Api) -> Vec<Approval> {
        api.store.approvals_of_turn(self.run, 1).await.expect("approvals")
    }

    /// The one approval there is, as it is now.
    pub async fn only(&self, api: &Api) -> Approval {
        api.store.get_approval(&Scope::Every, self.approvals[0].id).await.expect("an approval")
    }

    pub async fn statuses(&self, api: &Api) -> Vec<&'static str> {
        self.now(api).await.iter().map(|approval| approval.status.as_str()).collect()
    }

    pub async fn run_state(&self, api: &Api) -> RunState {
        api.store.get_run(&Scope::Every, self.run).await.expect("a run").state
    }
}

pub async fn fetch(api: &Api, method: &str, path: &str) -> BrowserPage {
    request(api, Request::builder().method(method).uri(path).body(Body::empty()).expect("a request")).await
}

/// Fetches from an address.
pub async fn fetch_from(api: &Api, address: [u8; 4], path: &str) -> BrowserPage {
    let request_from = Request::get(path).extension(Peer(address.into())).body(Body::empty()).expect("a request");
    request(api, request_from).await
}

pub async fn post(api: &Api, path: &str, fields: &[(&str, &str)], headers: &[(&str, &str)]) -> BrowserPage {
    let form = url::form_urlencoded::Serializer::new(String::new()).extend_pairs(fields).finish();
    let mut sent = Request::post(path).header(header::CONTENT_TYPE, "application/x-www-form-urlencoded");
    for (name, value) in headers {
        sent = sent.header(*name, *value);
    }
    request(api, sent.body(Body::from(form)).expect("a request")).await
}

async fn request(api: &Api, request: Request<Body>) -> BrowserPage {
    let (parts, body) = api.app.clone().oneshot(request).await.expect("an answer").into_parts();
    let html = axum::body::to_bytes(body, 1 << 22).await.expect("a whole page");
    let html = String::from_utf8(html.to_vec()).expect("UTF-8");
    BrowserPage { status: parts.status.as_u16(), headers: parts.headers, html }
}
