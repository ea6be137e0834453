//! A client of the API, as a user would write one. A refusal fails the test with the whole answer.

use std::time::{Duration, Instant};

use reqwest::Method;
use reveille::base::clock::pause;
use serde_json::Value;

use super::binary::Service;
use super::reference::exchanged;

/// How often something that comes by itself is looked for.
const LOOK: Duration = Duration::from_millis(50);

pub struct Api {
    client: reqwest::Client,
    url: String,
    token: String,
}

impl Api {
    /// As the admin that the service's first start made.
    pub fn of(service: &Service) -> Api {
        Api::new(service.url(), service.admin_token().expect("the first start makes an admin token"))
    }

    pub fn new(url: &str, token: &str) -> Api {
        let client = reveille::ports::egress::operator_client(Duration::from_secs(30));
        Api { client, url: url.to_owned(), token: token.to_owned() }
    }

    pub async fn get(&self, path: &str) -> Value {
        self.answer(Method::GET, path, None).await
    }

    pub async fn post(&self, path: &str, body: &Value) -> Value {
        self.answer(Method::POST, path, Some(body)).await
    }

    pub async fn put(&self, path: &str, body: &Value) -> Value {
        self.answer(Method::PUT, path, Some(body)).await
    }

    pub async fn patch(&self, path: &str, body: &Value) -> Value {
        self.answer(Method::PATCH, path, Some(body)).await
    }

    /// The value of a metric, whose labels are part of the name; 0 where it is not there.
    pub async fn metric(&self, name: &str) -> f64 {
        let request = self.client.get(format!("{}/metrics", self.url)).bearer_auth(&self.token);
        let text = request.send().await.expect("an answer").text().await.expect("metrics");
        let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' '));
        line.map_or(0.0, |value| value.trim().parse().expect("a number"))
    }

    /// The task's newest run, once it is in this state.
    pub async fn until_run(&self, task_id: &str, state: &str, patience: Duration) -> Value {
        self.until(&format!("/v1/runs?task_id={task_id}"), state, patience).await
    }

    /// The run's newest delivery, once it is in this state.
    pub async fn until_delivery(&self, run_id: &str, state: &str, patience: Duration) -> Value {
        self.until(&format!("/v1/deliveries?run_id={run_id}"), state, patience).await
    }

    async fn until(&self, path: &str, state: &str, patience: Duration) -> Value {
        let deadline = Instant::now() + patience;
        loop {
            let list = self.get(path).await;
            match list["items"].as_array().and_then(|items| items.first()) {
                Some(newest) if newest["state"] == state => return newest.clone(),
                newest => assert!(Instant::now() < deadline, "{path} did not become {state}: {newest:#?}"),
            }
            pause(LOOK).await;
        }
    }

    /// The answer, which must be a success; it and what was asked are held against the reference.
    async fn answer(&self, method: Method, path: &str, body: Option<&Value>) -> Value {
        let mut request = self.client.request(method, format!("{}{path}", self.url)).bearer_auth(&self.token);
        if let Some(body) = body {
            request = request.json(body);
        }
        let (status, text) = exchanged(request).await;
        assert!((200..300).contains(&status), "{status}: {text}");
        serde_json::from_str(&text).unwrap_or(Value::Null)
    }
}
