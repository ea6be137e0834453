//! MCP servers over HTTP: of each era, and with credentials, which go along and nowhere else.

use std::pin::pin;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::BoxFuture;
use reveille::base::clock::{Clock, pause};
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::credential::{CredentialUse, OAuth, Reference};
use reveille::ports::tool::mcp::McpState;
use reveille::ports::vault::credentials::{Credentials, Renewal, RenewalError};
use reveille::ports::vault::{self, KeySource, Vault, WithoutKeys};
use reveille::store::{self, CredentialRowDraft, Store, StoredCredential, UseFilter, next_generation};
use serde_json::{Value, json};
use tokio::time::timeout;
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, Request, ResponseTemplate};

use super::harness::{LOOK, McpHarness, PATIENCE, by_url, code, egress, text, with};
use crate::agent::harness::RUN;
use crate::support::binary::TempDir;
use crate::support::mcp::{McpFixture, McpHttpServer, everything_http};
use crate::support::sqlite;
use crate::support::world::MASTER_KEY;

const OPS: &str = "ops-token-0";
const ANN: &str = "ann-token-1";
const BEN: &str = "ben-token-2";

/// A server that takes these tokens, and the store with the credentials of its tenants.
struct GuardedServer {
    fixture: McpFixture,
    http: McpHttpServer,
    store: Store,
    vault: Vault,
    credentials: Credentials,
    _dir: TempDir,
}

impl GuardedServer {
    async fn start(tokens: &[&str]) -> GuardedServer {
        GuardedServer::start_with(tokens, None).await
    }

    async fn start_with(tokens: &[&str], renewal: Option<Arc<dyn Renewal>>) -> GuardedServer {
        let (fixture, dir) = (McpFixture::new(), TempDir::new());
        fixture.set_plan(&json!({ "tokens": tokens }));
        let http = fixture.start_http().await;
        sqlite::migrated_copy(dir.path());
        let opened = Store::open(&store::Settings::default(), dir.path(), Clock::system(), |_| {}).await;
        let store = opened.expect("open a store");
        let keys = vault::Settings { master_keys: vec![KeySource::value(MASTER_KEY)], accept_lost_keys: false };
        let (vault, _) = Vault::open(&keys, WithoutKeys::Refuse).expect("a vault");
        let credentials = Credentials::new(store.clone(), vault.clone(), egress(), renewal);
        GuardedServer { fixture, http, store, vault, credentials, _dir: dir }
    }

    /// Saves a tenant's token, which goes into requests so.
    async fn save(&self, tenant: &str, token: &str, inject: Value, oauth: Option<OAuth>) {
        self.save_at(self.http.host(), tenant, token, inject, oauth).await;
    }

    /// As [`GuardedServer::save`], for another server.
    async fn save_at(&self, host: &str, tenant: &str, token: &str, inject: Value, oauth: Option<OAuth>) {
        let reference = Reference::parse("remote").expect("a reference");
        let document = Secret::new(json!({ "token": token }).to_string());
        let generation = next_generation(None, self.store.clock().now());
        let sealed = self.vault.seal_document(tenant, &reference, generation, &document, None).expect("sealed");
        let new = CredentialRowDraft {
            tenant_id: tenant.into(),
            service: "remote".into(),
            account_name: "primary".into(),
            hosts: vec![host.into()],
            inject: Some(serde_json::from_value(inject).expect("a place")),
            oauth,
            document: Some(sealed),
            by: "token:admin".into(),
        };
        self.store.put_credential(&Scope::Every, &new, 0).await.expect("written");
    }

    /// Saves tokens of tenants as they usually go along.
    async fn save_all(&self, tokens: &[(&str, &str)]) {
        for (tenant, token) in tokens {
            self.save(tenant, token, bearer(), None).await;
        }
    }

    /// Connects with the server, whose entry has these keys besides its address.
    async fn connect(&self, keys: Value) -> McpHarness {
        let server = with(by_url("remote", &self.http.url), keys);
        McpHarness::start_with(&[server], self.credentials.clone()).await
    }

    /// The record of a tenant's uses, the first one first.
    async fn uses(&self, tenant: &str) -> Vec<CredentialUse> {
        let filter = UseFilter { tenant: Some(tenant.into()), limit: 100, ..UseFilter::default() };
        let mut uses = self.store.credential_uses(&Scope::Every, &filter).await.expect("uses");
        uses.reverse();
        uses
    }

