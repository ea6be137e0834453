//! Mails of a user, fetched with the user's own credential: an event says that one has come, a tool of one's own
//! fetches it, and a pipeline decides what is said of it. The mail server is a fake on this machine. `cargo run
//! --example email_pipeline`

use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use reveille::app::App;
use reveille::base::clock::pause;
use reveille::config::Config;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::ports::egress::EgressRequest;
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolFailure, ToolOutput};
use serde_json::{Value, json};
use tokio::time::timeout;
use wiremock::matchers::{header, path};
use wiremock::{Mock, MockServer, ResponseTemplate};

/// Only ann and her mail server know it.
const PASSWORD: &str = "correct-horse-battery";

/// Fetches a mail with the credential `mailbox` of whoever the run is for.
struct FetchMail {
    definition: Definition,
    server: String,
}

impl Tool for FetchMail {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let failed = |why: String| ToolError::for_model(ToolFailure::ExecutionError, "mail", why);
            let url = format!("{}/mails/{}", self.server, arguments["id"].as_str().unwrap_or_default());
            // the document itself, for a protocol that the service does not speak
            let mailbox = context.credentials.get("mailbox").await?;
            let user = mailbox.value()["user"].as_str().unwrap_or_default().to_owned();
            // or a request with it, which goes to its own hosts alone
            let answer = context.credentials.fetch("mailbox", EgressRequest::new(Method::GET, url)).await?;
            let mail: Value = serde_json::from_slice(&answer.body).map_err(|error| failed(error.to_string()))?;
            // a tool that says too much: what it read is taken out of its result
            Ok(ToolOutput::json(json!({ "mail": mail, "user": user, "debug": mailbox.value()["password"] })))
        })
    }
}

async fn mail_server() -> MockServer {
    let server = MockServer::start().await;
    let mail = json!({ "from": "shop@example.org", "subject": "Your invoice", "total": 42 });
    Mock::given(path("/mails/m-1"))
        .and(header("authorization", format!("Bearer {PASSWORD}").as_str()))
        .respond_with(ResponseTemplate::new(200).set_body_json(mail))
        .mount(&server)
        .await;
    server
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let server = mail_server().await;
    let address = server.address().to_string();
    let config: Config = serde_json::from_value(json!({ "egress": { "allow": [address.as_str()] } }))?;
    let id = json!({ "type": "object", "required": ["id"], "properties": { "id": { "type": "string" } } });
    let definition = Definition::new("fetch_mail", "Fetches a mail.", id, Category::Read, Consequence::Low);
    let app = App::builder().config(config).with_temp_dir();
    let app = app.tool(FetchMail { definition, server: server.uri() }).start().await?;
    let ann = app.handle().of_tenant("ann")?;

    // ann connects her mailbox once
    let mailbox = json!({
        "document": { "user": "ann@example.org", "password": PASSWORD }, "hosts": [address],
        "inject": { "as": "bearer", "from": "/password" },
    });
    ann.call(Method::PUT, "/v1/credentials/mailbox/primary", Some(mailbox)).await?;
    let steps = json!([
        { "name": "fetched", "tool": { "name": "fetch_mail", "args": { "id": "{{ event.data.id }}" } } },
        { "name": "large", "filter": "steps.fetched.mail.total > 20" },
        { "name": "told", "map": "steps.fetched.user + ': ' + steps.fetched.mail.subject + ' ' + steps.fetched.debug" },
    ]);
    let task = json!({
        "name": "Invoices", "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null,
        "trigger": { "type": "event", "source": "mail", "event_type": "mail.received" },
    });
    let task = ann.create_task(task).await?;

    // the mail server says that one has come
    ann.publish(json!({ "source": "mail", "type": "mail.received", "data": { "id": "m-1" } })).await?;
    let runs = format!("/v1/runs?task_id={}&state=succeeded", task["id"].as_str().unwrap_or_default());
    let run = timeout(Duration::from_secs(20), async {
        loop {
            let found = ann.call(Method::GET, &runs, None).await?["items"][0].clone();
            if found.is_object() {
                return anyhow::Ok(found);
            }
            pause(Duration::from_millis(50)).await;
        }
    });
    let run = run.await??;
    println!("{}", run["output"].as_str().unwrap_or_default());
    assert_eq!(run["output"], "ann@example.org: Your invoice [redacted]");

    // each use is on the record, and nobody else has the credential
    let uses = ann.call(Method::GET, "/v1/credentials/mailbox/primary/uses", None).await?;
    let used: Vec<(&str, &str)> = uses["items"]
        .as_array()
        .into_iter()
        .flatten()
        .filter_map(|used| Some((used["used_by"].as_str()?, used["outcome"].as_str()?)))
        .collect();
    assert_eq!(used, [("tool:fetch_mail", "used"), ("tool:fetch_mail", "used")]);
    let bob = app.handle().of_tenant("bob")?;
    let missing = bob.call(Method::GET, "/v1/credentials/mailbox/primary", None).await.unwrap_err();
    assert_eq!(missing.status, 404);
    app.stop().await;
    Ok(())
}
