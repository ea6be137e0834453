//! The published document as a judge: every answer is one that it promises, and every request that was taken is one
//! that it describes.
//!
//! Fields that an answer has and the document has not are faults here, though clients may not be bothered by them. The
//! events of a stream are held one by one, as they are read.

use std::collections::HashMap;
use std::sync::{Arc, LazyLock, Mutex};

use jsonschema::Validator;
use reqwest::RequestBuilder;
use reqwest::header::HeaderMap;
use serde_json::{Value, json};
use url::Position;

use super::sse::{EVENT_STREAM, events_of};

/// The document that all tests of a process hold to.
pub fn reference() -> &'static Reference {
    static REFERENCE: LazyLock<Reference> = LazyLock::new(Reference::read);
    &REFERENCE
}

/// A request and its answer.
pub struct Exchange<'a> {
    pub method: &'a str,
    /// With its query.
    pub path: &'a str,
    /// The media type of the request, and its body where it is JSON.
    pub sent: Option<(&'a str, &'a Value)>,
    pub status: u16,
    /// The media type of an answer that is JSON or a stream, and its body where it is JSON.
    pub answered: Option<(&'a str, &'a Value)>,
}

/// Whether an answer of this media type is held against the document.
pub fn is_held(kind: &str) -> bool {
    kind.contains("json") || plain(kind) == EVENT_STREAM
}

/// Sends a request; it and its answer are held against the document. The status and the text of the answer.
pub async fn exchanged(request: RequestBuilder) -> (u16, String) {
    let (client, request) = request.build_split();
    let request = request.expect("a request");
    let (method, path) = (request.method().to_string(), request.url()[Position::BeforePath..].to_owned());
    let sent_kind = media_type(request.headers());
    let sent = request.body().and_then(|body| body.as_bytes());
    let sent: Option<Value> = sent.and_then(|bytes| serde_json::from_slice(bytes).ok());
    let answer = client.execute(request).await.expect("an answer");
    let (status, kind) = (answer.status().as_u16(), media_type(answer.headers()));
    let text = answer.text().await.expect("a body");
    let answered = serde_json::from_str(&text).unwrap_or(Value::Null);
    reference().hold(&Exchange {
        method: &method,
        path: &path,
        sent: sent.as_ref().map(|sent| (sent_kind.as_str(), sent)),
        status,
        answered: is_held(&kind).then_some((kind.as_str(), &answered)),
    });
    if plain(&kind) == EVENT_STREAM {
        events_of(&method, &path, text.as_bytes());
    }
    (status, text)
}

fn media_type(headers: &HeaderMap) -> String {
    headers.get("content-type").map_or("", |kind| kind.to_str().expect("a media type")).to_owned()
}

pub struct Reference {
    /// With the pages for people beside the API.
    pub document: Value,
    /// The document against which answers are held: its objects have no more fields than are written there.
    closed: Value,
    validators: Mutex<HashMap<String, Arc<Validator>>>,
}

impl Reference {
    fn read() -> Reference {
        let mut document = reveille::http::document();
        let pages = serde_json::to_value(reveille::http::document_of_pages()).expect("the pages are JSON");
        let pages = pages["paths"].as_object().expect("pages").clone();
        document["paths"].as_object_mut().expect("paths").extend(pages);
        let mut closed = document["components"].clone();
        close(&mut closed);
        Reference { document, closed, validators: Mutex::default() }
    }

