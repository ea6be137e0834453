//! Requests of a server, put together into one question with a form and pages.

use std::collections::{BTreeMap, BTreeSet};

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{ElicitRequestParams, ElicitationSchema, InputRequest, InputRequiredResult};
use serde_json::{Map, Value, json};
use url::{Host, Url};

use crate::base::json::schema::JsonSchema;
use crate::base::unicode_safety::{escape_hidden, on_one_line};
use crate::domain::approval::proposal::canonical_hash;
use crate::domain::approval::server_question::ROUNDS;
use crate::domain::approval::{
    CallContinuation, Continuation, ContinuationKind, InputForm, PartField, PartMode, QuestionPart, ServerQuestion,
};
use crate::ports::tool::NeededInput;
use crate::ports::tool::mcp::input::Asked;
use crate::ports::tool::mcp::input::schema::{self, FIELD_NAME_BYTES, FIELDS, is_plain};
use crate::ports::tool::mcp::input::secrets::asked_secret;

/// Most requests of a question.
pub const REQUESTS: usize = 8;
/// Longest key of a request, in bytes.
pub const KEY_BYTES: usize = 128;
/// Longest opaque text of a server, in bytes.
pub const STATE_BYTES: usize = 32_768;
/// Longest message of a request, in characters.
pub const QUESTION_CHARS: usize = 2_000;
/// Longest address of a page, in bytes.
pub const URL_BYTES: usize = 2_048;
/// Longest question of the form, in characters: the whole message stands in its part.
const SUMMARY_CHARS: usize = 300;

/// By which a request is known again: the answer to it lies ready when the server asks once more. The query of an
/// address may be another each time. Of texts that are too long to be asked only the beginning counts.
pub fn asked_key(asked: &ElicitRequestParams) -> String {
    let identity = match asked {
        ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
            json!({ "mode": "form", "message": known_by(message), "schema": requested_schema })
        }
        ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
            let bare = url.split(['?', '#']).next().unwrap_or_default();
            // beyond this it is refused, even where its last character is cut
            let bare = &bare[..bare.floor_char_boundary(URL_BYTES + 4)];
            json!({ "mode": "url", "message": known_by(message), "url": bare })
        }
        _ => json!({ "mode": "unknown" }),
    };
    canonical_hash(&identity)
}

/// The whole of a message that may be asked, and the beginning of one that is too long for it. A line may end in two
/// characters, of which one is counted.
fn known_by(message: &str) -> &str {
    let message = message.trim();
    match message.char_indices().nth(2 * QUESTION_CHARS + 1) {
        Some((end, _)) => &message[..end],
        None => message,
    }
}

/// Reads a question; `before`: the answer with which the call went on already.
///
/// # Errors
/// Why it can't be put to a person, in a clause.
pub fn question(asked: Asked, server: &str, before: Option<&CallContinuation>) -> Result<NeededInput, String> {
    let round = before.map_or(1, |before| before.question.continuation.round.saturating_add(1));
    if round > ROUNDS {
        return Err(format!("it has asked {ROUNDS} times in this call"));
    }
    let is_by_error = matches!(asked, Asked::UrlRequired(_));
    let AskedRequests { kind, requests, state } = AskedRequests::of(asked)?;
    if is_by_error && requests.iter().any(|(key, _)| was_declined(before, key)) {
        return Err("they have declined already to go to its page".to_owned());
    }
    let (parts, parameters) = QuestionForm::of(requests, kind)?.finish()?;
    let continuation = Continuation {
        kind,
        round,
        request_state: state.map(|state| STANDARD.encode(state)),
        answered: answered(kind, before),
    };
    let question = ServerQuestion { server: server.to_owned(), parts, continuation };
    Ok(NeededInput { form: form(&question, parameters), question })
}

/// The answers of earlier rounds, of a call that is repeated with them.
fn answered(kind: ContinuationKind, before: Option<&CallContinuation>) -> BTreeMap<String, Value> {
    let repeated = before.filter(|before| {
        kind == ContinuationKind::Repeat && before.question.continuation.kind == ContinuationKind::Repeat
    });
    repeated.map_or_else(BTreeMap::new, CallContinuation::all_responses)
}

/// Whether a person has said no to this request of a call that was repeated. A server that asks by an error is never
/// told so, and would have the person asked in each round.
fn was_declined(before: Option<&CallContinuation>, key: &str) -> bool {
    let repeated = before.filter(|before| before.question.continuation.kind == ContinuationKind::Repeat);
    repeated
        .is_some_and(|before| before.all_responses().get(key).is_some_and(|response| response["action"] == "decline"))
}