    /// The texts that were echoed, each with the token of its request.
    fn echoed(&self) -> Vec<(Value, Value)> {
        let lines = self.fixture.journal().into_iter().filter(|line| line.get("echo").is_some());
        lines.map(|line| (line["echo"].clone(), line["token"].clone())).collect()
    }
}

fn bearer() -> Value {
    json!({ "as": "bearer", "from": "/token" })
}

#[tokio::test]
async fn http_server_of_each_era_lists_and_answers() {
    let (fixture, old) = (McpFixture::new(), everything_http().await);
    let new = fixture.start_http().await;
    let harness = McpHarness::start(&[by_url("new", &new.url), by_url("old", &old.url)]).await;
    for _ in 0..2 {
        assert_eq!(text(harness.call("new.echo", json!({ "text": "hello" })).await), "hello");
        assert_eq!(text(harness.call("old.echo", json!({ "message": "hello" })).await), "Echo: hello");
    }
    for name in ["new", "old"] {
        assert_eq!(harness.health(name).state, McpState::Connected);
    }
    assert_eq!(fixture.noted("received").iter().filter(|method| *method == "server/discover").count(), 1);
    harness.stop().await;
}

#[tokio::test]
async fn call_over_http_carries_its_key_and_is_cancelled_once_nobody_waits_for_it() {
    let fixture = McpFixture::new();
    let http = fixture.start_http().await;
    let harness = McpHarness::start(&[by_url("new", &http.url)]).await;
    text(harness.call("new.echo", json!({ "text": "hello" })).await);
    assert_eq!(fixture.noted("meta")[0]["reveille/idempotency-key"], "k");
    tokio::select! {
        ended = harness.call("new.hang", json!({})) => panic!("{ended:?}"),
        _ = fixture.wait_for("hangs", 1) => {}
    }
    fixture.wait_for("cancelled", 1).await;
    harness.stop().await;
}

#[tokio::test]
async fn credential_goes_with_each_call_of_its_tenant_and_is_on_the_record() {
    let server = GuardedServer::start(&[OPS, ANN, BEN]).await;
    server.save_all(&[("ops", OPS), ("ann", ANN), ("ben", BEN)]).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    for tenant in ["ann", "ben", "ann"] {
        let called = harness.call_in(&harness.context(tenant), "remote.echo", json!({ "text": tenant })).await;
        assert_eq!(text(called), tenant);
    }
    harness.stop().await;

    let sent = [("ann", ANN), ("ben", BEN), ("ann", ANN)].map(|(text, token)| (json!(text), json!(token)));
    assert_eq!(server.echoed(), sent);
    assert!(server.fixture.noted("token").iter().all(|token| !token.is_null()), "no request goes without one");
    for (tenant, calls) in [("ops", 0), ("ann", 2), ("ben", 1)] {
        let uses = server.uses(tenant).await;
        assert_eq!(uses.iter().filter(|used| used.run_id == Some(RUN)).count(), calls, "{uses:#?}");
        assert!(uses.len() > calls, "requests of the connection itself are recorded as well: {uses:#?}");
        assert!(
            uses.iter().all(|used| used.used_by == "mcp:remote" && used.outcome == CredentialUse::USED),
            "{uses:#?}"
        );
        assert!(uses.iter().all(|used| used.host == server.http.host()), "{uses:#?}");
    }
}

/// A server of the old era. Each session is named after the token of the request that began it.
async fn old_server() -> MockServer {
    let server = MockServer::start().await;
    let answer = |request: &Request| {
        let Ok(message) = request.body_json::<Value>() else { return ResponseTemplate::new(405) };
        let result = |result: Value| {
            ResponseTemplate::new(200).set_body_json(json!({ "jsonrpc": "2.0", "id": message["id"], "result": result }))
        };
        match message["method"].as_str() {
            Some("server/discover") => ResponseTemplate::new(400),
            Some("initialize") => {
                let named = json!({ "name": "old", "version": "1" });
                result(json!({ "protocolVersion": "2025-11-25", "capabilities": { "tools": {} }, "serverInfo": named }))
                    .insert_header("mcp-session-id", header(request, "authorization").replace("Bearer ", "of-"))
            }
            Some("tools/list") => result(json!({ "tools": [{ "name": "echo", "inputSchema": { "type": "object" } }] })),
            Some("tools/call") => result(json!({ "content": [{ "type": "text", "text": "hello" }] })),
            _ => ResponseTemplate::new(202),
        }
    };
    Mock::given(any()).respond_with(answer).mount(&server).await;
    server
}

fn header(request: &Request, name: &str) -> String {
    request.headers.get(name).and_then(|value| value.to_str().ok()).unwrap_or_default().to_owned()
}

