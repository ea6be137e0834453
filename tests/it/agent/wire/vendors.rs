//! The providers' own view: their public documents allow each request, and their own clients read the answers of the
//! server that the tests of models talk to.

use std::path::Path;
use std::process::Stdio;

use serde_json::{Value, json};
use tokio::io::AsyncWriteExt;
use tokio::process::Command;

use super::fakes::{Ending, FakeReply, Wire, calling, said};
use super::server::Server;

/// A request that was sent, and by which case.
pub struct SentRequest {
    pub title: String,
    pub wire: Wire,
    pub body: Value,
}

/// The complaints of the providers' documents about requests.
pub async fn faults_of(requests: &[SentRequest]) -> Vec<String> {
    let line = |sent: &SentRequest| json!({ "wire": sent.wire.provider(), "title": sent.title, "body": sent.body });
    run("model_requests.py", requests.iter().map(line)).await
}

/// Runs a program of `tests/clients` with these lines; the lines that it prints.
async fn run(program: &str, lines: impl Iterator<Item = Value>) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients");
    let python = dir.join(".venv/bin/python");
    assert!(python.exists(), "run the tests with scripts/test.sh, which installs {}", python.display());
    let mut command = Command::new(python);
    command.arg(dir.join(program)).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.kill_on_drop(true).spawn().expect("a program that starts");
    let mut input = child.stdin.take().expect("its input");
    let text: String = lines.map(|line| format!("{line}\n")).collect();
    let write = async move {
        input.write_all(text.as_bytes()).await.expect("a program that reads");
        drop(input);
    };
    let ((), output) = tokio::join!(write, child.wait_with_output());
    let output = output.expect("its output");
    assert!(output.status.success(), "{program} failed:\n{}", String::from_utf8_lossy(&output.stderr));
    String::from_utf8_lossy(&output.stdout).lines().map(str::to_owned).collect()
}

/// Answers that a provider can give as well.
fn answers() -> Vec<FakeReply> {
    vec![
        said("Guten Morgen, Grüße."),
        calling(&[("call_1", "echo", r#"{"n": 1}"#)]),
        calling(&[("call_1", "echo", r#"{"n": 1}"#), ("call_2", "echo", r#"{"n": 2}"#)]),
        FakeReply { text: Some("Let me look."), ..calling(&[("call_1", "echo", "{}")]) },
        said("Half of").ending(Ending::Length),
        said("I").ending(Ending::Refusal),
        said("Fine.").thinking("c2lnbmVk"),
    ]
}

/// Words of a wire for the end of an answer.
fn end(wire: Wire, said: &FakeReply) -> &'static str {
    match (wire, said.ending) {
        (Wire::Chat, Ending::Length) => "length",
        (Wire::Responses, Ending::Length) => "max_output_tokens",
        (Wire::Anthropic, Ending::Length) => "max_tokens",
        (Wire::Chat | Wire::Responses, Ending::Refusal) => "content_filter",
        (Wire::Anthropic, Ending::Refusal | Ending::Declined) => "refusal",
        (Wire::Responses, _) => "completed",
        (Wire::Chat, _) if said.calls.is_empty() => "stop",
        (Wire::Chat, _) => "tool_calls",
        (Wire::Anthropic, _) if said.calls.is_empty() => "end_turn",
        (Wire::Anthropic, _) => "tool_use",
    }
}

#[tokio::test]
async fn clients_of_the_providers_read_the_answers_of_the_tests() {
    let (mut questions, mut servers, mut expected) = (Vec::new(), Vec::new(), Vec::new());
    for wire in Wire::ALL {
        for said in answers() {
            for stream in [false, true] {
                let server = Server::start(vec![said.reply(wire, stream)]).await;
                let url = format!("{}/v1", server.address);
                questions.push(json!({ "wire": wire.provider(), "url": url, "stream": stream }));
                servers.push(server);
                let title = format!("{said:?} ({wire:?}, streamed: {stream})");
                let calls: Vec<Value> = said.calls.iter().map(|call| json!(call)).collect();
                let end = end(wire, &said);
                expected.push((title, json!({ "text": said.text, "calls": calls, "end": end, "tokens": [100, 10] })));
            }
        }
    }
    let read = run("model_answers.py", questions.into_iter()).await;
    assert_eq!(read.len(), expected.len());
    for (line, (title, expected)) in read.iter().zip(expected) {
        let read: Value = serde_json::from_str(line).expect("a line of JSON");
        assert_eq!(read, expected, "{title}");
    }
}

#[tokio::test]
async fn request_that_a_document_does_not_allow_is_found() {
    let body =
        |field: &str| json!({ "model": "model-7", "messages": [{ "role": "user", "content": "Go." }], field: 1 });
    let sent = |wire, body| SentRequest { title: "case".into(), wire, body };
    let faults = faults_of(&[
        sent(Wire::Chat, body("temperature")),
        sent(Wire::Chat, body("temprature")),
        sent(Wire::Anthropic, body("temperature")),
        sent(Wire::Responses, json!({ "model": 7, "input": "Go." })),
    ])
    .await;
    let expected = ["temprature: the document has no such field", "'max_tokens' is a required property", "model: 7"];
    assert_eq!(faults.len(), expected.len(), "{faults:#?}");
    assert!(faults.iter().zip(expected).all(|(fault, words)| fault.contains(words)), "{faults:#?}");
}
