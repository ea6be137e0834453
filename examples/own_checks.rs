//! A service with checks of one's own around a model: a check of the gate before it is asked, a verifier of what it
//! answers, and a step behind the answer. The model is scripted, so nothing leaves this machine. `cargo run --example
//! own_checks`

use std::time::Duration;

use futures::future::BoxFuture;
use reveille::agent::gate::{GateCheck, GateMessage, GateRefusal};
use reveille::agent::verify::{AnswerToVerify, Verdict, Verifier};
use reveille::app::App;
use reveille::config::Config;
use reveille::domain::run::Run;
use reveille::executor::post_process::{AnsweredRun, PostProcess};
use serde_json::json;
use tokio::sync::mpsc::{UnboundedSender, unbounded_channel};
use tokio::time::timeout;

/// Answers of the model: loud at first, and calm once it is told why its answer was not sent.
const SCENARIO: &str = r#"
[[steps]]
when = "answer was not sent"
text = "Good morning."

[[steps]]
text = "GOOD MORNING!"
"#;

/// Keeps messages about private things from the model: their runs are skipped with the reason `private`.
struct Discretion;

impl GateCheck for Discretion {
    fn name(&self) -> &'static str {
        "discretion"
    }

    fn check<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<(), GateRefusal>> {
        let is_private = message.text.contains("private");
        Box::pin(async move { if is_private { Err(GateRefusal::Skip("private".into())) } else { Ok(()) } })
    }
}

/// Flags answers in capitals: the model is told why, and asked once more.
struct CalmCheck;

impl Verifier for CalmCheck {
    fn name(&self) -> &str {
        "C-0100"
    }

    fn verify<'a>(&'a self, answer: &'a AnswerToVerify) -> BoxFuture<'a, Verdict> {
        let is_loud = !answer.text.chars().any(char::is_lowercase);
        let flags = if is_loud { vec!["the answer is in capitals".into()] } else { Vec::new() };
        Box::pin(async move { Verdict { warnings: Vec::new(), flags } })
    }
}

/// Takes down each answer once it is on the record.
struct Diary(UnboundedSender<String>);

impl PostProcess for Diary {
    fn name(&self) -> &'static str {
        "diary"
    }

    fn process<'a>(&'a self, answered: &'a AnsweredRun) -> BoxFuture<'a, Result<(), String>> {
        Box::pin(async move { self.0.send(answered.output.clone()).map_err(|error| error.to_string()) })
    }
}

async fn run(app: &App, instruction: &str) -> anyhow::Result<Run> {
    let trigger = json!({ "type": "schedule", "cron": "0 8 * * *" });
    let task = json!({ "name": "Greet", "trigger": trigger, "action": { "instruction": instruction } });
    app.run_task(&app.create_task("ann", &task).await?, None).await
}

#[tokio::main]
pub async fn main() -> anyhow::Result<()> {
    let scenario = std::env::temp_dir().join(format!("own_checks-{}.toml", std::process::id()));
    std::fs::write(&scenario, SCENARIO)?;
    let model = json!({ "provider": "scripted", "scenario": scenario });
    let config: Config = serde_json::from_value(json!({ "llm": { "models": { "main": model } } }))?;
    let (sender, mut diary) = unbounded_channel();
    let app = App::builder().config(config).with_temp_dir();
    let app = app.gate_check(Discretion).verifier(CalmCheck).post_process(Diary(sender)).start().await?;
    std::fs::remove_file(&scenario)?;

    let greeting = run(&app, "Say good morning.").await?;
    println!("{}: {}", greeting.state.as_str(), greeting.output.as_deref().unwrap_or_default());
    assert_eq!(greeting.output.as_deref(), Some("Good morning."));
    let noted = timeout(Duration::from_secs(10), diary.recv()).await?;
    assert_eq!(noted.as_deref(), Some("Good morning."));

    let refused = run(&app, "Read my private mail.").await?;
    println!("{}: {}", refused.state.as_str(), refused.reason.as_deref().unwrap_or_default());
    assert_eq!((refused.state.as_str(), refused.reason.as_deref()), ("skipped", Some("private")));
    app.stop().await;
    Ok(())
}
