//! A whole service in a process of its own with the default configuration, and its API as a tenant calls it.

use std::net::SocketAddr;
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::{Method, RequestBuilder, StatusCode};
use serde_json::{Value, json};
use tokio::time::timeout;

use crate::app::{App, Extras};
use crate::base::metrics::Metrics;
use crate::base::secret::{Secret, SecretUrl};
use crate::base::token::{TokenKind, TokenText};
use crate::bench::env::{self};
use crate::bench::process::PartProcess;
use crate::bench::servers::set_model;
use crate::bench::{BenchEnv, BenchSite, Part, PartMessage, ServiceSettings};
use crate::config::{Config, Environment};
use crate::ports::egress;
use crate::telemetry::{self, Telemetry};

/// The longest that a call may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Becomes the service: as it is without configuration, but for what was asked for, the admin's token and its model.
pub async fn serve(asked: &ServiceSettings) -> anyhow::Result<(App, Option<Telemetry>)> {
    let mut config = Config::read("the measurement", &asked.toml, &Environment::of(&[]))?.config;
    env::set_place(&mut config, SecretUrl::new(asked.url.clone()), Path::new(&asked.dir));
    config.server.admin_token = Some(Secret::new(asked.admin_token.clone()));
    if let Some(base_url) = &asked.model {
        set_model(&mut config, base_url.clone());
    }
    if let Some((url, prefix)) = &asked.redis {
        config.bus.url = SecretUrl::new(url.clone());
        config.bus.stream_prefix.clone_from(prefix);
    }
    let metrics = Metrics::new();
    let telemetry = (!asked.toml.is_empty()).then(|| telemetry::start(&config.telemetry, &metrics));
    let app = App::start(&config, Extras { metrics, ..Extras::default() }, |_| {}).await?;
    Ok((app, telemetry))
}

/// The running process. It is killed when this is dropped.
pub struct BenchService {
    process: PartProcess,
    admin: BenchTenant,
}

/// Somebody who calls the API with a token.
#[derive(Clone)]
pub struct BenchTenant {
    address: SocketAddr,
    token: String,
    http: reqwest::Client,
}

impl BenchService {
    /// Starts it with the default configuration, without a model.
    pub async fn start(at: &BenchSite, place: &BenchEnv) -> anyhow::Result<BenchService> {
        BenchService::start_as(at, place, None, String::new()).await
    }

    /// Starts it with the default configuration, and a model whose API begins there.
    pub async fn start_with_model(at: &BenchSite, place: &BenchEnv, model: String) -> anyhow::Result<BenchService> {
        BenchService::start_as(at, place, Some(model), String::new()).await
    }

    /// Starts it with this configuration, in TOML, but for where its data is.
    pub async fn start_configured(at: &BenchSite, place: &BenchEnv, toml: String) -> anyhow::Result<BenchService> {
        BenchService::start_as(at, place, None, toml).await
    }

    async fn start_as(
        at: &BenchSite,
        place: &BenchEnv,
        model: Option<String>,
        toml: String,
    ) -> anyhow::Result<BenchService> {
        let token = TokenText::new(TokenKind::Admin).expose().to_owned();
        let asked = ServiceSettings {
            url: place.config.database.url.expose().to_owned(),
            dir: place.dir.display().to_string(),
            toml,
            admin_token: token.clone(),
            model,
            redis: place.redis().map(|(url, prefix)| (url.to_owned(), prefix.to_owned())),
        };
        let mut process = PartProcess::start(at, &Part::Whole(asked)).await?;
        let said = process.receive().await?;
        let PartMessage::Listens { address } = said else { anyhow::bail!("the service said {said:?} and no address") };
        Ok(BenchService { process, admin: BenchTenant::new(address, token) })
    }

    pub fn id(&self) -> Option<u32> {
        self.process.id()
    }

    /// The operator, who may do everything for all tenants.
    pub fn operator(&self) -> &BenchTenant {
        &self.admin
    }

    /// Ends it in order.
    pub async fn stop(self) -> anyhow::Result<()> {
        self.process.stop().await.map(drop)
    }

    /// A tenant with a token that may do everything for it.
    pub async fn tenant(&self, name: &str) -> anyhow::Result<BenchTenant> {
        let token = json!({ "tenant_id": name, "name": "measurement", "scopes": ["*"] });
        let made = self.admin.post("/v1/tokens", &token).await?;
        let text = made["token"].as_str().context("the service shows no token")?;
        Ok(BenchTenant { token: text.to_owned(), ..self.admin.clone() })
    }

    /// Such a tenant whose messages go to this webhook.
    pub async fn tenant_with_webhook(&self, name: &str, webhook: &str) -> anyhow::Result<BenchTenant> {
        let tenant = self.tenant(name).await?;
        let webhook = json!({ "url": webhook, "secret": SIGNING });
        let recipient = json!({ "timezone": "UTC", "addresses": { "webhook": webhook }, "fallback": ["webhook"] });
        let put = self.admin.request(Method::PUT, &format!("/v1/recipients/{name}")).json(&recipient);
        accepted(put).await?;
        Ok(tenant)
    }
}

/// Signs the messages of the measurement; it guards nothing.
pub const SIGNING: &str = "whsec_bWVhc3VyZW1lbnQgbWVhc3VyZW1lbnQgbWVhc3VyZQ==";

impl BenchTenant {
    fn new(address: SocketAddr, token: String) -> BenchTenant {
        BenchTenant { address, token, http: egress::operator_client(PATIENCE) }
    }

