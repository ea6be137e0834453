//! The part of a conversation that the model is shown, and what stands before it.

use reveille::agent::{Asking, CHAT, ChannelLimits};
use reveille::domain::run::TranscriptMessage;

use super::harness::{AgentHarness, passing, says};

/// The system message of the request of this number.
fn system(stage: &AgentHarness, request: usize) -> String {
    match stage.model.requests.lock().unwrap()[request].messages.first() {
        Some(TranscriptMessage::System { text }) => text.clone(),
        other => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn each_prompt_says_what_carries_the_answer_and_within_which_limits() {
    let webhook =
        ChannelLimits { name: "webhook".into(), supported_formats: vec!["csv".into()], max_response_length: Some(200) };
    let on_webhook =
        "Your answer is delivered by webhook, which carries csv; keep it under 200 characters.\nCSV (RFC 4180) ";
    for (source, channel, expected) in [
        ("trigger", Some(webhook.clone()), on_webhook),
        ("trigger", None, "Your answer stays on the record of the run; no channel carries it.\n"),
        (CHAT, None, "Your answer is delivered by chat, which carries markdown.\n"),
        (CHAT, Some(webhook), on_webhook),
    ] {
        let stage = AgentHarness::new(vec![says("done")], vec![]);
        let mut incoming = stage.incoming("go");
        incoming.channel = channel;
        incoming.asking = Some(Asking { task_id: None, source, rules: None });
        passing(&stage.clock, stage.agent.handle_message(&incoming)).await.unwrap();
        let text = system(&stage, 0);
        assert!(text.contains(expected), "{source}: {text}");
    }
}
