//! Every field in which a URL can be named × every spelling of the table: nothing is reached through any of them.

use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use reveille::base::compute::Compute;
use reveille::base::id::Tenant;
use reveille::base::invalid::ValidationErrors;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, WebhookAddress};
use reveille::domain::run::Run;
use reveille::domain::run::outcome::RunError;
use reveille::domain::task::Action;
use reveille::domain::trigger::condition::PollSpec;
use reveille::executor::Executor;
use reveille::executor::pipeline::{Pipeline, StepParts};
use reveille::executor::webhook::WebhookExecutor;
use reveille::ports::channel::{ChannelError, webhook};
use reveille::ports::egress::{Egress, Settings};
use reveille::ports::poll::{self, Sources};
use reveille::ports::tool::mcp::{self, McpServerDefinition, PreparedServer};
use reveille::ports::tool::{self, ToolCaller, ToolContext, ToolError};
use reveille::ports::vault;
use reveille::ports::vault::credentials::Credentials;
use reveille::ports::vault::{Vault, WithoutKeys};
use serde_json::{Value, json};
use wiremock::MockServer;

use super::spellings::all;
use super::{Names, egress};
use crate::agent::harness::{AgentHarness, RUN, no_credentials};
use crate::notifications::{deliver, recipient};
use crate::pipelines::harness::job;

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

fn vault() -> Vault {
    let key = vault::KeySource::value("k1:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=");
    Vault::open(&vault::Settings { master_keys: vec![key], accept_lost_keys: false }, WithoutKeys::Refuse).unwrap().0
}

/// The table, less what a field reads as no text at all.
fn table() -> Vec<String> {
    let table = all();
    assert!(table.len() >= 200, "{}", table.len());
    table
}

fn action(config: Value) -> Action {
    Action { instruction: String::new(), config: config.as_object().cloned().unwrap() }
}

#[tokio::test]
async fn tools_for_http_reach_none_of_them() {
    let tools = tool::ToolRegistry::new(tool::builtin::all(&Credentials::none(egress(&[])))).unwrap();
    let stage = AgentHarness::new(vec![], vec![]);
    let context = ToolContext {
        tenant: Tenant::new("ann").unwrap(),
        run_id: RUN,
        task_id: None,
        called_by: ToolCaller::Model,
        turn: 1,
        call_id: "c".into(),
        idempotency_key: "k".into(),
        delegation_chain: vec![],
        words: Default::default(),
        limits: Default::default(),
        timezone: chrono_tz::Tz::UTC,
        time_limit: Duration::from_secs(5),
        host: stage.host.clone(),
        clock: stage.clock.clone(),
        compute: Compute::new(1),
        credentials: no_credentials(),
        used_secrets: Default::default(),
        continuation: None,
        progress: Default::default(),
    };
    for name in ["http_request", "http_send"] {
        let tool = &tools.find(name).unwrap().tool;
        for url in table() {
            match tool.call(&context, json!({ "url": url, "method": "POST" })).await {
                Err(ToolError::Tell { code, .. }) => {
                    assert!(["address_denied", "invalid_request"].contains(&code.as_str()), "{name} {url:?}: {code}")
                }
                other => panic!("{name} {url:?}: {other:?}"),
            }
        }
    }
}

#[tokio::test]
async fn recipient_s_webhook_reaches_none_of_them() {
    let channel = webhook::WebhookChannel::new(&webhook::Settings::default(), egress(&[]), vault()).unwrap();
    let sealed_secret = webhook::seal_secret(&vault(), "ann", &Secret::new(SECRET)).unwrap();
    for url in table() {
        let webhook = Some(WebhookAddress { url: url.clone(), sealed_secret: sealed_secret.clone() });
        let answer = deliver(&channel, &recipient(Addresses { webhook, ..Addresses::default() })).await;
        assert!(
            matches!(answer, Err(ChannelError::Unsendable { .. } | ChannelError::Rejected { .. })),
            "{url:?}: {answer:?}"
        );
    }
}

#[tokio::test]
async fn webhook_executor_takes_none_of_them_and_reaches_none() {
    let credentials = Credentials::none(egress(&[]));
    let executor = WebhookExecutor::new(credentials, vault(), "http://127.0.0.1:7700", Compute::new(1));
    let mut sealed = action(json!({ "url": "https://example.org", "secret": SECRET }));
    executor.seal(&Tenant::new("ann").unwrap(), &mut sealed, None).unwrap();
    let stage = AgentHarness::new(vec![], vec![]);
    for url in table() {
        let mut faults = ValidationErrors::new();
        executor.validate(&action(json!({ "url": url, "secret": SECRET })), &mut faults);
        assert_eq!(
            faults.0.iter().map(|fault| fault.pointer.as_str()).collect::<Vec<_>>(),
            ["/action/config/url"],
            "{url:?}"
        );
        // one that is stored all the same, by an older release or with other rules
        let config = json!({ "url": url, "sealed_secret": sealed.config["sealed_secret"] });
        match executor.execute(job(&stage, stage.store.clone(), config, None)).await {
            Err(RunError::Fail { fault }) => {
                assert!(["address_denied", "invalid_request"].contains(&fault.code.as_str()), "{url:?}: {fault:?}");
            }
            other => panic!("{url:?}: {other:?}"),
        }
    }
}

