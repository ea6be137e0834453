//! The reference is locked: what changes in it changes the contract, and is seen in review.

use std::collections::BTreeMap;

use axum::body::Body;
use axum::http::{HeaderMap, Request};
use serde_json::{Value, json};

use super::service::Api;
use crate::support::reference::{Exchange, reference};
use crate::support::sse::EVENT_STREAM;

#[tokio::test]
async fn reference_is_the_one_that_was_agreed_on() {
    let api = Api::new().await;
    let served = api.send(Request::get("/openapi.json").body(Body::empty()).unwrap()).await;
    let mut document = served.expect(200);
    assert_eq!(document, serde_json::to_value(reveille::http::document()).unwrap());
    document["info"]["version"] = Value::String("[version]".into());
    insta::with_settings!({ snapshot_path => "../snapshots", prepend_module_to_snapshot => false, sort_maps => true }, {
        insta::assert_json_snapshot!("openapi", document);
    });
}

#[tokio::test]
async fn every_operation_says_what_it_is_and_what_it_needs() {
    let api = Api::new().await;
    let document = &api.reference.document;
    for (id, method, path) in api.operations() {
        let operation = &document["paths"][&path][method.to_lowercase()];
        let (verb, resource) = id.split_once('_').unwrap_or_else(|| panic!("{id} must read verb_resource"));
        assert!(!verb.is_empty() && !resource.is_empty());
        assert!(operation["summary"].is_string(), "{id} has no summary");
        let needs = operation["security"][0]["bearer"][0].as_str();
        // providers report at an address that only they were told
        let by_token = path.starts_with("/v1/") && id != "receive_receipt";
        assert_eq!(operation["security"][0]["bearer"].is_array(), by_token, "{id}");
        // a link to the dashboard is made with any token
        assert_eq!(needs.is_some(), by_token && id != "create_login_link", "{id} {needs:?}");
        if let Some(needs) = needs {
            assert!(reveille::base::token::Permission::parse(needs).is_some(), "{id} needs {needs}");
        }
    }
}

/// The document as it is published.
fn published() -> Value {
    serde_json::to_value(reveille::http::document()).unwrap()
}

/// Each operation of the document: method, path, and all that is said of it.
fn operations(document: &Value) -> impl Iterator<Item = (&String, &String, &Value)> {
    let paths = document["paths"].as_object().unwrap().iter();
    paths.flat_map(|(path, item)| item.as_object().unwrap().iter().map(move |(method, said)| (method, path, said)))
}

/// A schema by its name.
fn schema<'a>(document: &'a Value, name: &str) -> &'a Value {
    let schema = &document["components"]["schemas"][name];
    assert!(schema.is_object(), "there is no {name}");
    schema
}

#[test]
fn published_names_tell_no_type_of_the_program() {
    let pages = serde_json::to_value(reveille::http::document_of_pages()).unwrap();
    for document in [published(), pages] {
        let schemas = document["components"]["schemas"].as_object().into_iter().flatten();
        for (name, _) in schemas {
            assert!(!name.ends_with("Schema") && !name.ends_with("Own"), "{name} is a name of the program");
        }
    }
}

#[test]
fn every_answer_of_the_reference_has_its_description() {
    let document = published();
    let mut answers = 0;
    for (method, path, operation) in operations(&document) {
        for (status, answer) in operation["responses"].as_object().unwrap() {
            answers += 1;
            assert!(answer["description"].as_str().is_some_and(|said| !said.is_empty()), "{method} {path} {status}");
        }
    }
    assert!(answers > 300, "{answers}");
}

#[test]
fn operations_promise_the_refusals_that_they_may_answer() {
    let document = published();
    let promises_conflict = |id: &str| {
        let found = operations(&document).find(|(_, _, operation)| operation["operationId"].as_str() == Some(id));
        let (_, _, operation) = found.unwrap_or_else(|| panic!("there is no {id}"));
        operation["responses"]["409"].is_object()
    };
    // a limit of the tenant stands in the way, or what others have stored
    for id in [
        "create_token",
        "set_approval_override",
        "put_recipient",
        "enable_task",
        "add_fact",
        "correct_fact",
        "get_transcript",
        "explain_run",
    ] {
        assert!(promises_conflict(id), "{id}");
    }
    for (method, path, operation) in operations(&document).filter(|(_, path, _)| path.starts_with("/v1/")) {
        let reads_body = operation["requestBody"].is_object();
        assert!(!reads_body || operation["responses"]["408"].is_object(), "{method} {path}: a body may be too slow");
    }
}

