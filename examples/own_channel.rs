//! A service with a channel of one's own, by which a task tells its result, and a tool of one's own that a condition
//! polls. `cargo run --example own_channel`

use std::time::Duration;

use futures::future::BoxFuture;
use http::Method;
use reveille::app::App;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::ports::channel::{Capabilities, Channel, ChannelError, OutgoingMessage, Receipt, ReceiptLevel};
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Rings: the message goes to whoever listens.
struct Bell(UnboundedSender<String>);

impl Channel for Bell {
    fn name(&self) -> &'static str {
        "bell"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { supported_formats: &["plain"], max_response_length: 200, deduplicates: false }
    }

    fn deliver<'a>(&'a self, message: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
        let text = format!("{}: {}", message.recipient_id, message.words.text);
        Box::pin(async move {
            let unsent = |_| ChannelError::Unsendable { why: "nobody listens".into() };
            self.0.send(text).map_err(unsent)?;
            Ok(Receipt { provider_id: None, confirmed: ReceiptLevel::Delivered })
        })
    }
}

/// A look at something that only this program knows.
struct Thermometer(Definition);

impl Tool for Thermometer {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, _: &'a ToolContext, _: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async { Ok(ToolOutput::json(json!({ "celsius": 31 }))) })
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let (sender, mut rings) = unbounded_channel();
    let look =
        Definition::new("thermometer", "Reads it.", json!({ "type": "object" }), Category::Read, Consequence::Low);
    let app = App::builder().with_temp_dir().channel(Bell(sender)).tool(Thermometer(look)).start().await?;
    let ann = app.handle().of_tenant("ann")?;
    ann.call(Method::PUT, "/v1/recipients/ann", Some(json!({ "addresses": {} }))).await?;

    let steps = json!([{ "name": "told", "map": "'It is hot.'" }]);
    let task = json!({
        "name": "Heat", "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": { "channel": "bell" },
        "trigger": {
            "type": "condition", "poll": { "tool": { "name": "thermometer" } }, "interval": "1h",
            "expression": "value.celsius > 30",
        },
    });
    let task = ann.create_task(task).await?;
    let trial = json!({
        "type": "condition",
        "poll": { "tool": { "name": "thermometer" } }, "expression": "value.celsius > 30", "interval": "1h",
    });
    let seen = ann.call(Method::POST, "/v1/conditions/test", Some(json!({ "trigger": trial }))).await?;
    println!("{} {}", seen["value"], seen["result"]);
    assert_eq!(seen["value"], json!({ "celsius": 31 }));

    ann.run_task(task["id"].as_str().unwrap_or_default().parse()?, None).await?;
    let ring = timeout(Duration::from_secs(20), rings.recv()).await?.unwrap_or_default();
    println!("{ring}");
    assert!(ring.starts_with("ann: ") && ring.contains("It is hot."), "{ring}");
    app.stop().await;
    Ok(())
}
