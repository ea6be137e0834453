//! A model over HTTP that says how many messages of a conversation it was shown and what was said last. Asked to pay,
//! it calls a tool of the same address first; asked for a flight, an agent that pays; asked to hold a seat, a tool that
//! can be undone; asked to ask, the person; asked to look for ever, it calls a tool in each turn; asked to remember, it
//! notes the sentence behind that, and asked what it knows, it says what it was told of. Asked to extract facts, it
//! finds where the person lives. Asked for vectors, it tells vehicles from homes.

use std::convert::Infallible;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::sse::{Event, Sse};
use axum::response::{IntoResponse, Response};
use axum::routing::post;
use futures::StreamExt;
use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::sync::Notify;

use super::binary::Service;
use super::world::MASTER_KEY;

/// Listens until the test's runtime ends.
#[derive(Clone)]
pub struct TalkingModel {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Default)]
struct Counts {
    asked: AtomicUsize,
    /// Questions that are being answered.
    under_way: AtomicUsize,
    most_at_once: AtomicUsize,
    /// Questions of which the first is answered late.
    hung: AtomicUsize,
    /// Those of them that wait for their late answer.
    hanging: AtomicUsize,
    paid: AtomicUsize,
    /// Requests for vectors.
    embedded: AtomicUsize,
    /// Whether requests for vectors are refused.
    embeds_nothing: AtomicBool,
    /// Seats that were held.
    held: Mutex<Vec<String>>,
    /// Lets an answer that comes in pieces go on behind the first of them.
    goes_on: Notify,
}

impl TalkingModel {
    pub async fn start() -> TalkingModel {
        let counts = Arc::new(Counts::default());
        let routes = axum::Router::new()
            .route("/v1/chat/completions", post(complete))
            .route("/v1/embeddings", post(embed))
            .route("/pay", post(pay))
            .route("/hold", post(hold))
            .with_state(Arc::clone(&counts));
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("an address");
        tokio::spawn(async move { axum::serve(listener, routes).await });
        TalkingModel { address, counts }
    }

    /// The address of one of its tools.
    pub fn url(&self, tool: &str) -> String {
        format!("http://{}/{tool}", self.address)
    }

    /// How often it was asked.
    pub fn asked(&self) -> usize {
        self.counts.asked.load(Ordering::Relaxed)
    }

    /// How many questions were asked at the same time, at most.
    pub fn most_at_once(&self) -> usize {
        self.counts.most_at_once.load(Ordering::Relaxed)
    }

    /// How often it was asked for facts in what says `hang`.
    pub fn hung(&self) -> usize {
        self.counts.hung.load(Ordering::Relaxed)
    }

    /// How many wait for facts in what says `hang`.
    pub fn hanging(&self) -> usize {
        self.counts.hanging.load(Ordering::Relaxed)
    }

    /// How often the tool was called.
    pub fn paid(&self) -> usize {
        self.counts.paid.load(Ordering::Relaxed)
    }

    /// How often it was asked for vectors.
    pub fn embedded(&self) -> usize {
        self.counts.embedded.load(Ordering::Relaxed)
    }

    /// Lets it refuse to make vectors from now on.
    pub fn stop_embedding(&self) {
        self.counts.embeds_nothing.store(true, Ordering::Relaxed);
    }

    /// Lets it make vectors again.
    pub fn resume_embedding(&self) {
        self.counts.embeds_nothing.store(false, Ordering::Relaxed);
    }

    /// Lets one answer go on that comes in pieces, or the next one.
    pub fn go_on(&self) {
        self.counts.goes_on.notify_one();
    }

    /// The seats that were held.
    pub fn held(&self) -> Vec<String> {
        self.counts.held.lock().unwrap().clone()
    }

    /// A service whose agent asks it for answers in pieces, on SQLite.
    pub fn streaming_service(&self) -> Service {
        self.service(None).with("REVEILLE_LLM__MODELS__MAIN__STREAM", "true")
    }