#[test]
fn pages_for_people_are_no_part_of_the_reference() {
    let document = published();
    for (method, path, operation) in operations(&document) {
        assert!(!operation.to_string().contains("text/html"), "{method} {path}");
    }
    let pages = serde_json::to_value(reveille::http::document_of_pages()).unwrap();
    assert!(operations(&pages).count() >= 6 && operations(&pages).all(|page| page.2.to_string().contains("text/html")));
}

#[test]
fn judge_of_the_suite_finds_what_the_reference_does_not_have() {
    let is_held = |exchange: Exchange| std::panic::catch_unwind(|| reference().hold(&exchange)).is_ok();
    let ask = |method: &'static str, path: &'static str, status: u16| Exchange {
        method,
        path,
        sent: None,
        status,
        answered: None,
    };
    let answer = |kind: &'static str, body: &Value| {
        is_held(Exchange { answered: Some((kind, body)), ..ask("GET", "/healthz", 200) })
    };
    let health = json!({ "status": "ok" });
    assert!(answer("application/json", &health));
    assert!(!answer("application/json", &json!({ "status": "ok", "more": 1 })), "a field too many");
    assert!(!answer("application/json", &json!({})), "a field too few");
    assert!(!answer("application/health+json", &health), "another media type");
    assert!(!answer(EVENT_STREAM, &Value::Null), "a stream");
    assert!(is_held(ask("GET", "/v1/runs?limit=5", 200)));
    assert!(!is_held(ask("GET", "/v1/runs?nobody_knows_this=5", 200)), "a parameter that is taken");
    assert!(!is_held(ask("GET", "/v1/runs", 418)), "another status");
    assert!(!is_held(ask("PUT", "/v1/runs", 200)), "another method");
    assert!(!is_held(ask("GET", "/v1/nobody-knows-this", 200)), "another address");
    let body = |status: u16, body: &Value| {
        is_held(Exchange { sent: Some(("application/json", body)), ..ask("POST", "/v1/tasks/a/pause", status) })
    };
    assert!(body(200, &json!({ "reason": "later" })) && !body(200, &json!({ "reason": 7 })));
    assert!(body(422, &json!({ "reason": 7 })), "it was refused");
}

#[tokio::test]
async fn each_form_of_a_message_of_open_responses_is_taken_and_in_the_reference() {
    let api = Api::new().await;
    let first = json!({ "tenant_id": "ann", "input": "Hello", "background": true });
    let first = api.admin("POST", "/v1/responses", Some(first)).await.expect(200);
    let id = &first["conversation"]["id"];
    let message = json!({ "role": "user", "content": "Hello" });
    let part = json!({ "type": "input_text", "text": "Hello", "annotations": [] });
    let empty = json!({ "type": "input_text", "text": null });
    let parts = json!({ "type": "message", "role": "user", "content": [part, empty], "status": "completed" });
    for (input, conversation) in [
        (json!("Hello"), json!(id)),
        (json!([message]), json!({ "id": id, "object": "conversation" })),
        (json!([parts, { "type": null, "role": "user", "content": "Hello" }]), Value::Null),
    ] {
        let body = json!({
            "tenant_id": "ann", "input": input, "conversation": conversation, "background": true,
            "temperature": null, "tools": [], "metadata": {},
        });
        api.admin("POST", "/v1/responses", Some(body)).await.expect(200);
    }
    let body = json!({ "tenant_id": "ann", "input": "Hello", "tools": [], "temperature": 0.5 });
    let refused = api.admin("POST", "/v1/responses", Some(body)).await.expect(400);
    assert_eq!(refused["detail"], "not supported: `temperature`");
}

