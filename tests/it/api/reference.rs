//! The reference is locked: what changes in it changes the contract, and is seen in review.

use axum::body::Body;
use axum::http::Request;
use serde_json::Value;

use super::service::Api;

#[tokio::test]
async fn the_reference_is_the_one_that_was_agreed_on() {
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
    let document = serde_json::to_value(reveille::http::document()).unwrap();
    for (id, method, path) in api.operations() {
        let operation = &document["paths"][&path][method.to_lowercase()];
        let (verb, resource) = id.split_once('_').unwrap_or_else(|| panic!("{id} must read verb_resource"));
        assert!(!verb.is_empty() && !resource.is_empty());
        assert!(operation["summary"].is_string(), "{id} has no summary");
        let needs = operation["security"][0]["bearer"][0].as_str();
        // providers report at an address that only they were told
        let by_token = path.starts_with("/v1/") && id != "receive_receipt";
        assert_eq!(needs.is_some(), by_token, "{id} {needs:?}");
        if let Some(needs) = needs {
            assert!(reveille::token::Permission::parse(needs).is_some(), "{id} needs {needs}");
        }
    }
}

#[tokio::test]
async fn the_page_for_people_is_served_from_here_alone() {
    let api = Api::new().await;
    let page = api.send(Request::get("/docs/").body(Body::empty()).unwrap()).await;
    assert_eq!((page.status.as_u16(), page.header("content-type")), (200, "text/html"));
    let script = api.app.clone();
    let request = Request::get("/docs/swagger-initializer.js").body(Body::empty()).unwrap();
    let response = tower::ServiceExt::oneshot(script, request).await.unwrap();
    let text = axum::body::to_bytes(response.into_body(), 1 << 20).await.unwrap();
    let text = String::from_utf8_lossy(&text);
    assert!(text.contains("/openapi.json") && !text.contains("https://"), "{text}");
}