    /// A service whose agent asks it; on the database of this URL, or on SQLite.
    pub fn service(&self, database: Option<&str>) -> Service {
        let tool = format!(
            "[[tools]]\nname = \"pay\"\ndescription = \"Pays.\"\ncategory = \"side_effect\"\nconsequence = \"high\"\n\
             [tools.http]\nmethod = \"POST\"\nurl = \"http://{0}/pay\"\n{FLIGHTS}{HOLD}[tools.http]\nmethod = \"POST\"\n\
             url = \"http://{0}/hold\"\nbody = {{ seat = \"{{{{ args.seat }}}}\" }}\n",
            self.address
        );
        let service = Service::new()
            .with_config(&tool)
            .with("REVEILLE_SERVER__ADMIN_TOKEN", TOKEN)
            .with("REVEILLE_EGRESS__ALLOW", r#"["127.0.0.1:*"]"#)
            // runs of the dead go on soon
            .with("REVEILLE_ENGINE__LEASE_SECONDS", "2.0")
            .with("REVEILLE_APPROVALS__TOOLS__PAY__GATE", "confirm")
            .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "openai")
            .with("REVEILLE_LLM__MODELS__MAIN__MODEL", "talking")
            .with("REVEILLE_LLM__MODELS__MAIN__STREAM", "false")
            .with("REVEILLE_LLM__MODELS__MAIN__BASE_URL", format!("http://{}/v1", self.address));
        match database {
            Some(url) => service
                .with("REVEILLE_DATABASE__URL", url)
                .with("REVEILLE_VAULT__MASTER_KEYS", json!([MASTER_KEY]).to_string()),
            None => service,
        }
    }
}

/// An agent that books flights, and pays for them.
const FLIGHTS: &str = r#"
[[agents]]
name = "FlightAgent"
description = "Book a flight"
instruction = "You book flights."
tools = ["pay"]
fields = [
    { name = "origin", type = "string", required = true },
    { name = "destination", type = "string", required = true, validator = "value.matches('^[A-Z]{3}$')",
      validator_description = "the three letters of an airport" },
]
"#;
/// A tool that people are asked about, and that can be undone.
const HOLD: &str = r#"
[[tools]]
name = "hold"
description = "Holds a seat."
category = "side_effect"
consequence = "low"
parameters = { type = "object", required = ["seat"], properties = { seat = { type = "string" } } }
"#;

/// How long it takes the first time to extract facts from what says `hang`.
const HANGS_FOR: Duration = Duration::from_secs(3600);

/// How long it takes to answer what asks for it slowly.
const TALKS_SLOWLY_FOR: Duration = Duration::from_secs(5);
/// How long it takes to answer.
const TALKS_FOR: Duration = Duration::from_millis(2);

/// The admin token of such a service.
pub const TOKEN: &str = "the admin token of the tests of chats";

async fn complete(State(counts): State<Arc<Counts>>, Json(asked): Json<Value>) -> Response {
    counts.asked.fetch_add(1, Ordering::Relaxed);
    let at_once = counts.under_way.fetch_add(1, Ordering::Relaxed) + 1;
    counts.most_at_once.fetch_max(at_once, Ordering::Relaxed);
    let said = asked["messages"].as_array().and_then(|messages| messages.last()?["content"].as_str());
    let is_slow = said.is_some_and(|said| said.contains("slowly"));
    pause(if is_slow { TALKS_SLOWLY_FOR } else { TALKS_FOR }).await;
    if material_of(&asked).is_some_and(|material| material.contains("hang"))
        && counts.hung.fetch_add(1, Ordering::Relaxed) == 0
    {
        let _hung = HungCaller::of(&counts);
        pause(HANGS_FOR).await;
    }
    let answered = answer_to(&asked);
    counts.under_way.fetch_sub(1, Ordering::Relaxed);
    match asked["stream"] == true {
        true => in_pieces(counts, &answered.0),
        false => answered.into_response(),
    }
}

/// Counts as hanging until it is dropped, with its answer or because it has gone.
struct HungCaller(Arc<Counts>);

impl HungCaller {
    fn of(counts: &Arc<Counts>) -> HungCaller {
        counts.hanging.fetch_add(1, Ordering::Relaxed);
        HungCaller(Arc::clone(counts))
    }
}

impl Drop for HungCaller {
    fn drop(&mut self) {
        self.0.hanging.fetch_sub(1, Ordering::Relaxed);
    }
}