fn pipeline(egress: Egress, stage: &AgentHarness) -> Pipeline {
    Pipeline::new(StepParts {
        credentials: Credentials::none(egress),
        agent: stage.agent.clone(),
        agents: Default::default(),
        channels: vec![],
        compute: reveille::base::compute::Compute::of_machine(),
        expressions: Default::default(),
        templates: Default::default(),
    })
}

#[tokio::test]
async fn http_step_takes_none_of_them_written_or_inserted() {
    let stage = AgentHarness::new(vec![], vec![]);
    let pipeline = pipeline(egress(&[]), &stage);
    for url in table() {
        for written in [url.clone(), format!("{url}{{{{ input.who }}}}"), format!("{url}/?q={{{{ input.who }}}}")] {
            let mut faults = ValidationErrors::new();
            let step = json!({ "name": "s", "http": { "url": written } });
            pipeline.validate(&action(json!({ "steps": [step] })), &mut faults);
            assert_eq!(
                faults.0.iter().map(|fault| fault.pointer.as_str()).collect::<Vec<_>>(),
                ["/action/config/steps/0/http/url"],
                "{written:?}"
            );
        }
    }
}

#[tokio::test]
async fn template_values_never_name_another_host() {
    let stage = AgentHarness::new(vec![], vec![]);
    let names = Names::default().with("api.example.org", &[&["10.0.0.1"]]);
    let pipeline = pipeline(Egress::with_resolver(&super::settings(&[]), names.clone()).unwrap(), &stage);
    let config = json!({ "steps": [
        { "name": "s", "http": { "url": "https://api.example.org/{{ input.url }}?q={{ input.url }}" } },
    ] });
    let table = table();
    for url in &table {
        let mut job = job(&stage, Arc::new(crate::agent::harness::Memory::default()), config.clone(), None);
        let input = Some(json!({ "url": url }));
        job.run = Arc::new(Run { input, ..(*job.run).clone() });
        match pipeline.execute(job).await {
            // the name that was written leads inside, and is looked up as it was written
            Err(RunError::Fail { fault }) => {
                assert!(["address_denied", "template"].contains(&fault.code.as_str()), "{url:?}: {fault:?}")
            }
            other => panic!("{url:?}: {other:?}"),
        }
    }
    let asked = names.asked();
    assert!(asked.len() > 200 && asked.iter().all(|name| name == "api.example.org"), "{} names", asked.len());
}

#[tokio::test]
async fn condition_polls_none_of_them() {
    let credentials = Credentials::none(egress(&[]));
    let tools = Arc::new(tool::ToolRegistry::new(tool::builtin::all(&credentials)).unwrap());
    let dir = crate::support::binary::TempDir::new();
    let sources = Sources::new(&poll::Settings::default(), &credentials, tools, dir.path()).unwrap();
    for url in table() {
        let poll: PollSpec = serde_json::from_value(json!({ "http": { "url": url } })).unwrap();
        let mut faults = ValidationErrors::new();
        sources.check(&Tenant::new("ann").unwrap(), &poll, "/trigger/poll", &mut faults);
        assert_eq!(
            faults.0.iter().map(|f| f.pointer.as_str()).collect::<Vec<_>>(),
            ["/trigger/poll/http/url"],
            "{url:?}"
        );
    }
}

/// An entry of `[[mcp_servers]]` with this address, read.
fn mcp_server(url: &str, egress: &Egress) -> Result<Vec<Arc<PreparedServer>>, ValidationErrors> {
    let servers: Vec<McpServerDefinition> = serde_json::from_value(json!([{ "name": "one", "url": url }])).unwrap();
    mcp::read(&servers, egress)
}

#[test]
fn mcp_server_takes_none_of_them() {
    let egress = egress(&[]);
    for url in table() {
        let faults = mcp_server(&url, &egress).err().unwrap_or_else(|| panic!("{url:?} is taken"));
        // a fragment is a fault of its own
        assert!(faults.0.iter().all(|fault| fault.pointer == "/mcp_servers/0/url"), "{url:?}: {faults:?}");
    }
}

#[tokio::test]
async fn mcp_server_whose_name_leads_inside_is_not_reached() {
    let inside = MockServer::start().await;
    let names = Names::default().with("mcp.example", &[&["127.0.0.1"]]);
    let port = inside.address().port();
    let settings = Settings { ports: vec![port], ..super::settings(&[]) };
    let egress = Egress::with_resolver(&settings, names.clone()).unwrap();
    let url = format!("http://mcp.example:{port}/mcp");
    let server = mcp_server(&url, &egress).unwrap().remove(0);
    let fault = mcp::probe(&server, &Credentials::none(egress), Path::new("unused")).await.err().expect("a fault");
    assert_eq!(ToolError::from(fault).code(), "address_denied");
    assert!(!names.asked().is_empty(), "it was the name that was looked up");
    assert_eq!(inside.received_requests().await.unwrap().len(), 0);
}

#[test]
fn declared_tool_takes_none_of_them() {
    for url in table() {
        let tools: Vec<tool::http::HttpToolDefinition> = serde_json::from_value(json!([{
            "name": "look", "description": "Looks.", "category": "read", "consequence": "low",
            "http": { "method": "GET", "url": url },
        }]))
        .unwrap();
        let faults = tool::http::read(&tools, &egress(&[])).err().unwrap_or_else(|| panic!("{url:?} is taken"));
        assert_eq!(
            faults.0.iter().map(|fault| fault.pointer.as_str()).collect::<Vec<_>>(),
            ["/tools/0/http/url"],
            "{url:?}"
        );
    }
}