/// Requests with their keys.
struct AskedRequests {
    kind: ContinuationKind,
    requests: Vec<(String, ElicitRequestParams)>,
    state: Option<String>,
}

impl AskedRequests {
    fn of(asked: Asked) -> Result<AskedRequests, String> {
        let asked = match asked {
            Asked::Result(result) => AskedRequests::of_result(result)?,
            Asked::UrlRequired(data) => AskedRequests::repeated(pages_of(data)?),
            Asked::Live(asked) => AskedRequests::repeated(asked),
        };
        match asked.requests.len() {
            0 => Err("it does not say what it asks for".to_owned()),
            1..=REQUESTS => Ok(asked),
            _ => Err(format!("it asks for more than {REQUESTS} things at once")),
        }
    }

    fn of_result(result: InputRequiredResult) -> Result<AskedRequests, String> {
        let state = result.request_state;
        if state.as_ref().is_some_and(|state| state.len() > STATE_BYTES) {
            return Err(format!("its `requestState` has more than {STATE_BYTES} bytes"));
        }
        let requests = result.input_requests.unwrap_or_default().into_iter().map(|(key, request)| {
            if key.len() > KEY_BYTES || !is_plain(&key) {
                return Err(format!("a key of its requests has more than {KEY_BYTES} bytes, or a hidden character"));
            }
            match request {
                InputRequest::Elicitation(request) => Ok((key, request.params)),
                InputRequest::CreateMessage(_) => Err("it asks for the answer of a model (sampling)".to_owned()),
                InputRequest::ListRoots(_) => Err("it asks for files of this machine (roots)".to_owned()),
                _ => Err("it asks for what is not known here".to_owned()),
            }
        });
        let requests = requests.collect::<Result<_, String>>()?;
        Ok(AskedRequests { kind: ContinuationKind::Continue, requests, state })
    }

    /// Requests of a call that is repeated once they are answered; one that was made twice is one.
    fn repeated(asked: Vec<ElicitRequestParams>) -> AskedRequests {
        let mut requests: Vec<(String, ElicitRequestParams)> = Vec::new();
        for asked in asked {
            let key = asked_key(&asked);
            let is_there =
                |(earlier, of): &(String, ElicitRequestParams)| *earlier == key && page_of(of) == page_of(&asked);
            if !requests.iter().any(is_there) {
                requests.push((key, asked));
            }
        }
        AskedRequests { kind: ContinuationKind::Repeat, requests, state: None }
    }
}

/// The pages that the error -32042 names.
fn pages_of(data: Option<Value>) -> Result<Vec<ElicitRequestParams>, String> {
    let Some(Value::Array(listed)) = data.and_then(|mut data| Some(data.get_mut("elicitations")?.take())) else {
        return Ok(Vec::new());
    };
    let read = |page| match serde_json::from_value(page) {
        Ok(page @ ElicitRequestParams::UrlElicitationParams { .. }) => Ok(page),
        _ => Err("it names a page that can't be read".to_owned()),
    };
    listed.into_iter().map(read).collect()
}

fn page_of(asked: &ElicitRequestParams) -> Option<&str> {
    match asked {
        ElicitRequestParams::UrlElicitationParams { url, .. } => Some(url),
        _ => None,
    }
}

/// The parts of a question while they are read, with the fields of all of them together.
#[derive(Default)]
struct QuestionForm {
    parts: Vec<QuestionPart>,
    properties: Map<String, Value>,
    required: Vec<String>,
}

impl QuestionForm {
    fn of(requests: Vec<(String, ElicitRequestParams)>, kind: ContinuationKind) -> Result<QuestionForm, String> {
        let shared = shared_names(&requests);
        let mut form = QuestionForm::default();
        for (number, (key, request)) in requests.into_iter().enumerate() {
            // the key of a request that is known again is a hash, which tells a person nothing
            let prefix = match kind {
                ContinuationKind::Continue => key.clone(),
                ContinuationKind::Repeat => (number + 1).to_string(),
            };
            let (message, mode) = match request {
                ElicitRequestParams::FormElicitationParams { message, requested_schema, .. } => {
                    let message = sound_message(&message)?;
                    let named = |field: &str| match shared.contains(field) {
                        true => format!("{prefix}.{field}"),
                        false => field.to_owned(),
                    };
                    let mode = form.add(&message, &requested_schema, named)?;
                    (message, mode)
                }
                ElicitRequestParams::UrlElicitationParams { message, url, .. } => {
                    (sound_message(&message)?, page(&url)?)
                }
                _ => return Err("it asks in a way that is not known here".to_owned()),
            };
            form.parts.push(QuestionPart { key, message, mode });
        }
        Ok(form)
    }

