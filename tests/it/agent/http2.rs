//! Models that speak HTTP/2: few connections carry all calls, and none waits for a place on one.

use std::convert::Infallible;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use axum::body::Body;
use http::{Request, Response, Version};
use hyper::body::Incoming;
use hyper_util::rt::{TokioExecutor, TokioIo};
use reveille::base::clock::pause;
use reveille::ports::egress::operator_client;
use serde_json::{Value, json};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use crate::support::binary::Service;
use crate::support::tls::TlsServer;

/// Calls that the server allows at once on one connection, as many do.
const STREAMS: u32 = 100;
/// More runs than that.
const RUNS: usize = 150;
/// Connections for them at most. Two carry them all, but calls that begin before the first connection is there have
/// one each.
const FEW: usize = RUNS / 10;
const PATIENCE: Duration = Duration::from_secs(60);

/// A model's server behind TLS that speaks HTTP/2 alone and answers once it is told to.
struct Http2Model {
    port: u16,
    seen: Arc<ConnectionCounts>,
    answer: watch::Sender<bool>,
    tls: TlsServer,
}

#[derive(Default)]
struct ConnectionCounts {
    /// Requests that wait for their answer now.
    waiting: AtomicUsize,
    /// Requests of each connection that had any.
    connections: Mutex<Vec<usize>>,
}

impl Http2Model {
    async fn start() -> Http2Model {
        let tls = TlsServer::new("h2");
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let port = listener.local_addr().expect("its address").port();
        let seen = Arc::<ConnectionCounts>::default();
        let answer = watch::channel(false).0;
        let (acceptor, shared, told) = (tls.acceptor.clone(), Arc::clone(&seen), answer.subscribe());
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                tokio::spawn(serve(acceptor.clone(), stream, Arc::clone(&shared), told.clone()));
            }
        });
        Http2Model { port, seen, answer, tls }
    }

    /// A service that trusts this server and has its model there.
    fn service(&self) -> Service {
        self.tls.trusted_by(Service::new().with_config(&format!(
            "[llm.models.main]\nprovider = 'openai'\nmodel = 'm'\nbase_url = 'https://127.0.0.1:{}/v1'\n\
             timeout_seconds = 600\n",
            self.port
        )))
    }

    async fn until_waiting(&self, count: usize, service: &Service) {
        let begun = Instant::now();
        loop {
            let waiting = self.seen.waiting.load(Ordering::Acquire);
            if waiting == count {
                return;
            }
            assert!(begun.elapsed() < PATIENCE, "{waiting} of {count} calls are there\n{}", service.log());
            pause(Duration::from_millis(20)).await;
        }
    }
}

async fn serve(tls: TlsAcceptor, stream: TcpStream, seen: Arc<ConnectionCounts>, told: watch::Receiver<bool>) {
    let Ok(stream) = tls.accept(stream).await else { return };
    // one that no call goes over does not count: several may be begun before the first is there
    let mine = Arc::new(Mutex::new(None));
    let service =
        hyper::service::service_fn(move |request| answer(request, Arc::clone(&seen), Arc::clone(&mine), told.clone()));
    let _ = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
        .max_concurrent_streams(STREAMS)
        .serve_connection(TokioIo::new(stream), service)
        .await;
}

async fn answer(
    request: Request<Incoming>,
    seen: Arc<ConnectionCounts>,
    mine: Arc<Mutex<Option<usize>>>,
    mut told: watch::Receiver<bool>,
) -> Result<Response<Body>, Infallible> {
    assert_eq!(request.version(), Version::HTTP_2);
    let _ = axum::body::to_bytes(Body::new(request.into_body()), usize::MAX).await;
    {
        let mut connections = seen.connections.lock().expect("seen");
        let index = *mine.lock().expect("mine").get_or_insert_with(|| {
            connections.push(0);
            connections.len() - 1
        });
        connections[index] += 1;
    }
    seen.waiting.fetch_add(1, Ordering::AcqRel);
    let _ = told.wait_for(|answer| *answer).await;
    seen.waiting.fetch_sub(1, Ordering::AcqRel);
    let message = json!({ "role": "assistant", "content": "Good morning." });
    let body = json!({
        "choices": [{ "index": 0, "message": message, "finish_reason": "stop" }],
        "usage": { "prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2 },
    });
    let mut response = Response::new(Body::from(body.to_string()));
    response.headers_mut().insert(http::header::CONTENT_TYPE, http::HeaderValue::from_static("application/json"));
    Ok(response)
}

/// One request of the admin.
async fn call(service: &Service, path: &str, body: Option<&Value>) -> Value {
    let client = operator_client(PATIENCE);
    let url = format!("{}{path}", service.url());
    let request = match body {
        Some(body) => client.post(url).json(body),
        None => client.get(url),
    };
    let token = service.admin_token().expect("the admin's token");
    let response = request.bearer_auth(token).send().await.expect("an answer");
    let (status, answer) = (response.status(), response.json::<Value>().await.expect("JSON"));
    assert!(status.is_success(), "{path}: {status} {answer:#}");
    answer
}

#[tokio::test]
async fn more_runs_than_one_connection_carries_wait_for_a_model_at_once_over_few() {
    let model = Http2Model::start().await;
    let mut service = model.service();
    service.start().await;
    let task = json!({
        "tenant_id": "ann", "name": "agent", "output": null, "action": { "instruction": "Say good morning." },
        "trigger": { "type": "schedule", "cron": "@yearly", "overlap": "allow" },
    });
    let task = call(&service, "/v1/tasks", Some(&task)).await["id"].as_str().expect("its id").to_owned();
    for _ in 0..RUNS {
        call(&service, &format!("/v1/tasks/{task}/run"), Some(&json!({}))).await;
    }
    model.until_waiting(RUNS, &service).await;
    let connections = model.seen.connections.lock().expect("seen").clone();
    assert_eq!(connections.iter().sum::<usize>(), RUNS, "{connections:?}");
    assert!((2..=FEW).contains(&connections.len()), "{connections:?}");
    model.answer.send_replace(true);
    let begun = Instant::now();
    loop {
        let stats = call(&service, "/v1/runs?state=succeeded&limit=200", None).await;
        let ended = stats["items"].as_array().expect("runs").len();
        if ended == RUNS {
            break;
        }
        assert!(begun.elapsed() < PATIENCE, "{ended} of {RUNS} runs ended\n{}", service.log());
        pause(Duration::from_millis(100)).await;
    }
}