#[test]
fn every_body_and_answer_has_one_form_that_clients_are_made_for() {
    let document = published();
    let mut bodies = 0;
    for (method, path, operation) in operations(&document) {
        let answers = operation["responses"].as_object().unwrap().values();
        for content in answers.chain([&operation["requestBody"]]).filter_map(|one| one["content"].as_object()) {
            bodies += 1;
            let kinds: Vec<&str> = content.keys().map(String::as_str).collect();
            // an answer may be a stream instead, where its request asks for one; generators take the first of both
            assert!(
                matches!(kinds[..], [_] | [_, EVENT_STREAM]),
                "{method} {path}: generators take one of several, or stumble over lists in them"
            );
        }
    }
    assert!(bodies > 300, "{bodies}");
}

/// The names of the events that are described, each with the schema of its data; of one without a name, its data.
fn names_of_events(document: &Value, described: &Value) -> Vec<String> {
    if let Some(place) = described["$ref"].as_str() {
        return names_of_events(document, schema(document, place.rsplit('/').next().unwrap()));
    }
    if let Some(variants) = described["oneOf"].as_array() {
        let mut names: Vec<String> = variants.iter().flat_map(|one| names_of_events(document, one)).collect();
        names.sort();
        return names;
    }
    let fields = &described["properties"];
    assert!(fields["data"].is_object(), "{described}");
    let name = fields["event"].get("const").unwrap_or(&fields["data"]["const"]);
    vec![name.as_str().unwrap_or_else(|| panic!("{described}")).to_owned()]
}

#[test]
fn each_stream_is_a_text_with_a_list_of_events_by_their_names() {
    let document = published();
    let mut streams: BTreeMap<String, Vec<String>> = BTreeMap::new();
    for (method, path, operation) in operations(&document) {
        for answer in operation["responses"].as_object().unwrap().values() {
            let Some(stream) = answer["content"].get(EVENT_STREAM).map(|content| &content["schema"]) else { continue };
            assert_eq!((&stream["type"], &stream["contentMediaType"]), (&json!("string"), &json!(EVENT_STREAM)));
            assert_eq!(stream["contentSchema"]["type"], "array");
            let names = names_of_events(&document, &stream["contentSchema"]["items"]);
            streams.insert(format!("{method} {path}"), names);
        }
    }
    let of = |stream: &str, names: &[&str]| -> (String, Vec<String>) {
        (stream.to_owned(), names.iter().map(|name| (*name).to_owned()).collect())
    };
    let run = [
        "approval_required",
        "error",
        "execution_end",
        "input_required",
        "message_chunk",
        "message_end",
        "message_start",
        "session",
        "state_change",
        "tool_call_start",
        "tool_progress",
        "tool_result",
        "tool_warning",
    ];
    let response = [
        "[DONE]",
        "error",
        "response.completed",
        "response.content_part.added",
        "response.content_part.done",
        "response.created",
        "response.failed",
        "response.in_progress",
        "response.incomplete",
        "response.output_item.added",
        "response.output_item.done",
        "response.output_text.delta",
        "response.output_text.done",
    ];
    let expected = BTreeMap::from([
        of("get /v1/events/stream", &["event"]),
        of("get /v1/live", &["message", "session"]),
        of("get /v1/runs/{id}/stream", &run),
        of("post /v1/chat", &run),
        of("post /v1/responses", &response),
    ]);
    assert_eq!(streams, expected);
    // the name of an event says what its data is
    let start = schema(&document, "MessageStartRunStreamEvent");
    assert_eq!(start["properties"]["event"]["const"], "message_start");
    assert_eq!(start["properties"]["data"]["properties"]["type"]["const"], "message_start");
    assert_eq!(schema(&document, "RunStreamEvent")["discriminator"]["propertyName"], "event");
}