    /// Adds the fields of a form, each under its name in the form of all.
    fn add(
        &mut self,
        message: &str,
        asked: &ElicitationSchema,
        named: impl Fn(&str) -> String,
    ) -> Result<PartMode, String> {
        let mut fields = Vec::with_capacity(asked.properties.len());
        for field in order(asked) {
            let Some(definition) = asked.properties.get(field) else { continue };
            if field.is_empty() || field.len() > FIELD_NAME_BYTES || !is_plain(field) {
                return Err(format!(
                    "the name of a field must have 1 to {FIELD_NAME_BYTES} bytes, and no hidden character"
                ));
            }
            let definition = serde_json::to_value(definition).map_err(|error| error.to_string())?;
            let schema = schema::field(&definition).map_err(|why| format!("its field `{field}` {why}"))?;
            if let Some(secret) = asked_secret(message, &json!({ "properties": { field: schema } })) {
                return Err(format!(
                    "it asks for a secret (`{secret}`) in a form; secrets are never asked for like that: the server \
                     has to send the person to a page of its own (URL mode)"
                ));
            }
            let name = named(field);
            if asked.required.iter().flatten().any(|required| required == field) {
                self.required.push(name.clone());
            }
            if self.properties.insert(name.clone(), schema).is_some() {
                return Err(format!("two of its fields are called `{name}`"));
            }
            if self.properties.len() > FIELDS {
                return Err(format!("it asks for more than {FIELDS} fields"));
            }
            fields.push(PartField { name, field: field.to_owned() });
        }
        Ok(PartMode::Form { fields })
    }

    /// The parts, and the schema of the form.
    fn finish(self) -> Result<(Vec<QuestionPart>, Value), String> {
        let parameters = json!({
            "type": "object",
            "properties": self.properties,
            "required": self.required,
            "additionalProperties": false,
        });
        JsonSchema::read(&parameters).map_err(|why| format!("the schema of its form {why}"))?;
        Ok((self.parts, parameters))
    }
}

/// Names of fields that more than one form has.
fn shared_names(requests: &[(String, ElicitRequestParams)]) -> BTreeSet<String> {
    let mut seen = BTreeSet::new();
    let mut shared = BTreeSet::new();
    for (_, request) in requests {
        if let ElicitRequestParams::FormElicitationParams { requested_schema, .. } = request {
            let again = requested_schema.properties.keys().filter(|name| !seen.insert((*name).clone()));
            shared.extend(again.cloned());
        }
    }
    shared
}

/// The names of the fields, in the server's order.
fn order(asked: &ElicitationSchema) -> Vec<&str> {
    match &asked.property_order {
        Some(order) => order.iter().map(String::as_str).collect(),
        None => asked.properties.keys().map(String::as_str).collect(),
    }
}

/// A message that reads as it looks.
fn sound_message(message: &str) -> Result<String, String> {
    let message = escape_hidden(&message.trim().replace("\r\n", "\n"));
    match message.chars().count() <= QUESTION_CHARS {
        true => Ok(message),
        false => Err(format!("its message has more than {QUESTION_CHARS} characters")),
    }
}

/// A page that a person may be sent to: nothing is fetched from it.
fn page(written: &str) -> Result<PartMode, String> {
    let too_long = || format!("its address has more than {URL_BYTES} bytes");
    if written.len() > URL_BYTES {
        return Err(too_long());
    }
    let url = Url::parse(written).map_err(|_| "its address is none".to_owned())?;
    if url.as_str().len() > URL_BYTES {
        return Err(too_long());
    }
    let is_fit = match url.scheme() {
        "https" => true,
        "http" => is_loopback(&url),
        _ => false,
    };
    let Some(host) = url.host_str().filter(|_| is_fit) else {
        return Err("its address is none of https".to_owned());
    };
    if !url.username().is_empty() || url.password().is_some() {
        return Err("its address holds a name or a password".to_owned());
    }
    let host = match url.port() {
        Some(port) => format!("{host}:{port}"),
        None => host.to_owned(),
    };
    Ok(PartMode::Url { url: url.into(), host })
}

