//! The tool announcer in the real binary: the owner of a task gets a mail about a tool that waits to be accepted.

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::time::timeout;

use super::harness::{LOOK, PATIENCE, until_listed};
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::mcp::McpFixture;
use crate::support::smtp::MailServer;
use crate::support::world::MASTER_KEY;

const TOKEN: &str = "the-admin-token-of-the-announcer-tests";

/// Returns once this holds.
async fn until(why: &str, holds: impl AsyncFn() -> bool) {
    let waited = timeout(PATIENCE, async {
        while !holds().await {
            pause(LOOK).await;
        }
    });
    waited.await.unwrap_or_else(|_| panic!("{why}"));
}

#[tokio::test]
async fn owner_of_a_task_is_mailed_about_its_tool_that_has_changed() {
    let (fixture, mail) = (McpFixture::new(), MailServer::start().await);
    let config = format!("[[mcp_servers]]\nname = \"one\"\ncommand = {}\n", json!(fixture.command()));
    let mut service = Service::new()
        .with("REVEILLE_VAULT__MASTER_KEYS", json!([MASTER_KEY]).to_string())
        .with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN)
        .with("REVEILLE_CHANNELS__EMAIL__URL", format!("smtp://{}", mail.address()))
        .with("REVEILLE_CHANNELS__EMAIL__FROM", "reveille@example.org")
        .with_config(&config);
    service.start().await;
    let api = Api::new(service.url(), TOKEN);
    until_listed(&api, &["one.echo"]).await;
    let recipient = json!({ "timezone": "UTC", "addresses": { "email": "ann@example.org" } });
    api.put("/v1/recipients/ann", &recipient).await;
    let task: Value = json!({
        "tenant_id": "ann", "name": "Echo", "executor": "orchestrator",
        "trigger": { "type": "schedule", "cron": "0 0 1 1 *" },
        "action": { "instruction": "Echo hello.", "config": { "tools": ["one.echo"] } },
    });
    api.post("/v1/tasks", &task).await;
    fixture.set_plan(&json!({ "echo": "Shouts." }));
    until("the change is not seen", async || api.get("/readyz").await["mcp_servers"][0]["waiting_tools"] == 1).await;

    // it looks every half minute, and at its start
    assert!(service.terminate().await.success());
    service.start().await;
    until("no mail", async || !mail.messages().is_empty()).await;
    let mails = mail.messages();
    let [told] = mails.as_slice() else { panic!("{} mails", mails.len()) };
    assert_eq!((told.header("To"), told.header("Subject")), ("ann@example.org", "A tool waits: Echo"));
    assert!(told.text.contains("one.echo") && !told.text.contains("Shouts"), "{}", told.text);
    assert!(service.terminate().await.success());
}