/// The words of an answer one by one; all but the first come once they are let go.
fn in_pieces(counts: Arc<Counts>, answered: &Value) -> Response {
    let choice = &answered["choices"][0];
    let delta = |delta: Value| json!({ "choices": [{ "index": 0, "delta": delta }] }).to_string();
    let words = choice["message"]["content"].as_str().unwrap_or_default().split_inclusive(' ');
    let mut events: Vec<String> = words.map(|word| delta(json!({ "role": "assistant", "content": word }))).collect();
    let calls = choice["message"]["tool_calls"].as_array().into_iter().flatten().cloned().enumerate();
    events.extend(calls.map(|(index, mut call)| {
        call["index"] = json!(index);
        delta(json!({ "role": "assistant", "tool_calls": [call] }))
    }));
    let end = json!({ "index": 0, "delta": {}, "finish_reason": choice["finish_reason"] });
    events.push(json!({ "choices": [end] }).to_string());
    events.push(json!({ "choices": [], "usage": answered["usage"] }).to_string());
    events.push("[DONE]".into());
    let told = futures::stream::iter(events.into_iter().enumerate()).then(move |(number, data)| {
        let counts = Arc::clone(&counts);
        async move {
            if number == 1 {
                counts.goes_on.notified().await;
            }
            Ok::<_, Infallible>(Event::default().data(data))
        }
    });
    Sse::new(told).into_response()
}

fn answer_to(asked: &Value) -> Json<Value> {
    if let Some(material) = material_of(asked) {
        let content = json!({ "facts": extracted(material) }).to_string();
        return Json(json!({ "choices": [answer(content)], "usage": { "prompt_tokens": 10, "completion_tokens": 2 } }));
    }
    let messages = asked["messages"].as_array().cloned().unwrap_or_default();
    let spoken = messages.iter().filter(|message| message["role"] == "user" || message["role"] == "assistant").count();
    let last = messages.last().cloned().unwrap_or_default();
    let said = last["content"].as_str().unwrap_or_default();
    let is_called = messages
        .first()
        .and_then(|first| first["content"].as_str())
        .is_some_and(|text| text.contains("You book flights."));
    let asked_agent = messages.iter().any(|message| message["tool_calls"][0]["function"]["name"] == "FlightAgent");
    let is_endless = |message: &Value| {
        message["role"] == "user" && message["content"].as_str().is_some_and(|text| text.contains("for ever"))
    };
    let choice = match last["role"].as_str() {
        _ if messages.iter().any(is_endless) => match asked["tool_choice"] == "none" {
            true => answer("As far as I came.".into()),
            false => calling(&[("current_time", json!({}))]),
        },
        Some("tool") if said.contains("noted_as") || said.contains("deleted") => answer("noted".into()),
        Some("tool") if is_called => answer("your flight is booked".into()),
        Some("tool") if asked_agent => answer(format!("agent: {said}")),
        Some("tool") if said.contains("seat") || said.contains("answer") => answer(format!("told: {said}")),
        Some("tool") => answer("paid".into()),
        _ if said.contains("remember. ") => calling(&[("remember", noted(said))]),
        _ if said.contains("forget: ") => {
            let id = said.split_once("forget: ").map(|(_, id)| id.trim()).unwrap_or_default();
            calling(&[("forget", json!({ "id": id }))])
        }
        _ if said.contains("you know") => answer(known(&messages)),
        _ if is_called || said.contains("pay") => calling(&[("pay", json!({}))]),
        _ if said.contains("flight") => calling(&[("FlightAgent", json!({ "origin": "SFO" }))]),
        _ if said.contains("ask me where") => calling(&[("ask_user", json!({ "question": "Where is that?" }))]),
        _ if said.contains("ask me twice") => calling(&[
            ("ask_user", json!({ "question": "Window or aisle?", "options": ["window", "aisle"] })),
            ("ask_user", json!({ "question": "How many bags?" })),
        ]),
        _ if said.contains("ask me, and hold") => calling(&[
            ("ask_user", json!({ "question": "Window or aisle?", "options": ["window", "aisle"] })),
            ("hold", json!({ "seat": "12A" })),
        ]),
        _ if said.contains("two seats") => {
            calling(&[("hold", json!({ "seat": "1A" })), ("hold", json!({ "seat": "1B" }))])
        }
        _ if said.contains("hold") => calling(&[("hold", json!({ "seat": "12A" }))]),
        _ if said.contains("ask me") => {
            calling(&[("ask_user", json!({ "question": "Window or aisle?", "options": ["window", "aisle"] }))])
        }
        _ => answer(format!("{spoken}: {said}")),
    };
    Json(json!({ "choices": [choice], "usage": { "prompt_tokens": 10, "completion_tokens": 2 } }))
}

/// The fact in the next sentence, and behind a bar the one in whose place it is noted.
fn noted(said: &str) -> Value {
    let asked = said.split_once("remember. ").map(|(_, fact)| fact.lines().next().unwrap_or(fact)).unwrap_or_default();
    match asked.split_once(" | ") {
        Some((text, replaces)) => json!({ "text": text, "replaces": replaces }),
        None => json!({ "text": asked.trim_end_matches(['"', '}']) }),
    }
}