    /// Fails where the document does not promise the answer, or does not describe the request that was taken.
    pub fn hold(&self, exchange: &Exchange) {
        let Exchange { method, path, status, .. } = *exchange;
        let (path, query) = path.split_once('?').unwrap_or((path, ""));
        let Some(template) = self.template(path) else {
            let is_elsewhere = path.starts_with("/docs") || path == "/openapi.json";
            assert!(status == 404 || is_elsewhere, "{method} {path} is not in the reference: {status}");
            return;
        };
        let operation = &self.document["paths"][&template][method.to_lowercase()];
        if operation.is_null() {
            assert_eq!(status, 405, "{method} {template} is not in the reference");
            return;
        }
        let promised = &operation["responses"][status.to_string()];
        let body = exchange.answered.map_or(&Value::Null, |(_, body)| body);
        assert!(!promised.is_null(), "{method} {template} does not promise {status}: {body}");
        if let Some((kind, body)) = exchange.answered {
            let schema = &promised["content"][plain(kind)]["schema"];
            assert!(!schema.is_null(), "{method} {template} {status} does not promise {kind}");
            // a stream may go on for long: its events are held where they are read
            if plain(kind) != EVENT_STREAM {
                let faults = self.faults(&format!("{method} {template} {status}"), schema, &self.closed, body);
                assert!(faults.is_empty(), "{method} {template} {status}: {faults:?}\n{body}");
            }
        }
        if (200..300).contains(&status) {
            self.hold_request(&format!("{method} {template}"), operation, query, exchange.sent);
        }
    }

    /// Fails where the document does not promise this event in the stream that answers a request: its name, its id, its
    /// data.
    pub fn hold_event(&self, method: &str, path: &str, event: &Value) {
        let template = self.template(path.split('?').next().unwrap_or(path)).expect("a path of the reference");
        let answer = &self.document["paths"][&template][method.to_lowercase()]["responses"]["200"];
        let schema = &answer["content"][EVENT_STREAM]["schema"]["contentSchema"]["items"];
        assert!(!schema.is_null(), "{method} {template} does not promise the events of a stream");
        let faults = self.faults(&format!("{method} {template} {EVENT_STREAM}"), schema, &self.closed, event);
        assert!(faults.is_empty(), "{method} {template}: {faults:?}\n{event}");
    }

    fn hold_request(&self, name: &str, operation: &Value, query: &str, sent: Option<(&str, &Value)>) {
        let parameters = operation["parameters"].as_array().cloned().unwrap_or_default();
        for (field, _) in url::form_urlencoded::parse(query.as_bytes()) {
            let is_known = parameters.iter().any(|one| one["in"] == "query" && one["name"] == *field);
            assert!(is_known, "{name} takes `{field}` in its query, and the reference does not have it");
        }
        let Some((kind, body)) = sent else { return };
        // the forms of CloudEvents are those of JSON
        let kind = match plain(kind) {
            "application/cloudevents+json" | "application/cloudevents-batch+json" => "application/json",
            kind => kind,
        };
        let schema = &operation["requestBody"]["content"][kind]["schema"];
        if kind == "application/json" && !schema.is_null() {
            let faults = self.faults(name, schema, &self.document["components"], body);
            assert!(faults.is_empty(), "{name} has taken what the reference forbids: {faults:?}\n{body}");
        }
    }

    fn faults(&self, name: &str, schema: &Value, components: &Value, body: &Value) -> Vec<String> {
        let make = || {
            let mut root = json!({ "allOf": [schema] });
            root["components"] = components.clone();
            Arc::new(jsonschema::validator_for(&root).expect("a schema"))
        };
        let validator =
            self.validators.lock().expect("no test has failed in here").entry(name.into()).or_insert_with(make).clone();
        validator.iter_errors(body).map(|fault| format!("{}: {fault}", fault.instance_path())).collect()
    }

    /// The path of the reference that an address belongs to.
    fn template(&self, path: &str) -> Option<String> {
        let fits = |template: &&String| {
            let (mut of, mut is) = (template.split('/'), path.split('/'));
            of.by_ref().zip(is.by_ref()).all(|(of, is)| of == is || (of.starts_with('{') && !is.is_empty()))
                && template.split('/').count() == path.split('/').count()
        };
        self.document["paths"].as_object().expect("paths").keys().find(fits).cloned()
    }
}

/// A media type without its parameters.
fn plain(kind: &str) -> &str {
    kind.split(';').next().unwrap_or_default().trim()
}

/// Closes every object that has fields and does not say whether it has others.
fn close(schema: &mut Value) {
    match schema {
        Value::Array(items) => items.iter_mut().for_each(close),
        Value::Object(fields) => {
            if fields.get("properties").is_some_and(Value::is_object) && fields.get("type") == Some(&json!("object")) {
                fields.entry("additionalProperties").or_insert(false.into());
            }
            fields.values_mut().for_each(close);
        }
        _ => {}
    }
}