#[tokio::test]
async fn each_tenant_has_a_session_of_its_own_with_an_old_server() {
    let (guarded, old) = (GuardedServer::start(&[]).await, old_server().await);
    let host = old.address().to_string();
    for (tenant, token) in [("ops", OPS), ("ann", ANN), ("ben", BEN)] {
        guarded.save_at(&host, tenant, token, bearer(), None).await;
    }
    let server = with(by_url("remote", &old.uri()), json!({ "credential": "remote", "listed_as": "ops" }));
    let harness = McpHarness::start_with(&[server], guarded.credentials.clone()).await;
    for tenant in ["ann", "ben", "ann"] {
        let called = harness.call_in(&harness.context(tenant), "remote.echo", json!({})).await;
        assert_eq!(text(called), "hello");
    }
    harness.stop().await;
    let requests = old.received_requests().await.expect("requests are recorded");
    let calls = requests
        .iter()
        .filter(|request| request.body_json::<Value>().is_ok_and(|message| message["method"] == "tools/call"));
    let calls: Vec<[String; 2]> =
        calls.map(|call| [header(call, "mcp-session-id"), header(call, "authorization")]).collect();
    assert_eq!(calls, [ANN, BEN, ANN].map(|token| [format!("of-{token}"), format!("Bearer {token}")]));
}

#[tokio::test]
async fn answer_over_http_that_breaks_off_in_mid_call_leaves_the_outcome_unknown() {
    let fixture = McpFixture::new();
    let http = fixture.start_http().await;
    let harness = McpHarness::start(&[by_url("remote", &http.url)]).await;
    assert_eq!(code(harness.call("remote.die", json!({})).await), "outcome_unknown");
    assert_eq!(fixture.noted("died").len(), 1);
    harness.stop().await;
}

#[tokio::test]
async fn long_answer_is_read_in_the_turn_of_the_tenant_that_calls_with_the_operators_credential() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS)]).await;
    let harness = server.connect(json!({ "credential": "remote", "credential_of": "ops" })).await;
    let (tool, context) = (harness.tool("remote.echo").await, harness.context("ann"));
    let long = format!("{} {OPS}", "long ".repeat(40_000));
    let called = tool.tool.call(&context, json!({ "text": long })).await;
    let (free, is_free) = std::sync::mpsc::channel::<()>();
    let mut busy = pin!(context.compute.run("ben", move || is_free.recv()));
    assert!((&mut busy).now_or_never().is_none(), "the only thread is taken");
    let mut cleaned = pin!(context.used_secrets.clean(called));
    assert!((&mut cleaned).now_or_never().is_none());
    assert_eq!(context.compute.queued(), 1, "it waits for the turn of ann, on the threads of its run");
    free.send(()).unwrap();
    busy.await.unwrap().unwrap();
    assert!(text(cleaned.await).ends_with("long  [redacted]"));
    harness.stop().await;
}

#[tokio::test]
async fn changed_tools_are_listed_again_over_the_connection_of_a_tenant() {
    let server = GuardedServer::start(&[OPS, ANN]).await;
    server.save_all(&[("ops", OPS), ("ann", ANN)]).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    text(harness.call("remote.echo", json!({ "text": "hello" })).await);
    let lists = || {
        let lines = server.fixture.journal().into_iter();
        lines.filter(|line| line["received"] == "tools/list" && line["token"] == ANN).count()
    };
    let before = lists();
    assert!(before > 0, "they are listed before the first call");
    server.fixture.set_plan(&json!({ "tokens": [OPS, ANN], "hide": ["measure"] }));
    let listed = async {
        while lists() == before {
            pause(LOOK).await;
        }
    };
    timeout(PATIENCE, listed).await.expect("a list in time");
    harness.stop().await;
}

/// The server refuses a call without this header.
#[tokio::test]
async fn argument_that_belongs_into_a_header_is_sent_there_with_the_first_call_of_a_tenant() {
    let server = GuardedServer::start(&[OPS, ANN]).await;
    server.save_all(&[("ops", OPS), ("ann", ANN)]).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    assert_eq!(text(harness.call("remote.route", json!({ "region": "eu" })).await), "eu");
    harness.stop().await;
}

