//! Secrets and the real binary, as it is run: what it logs at trace level, prints, answers and keeps in its directory,
//! and what is left when it is aborted with secrets in its memory.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::Duration;

use reqwest::{Client, Method};
use reveille::base::clock::pause;
use reveille::ports::egress::operator_client;
use serde_json::{Value, json};

use super::{echo, received, sent, traces};
use crate::support::binary::Service;
use crate::support::reference::exchanged;

const CANARY: &str = "Kan4rie/+&=%7E<x>'of-the-binary";
const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";

/// An admin who keeps all that is answered.
struct Admin {
    http: Client,
    base: String,
    token: String,
    answered: String,
}

impl Admin {
    async fn ask(&mut self, method: Method, path: &str, body: Option<Value>) -> Value {
        let request = self.http.request(method, format!("{}{path}", self.base)).bearer_auth(&self.token);
        let request = match body {
            Some(body) => request.json(&body),
            None => request,
        };
        let (status, text) = exchanged(request).await;
        assert!((200..300).contains(&status), "{path}: {status} {text}");
        self.answered.push_str(&text);
        serde_json::from_str(&text).unwrap_or_default()
    }

    /// Runs a pipeline or a webhook now, to its end.
    async fn run(&mut self, executor: &str, config: Value) -> Value {
        let task = json!({
            "tenant_id": "ann", "name": "canary", "executor": executor, "action": { "config": config },
            "trigger": { "type": "schedule", "interval": "1d" }, "retry": { "max_attempts": 1 },
        });
        let task = self.ask(Method::POST, "/v1/tasks", Some(task)).await;
        let run = self.ask(Method::POST, &format!("/v1/tasks/{}/run", task["id"].as_str().unwrap()), None).await;
        let run = run["id"].as_str().unwrap().to_owned();
        for _ in 0..3000 {
            let now = self.ask(Method::GET, &format!("/v1/runs/{run}"), None).await;
            if !now["finished_at"].is_null() {
                self.ask(Method::GET, &format!("/v1/runs/{run}/transcript"), None).await;
                self.ask(Method::GET, &format!("/v1/runs/{run}/stream"), None).await;
                return now;
            }
            pause(Duration::from_millis(20)).await;
        }
        panic!("the run {run} has no end");
    }
}

/// Every file below a directory: its name, and what is in it.
fn files(dir: &Path) -> Vec<(String, Vec<u8>)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(dir).expect("a directory") {
        let path = entry.expect("an entry").path();
        match path.is_dir() {
            true => found.extend(files(&path)),
            false => found.push((path.display().to_string(), std::fs::read(&path).expect("a file"))),
        }
    }
    found
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn binary_that_is_aborted_has_left_a_planted_secret_nowhere() {
    let server = echo("").await;
    let mut service = Service::new()
        .with("REVEILLE_TELEMETRY__LOG_LEVEL", "trace")
        .with_config("[egress]\nallow = [\"127.0.0.1:*\"]\n");
    let base = service.start().await.to_owned();
    let token = service.admin_token().expect("a token").to_owned();
    let http = operator_client(Duration::from_secs(30));
    let mut admin = Admin { http, base, token, answered: String::new() };
    let place = |path: &str| format!("{}{path}", server.uri());
    for (account, inject) in [
        ("primary", json!({ "as": "bearer", "from": "/key" })),
        ("query", json!({ "as": "query", "name": "key", "from": "/key" })),
        ("field", json!({ "as": "field", "name": "key", "from": "/key" })),
    ] {
        let credential = json!({ "document": { "key": CANARY }, "hosts": ["127.0.0.1"], "inject": inject });
        let path = format!("/v1/credentials/shop/{account}?tenant_id=ann");
        admin.ask(Method::PUT, &path, Some(credential)).await;
        let credential = format!("shop/{account}");
        let step = |name: &str, path: &str| {
            let http = json!({ "method": "PUT", "url": place(path), "body": { "x": 1 }, "credential": credential });
            json!({ "name": name, "http": http, "on_error": "continue" })
        };
        let steps = [step("a", "/echo"), step("b", "/fail"), step("c", "/refuse"), step("d", "/moved")];
        let run = admin.run("pipeline", json!({ "steps": steps })).await;
        assert_eq!(run["state"], "succeeded", "{run}");
        admin.ask(Method::GET, &path, None).await;
        admin.ask(Method::GET, &format!("/v1/credentials/shop/{account}/uses?tenant_id=ann"), None).await;
    }
    let run = admin.run("webhook", json!({ "url": place("/hook"), "secret": SECRET, "credential": "shop" })).await;
    assert_eq!(run["state"], "succeeded", "{run}");
    for path in ["/v1/credentials", "/v1/tasks", "/v1/runs", "/v1/deliveries", "/v1/audit", "/v1/stats", "/metrics"] {
        admin.ask(Method::GET, path, None).await;
    }
    let arrived: Vec<String> = received(&server).await.iter().map(sent).collect();
    assert!(arrived.len() > 10 && arrived.iter().all(|sent| sent == CANARY), "{arrived:?}");

    let limits = std::fs::read_to_string(format!("/proc/{}/limits", service.process_id())).expect("its limits");
    let cores = limits.lines().find(|line| line.starts_with("Max core file size")).expect("a limit");
    assert_eq!(cores.split_whitespace().skip(4).collect::<Vec<_>>(), ["0", "0", "bytes"], "soft and hard");
    let announced = service.announced().to_owned();
    let (ended, printed) = service.abort().await;
    assert_eq!((ended.signal(), ended.core_dumped()), (Some(6), false));

    let log = service.log();
    assert!(log.contains("TRACE"), "the log is at trace level");
    assert!(admin.answered.matches("[redacted]").count() > 10, "what came back was looked at");
    for (what, text) in [("the log", &log), ("what it printed", &(announced + &printed)), ("answers", &admin.answered)]
    {
        assert_eq!(traces(CANARY, text.as_bytes()), Vec::<String>::new(), "in {what}");
    }
    let kept = files(service.dir.path());
    let names: Vec<&str> = kept.iter().map(|(name, _)| name.as_str()).collect();
    assert!(names.iter().any(|name| name.ends_with("reveille.db-wal")), "it had no time to put away: {names:?}");
    assert!(!names.iter().any(|name| name.rsplit('/').next().unwrap().contains("core")), "{names:?}");
    let database = kept.iter().filter(|(name, _)| name.contains("reveille.db"));
    assert!(
        database.clone().any(|(_, bytes)| bytes.windows(10).any(|part| part == b"[redacted]")),
        "it is the database"
    );
    for (name, bytes) in &kept {
        assert_eq!(traces(CANARY, bytes), Vec::<String>::new(), "in {name}");
    }
}
