//! `POST /mcp` of the real binary, by the conformance suite of the protocol.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::{Child, Command};
use tokio::time::timeout;

use super::suite::{Side, assert_conforms, below, node_22};
use crate::support::binary::Service;

/// How long a start may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(60);

/// The way of the suite, which has no token, to a service. Killed when dropped.
struct TokenProxy {
    url: String,
    _child: Child,
}

impl TokenProxy {
    async fn before(service: &Service) -> TokenProxy {
        let token = service.admin_token().expect("an admin token");
        let address = service.url().trim_start_matches("http://");
        let (host, port) = address.rsplit_once(':').expect("a port");
        let options = json!({ "host": host, "port": port.parse::<u16>().expect("a port"), "token": token });
        let mut child = Command::new(node_22())
            .arg(below("conformance_proxy.mjs"))
            .arg(options.to_string())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .kill_on_drop(true)
            .spawn()
            .expect("start node");
        let mut lines = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        let said = timeout(PATIENCE, lines.next_line()).await.expect("the proxy starts");
        let said: Value = serde_json::from_str(&said.expect("its output").expect("it listens")).expect("JSON");
        TokenProxy { url: format!("http://127.0.0.1:{}/mcp", said["port"]), _child: child }
    }
}

/// Runs all scenarios for servers of a revision.
async fn assert_server_conforms(revision: &str) {
    let mut service = Service::new();
    service.start().await;
    let proxy = TokenProxy::before(&service).await;
    assert_conforms(Side::Server, revision, &["--url", &proxy.url], &[]).await;
    assert!(service.terminate().await.success());
}

#[tokio::test]
async fn server_does_what_the_revision_2025_11_25_asks_of_it() {
    assert_server_conforms("2025-11-25").await;
}

#[tokio::test]
async fn server_does_what_the_revision_2026_07_28_asks_of_it() {
    assert_server_conforms("2026-07-28").await;
}