#[tokio::test]
async fn credential_of_the_operator_goes_with_everybodys_calls_and_nobody_reads_it() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS)]).await;
    let harness = server.connect(json!({ "credential": "remote", "credential_of": "ops" })).await;
    for tenant in ["ann", "ben"] {
        let told = format!("{tenant} asks for {OPS}");
        let called = harness.call_in(&harness.context(tenant), "remote.echo", json!({ "text": told })).await;
        assert_eq!(text(called), format!("{tenant} asks for [redacted]"));
        assert!(server.uses(tenant).await.is_empty());
    }
    harness.stop().await;
    assert!(server.echoed().iter().all(|(_, token)| token == OPS));
    let uses = server.uses("ops").await;
    assert!(uses.iter().all(|used| used.run_id.is_none() && used.task_id.is_none()), "{uses:#?}");
}

#[tokio::test]
async fn credential_of_the_operator_that_is_refused_is_no_fault_of_a_tenants_own() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS)]).await;
    let harness = server.connect(json!({ "credential": "remote", "credential_of": "ops" })).await;
    harness.tool("remote.echo").await;
    server.fixture.set_plan(&json!({ "tokens": [ANN] }));
    let failed = harness.call("remote.echo", json!({ "text": "hello" })).await.unwrap_err();
    let told = "permission_denied: the MCP server `remote` asks for authorisation";
    assert_eq!((failed.code(), failed.to_string().as_str()), ("mcp_unauthorized", told));
    assert!(server.uses("ops").await.iter().any(|used| used.outcome == "refused"), "the owner sees it on the record");
    harness.stop().await;
    assert!(server.echoed().is_empty());
}

#[tokio::test]
async fn tenant_without_the_credential_is_told_to_connect_it() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS)]).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    assert_eq!(code(harness.call("remote.echo", json!({ "text": "hello" })).await), "credential_missing");
    let asked = harness.host.asked.lock().unwrap().clone();
    assert!(asked.iter().any(|asked| asked["notify"].is_array() && asked["tenant"] == "ann"), "{asked:?}");
    harness.stop().await;
    assert!(server.echoed().is_empty());
    let uses = server.uses("ann").await;
    assert!(uses.iter().all(|used| used.outcome == "missing") && !uses.is_empty(), "{uses:#?}");
}

#[tokio::test]
async fn credential_that_the_server_refuses_is_told_and_recorded() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS), ("ann", ANN)]).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    assert_eq!(code(harness.call("remote.echo", json!({ "text": "hello" })).await), "credential_refused");
    harness.stop().await;
    let uses = server.uses("ann").await;
    assert!(uses.iter().all(|used| used.outcome == "refused") && !uses.is_empty(), "{uses:#?}");
}

/// Renews every document to one with the token of ann.
struct ToAnn;

impl Renewal for ToAnn {
    fn fresh<'a>(
        &'a self,
        _: &'a StoredCredential,
        document: Secret,
        force: bool,
    ) -> BoxFuture<'a, Result<Secret, RenewalError>> {
        let renewed = if force { Secret::new(json!({ "token": ANN }).to_string()) } else { document };
        Box::pin(std::future::ready(Ok(renewed)))
    }
}

#[tokio::test]
async fn credential_that_is_refused_is_renewed_and_the_request_sent_once_more() {
    let server = GuardedServer::start_with(&[ANN], Some(Arc::new(ToAnn))).await;
    server.save("ops", OPS, bearer(), Some(OAuth::default())).await;
    let harness = server.connect(json!({ "credential": "remote", "credential_of": "ops" })).await;
    let told = json!({ "text": format!("{OPS}, {ANN}") });
    assert_eq!(text(harness.call("remote.echo", told).await), "[redacted], [redacted]");
    harness.stop().await;
    assert_eq!(server.echoed().into_iter().map(|(_, token)| token).collect::<Vec<_>>(), [ANN]);
    let outcomes: Vec<String> = server.uses("ops").await.into_iter().map(|used| used.outcome).collect();
    assert!(outcomes.starts_with(&["refused".to_owned(), "used".to_owned()]), "{outcomes:?}");
}

#[tokio::test]
async fn credential_of_a_field_is_not_put_into_a_message() {
    let server = GuardedServer::start(&[OPS]).await;
    server.save_all(&[("ops", OPS)]).await;
    server.save("ann", ANN, json!({ "as": "field", "name": "key", "from": "/token" }), None).await;
    let harness = server.connect(json!({ "credential": "remote", "listed_as": "ops" })).await;
    assert_eq!(code(harness.call("remote.echo", json!({ "text": "hello" })).await), "credential_no_inject");
    harness.stop().await;
    assert!(server.fixture.noted("token").iter().all(|token| token == OPS), "nothing of ann's was sent");
    assert!(server.uses("ann").await.iter().all(|used| used.outcome == "no_inject"));
}
