//! `reveille mcp`: the real binary as a host starts it, beside a service that is there, is away, or refuses.

use std::process::{ExitStatus, Stdio};
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::sdk::SdkClient;
use crate::support::binary::{Service, TempDir, reveille};
use crate::support::servers;
use crate::support::talking_model::TOKEN;

/// How long anything may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// Longest line of a host, in bytes.
const LINE_BYTES: usize = 1_024 * 1_024;

/// `reveille mcp`, with a host that writes lines.
struct StdioServer {
    child: Child,
    input: ChildStdin,
    output: Lines<BufReader<ChildStdout>>,
}

impl StdioServer {
    fn start(dir: &TempDir, url: &str, token: &str) -> StdioServer {
        let mut command = reveille(dir.path());
        command.arg("mcp").env("REVEILLE_URL", url).env("REVEILLE_TOKEN", token);
        let mut child =
            command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("start the binary");
        let input = child.stdin.take().expect("its stdin");
        let output = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        StdioServer { child, input, output }
    }

    async fn say(&mut self, line: &str) {
        let line = format!("{line}\n");
        timeout(PATIENCE, self.input.write_all(line.as_bytes())).await.expect("it reads").expect("say a line");
    }

    async fn hear(&mut self) -> Value {
        let line = timeout(PATIENCE, self.output.next_line()).await.expect("an answer in time").expect("its output");
        serde_json::from_str(&line.expect("it goes on")).expect("a line of JSON")
    }

    /// Sends a request of the old era; its answer.
    async fn ask(&mut self, id: u32, method: &str) -> Value {
        self.say(&json!({ "jsonrpc": "2.0", "id": id, "method": method }).to_string()).await;
        let answer = self.hear().await;
        assert_eq!((&answer["jsonrpc"], &answer["id"]), (&json!("2.0"), &json!(id)), "{answer:#}");
        answer
    }

    /// Ends its input; all that it prints then, and its exit status.
    async fn end(self) -> (Vec<String>, ExitStatus) {
        let StdioServer { mut child, input, mut output } = self;
        drop(input);
        let ended = async move {
            let mut printed = Vec::new();
            while let Some(line) = output.next_line().await.expect("its output") {
                printed.push(line);
            }
            (printed, child.wait().await.expect("its exit status"))
        };
        timeout(PATIENCE, ended).await.expect("it ends with its input")
    }
}

fn pong(id: u32) -> Value {
    json!({ "jsonrpc": "2.0", "id": id, "result": {} })
}

async fn service() -> Service {
    let mut service = Service::new().with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN);
    service.start().await;
    service
}

#[tokio::test]
async fn host_of_each_era_starts_it_and_uses_the_service() {
    let mut service = service().await;
    for (version, era) in [("auto", "modern"), ("2025-11-25", "legacy")] {
        let command = [env!("CARGO_BIN_EXE_reveille"), "mcp"];
        let env = json!({ "REVEILLE_URL": service.url(), "REVEILLE_TOKEN": TOKEN });
        let options = json!({ "command": command, "env": env, "cwd": service.dir.path(), "version": version });
        let mut client = SdkClient::start(options).await;
        assert_eq!((&client.connected["server"], &client.connected["era"]), (&json!("reveille"), &json!(era)));
        assert!(client.tools().contains(&"preview_schedule"), "{:?}", client.tools());
        let listed = client.done("list_tasks", json!({ "tenant_id": "ann" })).await;
        assert_eq!(listed["items"], json!([]));
    }
    service.kill().await;
}

#[tokio::test]
async fn service_that_is_away_is_told_of_and_used_once_it_is_there() {
    let address = format!("127.0.0.1:{}", servers::lasting_port());
    let mut service = Service::new().with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN);
    let mut server = StdioServer::start(&service.dir, &format!("http://{address}"), TOKEN);
    let away = server.ask(1, "ping").await;
    assert_eq!(away["error"]["code"], -32000);
    let said = away["error"]["message"].as_str().expect("a message");
    assert!(said.starts_with("can't reach http://127.0.0.1:") && said.contains("`reveille serve`"), "{said}");
    service.start_at(&address).await;
    assert_eq!(server.ask(2, "ping").await, pong(2));
    service.kill().await;
    assert_eq!(server.ask(3, "ping").await["error"]["code"], -32000);
    service.start_at(&address).await;
    assert_eq!(server.ask(4, "ping").await, pong(4));
    let (printed, status) = server.end().await;
    assert!(printed.is_empty() && status.success(), "{printed:?} {status}");
    service.kill().await;
}

