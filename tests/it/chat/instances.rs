//! Several instances: a message runs at the one that took it, as long as that has a slot, and its stream goes on
//! elsewhere when that instance dies.

use std::collections::HashSet;
use std::time::Instant;

use bytes::Bytes;
use futures::StreamExt;
use futures::future::join_all;
use futures::stream::BoxStream;
use reqwest::Method;
use reveille::base::clock::pause;
use serde_json::{Value, json};

use super::{ChatClient, LOOK, PATIENCE, id_of};
use crate::support::api::Api;
use crate::support::postgres::Database;
use crate::support::sse::{HeldStream, SentEvent};
use crate::support::talking_model::{TOKEN, TalkingModel};

/// Messages that each instance is sent at once, and how often.
const AT_ONCE: usize = 4;
const ROUNDS: usize = 5;

/// The answer to a message as it comes.
struct OpenStream {
    parts: BoxStream<'static, reqwest::Result<Bytes>>,
    events: HeldStream,
}

impl OpenStream {
    /// Sends a message of this key, whose stream was seen up to a place.
    async fn of(client: &ChatClient, message: &str, key: &str, seen: Option<&str>) -> OpenStream {
        let body = json!({ "tenant_id": "ann", "message": message });
        let request = client.request(Method::POST, "/v1/chat").header("accept", "text/event-stream");
        let request = request.header("idempotency-key", key).json(&body);
        let request = match seen {
            Some(seen) => request.header("last-event-id", seen),
            None => request,
        };
        let response = request.send().await.expect("an answer");
        assert_eq!(response.status(), 200);
        OpenStream { parts: response.bytes_stream().boxed(), events: HeldStream::of("POST", "/v1/chat") }
    }

    /// The next event; `None` at the end, or where the connection is broken off.
    async fn next(&mut self) -> Option<SentEvent> {
        loop {
            if let Some(event) = self.events.next() {
                return Some(event);
            }
            self.events.push(&self.parts.next().await?.ok()?);
        }
    }

    /// The events up to this one.
    async fn until(&mut self, name: &str) -> Vec<SentEvent> {
        let mut told = Vec::new();
        loop {
            told.push(self.next().await.unwrap_or_else(|| panic!("no {name} after {told:?}")));
            if told.last().is_some_and(|last| last.name == name) {
                return told;
            }
        }
    }

    /// All that is still to come.
    async fn rest(&mut self) -> Vec<SentEvent> {
        let mut told = Vec::new();
        while let Some(event) = self.next().await {
            told.push(event);
        }
        told
    }
}

fn is_end_of_message(event: &&SentEvent) -> bool {
    event.name == "message_end"
}

/// The places behind events.
fn places(told: &[SentEvent]) -> impl Iterator<Item = &str> {
    told.iter().map(|event| event.id.as_str()).filter(|id| !id.is_empty())
}

/// How many runs have started at the instance of this client.
async fn starts_at(client: &ChatClient) -> usize {
    Api::new(&client.url, TOKEN).metric("reveille_run_starts_total").await as usize
}

/// Returns once the model was asked so often.
async fn until_asked(model: &TalkingModel, times: usize) {
    let begun = Instant::now();
    while model.asked() < times {
        assert!(begun.elapsed() < PATIENCE, "the model was asked {} times", model.asked());
        pause(LOOK).await;
    }
}

#[tokio::test]
async fn messages_run_at_the_instance_that_took_them_while_it_has_a_place() {
    let (model, database) = (TalkingModel::start().await, Database::empty().await);
    let mut services = [(); 2].map(|()| model.service(Some(&database.url)));
    for service in &mut services {
        service.start().await;
    }
    let clients = services.each_ref().map(ChatClient::of);
    for round in 1..=ROUNDS {
        // each in a conversation of its own, which goes on at the other instance
        let exchange = |number: usize| {
            let [here, there] = [number % 2, (number + 1) % 2].map(|at| clients[at].clone());
            async move {
                let (status, first) = here.say("hello", None).await;
                assert_eq!((status, &first["response"]), (200, &json!("1: hello")), "{first:#}");
                let (status, next) = there.say("and you?", Some(&id_of(&first["conversation_id"]))).await;
                assert_eq!((status, &next["response"]), (200, &json!("3: and you?")), "{next:#}");
            }
        };
        join_all((0..2 * AT_ONCE).map(exchange)).await;
        let starts = [starts_at(&clients[0]).await, starts_at(&clients[1]).await];
        assert_eq!(starts, [2 * AT_ONCE * round; 2], "each has what it was sent");
    }
    for mut service in services {
        service.kill().await;
    }
}

