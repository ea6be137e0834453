//! Surroundings of the reader of the README: a model, a mail server, Redis, the shop and the office of its examples.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::{Arc, Mutex};
use std::time::{Duration, UNIX_EPOCH};

use regex::{Captures, Regex};
use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::net::TcpStream;
use tokio::process::{Child, Command};
use wiremock::matchers::{any, method, path};
use wiremock::{Mock, MockServer, Request, Respond, ResponseTemplate};

use super::{LOOK, PATIENCE};
use crate::agent::wire::fakes::without_shape;
use crate::support::redis::RedisServer;
use crate::support::servers::lasting_ports;

/// Where things are on the page, and where they are in this run.
pub struct Places {
    /// Ports of this machine.
    ports: Vec<(u16, u16)>,
    /// Commands that need to be told of them.
    commands: Vec<(&'static str, String)>,
}

/// Everything that the page talks to, but the service.
pub struct ReadmeHarness {
    pub redis: RedisServer,
    pub mail_port: u16,
    pub shop_port: u16,
    pub service_port: u16,
    model: MockServer,
    office: MockServer,
}

impl ReadmeHarness {
    pub async fn start() -> ReadmeHarness {
        let [mail_port, shop_port, service_port] = lasting_ports();
        ReadmeHarness {
            redis: RedisServer::start(&[]),
            mail_port,
            shop_port,
            service_port,
            model: model().await,
            office: office().await,
        }
    }

    pub fn places(&self) -> Places {
        let ports = vec![
            (7700, self.service_port),
            (11434, self.model.address().port()),
            (2525, self.mail_port),
            (8098, self.office.address().port()),
            (8099, self.shop_port),
            (6379, self.redis.port),
        ];
        let commands = vec![
            ("http.server 8099", format!("http.server {} --bind 127.0.0.1", self.shop_port)),
            ("redis-cli XADD", format!("redis-cli -p {} XADD", self.redis.port)),
        ];
        Places { ports, commands }
    }
}

impl Places {
    /// A text of the page as it has to be here.
    pub fn here(&self, text: &str) -> String {
        let text = with_ports(text, self.ports.iter().copied());
        self.commands.iter().fold(text, |text, (page, here)| text.replace(page, here))
    }