fn is_loopback(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost",
        Some(Host::Ipv4(address)) => address.is_loopback(),
        Some(Host::Ipv6(address)) => address.is_loopback(),
        None => false,
    }
}

/// The form of a question: its first message asks, and the others stand below.
fn form(question: &ServerQuestion, parameters: Value) -> InputForm {
    let mut messages = question.parts.iter().map(|part| on_one_line(&part.message)).filter(|line| !line.is_empty());
    let first = messages.next().unwrap_or_else(|| "An answer is needed.".to_owned());
    let description = messages.collect::<Vec<_>>().join("\n");
    InputForm { question: shortened(first), description, parameters, values: json!({}), lacks: Vec::new() }
}

fn shortened(line: String) -> String {
    match line.chars().count() > SUMMARY_CHARS {
        true => line.chars().take(SUMMARY_CHARS - 1).chain(['…']).collect(),
        false => line,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::domain::approval::ServerAnswer;

    fn requests(requests: Value) -> Asked {
        let result = json!({ "resultType": "input_required", "inputRequests": requests, "requestState": "s-1" });
        Asked::Result(serde_json::from_value(result).unwrap())
    }

    fn form_of(message: &str, properties: Value) -> Value {
        json!({ "method": "elicitation/create", "params": {
            "mode": "form", "message": message,
            "requestedSchema": { "type": "object", "properties": properties },
        } })
    }

    fn page_at(url: &str) -> Value {
        json!({ "method": "elicitation/create", "params": { "mode": "url", "message": "Go there.", "url": url } })
    }

    fn live(params: Value) -> ElicitRequestParams {
        serde_json::from_value(params).unwrap()
    }

    fn live_form(message: &str, properties: Value) -> ElicitRequestParams {
        let schema = json!({ "type": "object", "properties": properties });
        live(json!({ "mode": "form", "message": message, "requestedSchema": schema }))
    }

    fn live_page(url: &str) -> ElicitRequestParams {
        live(json!({ "mode": "url", "message": "Go there.", "url": url, "elicitationId": "7" }))
    }

    fn read(asked: Asked) -> NeededInput {
        question(asked, "shop", None).unwrap()
    }

    fn refused(asked: Asked) -> String {
        question(asked, "shop", None).unwrap_err()
    }

    /// The answer to a question that was read.
    fn answer(needed: NeededInput) -> CallContinuation {
        CallContinuation { question: needed.question, answer: ServerAnswer::Accept(json!({ "sure": true })) }
    }

    #[test]
    fn requests_of_a_result_are_one_form_in_the_order_of_the_server() {
        // as a text: the fields are in no other order than the server's
        let written = r#"{
            "resultType": "input_required", "requestState": "s-1",
            "inputRequests": {
                "a": { "method": "elicitation/create", "params": { "message": "Sure?\nReally?", "requestedSchema": {
                    "type": "object", "required": ["sure", "gone"], "properties": {
                        "sure": { "type": "boolean" }, "color": { "type": "string", "enum": ["red", "green"] } } } } },
                "b": { "method": "elicitation/create", "params": {
                    "mode": "url", "message": "Go there.", "url": "https://example.org:8443/a?b=c" } }
            }
        }"#;
        let NeededInput { form, question } = read(Asked::Result(serde_json::from_str(written).unwrap()));
        assert_eq!((form.question.as_str(), form.description.as_str()), ("Sure? Really?", "Go there."));
        assert_eq!((form.values, form.lacks), (json!({}), Vec::new()));
        assert_eq!(
            form.parameters,
            json!({
                "type": "object",
                "properties": {
                    "sure": { "type": "boolean" },
                    "color": { "type": "string", "enum": ["red", "green"] },
                },
                "required": ["sure"],
                "additionalProperties": false,
            })
        );
        assert_eq!((question.server.as_str(), question.parts[0].message.as_str()), ("shop", "Sure?\nReally?"));
        assert_eq!(question.field_names().collect::<Vec<_>>(), ["sure", "color"]);
        assert_eq!(question.links().collect::<Vec<_>>(), [("https://example.org:8443/a?b=c", "example.org:8443")]);
        let keys: Vec<&str> = question.parts.iter().map(|part| part.key.as_str()).collect();
        assert_eq!(keys, ["a", "b"]);
        let Continuation { kind, round, request_state, answered } = question.continuation;
        assert_eq!((kind, round, answered.len()), (ContinuationKind::Continue, 1, 0));
        assert_eq!(request_state, Some(STANDARD.encode("s-1")));
    }

    #[test]
    fn field_that_two_parts_have_is_told_apart_by_the_key() {
        let one = || form_of("Which?", json!({ "age": { "type": "integer" }, "name": { "type": "string" } }));
        let two = form_of("And?", json!({ "name": { "type": "string" } }));
        let NeededInput { form, question } = read(requests(json!({ "a": one(), "b": two.clone() })));
        assert_eq!(question.field_names().collect::<Vec<_>>(), ["age", "a.name", "b.name"]);
        let answer = ServerAnswer::Accept(json!({ "a.name": "ann", "b.name": "bob", "age": 3 }));
        let continued = CallContinuation { question, answer };
        assert_eq!(
            json!(continued.responses()),
            json!({
                "a": { "action": "accept", "content": { "name": "ann", "age": 3 } },
                "b": { "action": "accept", "content": { "name": "bob" } },
            })
        );
        assert_eq!(form.parameters["properties"].as_object().unwrap().len(), 3);
        let asked = vec![
            live_form("Which?", json!({ "name": { "type": "string" } })),
            live_form("And?", json!({ "name": { "type": "string" } })),
        ];
        let live = read(Asked::Live(asked)).question;
        assert_eq!(live.field_names().collect::<Vec<_>>(), ["1.name", "2.name"], "hashes tell a person nothing");
        let clash = form_of("Which?", json!({ "a.name": { "type": "string" } }));
        assert_eq!(
            refused(requests(json!({ "a": one(), "b": two, "c": clash }))),
            "two of its fields are called `a.name`"
        );
    }

    #[test]
    fn question_is_taken_at_each_bound_and_refused_one_beyond_it() {
        let pages = |count: usize| {
            let page = |n: usize| (format!("k{n}"), page_at("https://example.org"));
            requests(Value::Object((0..count).map(page).collect()))
        };
        read(pages(REQUESTS));
        assert_eq!(refused(pages(REQUESTS + 1)), "it asks for more than 8 things at once");
        let keyed = |key: String| requests(Value::Object(Map::from_iter([(key, page_at("https://example.org"))])));
        read(keyed("k".repeat(KEY_BYTES)));
        let why = "a key of its requests has more than 128 bytes, or a hidden character";
        assert_eq!(refused(keyed("k".repeat(KEY_BYTES + 1))), why);
        assert_eq!(refused(keyed("k\0".to_owned())), why);
        assert_eq!(refused(keyed("k\u{200b}".to_owned())), why);
        let told = |chars: usize| requests(json!({ "a": form_of(&"é".repeat(chars), json!({})) }));
        assert_eq!(read(told(QUESTION_CHARS)).form.question.chars().count(), SUMMARY_CHARS);
        assert_eq!(refused(told(QUESTION_CHARS + 1)), "its message has more than 2000 characters");
        let fields = |count: usize, length: usize| {
            let field = |n: usize| (format!("{n:0length$}"), json!({ "type": "boolean" }));
            requests(json!({ "a": form_of("Which?", Value::Object((0..count).map(field).collect())) }))
        };
        read(fields(FIELDS, FIELD_NAME_BYTES));
        assert_eq!(refused(fields(FIELDS + 1, 3)), "it asks for more than 32 fields");
        assert_eq!(
            refused(fields(1, FIELD_NAME_BYTES + 1)),
            "the name of a field must have 1 to 64 bytes, and no hidden character"
        );
        let hidden = requests(json!({ "a": form_of("Which?", json!({ "a\u{202e}b": { "type": "boolean" } })) }));
        assert!(refused(hidden).contains("no hidden character"));
    }

    #[test]
    fn state_is_taken_at_its_longest_and_kept_whole() {
        let with_state = |state: String| {
            Asked::Result(InputRequiredResult::new(
                Some(BTreeMap::from([(
                    "a".to_owned(),
                    serde_json::from_value(page_at("https://example.org")).unwrap(),
                )])),
                Some(state),
            ))
        };
        let state = "\0".repeat(STATE_BYTES);
        assert_eq!(read(with_state(state.clone())).question.request_state(), Some(state.clone()));
        assert_eq!(refused(with_state(state + "a")), "its `requestState` has more than 32768 bytes");
    }

    #[test]
    fn hidden_characters_of_a_message_are_shown() {
        let needed = read(requests(json!({ "a": form_of("pay\u{202e}gnp", json!({})) })));
        assert_eq!(needed.question.parts[0].message, "pay⟦U+202E⟧gnp");
        assert_eq!(needed.form.question, "pay⟦U+202E⟧gnp");
        let silent = read(requests(json!({ "a": form_of(" ", json!({})) })));
        assert_eq!(silent.form.question, "An answer is needed.");
    }

    #[test]
    fn page_has_an_address_of_https_or_of_the_loopback_and_holds_no_name() {
        let at = |url: &str| question(requests(json!({ "a": page_at(url) })), "shop", None);
        for (url, kept, host) in [
            ("https://example.org", "https://example.org/", "example.org"),
            ("https://EXAMPLE.org:443/a#b", "https://example.org/a#b", "example.org"),
            ("https://bücher.example/a", "https://xn--bcher-kva.example/a", "xn--bcher-kva.example"),
            ("http://localhost:8080/a", "http://localhost:8080/a", "localhost:8080"),
            ("http://127.0.0.1/a", "http://127.0.0.1/a", "127.0.0.1"),
            ("http://[::1]:8080/", "http://[::1]:8080/", "[::1]:8080"),
        ] {
            let needed = at(url).unwrap();
            assert_eq!(needed.question.links().collect::<Vec<_>>(), [(kept, host)], "{url}");
        }
        for (url, why) in [
            ("http://example.org", "its address is none of https"),
            ("http://localhost.example.org", "its address is none of https"),
            ("javascript:alert(1)", "its address is none of https"),
            ("data:text/html,a", "its address is none of https"),
            ("file:///etc/passwd", "its address is none of https"),
            ("https://ann@example.org", "its address holds a name or a password"),
            ("https://example.org@evil.example", "its address holds a name or a password"),
            ("https://:b@example.org", "its address holds a name or a password"),
            ("example.org", "its address is none"),
            ("", "its address is none"),
        ] {
            assert_eq!(at(url).unwrap_err(), why, "{url}");
        }
        let long = |bytes: usize| format!("https://example.org/{}", "a".repeat(bytes - "https://example.org/".len()));
        at(&long(URL_BYTES)).unwrap();
        let too_long = "its address has more than 2048 bytes";
        assert_eq!(at(&long(URL_BYTES + 1)).unwrap_err(), too_long);
        let grows = format!("https://example.org/{}", "é".repeat(1_000));
        assert_eq!(at(&grows).unwrap_err(), too_long, "as it is kept");
    }

    #[test]
    fn requests_that_only_a_model_or_a_machine_could_answer_are_refused() {
        let sampling = json!({ "method": "sampling/createMessage", "params": {
            "messages": [{ "role": "user", "content": { "type": "text", "text": "Hello" } }], "maxTokens": 10,
        } });
        assert_eq!(refused(requests(json!({ "a": sampling }))), "it asks for the answer of a model (sampling)");
        let roots = json!({ "method": "roots/list" });
        assert_eq!(refused(requests(json!({ "a": roots }))), "it asks for files of this machine (roots)");
    }

    #[test]
    fn secret_is_asked_for_in_no_form() {
        let asked = form_of("Log in.", json!({ "password": { "type": "string" } }));
        let why = refused(requests(json!({ "a": asked })));
        assert!(why.starts_with("it asks for a secret (`password`) in a form") && why.contains("URL mode"), "{why}");
        let field = form_of("Which?", json!({ "a": { "type": "string", "minLength": 3, "maxLength": 2 } }));
        assert_eq!(refused(requests(json!({ "a": field }))), "its field `a` takes no text of up to 2 characters");
    }

    #[test]
    fn question_in_mid_call_is_put_once_and_is_known_again_by_its_key() {
        let sure = || live_form("Sure?", json!({ "sure": { "type": "boolean" } }));
        let asked =
            vec![sure(), live_page("https://example.org/a?id=1"), sure(), live_page("https://example.org/a?id=2")];
        let keys: Vec<String> = asked.iter().map(asked_key).collect();
        assert_eq!((&keys[0], &keys[1]), (&keys[2], &keys[3]), "an id is another one each time");
        assert!(keys[0] != keys[1] && keys[0] != asked_key(&live_form("Sure?", json!({}))));
        assert_ne!(keys[1], asked_key(&live_page("https://example.org/b")));
        let of = |message: &str| asked_key(&live_form(message, json!({})));
        let longest = "\r\n".repeat(QUESTION_CHARS - 1);
        assert_ne!(of(&format!("a{longest}b")), of(&format!("a{longest}c")), "the whole of what may be asked counts");
        let long = "x".repeat(2 * QUESTION_CHARS + 1);
        assert_eq!(of(&format!("{long}b")), of(&format!("{long}c")), "no more is hashed of what is never asked");
        let question = read(Asked::Live(asked)).question;
        let parts: Vec<&String> = question.parts.iter().map(|part| &part.key).collect();
        assert_eq!(parts, [&keys[0], &keys[1], &keys[3]], "two pages are two");
        assert_eq!(question.continuation.kind, ContinuationKind::Repeat);
        assert_eq!(question.continuation.request_state, None);
    }

    #[test]
    fn pages_that_an_error_names_are_put_and_anything_else_that_it_names_is_refused() {
        let page = json!({ "mode": "url", "message": "Go.", "url": "https://example.org/a", "elicitationId": "7" });
        let needed = read(Asked::UrlRequired(Some(json!({ "elicitations": [page] }))));
        assert_eq!(needed.question.continuation.kind, ContinuationKind::Repeat);
        assert_eq!(needed.question.links().collect::<Vec<_>>(), [("https://example.org/a", "example.org")]);
        assert_eq!(needed.form.parameters["properties"], json!({}));
        let form =
            json!({ "mode": "form", "message": "Go.", "requestedSchema": { "type": "object", "properties": {} } });
        for (data, why) in [
            (None, "it does not say what it asks for"),
            (Some(json!({ "elicitations": [] })), "it does not say what it asks for"),
            (Some(json!({ "elicitations": [form] })), "it names a page that can't be read"),
            (Some(json!({ "elicitations": [7] })), "it names a page that can't be read"),
        ] {
            assert_eq!(refused(Asked::UrlRequired(data)), why);
        }
    }

    #[test]
    fn page_that_an_error_names_again_is_put_to_nobody_who_has_declined() {
        let required = |id: &str| {
            let url = format!("https://example.org/a?id={id}");
            let page = json!({ "mode": "url", "message": "Go.", "url": url, "elicitationId": id });
            Asked::UrlRequired(Some(json!({ "elicitations": [page] })))
        };
        let mut before = answer(read(required("1")));
        let again = |before: &CallContinuation| question(required("2"), "shop", Some(before));
        assert_eq!(again(&before).unwrap().question.continuation.round, 2, "who was there may have to go once more");
        before.answer = ServerAnswer::Decline;
        assert_eq!(again(&before).unwrap_err(), "they have declined already to go to its page");
        let other = json!({ "mode": "url", "message": "Go.", "url": "https://example.org/b", "elicitationId": "3" });
        let other = Asked::UrlRequired(Some(json!({ "elicitations": [other] })));
        assert_eq!(question(other, "shop", Some(&before)).unwrap().question.continuation.round, 2);
    }

    #[test]
    fn answers_of_earlier_rounds_are_kept_where_the_call_is_repeated_and_rounds_have_an_end() {
        let first = read(Asked::Live(vec![live_form("Sure?", json!({ "sure": { "type": "boolean" } }))]));
        let key = first.question.parts[0].key.clone();
        let mut before = answer(first);
        let again = |before: &CallContinuation| {
            question(Asked::Live(vec![live_page("https://example.org")]), "shop", Some(before))
        };
        let second = again(&before).unwrap().question.continuation;
        assert_eq!((second.round, second.kind), (2, ContinuationKind::Repeat));
        let accepted = json!({ "action": "accept", "content": { "sure": true } });
        assert_eq!(second.answered, BTreeMap::from([(key, accepted)]));
        let resumed =
            question(requests(json!({ "a": page_at("https://example.org") })), "shop", Some(&before)).unwrap();
        assert_eq!(resumed.question.continuation.answered, BTreeMap::new(), "the state holds them");
        before.question.continuation.round = ROUNDS - 1;
        assert_eq!(again(&before).unwrap().question.continuation.round, ROUNDS);
        before.question.continuation.round = ROUNDS;
        assert_eq!(again(&before).unwrap_err(), "it has asked 5 times in this call");
    }
}
