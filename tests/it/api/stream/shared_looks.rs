//! Streams that have nothing to tell: together they ask the database as often as one.

use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::http::Request;
use futures::StreamExt;
use reveille::base::clock::pause;
use reveille::domain::run::RunState;
use serde_json::json;
use tokio::time::timeout;
use tower::ServiceExt;

use super::{Client, answer, append, finish, names, started};
use crate::api::service::Api;
use crate::support::gate::Gate;

/// Streams that are open.
const STREAMS: usize = 20;
/// Round trips that they may take together while they are watched. By itself each would take some twenty.
const ROUND_TRIPS: usize = 80;
/// How long they are watched, after they have come to rest.
const WATCHED: Duration = Duration::from_secs(2);
const SETTLED: Duration = Duration::from_secs(2);

/// Round trips of a while in which nothing happens.
async fn at_rest(gate: &Gate) -> usize {
    pause(SETTLED).await;
    let before = gate.requests();
    pause(WATCHED).await;
    gate.requests() - before
}

#[tokio::test]
async fn streams_of_a_run_that_stands_still_look_together_and_each_is_told_what_comes() {
    let (api, gate, _) = Api::behind_gate().await;
    let (run, lease) = started(&api).await;
    let token = api.token("ann", &["runs:read"]).await;
    let mut clients = Vec::new();
    for _ in 0..STREAMS {
        let mut client = Client::follow_as(&api, &token, run, None).await;
        client.until("state_change").await;
        clients.push(client);
    }
    let round_trips = at_rest(&gate).await;
    assert!((1..ROUND_TRIPS).contains(&round_trips), "{round_trips} round trips of {STREAMS} streams");
    append(&api, lease, 0, 1, answer()).await;
    finish(&api, lease, RunState::Succeeded, None).await;
    for client in &mut clients {
        let told = client.until("execution_end").await;
        assert_eq!(names(&told), ["message_start", "message_end", "state_change", "execution_end"]);
    }
}

#[tokio::test]
async fn streams_of_a_bus_on_which_nothing_comes_look_together_and_each_is_told_what_comes() {
    let (api, gate, _) = Api::behind_gate().await;
    let token = api.token("ann", &["events:read", "events:publish"]).await;
    let mut streams: Vec<BodyDataStream> = Vec::new();
    for _ in 0..STREAMS {
        let request = Request::get("/v1/events/stream").header("authorization", format!("Bearer {token}"));
        let response = api.app.clone().oneshot(request.body(Body::empty()).unwrap()).await.unwrap();
        assert_eq!(response.status(), 200);
        streams.push(response.into_body().into_data_stream());
    }
    let round_trips = at_rest(&gate).await;
    assert!((1..ROUND_TRIPS).contains(&round_trips), "{round_trips} round trips of {STREAMS} streams");
    let event = json!({ "source": "shop", "type": "order", "id": "the-order", "data": {} });
    api.ask("POST", "/v1/events", Some(&token), Some(event)).await.expect(202);
    for stream in &mut streams {
        let part = timeout(Duration::from_secs(20), stream.next()).await.expect("something is told");
        let text = String::from_utf8(part.expect("the event").unwrap().to_vec()).unwrap();
        assert!(text.contains("the-order"), "{text}");
    }
}