#[tokio::test]
async fn token_that_is_not_taken_is_told_of_and_without_one_nothing_begins() {
    let mut service = service().await;
    let mut server = StdioServer::start(&service.dir, service.url(), "another token");
    let refused = server.ask(1, "ping").await;
    let said = refused["error"]["message"].as_str().expect("a message");
    assert!(refused["error"]["code"] == -32000 && said.contains("`reveille login`"), "{said}");
    assert!(!refused.to_string().contains("another token"), "{said}");
    assert!(server.end().await.1.success());

    let dir = TempDir::new();
    let mut command = reveille(dir.path());
    // its input stays open: it must not wait for a line
    let child = command.arg("mcp").env("REVEILLE_URL", service.url()).stdin(Stdio::piped());
    let child = child.stdout(Stdio::piped()).stderr(Stdio::piped()).kill_on_drop(true).spawn().expect("start");
    let ended = timeout(PATIENCE, ended_of(child)).await.expect("it ends by itself");
    assert_eq!((ended.0, ended.1.as_str()), (Some(1), ""), "{}", ended.2);
    assert!(ended.2.contains("there is no token") && ended.2.contains("`reveille login`"), "{}", ended.2);
    service.kill().await;
}

/// Exit code, output and errors of a program whose input is held open until it ends.
async fn ended_of(mut child: Child) -> (Option<i32>, String, String) {
    let input = child.stdin.take();
    let output = child.wait_with_output().await.expect("its end");
    drop(input);
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("output in UTF-8");
    (output.status.code(), text(output.stdout), text(output.stderr))
}

#[tokio::test]
async fn line_is_sent_at_its_longest_and_refused_one_byte_beyond() {
    let mut service = service().await;
    let mut server = StdioServer::start(&service.dir, service.url(), TOKEN);
    let line = |bytes: usize| {
        let (begin, end) = (r#"{"jsonrpc":"2.0","id":1,"method":"ping","params":{"more":""#, r#""}}"#);
        format!("{begin}{}{end}", "x".repeat(bytes - begin.len() - end.len()))
    };
    server.say(&line(LINE_BYTES)).await;
    assert_eq!(server.hear().await, pong(1));
    server.say(&line(LINE_BYTES + 1)).await;
    let refused = server.hear().await;
    assert_eq!((&refused["error"]["code"], refused.get("id")), (&json!(-32700), None), "{refused:#}");
    assert_eq!(server.ask(2, "ping").await, pong(2), "the next line is read from its beginning");
    assert!(server.end().await.1.success());
    service.kill().await;
}

#[tokio::test]
async fn nothing_but_answers_is_printed() {
    let mut service = service().await;
    let mut server = StdioServer::start(&service.dir, service.url(), TOKEN);
    let begun = server.ask(1, "initialize").await;
    assert_eq!(begun["result"]["protocolVersion"], "2025-11-25", "{begun:#}");
    let cancelled = json!({ "jsonrpc": "2.0", "method": "notifications/cancelled", "params": { "requestId": 7 } });
    for line in [
        r#"{"jsonrpc":"2.0","method":"notifications/initialized"}"#,
        &cancelled.to_string(),
        "",
        "  ",
        r#"{"jsonrpc":"2.0","id":9,"result":{}}"#,
    ] {
        server.say(line).await;
    }
    server.say("nothing of JSON").await;
    assert_eq!(server.hear().await["error"]["code"], -32700);
    let listed = server.ask(2, "tools/list").await;
    assert!(listed["result"]["tools"].as_array().is_some_and(|tools| !tools.is_empty()), "{listed:#}");
    let unknown = server.ask(3, "prompts/list").await;
    assert_eq!(unknown["error"]["code"], -32601, "an error of the service comes as it is: {unknown:#}");
    // an answer that is on its way when the input ends still comes
    server.say(&json!({ "jsonrpc": "2.0", "id": 4, "method": "ping" }).to_string()).await;
    let (printed, status) = server.end().await;
    let printed: Vec<Value> = printed.iter().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    assert_eq!((printed, status.code()), (vec![pong(4)], Some(0)));
    service.kill().await;
}
