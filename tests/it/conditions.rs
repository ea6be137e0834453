//! Conditions in the whole engine: a real server is polled, the watcher is ticked by hand on a clock that
//! stands still, and instances die between polls.

mod http;
mod modes;
mod readme;
mod sources;
mod watching;

use chrono::TimeDelta;
use reveille::domain::trigger::condition::ConditionState;
use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use crate::support::app::Instance;
use crate::support::world::World;
use reveille::domain::task::Task;

/// A price that can be looked up, on this machine, which has to be opened for it.
pub struct Shop {
    server: MockServer,
}

impl Shop {
    pub async fn open(world: &mut World) -> Shop {
        world.egress.allow.push("127.0.0.1:*".into());
        world.poll.per_host_per_second = 1000.0;
        Shop { server: MockServer::start().await }
    }

    pub fn url(&self) -> String {
        format!("{}/price", self.server.uri())
    }

    /// From now on this is all it answers.
    pub async fn answers(&self, answer: ResponseTemplate) {
        self.server.reset().await;
        Mock::given(any()).respond_with(answer).mount(&self.server).await;
    }

    pub async fn sells_at(&self, price: i64) {
        self.answers(ResponseTemplate::new(200).set_body_json(json!({ "price": price }))).await;
    }

    pub async fn asked(&self) -> Vec<wiremock::Request> {
        self.server.received_requests().await.expect("requests are kept")
    }
}

/// A task that watches a price, with these fields of its trigger besides.
pub fn watching(shop: &Shop, more: Value) -> Value {
    let mut trigger = json!({
        "type": "condition", "poll": { "http": { "url": shop.url() } }, "interval": "1m",
        "expression": "value.price < 500",
    });
    trigger.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    json!({ "trigger": trigger })
}

/// Waits for the next poll of the task and makes it; answers what is known then.
pub async fn next_poll(world: &World, instance: &Instance, task: &Task) -> ConditionState {
    let next = instance.stored(task).await.next_fire_at.expect("a next poll");
    let wait = next - world.clock.now();
    world.clock.advance(wait.max(TimeDelta::zero()));
    instance.poll().await;
    instance.condition(task).await
}