    /// The printed text as it has to be on the page.
    pub fn on_the_page(&self, text: &str) -> String {
        with_ports(text, self.ports.iter().map(|(page, here)| (*here, *page)))
    }
}

fn with_ports(text: &str, known: impl Iterator<Item = (u16, u16)> + Clone) -> String {
    let address = Regex::new(r"127\.0\.0\.1:(\d+)").unwrap();
    let replaced = address.replace_all(text, |found: &Captures| {
        let other = known.clone().find(|(from, _)| found[1] == from.to_string());
        other.map_or_else(|| found[0].to_owned(), |(_, to)| format!("127.0.0.1:{to}"))
    });
    replaced.into_owned()
}

/// A server that is started by a command of the page; ends with it. What it prints is kept.
pub struct Server {
    printed: Arc<Mutex<String>>,
    _child: Child,
}

impl Server {
    /// Starts it in `dir` and returns once it listens.
    pub async fn start(command: &str, dir: &Path, port: u16) -> Server {
        let mut child = Command::new("/bin/sh")
            .args(["-c", &format!("exec {command}")])
            .current_dir(dir)
            .env("PYTHONUNBUFFERED", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .kill_on_drop(true)
            .spawn()
            .expect("start it");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let printed = Arc::new(Mutex::new(String::new()));
        let kept = Arc::clone(&printed);
        tokio::spawn(async move {
            while let Ok(Some(line)) = lines.next_line().await {
                let mut kept = kept.lock().unwrap();
                kept.push_str(&line);
                kept.push('\n');
            }
        });
        let listens = async {
            while TcpStream::connect(("127.0.0.1", port)).await.is_err() {
                assert!(child.try_wait().expect("look after it").is_none(), "{command} has ended");
                pause(LOOK).await;
            }
        };
        tokio::time::timeout(PATIENCE, listens).await.unwrap_or_else(|_| panic!("{command} does not listen"));
        Server { printed, _child: child }
    }

    /// The mails that it has printed, each without the line that names the connection.
    pub fn mails(&self) -> Vec<String> {
        let printed = self.printed.lock().unwrap();
        let mails = printed.split("---------- MESSAGE FOLLOWS ----------\n").skip(1);
        let whole = mails.filter_map(|mail| Some(mail.split_once("------------ END MESSAGE ------------")?.0));
        let lines = |mail: &str| mail.lines().filter(|line| !line.starts_with("X-Peer: ")).fold(String::new(), add);
        whole.map(lines).collect()
    }
}

fn add(text: String, line: &str) -> String {
    text + line + "\n"
}

/// Writes a file that somebody may be reading. Its server tells changes by the second, so it is a minute younger than
/// the one before.
pub fn replace(file: &Path, text: &str, minute: u64) {
    let draft: PathBuf = file.with_extension("draft");
    std::fs::write(&draft, text).expect("write a file");
    let changed = UNIX_EPOCH + Duration::from_secs(1_700_000_000 + 60 * minute);
    File::options().write(true).open(&draft).and_then(|file| file.set_modified(changed)).expect("say how old it is");
    std::fs::rename(&draft, file).expect("put it in its place");
}

async fn office() -> MockServer {
    let server = MockServer::start().await;
    Mock::given(any())
        .respond_with(ResponseTemplate::new(200).set_body_json(json!({ "ok": true })))
        .mount(&server)
        .await;
    server
}

/// The small program that speaks OpenAI's wire format.
async fn model() -> MockServer {
    let server = MockServer::start().await;
    let listed = ["qwen3:8b", "qwen3:1.7b", "nomic-embed-text"].map(|id| json!({ "id": id, "object": "model" }));
    let models = json!({ "object": "list", "data": listed });
    let list = ResponseTemplate::new(200).set_body_json(models);
    Mock::given(method("GET")).and(path("/v1/models")).respond_with(list).mount(&server).await;
    Mock::given(method("POST")).and(path("/v1/chat/completions")).respond_with(Model).mount(&server).await;
    server
}

struct Model;

impl Respond for Model {
    fn respond(&self, request: &Request) -> ResponseTemplate {
        let body: Value = request.body_json().expect("a request in JSON");
        let messages = body["messages"].as_array().expect("messages");
        let told =
            messages.iter().filter(|message| message["role"] == "user").map(|message| message["content"].to_string());
        let is_about = |words: &str| told.clone().any(|text| text.contains(words));
        let result = messages.last().filter(|last| last["role"] == "tool").map(|last| text(&last["content"]));
        let system = text(&messages[0]["content"]);
        if system.starts_with("You note lasting facts") {
            return whole(&noted(&text(&messages[1]["content"])));
        }
        let chunks = match result {
            None if system.contains("You find hours") => calls("current_time", &json!({ "timezone": "Asia/Tokyo" })),
            Some(_) if system.contains("You find hours") => {
                says("From 9:00 to 9:45 tomorrow, which is the afternoon in Tokyo.")
            }
            None if is_about("Kenji") => calls("MeetingTime", &json!({ "zone": "Asia/Tokyo" })),
            Some(_) if is_about("Kenji") => says("Tomorrow from 9:00 to 9:45."),
            None if is_about("My receipts") => calls("use_skill", &json!({ "name": "expense-report" })),
            Some(_) if is_about("My receipts") => {
                says("Your report: travel, 67.80 euros, for a train and a taxi. Both receipts are there.")
            }
            None if is_about("Which seat") && system.contains("I sit at the window") => {
                says("One at the window, as you sit there when you fly.")
            }
            None if is_about("I sit at the window") => says("Good to know."),
            None if is_about("good morning") => calls("current_time", &json!({ "timezone": "Europe/Berlin" })),
            None => {
                let url = url_in(&told.collect::<String>());
                calls("http_send", &json!({ "url": url, "method": "POST", "body": { "text": "The build is broken" } }))
            }
            Some(result) if is_about("good morning") => {
                let clock: Value = serde_json::from_str(&without_shape(&result)).expect("the time");
                let local = clock["local"].as_str().expect("a local time");
                says(&format!("Good morning, Ann. In Berlin it is {}; the day is yours.", &local[11..16]))
            }
            Some(_) => says("The office knows."),
        };
        let events: String = chunks.iter().map(|chunk| format!("data: {chunk}\n\n")).collect();
        ResponseTemplate::new(200).set_body_raw(events + "data: [DONE]\n\n", "text/event-stream")
    }
}

/// A sentence about a seat is a fact.
fn noted(material: &str) -> Value {
    let said = material.split("known facts").next().unwrap_or_default();
    let seat = said.contains("I sit at the window when I fly.");
    let fact = json!({ "text": "I sit at the window when I fly.", "collection": "preferences/travel" });
    json!({ "facts": if seat { vec![fact] } else { Vec::new() } })
}

/// An answer that is not streamed.
fn whole(content: &Value) -> ResponseTemplate {
    let message = json!({ "role": "assistant", "content": content.to_string() });
    let choice = json!({ "index": 0, "message": message, "finish_reason": "stop" });
    ResponseTemplate::new(200).set_body_json(json!({ "choices": [choice], "usage": usage(200, 30)["usage"] }))
}

/// A content that is a text, or parts of one.
fn text(content: &Value) -> String {
    match content {
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        other => other.as_str().unwrap_or_default().to_owned(),
    }
}

/// The address that an instruction names.
fn url_in(told: &str) -> String {
    let (_, rest) = told.rsplit_once("http://").expect("an address");
    let end = rest.find(|c: char| !c.is_ascii_alphanumeric() && !".:/".contains(c)).unwrap_or(rest.len());
    format!("http://{}", rest[..end].trim_end_matches('.'))
}

fn calls(tool: &str, arguments: &Value) -> Vec<Value> {
    let call = json!({ "index": 0, "id": "call_1", "type": "function",
        "function": { "name": tool, "arguments": arguments.to_string() } });
    let delta = json!({ "role": "assistant", "tool_calls": [call] });
    vec![delta_of(delta, Value::Null), delta_of(json!({}), json!("tool_calls")), usage(401, 20)]
}

fn says(sentence: &str) -> Vec<Value> {
    let delta = json!({ "role": "assistant", "content": sentence });
    vec![delta_of(delta, Value::Null), delta_of(json!({}), json!("stop")), usage(423, 28)]
}

fn delta_of(delta: Value, finish: Value) -> Value {
    json!({ "choices": [{ "index": 0, "delta": delta, "finish_reason": finish }] })
}

fn usage(prompt: u64, completion: u64) -> Value {
    let total = prompt + completion;
    let usage = json!({ "prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total });
    json!({ "choices": [], "usage": usage })
}
