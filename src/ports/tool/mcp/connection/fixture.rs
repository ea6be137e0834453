//! MCP servers of unit tests, each at the other end of a pipe.

use rmcp::transport::async_rw::AsyncRwTransport;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader, DuplexStream};
use tokio::runtime::Handle;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio::task::JoinHandle;

use crate::ports::tool::mcp::connection::opening::Handshake;
use crate::ports::tool::mcp::connection::{McpConnection, ServerEra};
use crate::ports::vault::credentials::UsedSecrets;

/// Numbers of the server's own requests begin with this, before the number of the call.
const ASKED: &str = "asked-in-";

/// A server of the old era that answers the handshake, lists one tool on each of endless pages, answers calls of
/// `echo`, asks in calls of `ask` what their arguments say, and tells what it was sent.
pub struct OldServer {
    pub told: UnboundedReceiver<Value>,
    says: UnboundedSender<Value>,
    pub task: JoinHandle<()>,
}

impl OldServer {
    /// It, and a connection with it.
    pub async fn connected(era: ServerEra) -> (OldServer, McpConnection) {
        let (ours, theirs) = tokio::io::duplex(64 * 1_024);
        let ((sender, told), (says, said)) = (unbounded_channel(), unbounded_channel());
        let server = OldServer { told, says, task: tokio::spawn(serve(theirs, sender, said, answer)) };
        (server, connect(ours, era).await)
    }

    /// Waits until its tools are listed from the first page on.
    pub async fn next_list(&mut self) {
        while self.next("tools/list").await["params"]["cursor"].is_string() {}
    }

    /// Has it say that its list has changed.
    pub fn say_changed(&self) {
        self.says.send(json!({ "jsonrpc": "2.0", "method": "notifications/tools/list_changed" })).unwrap();
    }

    /// Ends it, as if it had crashed.
    pub fn stop(&self) {
        self.task.abort();
    }

    /// The next message of this method.
    pub async fn next(&mut self, method: &str) -> Value {
        next(&mut self.told, method).await
    }
}

/// A server of the current revision, which announces changes of its list. It answers the handshake alone, and says
/// whatever else it is to say.
pub struct NewServer {
    pub told: UnboundedReceiver<Value>,
    says: UnboundedSender<Value>,
}

impl NewServer {
    /// It, and a connection with it.
    pub async fn connected() -> (NewServer, McpConnection) {
        let (ours, theirs) = tokio::io::duplex(64 * 1_024);
        let ((sender, told), (says, said)) = (unbounded_channel(), unbounded_channel());
        tokio::spawn(serve(theirs, sender, said, discovered));
        (NewServer { told, says }, connect(ours, ServerEra::Modern).await)
    }

    /// The next message of this method.
    pub async fn next(&mut self, method: &str) -> Value {
        next(&mut self.told, method).await
    }

    /// Has it say this.
    pub fn say(&self, message: Value) {
        self.says.send(message).unwrap();
    }

    /// Has it answer a request for its list.
    pub fn list(&self, request: &Value, tools: Value) {
        let result = json!({ "tools": tools, "resultType": "complete", "ttlMs": 0, "cacheScope": "private" });
        self.say(json!({ "jsonrpc": "2.0", "id": request["id"], "result": result }));
    }
}

async fn connect(stream: DuplexStream, era: ServerEra) -> McpConnection {
    let (read, write) = tokio::io::split(stream);
    let done = Handshake::with(AsyncRwTransport::new_client(read, write), era).await.unwrap();
    done.into_connection(UsedSecrets::default(), Handle::current(), None)
}

async fn next(told: &mut UnboundedReceiver<Value>, method: &str) -> Value {
    loop {
        let message = told.recv().await.unwrap();
        if message["method"] == method {
            return message;
        }
    }
}

async fn serve(
    stream: DuplexStream,
    sender: UnboundedSender<Value>,
    mut said: UnboundedReceiver<Value>,
    answer: fn(&Value) -> Option<Value>,
) {
    let (read, mut write) = tokio::io::split(stream);
    let mut lines = BufReader::new(read).lines();
    loop {
        let message = tokio::select! {
            line = lines.next_line() => {
                let Ok(Some(line)) = line else { return };
                let message: Value = serde_json::from_str(&line).unwrap();
                let answer = answer(&message);
                let _ = sender.send(message);
                answer
            }
            Some(said) = said.recv() => Some(said),
        };
        if let Some(message) = message {
            write.write_all(format!("{message}\n").as_bytes()).await.unwrap();
        }
    }
}

fn answer(message: &Value) -> Option<Value> {
    if let Some(call) = message["id"].as_str().and_then(|id| id.strip_prefix(ASKED)) {
        let content = json!([{ "type": "text", "text": message["result"].to_string() }]);
        return Some(json!({ "jsonrpc": "2.0", "id": call.parse::<u64>().unwrap(), "result": { "content": content } }));
    }
    let id = &message["id"];
    let result = match message["method"].as_str()? {
        "server/discover" => {
            return Some(json!({ "jsonrpc": "2.0", "id": id, "error": { "code": -32601, "message": "unknown" } }));
        }
        "initialize" => json!({
            "protocolVersion": "2025-11-25",
            "capabilities": { "tools": {} },
            "serverInfo": { "name": "old", "version": "1" },
        }),
        "tools/list" => {
            let number = message["params"]["cursor"].as_str().map_or(0, |cursor| cursor.parse::<usize>().unwrap());
            let tool = json!({ "name": format!("tool-{number}"), "inputSchema": { "type": "object" } });
            json!({ "tools": [tool], "nextCursor": (number + 1).to_string() })
        }
        "tools/call" if message["params"]["name"] == "echo" => {
            json!({ "content": [{ "type": "text", "text": "hello" }] })
        }
        // the answer to the call is the answer that it is given
        "tools/call" if message["params"]["name"] == "ask" => {
            let (id, asked) = (format!("{ASKED}{id}"), &message["params"]["arguments"]);
            return Some(json!({ "jsonrpc": "2.0", "id": id, "method": "elicitation/create", "params": asked }));
        }
        _ => return None,
    };
    Some(json!({ "jsonrpc": "2.0", "id": id, "result": result }))
}

/// The answer of a server of the current revision to the handshake.
fn discovered(message: &Value) -> Option<Value> {
    let result = json!({
        "supportedVersions": ["2026-07-28"],
        "capabilities": { "tools": { "listChanged": true } },
        "resultType": "complete",
        "ttlMs": 0,
        "cacheScope": "private",
    });
    let answer = json!({ "jsonrpc": "2.0", "id": message["id"], "result": result });
    (message["method"] == "server/discover").then_some(answer)
}
