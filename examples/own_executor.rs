//! A service with an executor of one's own: started from code, fired once. `cargo run --example own_executor`

use futures::future::BoxFuture;
use reveille::app::App;
use reveille::base::invalid::ValidationErrors;
use reveille::domain::run::Usage;
use reveille::domain::run::outcome::{RunError, RunOutcome};
use reveille::domain::task::Action;
use reveille::executor::{Executor, Job};
use serde_json::json;

struct Greeter;

impl Executor for Greeter {
    fn name(&self) -> &'static str {
        "greeter"
    }

    fn validate(&self, _: &Action, _: &mut ValidationErrors) {}

    fn execute(&self, job: Job) -> BoxFuture<'_, Result<RunOutcome, RunError>> {
        let name = job.task.map(|task| task.spec.action.instruction.clone()).unwrap_or_default();
        Box::pin(async move {
            Ok(RunOutcome::Succeeded { output: format!("Hello, {name}!"), finish: None, usage: Usage::default() })
        })
    }
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let app = App::builder().with_temp_dir().executor(Greeter).start().await?;
    let (trigger, action) = (json!({ "type": "schedule", "cron": "0 8 * * *" }), json!({ "instruction": "Ann" }));
    let task = json!({ "name": "Greet", "trigger": trigger, "executor": "greeter", "action": action });
    let run = app.run_task(&app.create_task("ann", &task).await?, None).await?;
    println!("{}: {}", run.state.as_str(), run.output.as_deref().unwrap_or_default());
    assert_eq!(run.output.as_deref(), Some("Hello, Ann!"));
    app.stop().await;
    Ok(())
}
