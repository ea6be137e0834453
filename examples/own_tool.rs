//! A service with a tool of one's own, called by a step of a pipeline. `cargo run --example own_tool`

use futures::future::BoxFuture;
use reveille::app::App;
use reveille::domain::approval::matrix::{Category, Consequence};
use reveille::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput};
use serde_json::{Value, json};

struct Length(Definition);

impl Tool for Length {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn call<'a>(&'a self, _: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        let letters = arguments["word"].as_str().unwrap_or_default().chars().count();
        Box::pin(async move { Ok(ToolOutput::text(letters.to_string())) })
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let word = json!({ "type": "object", "required": ["word"], "properties": { "word": { "type": "string" } } });
    let length = Definition::new("length", "Counts letters.", word, Category::Read, Consequence::Low);
    let app = App::builder().with_temp_dir().tool(Length(length)).start().await?;
    let steps = json!([
        { "name": "letters", "tool": { "name": "length", "args": { "word": "réveille" } } },
        { "name": "told", "map": "string(steps.letters) + ' letters'" },
    ]);
    let (trigger, action) =
        (json!({ "type": "schedule", "cron": "0 8 * * *" }), json!({ "config": { "steps": steps } }));
    let task = json!({ "name": "Count", "trigger": trigger, "executor": "pipeline", "action": action });
    let run = app.run_task(&app.create_task("ann", &task).await?, None).await?;
    println!("{}: {}", run.state.as_str(), run.output.as_deref().unwrap_or_default());
    assert_eq!(run.output.as_deref(), Some("8 letters"));
    app.stop().await;
    Ok(())
}