#[test]
fn unions_that_a_field_tells_apart_have_named_variants() {
    let document = published();
    let unions = [
        ("Trigger", "type", vec!["ConditionTrigger", "EventTrigger", "ScheduleTrigger"]),
        ("StepOutcome", "status", vec!["AgainStepOutcome", "DoneStepOutcome", "FailedStepOutcome"]),
    ];
    for (union, tag, variants) in unions {
        let union = schema(&document, union);
        assert_eq!(union["discriminator"]["propertyName"], tag);
        let mut named: Vec<&str> = Vec::new();
        for (word, place) in union["discriminator"]["mapping"].as_object().unwrap() {
            let name = place.as_str().unwrap().rsplit('/').next().unwrap();
            let variant = schema(&document, name);
            assert_eq!(variant["properties"][tag]["const"], word.as_str(), "{name}");
            assert!(variant["required"].as_array().unwrap().contains(&Value::from(tag)), "{name}");
            named.push(name);
        }
        named.sort();
        assert_eq!(named, variants);
    }
    // few generators read the `allOf` that is left
    assert!(!document.to_string().contains("\"allOf\""));
}

#[test]
fn lists_name_their_items() {
    let document = published();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let lists: Vec<_> = schemas.iter().filter(|(name, _)| name.ends_with("List")).collect();
    assert!(lists.len() > 10);
    for (name, list) in lists {
        let item = list["properties"]["items"]["items"]["$ref"].as_str();
        assert_eq!(item.and_then(|item| item.rsplit('/').next()), name.strip_suffix("List"), "{name}");
    }
}

#[test]
fn fields_with_a_default_say_it_in_words_and_may_be_left_out() {
    let document = published();
    let task = schema(&document, "NewTask");
    assert_eq!(task["required"], json!(["name", "trigger"]));
    let said = task["properties"]["timeout_seconds"]["description"].as_str().unwrap();
    assert!(said.ends_with("Absent: `600`."), "{said}");
    for (name, schema) in document["components"]["schemas"].as_object().unwrap() {
        for (field, schema) in schema["properties"].as_object().into_iter().flatten() {
            assert!(schema.get("default").is_none(), "{name}.{field} is always there for some generators");
        }
    }
}

#[tokio::test]
async fn page_for_people_is_served_from_here_alone() {
    let api = Api::new().await;
    let page = api.send(Request::get("/docs/").body(Body::empty()).unwrap()).await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html"));
    let initializer = file_of_the_page(&api, "swagger-initializer.js", "").await;
    let text = String::from_utf8(initializer.1).unwrap();
    assert!(text.contains("/openapi.json") && !text.contains("https://"), "{text}");
    let html = file_of_the_page(&api, "", "").await.1;
    let html = String::from_utf8(html).unwrap();
    let names: Vec<_> = html.split("\"./").skip(1).filter_map(|rest| rest.split('"').next()).collect();
    assert_eq!(names, ["swagger-ui.css", "swagger-ui-bundle.js", "swagger-initializer.js"]);
    for name in names {
        let (headers, body) = file_of_the_page(&api, name, "identity").await;
        assert!(headers.get("content-encoding").is_none() && !body.is_empty(), "{name}");
    }
}

#[tokio::test]
async fn files_of_the_page_are_unpacked_for_those_who_take_no_compression() {
    let api = Api::new().await;
    for (name, kind) in [("swagger-ui-bundle.js", "text/javascript"), ("swagger-ui.css", "text/css")] {
        let (headers, packed) = file_of_the_page(&api, name, "gzip, br").await;
        assert_eq!(headers["content-type"], kind);
        assert_eq!(headers["content-encoding"], "gzip");
        let (headers, plain) = file_of_the_page(&api, name, "").await;
        assert_eq!(headers["content-type"], kind);
        assert_eq!(headers["vary"], "accept-encoding");
        let mut unpacked = Vec::new();
        std::io::Read::read_to_end(&mut flate2::read::GzDecoder::new(&*packed), &mut unpacked).unwrap();
        assert!(unpacked == plain && packed.len() * 3 < plain.len(), "{name}");
    }
}

/// Headers and body of a file at `/docs/`, asked for with this `Accept-Encoding`.
async fn file_of_the_page(api: &Api, name: &str, accepted: &str) -> (HeaderMap, Vec<u8>) {
    let request =
        Request::get(format!("/docs/{name}")).header("accept-encoding", accepted).body(Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(api.app.clone(), request).await.unwrap();
    assert_eq!(response.status(), 200, "{name}");
    let headers = response.headers().clone();
    (headers, axum::body::to_bytes(response.into_body(), 4 << 20).await.unwrap().to_vec())
}