    /// This caller with connections of its own, as a program elsewhere has them. Callers that share connections are
    /// handed some that the service is about to close after the call of another, and some that another's threads read
    /// and write.
    pub fn with_own_connections(&self) -> BenchTenant {
        BenchTenant::new(self.address, self.token.clone())
    }

    /// Where the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The token that calls are made with.
    pub fn token(&self) -> &str {
        &self.token
    }

    pub fn request(&self, method: Method, path: &str) -> RequestBuilder {
        self.http.request(method, format!("http://{}{path}", self.address)).bearer_auth(&self.token)
    }

    pub async fn get(&self, path: &str) -> anyhow::Result<Value> {
        accepted(self.request(Method::GET, path)).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> anyhow::Result<Value> {
        accepted(self.request(Method::POST, path).json(body)).await
    }

    /// Makes these tasks, all of them.
    pub async fn import(&self, tasks: &[Value]) -> anyhow::Result<()> {
        let lines: String = tasks.iter().map(|task| format!("{task}\n")).collect();
        let request = self.request(Method::POST, "/v1/tasks/import").header("content-type", "application/x-ndjson");
        let report = accepted(request.body(lines)).await?;
        ensure!(report["created"] == tasks.len(), "of {} tasks not all were made: {report}", tasks.len());
        Ok(())
    }

    /// Makes a call and reads its answer, whatever it is; how it went, and how long the service asks to wait.
    pub async fn call(&self, request: RequestBuilder) -> anyhow::Result<(StatusCode, Option<u64>)> {
        let answer = timeout(PATIENCE, request.send()).await??;
        let wait = answer.headers().get("retry-after").and_then(|wait| wait.to_str().ok()?.parse().ok());
        let status = answer.status();
        answer.bytes().await?;
        Ok((status, wait))
    }

    /// Makes a call and reads its answer. The reason where it is refused, or not answered; `None`: it is answered well.
    pub async fn refusal(&self, request: RequestBuilder) -> Option<String> {
        match answered(request).await {
            Ok((status, _)) if status.is_success() => None,
            Ok((status, body)) => Some(format!("{status}: {body}")),
            Err(error) => Some(format!("{error:#}")),
        }
    }
}

async fn answered(request: RequestBuilder) -> anyhow::Result<(StatusCode, String)> {
    let answer = timeout(PATIENCE, request.send()).await.context("the service does not answer")??;
    Ok((answer.status(), answer.text().await?))
}

async fn accepted(request: RequestBuilder) -> anyhow::Result<Value> {
    let (status, body) = answered(request).await?;
    ensure!(status.is_success(), "the service answered {status}: {body}");
    Ok(if body.is_empty() { Value::Null } else { serde_json::from_str(&body)? })
}

#[cfg(test)]
mod tests {
    use std::sync::{Arc, Mutex};

    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{TcpListener, TcpStream};

    use super::*;

    /// Calls within which a connection is used again.
    const CALLS: usize = 100;

    /// By which connection each call has come, as the port of its caller.
    type SeenPorts = Arc<Mutex<Vec<u16>>>;

    /// Answers every call in this way, and closes no connection.
    async fn serve(listener: TcpListener, answer: &'static str, seen: SeenPorts) {
        while let Ok((stream, caller)) = listener.accept().await {
            tokio::spawn(answer_each(stream, caller.port(), answer, Arc::clone(&seen)));
        }
    }

    async fn answer_each(mut stream: TcpStream, port: u16, answer: &'static str, seen: SeenPorts) {
        let (mut call, mut part) = (Vec::new(), [0; 1024]);
        while let Ok(count @ 1..) = stream.read(&mut part).await {
            call.extend_from_slice(&part[..count]);
            if call.ends_with(b"\r\n\r\n") {
                call.clear();
                seen.lock().unwrap().push(port);
                stream.write_all(answer.as_bytes()).await.unwrap();
            }
        }
    }

    /// A caller of such a server.
    async fn caller(answer: &'static str) -> (BenchTenant, SeenPorts) {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let (address, seen) = (listener.local_addr().unwrap(), SeenPorts::default());
        tokio::spawn(serve(listener, answer, Arc::clone(&seen)));
        (BenchTenant::new(address, "token".into()), seen)
    }

    #[tokio::test]
    async fn caller_with_own_connections_takes_none_of_another() {
        let (one, seen) = caller("HTTP/1.1 200 OK\r\ncontent-length: 2\r\n\r\n{}").await;
        let is_used_again = || {
            let seen = seen.lock().unwrap();
            seen.split_last().is_some_and(|(last, before)| before.contains(last))
        };
        for _ in 0..CALLS {
            one.get("/").await.unwrap();
            if is_used_again() {
                break;
            }
        }
        assert!(is_used_again(), "one caller keeps its connection");
        one.with_own_connections().get("/").await.unwrap();
        assert!(!is_used_again());
    }

    #[tokio::test]
    async fn refusal_has_the_status_and_the_words_of_the_service() {
        let get = |tenant: &BenchTenant| tenant.request(Method::GET, "/");
        let (tenant, _) = caller("HTTP/1.1 503 Service Unavailable\r\ncontent-length: 4\r\n\r\naway").await;
        let refusal = tenant.refusal(get(&tenant)).await;
        assert_eq!(refusal.as_deref(), Some("503 Service Unavailable: away"));
        let (tenant, _) = caller("HTTP/1.1 204 No Content\r\n\r\n").await;
        assert_eq!(tenant.refusal(get(&tenant)).await, None);
        let (tenant, _) = caller("no HTTP\r\n\r\n").await;
        assert!(tenant.refusal(get(&tenant)).await.is_some());
    }
}