/// The part of a question that facts are to be extracted from; `None`: it asks for something else.
fn material_of(asked: &Value) -> Option<&str> {
    let system = asked["messages"][0]["content"].as_str()?;
    system.starts_with("You note lasting facts").then(|| asked["messages"][1]["content"].as_str())?
}

/// Each sentence about a place to live in is a fact, in the place of the known one about another place.
fn extracted(material: &str) -> Vec<Value> {
    let (said, known) = material.split_once("known facts").unwrap_or((material, ""));
    let is_about_a_place = |text: &str| text.contains("live in") || text.contains("a flat");
    let replaced = known.lines().find_map(|line| line.split_once(". ").filter(|(_, text)| is_about_a_place(text)));
    let begin = |sentence: &str| sentence.find("I live in").or_else(|| sentence.find("My home is"));
    let places = said.split(['.', '\n']).filter_map(|sentence| begin(sentence).map(|at| &sentence[at..]));
    let number = replaced.and_then(|(number, _)| number.parse::<usize>().ok());
    let fact = |sentence: &str| json!({ "text": format!("{}.", sentence.trim()), "replaces": number });
    places.map(fact).collect()
}

/// The part of the instructions that tells of facts.
fn known(messages: &[Value]) -> String {
    let system = messages.first().and_then(|first| first["content"].as_str()).unwrap_or_default();
    let begins = system.find("Noted ").unwrap_or(system.len());
    format!("I know: {}", &system[begins..])
}

fn answer(text: String) -> Value {
    json!({ "index": 0, "message": { "role": "assistant", "content": text }, "finish_reason": "stop" })
}

fn calling(calls: &[(&str, Value)]) -> Value {
    let call = |(number, (name, arguments)): (usize, &(&str, Value))| {
        let function = json!({ "name": name, "arguments": arguments.to_string() });
        json!({ "id": format!("call_{number}"), "type": "function", "function": function })
    };
    let calls: Vec<Value> = calls.iter().enumerate().map(call).collect();
    let message = json!({ "role": "assistant", "content": null, "tool_calls": calls });
    json!({ "index": 0, "message": message, "finish_reason": "tool_calls" })
}

async fn hold(State(counts): State<Arc<Counts>>, Json(asked): Json<Value>) -> Json<Value> {
    let seat = asked["seat"].as_str().unwrap_or_default().to_owned();
    counts.held.lock().unwrap().push(seat.clone());
    Json(json!({ "seat": seat }))
}

/// A text about a vehicle points one way, one about a home another way, and each other text a third. One that is
/// unwelcome is refused, with those that come with it.
async fn embed(State(counts): State<Arc<Counts>>, Json(asked): Json<Value>) -> Result<Json<Value>, StatusCode> {
    counts.embedded.fetch_add(1, Ordering::Relaxed);
    if counts.embeds_nothing.load(Ordering::Relaxed) {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let texts = asked["input"].as_array().ok_or(StatusCode::BAD_REQUEST)?;
    if texts.iter().any(|text| text.as_str().is_some_and(|text| text.contains("unwelcome"))) {
        return Err(StatusCode::BAD_REQUEST);
    }
    if texts.iter().any(|text| text.as_str().is_some_and(|text| text.contains("unlucky"))) {
        return Err(StatusCode::INTERNAL_SERVER_ERROR);
    }
    let vector = |text: &Value| {
        let text = text.as_str().unwrap_or_default().to_lowercase();
        let is_about = |words: &[&str]| f32::from(u8::from(words.iter().any(|word| text.contains(word))));
        let (vehicle, home) = (is_about(&["car", "automobile", "bicycle"]), is_about(&["home", "flat"]));
        json!([vehicle, home, if vehicle + home > 0.0 { 0.1 } else { 1.0 }])
    };
    let data: Vec<Value> =
        texts.iter().enumerate().map(|(index, text)| json!({ "index": index, "embedding": vector(text) })).collect();
    Ok(Json(json!({ "data": data, "model": "talking", "usage": { "prompt_tokens": 1, "total_tokens": 1 } })))
}

async fn pay(State(counts): State<Arc<Counts>>) -> Json<Value> {
    counts.paid.fetch_add(1, Ordering::Relaxed);
    Json(json!({ "done": true }))
}
