//! Vectors of texts over HTTP: calls at once, and the time that a search has for one.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::routing::post;
use futures::future::join_all;
use reveille::base::clock::{Clock, pause};
use reveille::base::compute::Compute;
use reveille::ports::llm::ModelSettings;
use reveille::ports::llm::openai::embedding::Embeddings;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

/// As long as nobody is late, however slow the machine.
const PATIENCE: Duration = Duration::from_secs(60);
/// Calls at once.
const AT_ONCE: usize = 2;

/// Requests that have come, those that are open, and the leave to answer them.
struct Endpoint {
    asked: AtomicUsize,
    open: AtomicUsize,
    most: AtomicUsize,
    leave: Semaphore,
}

async fn embed(State(endpoint): State<Arc<Endpoint>>) -> Json<Value> {
    let open = endpoint.open.fetch_add(1, Ordering::SeqCst) + 1;
    endpoint.most.fetch_max(open, Ordering::SeqCst);
    endpoint.asked.fetch_add(1, Ordering::SeqCst);
    endpoint.leave.acquire().await.unwrap().forget();
    endpoint.open.fetch_sub(1, Ordering::SeqCst);
    Json(json!({ "data": [{ "index": 0, "embedding": [1.0, 0.0] }] }))
}

impl Endpoint {
    async fn start() -> (Arc<Endpoint>, Embeddings) {
        let counts = [(); 3].map(|()| AtomicUsize::new(0));
        let [asked, open, most] = counts;
        let endpoint = Arc::new(Endpoint { asked, open, most, leave: Semaphore::new(0) });
        let routes = axum::Router::new().route("/v1/embeddings", post(embed)).with_state(Arc::clone(&endpoint));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let settings = ModelSettings {
            provider: "openai".into(),
            base_url: Some(format!("http://{}/v1", listener.local_addr().unwrap())),
            model: "vectors".into(),
            max_concurrent_calls: Some(AT_ONCE),
            ..ModelSettings::default()
        };
        tokio::spawn(async move { axum::serve(listener, routes).await });
        let embeddings = Embeddings::new(&settings, None, Clock::system(), Compute::new(1)).expect("an endpoint");
        (endpoint, embeddings)
    }

    async fn until_asked(&self, count: usize) {
        while self.asked.load(Ordering::SeqCst) < count {
            pause(Duration::from_millis(5)).await;
        }
    }
}

#[tokio::test]
async fn vectors_are_made_by_as_many_calls_at_once_as_their_model_may_have() {
    let (endpoint, embeddings) = Endpoint::start().await;
    let calls = (0..6).map(|number| {
        let embeddings = embeddings.clone();
        async move {
            match number % 2 {
                0 => embeddings.embed("ann", &["text"], PATIENCE).await.is_ok(),
                _ => embeddings.try_embed("bob", "text", PATIENCE).await.is_some(),
            }
        }
    });
    let calls = tokio::spawn(join_all(calls));
    endpoint.until_asked(AT_ONCE).await;
    // time for more to come
    pause(Duration::from_millis(100)).await;
    endpoint.leave.add_permits(6);
    assert_eq!(calls.await.unwrap(), [true; 6]);
    let counts = [&endpoint.asked, &endpoint.most].map(|count| count.load(Ordering::SeqCst));
    assert_eq!(counts, [6, AT_ONCE]);
}

#[tokio::test]
async fn search_without_a_place_in_time_has_no_vector_and_the_endpoint_is_asked_again() {
    let (endpoint, embeddings) = Endpoint::start().await;
    let slow = (0..AT_ONCE).map(|_| {
        let embeddings = embeddings.clone();
        async move { embeddings.embed("ann", &["text"], PATIENCE).await.is_ok() }
    });
    let slow = tokio::spawn(join_all(slow));
    endpoint.until_asked(AT_ONCE).await;
    assert_eq!(embeddings.try_embed("bob", "text", Duration::from_millis(20)).await, None);
    endpoint.leave.add_permits(AT_ONCE + 1);
    assert_eq!(slow.await.unwrap(), [true; AT_ONCE]);
    assert!(embeddings.try_embed("bob", "text", PATIENCE).await.is_some(), "it has failed nobody");

    // a place that comes late leaves it no time to be blamed for
    let slow = (0..AT_ONCE).map(|_| {
        let embeddings = embeddings.clone();
        async move { embeddings.embed("ann", &["text"], PATIENCE).await.is_ok() }
    });
    let slow = tokio::spawn(join_all(slow));
    endpoint.until_asked(2 * AT_ONCE + 1).await;
    let within = Duration::from_millis(1_000);
    let late = async {
        pause(within * 3 / 4).await;
        endpoint.leave.add_permits(1);
    };
    assert_eq!(tokio::join!(embeddings.try_embed("bob", "text", within), late).0, None);
    endpoint.leave.add_permits(AT_ONCE);
    assert_eq!(slow.await.unwrap(), [true; AT_ONCE]);
    endpoint.leave.add_permits(1);
    assert!(embeddings.try_embed("bob", "text", PATIENCE).await.is_some(), "it has failed nobody");

    // one that does not answer is left alone
    while let Ok(unused) = endpoint.leave.try_acquire() {
        unused.forget();
    }
    assert_eq!(embeddings.try_embed("bob", "text", Duration::from_millis(20)).await, None);
    endpoint.leave.add_permits(2);
    assert_eq!(embeddings.try_embed("bob", "text", PATIENCE).await, None);
    assert!(embeddings.try_embed("ann", "text", PATIENCE).await.is_some(), "by the tenant that it has failed");
}
