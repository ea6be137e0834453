//! MCP servers of one test: one of the official SDK, run by `tests/mcp/server.mjs`, which a plan tells what to serve;
//! the reference server, which speaks the revisions before 2026-07-28; and one that keeps to nothing.

use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use reveille::base::clock;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::binary::TempDir;
use super::servers;

/// How long a start or an answer may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often a journal is looked at.
const LOOK: Duration = Duration::from_millis(20);
/// The reference server, below `tests/mcp`.
const EVERYTHING: &str = "node_modules/@modelcontextprotocol/server-everything/dist/index.js";

/// A server of the official SDK: what it serves, and what it has written down. One may be started any number of times.
pub struct McpFixture {
    dir: TempDir,
}

impl McpFixture {
    /// A server with the tools of the fixture, which is open to all.
    pub fn new() -> McpFixture {
        let fixture = McpFixture { dir: TempDir::new() };
        fixture.set_plan(&json!({}));
        fixture
    }

    /// Has it serve this from now on: `echo` (a description), `hide` (names of tools), `more` (descriptions of tools by
    /// their names), `tokens` (those that a request over HTTP may carry; absent: it needs none), `challenge` (what other
    /// requests are told), `documents` (JSON by its path, which anybody may read), `forbid` (what each call is told).
    pub fn set_plan(&self, plan: &Value) {
        // a server never reads half a plan
        let draft = self.dir.path().join("draft");
        std::fs::write(&draft, plan.to_string()).expect("write a plan");
        std::fs::rename(draft, self.plan_path()).expect("put the plan in its place");
    }

    /// The command that starts it over standard input and output.
    pub fn command(&self) -> Vec<String> {
        script("server.mjs", &json!({ "plan": self.plan_path(), "journal": self.journal_path() }).to_string())
    }

    /// Starts it over HTTP.
    pub async fn start_http(&self) -> McpHttpServer {
        self.start_http_at(0).await
    }

    /// Starts it over HTTP at this port; 0: at any that is free.
    pub async fn start_http_at(&self, port: u16) -> McpHttpServer {
        let options =
            json!({ "plan": self.plan_path(), "journal": self.journal_path(), "http": true, "port": port }).to_string();
        let mut child = node(&script("server.mjs", &options)).stdout(Stdio::piped()).spawn().expect("start node");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let said = timeout(PATIENCE, lines.next_line()).await.expect("the MCP server starts");
        let said = said.expect("its output").expect("the MCP server listens");
        let port = serde_json::from_str::<Value>(&said).expect("JSON")["port"].as_u64().expect("a port");
        McpHttpServer { url: format!("http://127.0.0.1:{port}/mcp"), _child: child }
    }

    /// All that it has written down: `started`, `echo`, `died`, `hangs`, `cancelled`, and over HTTP the `method` of each
    /// request; lines of a request hold its `token`. Of a call of a tool that asks: the tool (`confirm`, `survey`,
    /// `visit`, `steps`, `shed`, `pry`, `sample`), and the `id`, the `state` and the idempotency `key` of the request.
    pub fn journal(&self) -> Vec<Value> {
        let text = std::fs::read_to_string(self.journal_path()).unwrap_or_default();
        // the last line may be half written
        let whole = text.rfind('\n').map_or("", |end| &text[..end]);
        whole.lines().map(|line| serde_json::from_str(line).expect("a line of JSON")).collect()
    }

    /// The values of this field in the journal, in their order.
    pub fn noted(&self, field: &str) -> Vec<Value> {
        self.journal().iter().filter_map(|line| line.get(field).cloned()).collect()
    }

    /// The lines of the journal with this field, once there are so many.
    pub async fn wait_for(&self, field: &str, count: usize) -> Vec<Value> {
        let found = async {
            loop {
                let lines: Vec<Value> = self.journal().into_iter().filter(|line| line.get(field).is_some()).collect();
                if lines.len() >= count {
                    return lines;
                }
                clock::pause(LOOK).await;
            }
        };
        let waited = timeout(PATIENCE, found).await;
        waited.unwrap_or_else(|_| panic!("no {count} lines with {field}: {:?}", self.journal()))
    }

    /// The processes of all its starts, in their order.
    pub fn pids(&self) -> Vec<u32> {
        let pid = |started: Value| u32::try_from(started.as_u64().expect("a process id")).expect("a process id");
        self.noted("started").into_iter().map(pid).collect()
    }

    fn plan_path(&self) -> PathBuf {
        self.dir.path().join("plan.json")
    }

    fn journal_path(&self) -> PathBuf {
        self.dir.path().join("journal.jsonl")
    }
}

/// A server over HTTP. Killed when dropped.
pub struct McpHttpServer {
    /// Where it answers.
    pub url: String,
    _child: Child,
}

impl McpHttpServer {
    /// `127.0.0.1:port`.
    pub fn host(&self) -> &str {
        self.url.trim_start_matches("http://").trim_end_matches("/mcp")
    }
}

/// The command of the reference server over standard input and output.
pub fn everything_command() -> Vec<String> {
    script(EVERYTHING, "stdio")
}

/// Starts the reference server over HTTP.
pub async fn everything_http() -> McpHttpServer {
    let port = servers::lasting_port();
    let child = node(&script(EVERYTHING, "streamableHttp")).env("PORT", port.to_string()).spawn().expect("start node");
    let answers = async {
        while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
            clock::pause(LOOK).await;
        }
    };
    timeout(PATIENCE, answers).await.expect("the reference server starts");
    McpHttpServer { url: format!("http://127.0.0.1:{port}/mcp"), _child: child }
}

/// The command of a server over standard input and output that keeps to nothing, in one of the modes of
/// `tests/mcp/hostile.mjs`.
pub fn hostile_command(mode: &str) -> Vec<String> {
    script("hostile.mjs", mode)
}

/// The command of a client of the official SDK, which `tests/mcp/client.mjs` runs with these options.
pub fn client_command(options: &Value) -> Vec<String> {
    script("client.mjs", &options.to_string())
}

/// Whether a process is there and has not ended.
pub fn alive(pid: u32) -> bool {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    // behind the name, which may hold anything: `1 (na) me) S …`
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !matches!(state, 'Z' | 'X'))
}

/// `node` with a file below `tests/mcp` and an argument.
fn script(file: &str, argument: &str) -> Vec<String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/mcp");
    assert!(
        dir.join("node_modules/@modelcontextprotocol/server").is_dir(),
        "run the tests with scripts/test.sh, which installs it"
    );
    let file = dir.join(file).into_os_string().into_string().expect("a path of text");
    vec!["node".to_owned(), file, argument.to_owned()]
}

/// A process of a server; what it prints is not read.
fn node(command: &[String]) -> Command {
    let mut node = Command::new(&command[0]);
    node.args(&command[1..]).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).kill_on_drop(true);
    node
}
