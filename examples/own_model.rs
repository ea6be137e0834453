//! A service with a model of one's own, an encoder and a source of context for it, and an agent that takes some
//! messages itself; and a program that talks to them and follows events without a token or a socket. `cargo run
//! --example own_model`

use std::time::Duration;

use futures::future::BoxFuture;
use reveille::agent::gate::GateMessage;
use reveille::agent::{ContextSource, PendingAgents, PendingVerdict};
use reveille::app::App;
use reveille::domain::run::TranscriptMessage;
use reveille::domain::run::outcome::RunError;
use reveille::ports::llm::{
    LlmError, Model, ModelAnswer, ModelRequest, ModelTokens, OnDelta, StopReason, TokenEncoder,
};
use serde_json::json;
use tokio::time::timeout;

/// Says the last message of the person backwards, if the house wants it so.
struct Mirror;

/// Counts its tokens: each character is one.
struct Characters;

impl TokenEncoder for Characters {
    fn count(&self, text: &str) -> usize {
        text.chars().count()
    }
}

/// The rules of the house, for every agent.
struct HouseRules;

impl ContextSource for HouseRules {
    fn name(&self) -> &'static str {
        "house_rules"
    }

    fn context<'a>(&'a self, _: GateMessage<'a>) -> BoxFuture<'a, Result<Option<String>, String>> {
        Box::pin(async { Ok(Some("Everything is said backwards here.".to_owned())) })
    }
}

/// Waits for the bell, which it answers without a model, and lets no knock through.
struct Porter;

impl PendingAgents for Porter {
    fn name(&self) -> &'static str {
        "porter"
    }

    fn take<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<PendingVerdict, RunError>> {
        let verdict = match message.text {
            "ring" => PendingVerdict::Answer("Somebody is at the door.".to_owned()),
            "knock" => PendingVerdict::Refuse("use_the_bell".to_owned()),
            _ => PendingVerdict::Continue,
        };
        Box::pin(async move { Ok(verdict) })
    }
}

impl Model for Mirror {
    fn complete<'a>(
        &'a self,
        request: &'a ModelRequest,
        _on_delta: Option<OnDelta<'a>>,
    ) -> BoxFuture<'a, Result<ModelAnswer, LlmError>> {
        let backwards = request.messages.iter().any(
            |message| matches!(message, TranscriptMessage::System { text, .. } if text.contains("said backwards")),
        );
        let last = request.messages.iter().rev().find_map(|message| match message {
            TranscriptMessage::User { text, .. } if backwards => Some(text.chars().rev().collect::<String>()),
            TranscriptMessage::User { text, .. } => Some(text.clone()),
            _ => None,
        });
        let (stop, tokens) = (StopReason::Done, ModelTokens::default());
        let answer =
            ModelAnswer { text: last, tool_calls: Vec::new(), stop, tokens, provider_message: None, failure: None };
        Box::pin(async move { Ok(answer) })
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let app = App::builder().with_temp_dir().model("main", Mirror).encoder("main", Characters);
    let app = app.context_source(HouseRules).pending_agents(Porter).start().await?;
    let handle = app.handle();
    let answer = handle.say("ann", None, "live").await?;
    println!("{}", answer["response"].as_str().unwrap_or_default());
    assert_eq!((&answer["state"], &answer["response"]), (&json!("succeeded"), &json!("evil")));

    let answer = handle.say("ann", None, "ring").await?;
    println!("{}", answer["response"].as_str().unwrap_or_default());
    assert_eq!(answer["response"], "Somebody is at the door.");
    let answer = handle.say("ann", None, "knock").await?;
    println!("{}", answer["error"]["code"]);
    assert_eq!((&answer["state"], &answer["error"]["code"]), (&json!("skipped"), &json!("use_the_bell")));

    let mut orders = handle.of_tenant("ann")?.subscribe("order.*").await?;
    handle.publish(json!({ "tenant_id": "bob", "source": "shop", "type": "order.paid", "data": { "id": 1 } })).await?;
    for kind in ["cart.filled", "order.paid"] {
        handle.publish(json!({ "tenant_id": "ann", "source": "shop", "type": kind, "data": { "id": 2 } })).await?;
    }
    let event = timeout(Duration::from_secs(20), orders.next()).await?.transpose()?;
    let event = event.map(|event| event.to_value()).unwrap_or_default();
    println!("{} {}", event["type"], event["data"]);
    assert_eq!((&event["type"], &event["data"]), (&json!("order.paid"), &json!({ "id": 2 })));
    orders.unsubscribe();

    let refused = handle.create_task(json!({ "tenant_id": "ann", "name": "Odd" })).await.unwrap_err();
    println!("{refused}");
    assert_eq!((refused.status, &refused.problem["errors"][0]["pointer"]), (422, &json!("/trigger")));
    app.stop().await;
    Ok(())
}