#[tokio::test]
async fn message_to_an_instance_without_a_place_is_answered_by_another() {
    let (model, database) = (TalkingModel::start().await, Database::empty().await);
    let narrow = model.service(Some(&database.url)).with("REVEILLE_ENGINE__MAX_CONCURRENT_RUNS", "1");
    let narrow = narrow.with("REVEILLE_ENGINE__MAX_WAITING_RUNS", "0");
    let mut services = [narrow, model.service(Some(&database.url))];
    for service in &mut services {
        service.start().await;
    }
    let [here, there] = services.each_ref().map(ChatClient::of);
    let slow = tokio::spawn({
        let here = here.clone();
        async move { here.say("answer slowly", None).await }
    });
    until_asked(&model, 1).await;
    assert_eq!((starts_at(&here).await, starts_at(&there).await), (1, 0));
    let (status, said) = here.say("hello", None).await;
    assert_eq!((status, &said["response"]), (200, &json!("1: hello")), "{said:#}");
    assert_eq!((starts_at(&here).await, starts_at(&there).await), (1, 1));
    let (status, said) = slow.await.expect("an answer");
    assert_eq!((status, &said["response"]), (200, &json!("1: answer slowly")), "{said:#}");
    for mut service in services {
        service.kill().await;
    }
}

#[tokio::test]
async fn stream_whose_instance_dies_in_the_middle_goes_on_by_its_last_event_at_another() {
    let (model, database) = (TalkingModel::start().await, Database::empty().await);
    let in_pieces = || model.service(Some(&database.url)).with("REVEILLE_LLM__MODELS__MAIN__STREAM", "true");
    let mut services = [in_pieces(), in_pieces()];
    for service in &mut services {
        service.start().await;
    }
    let [here, there] = services.each_ref().map(ChatClient::of);
    let (message, key, answer) = ("tell me all of it", "broken off", "1: tell me all of it");
    // the model says no more than the first piece, which is told where the run is executed
    let mut stream = OpenStream::of(&here, message, key, None).await;
    let before = stream.until("message_chunk").await;
    assert_eq!((starts_at(&here).await, starts_at(&there).await), (1, 0));
    services[0].kill().await;
    assert_eq!(stream.rest().await.iter().find(is_end_of_message), None, "it is broken off in the middle");

    let seen = places(&before).last().expect("a place");
    let mut stream = OpenStream::of(&there, message, key, Some(seen)).await;
    let let_go_on = async {
        until_asked(&model, 2).await;
        // one may be for the answer that nobody hears any more
        model.go_on();
        model.go_on();
    };
    let (behind, ()) = tokio::join!(stream.rest(), let_go_on);
    let (session, of_before) = (behind[0].json(), before[0].json());
    for field in ["run_id", "conversation_id"] {
        assert_eq!(session[field], of_before[field], "{field}");
    }
    let ends: Vec<Value> = behind.iter().filter(is_end_of_message).map(|end| end.json()["text"].clone()).collect();
    assert_eq!(ends, [json!(answer)], "the answer comes once, and whole");
    assert_eq!(behind.last().map(|last| last.name.as_str()), Some("execution_end"));
    let told: HashSet<&str> = places(&before).collect();
    assert_eq!(places(&behind).find(|place| told.contains(place)), None, "nothing is told twice");
    let run = there.until_run(&id_of(&session["run_id"]), "succeeded").await;
    assert_eq!((&run["output"], model.asked(), starts_at(&there).await), (&json!(answer), 2, 1));
    services[1].kill().await;
}
