//! The pages of tools: what is there, who is offered it, and definitions that wait to be accepted.

use reveille::domain::approval::proposal::text_hash;
use reveille::domain::approval::{PinVerdict, SeenDefinition};
use serde_json::json;

use super::visitor::{Visitor, served};
use crate::api::service::{ADMIN, Api, on_both};
use crate::api::tools::{accepted_definition, waiting_definition};

on_both! {
    tools_stand_by_category_and_those_that_wait_on_top
    definition_that_was_looked_at_is_accepted_on_its_page_by_the_operator_alone
    definition_that_is_another_one_by_now_is_not_accepted
    words_of_a_server_are_text
}

const TOOL: &str = "/ui/tools/github.merge";
const ACCEPT: &str = "/ui/tools/github%2Emerge/accept";

/// The address of the service; the server of `github.merge` lists these definitions one after the other.
async fn listing(api: &Api, definitions: &[SeenDefinition]) -> String {
    for (at, definition) in definitions.iter().enumerate() {
        let verdict = if at == 0 { PinVerdict::Accepted } else { PinVerdict::Waiting };
        let judged = api.store.judge_tools("github", std::slice::from_ref(definition)).await.expect("judged");
        assert_eq!(judged, [verdict]);
    }
    served(api).await
}

async fn pin_state(api: &Api) -> String {
    let tool = api.admin("GET", "/v1/tools/github.merge", None).await.expect(200);
    tool["pin"]["state"].as_str().expect("a state").to_owned()
}

async fn tools_stand_by_category_and_those_that_wait_on_top(api: Api) {
    let url = listing(&api, &[accepted_definition(), waiting_definition()]).await;
    let ann = Visitor::signed_in(&url, &api.token("ann", &["tasks:read"]).await).await;
    let all = ann.get("/ui/tools").await;
    assert_eq!(all.status, 200);
    let place = |text: &str| all.text.find(text).unwrap_or_else(|| panic!("{text} is not in\n{}", all.text));
    assert!(place("Waiting to be accepted") < place("github.merge") && place("github.merge") < place("All tools"));
    assert!(place("All tools") < place("<h3>Read</h3>") && place("<h3>Read</h3>") < place("current_time"));
    for text in ["a person is asked", "may run by itself", "offered", "booker"] {
        all.has(text);
    }
    let some = ann.get("/ui/tools?category=read&q=CURRENT_TIME").await;
    some.has("<code>current_time</code>");
    some.lacks("<code>http_send</code>");
    some.has("Only");
    ann.get("/ui/tools?q=nothing-has-this-name").await.has("Nothing fits these filters.");
    let refused = ann.get("/ui/tools?agent=bookr").await;
    assert_eq!(refused.status, 200);
    refused.has("there is no agent `bookr` in [[agents]]");

    let tool = ann.get("/ui/tools/current_time").await;
    for text in ["<h1>current_time</h1>", "JSON Schema of the arguments", "1.0.0", "How it is treated", "booker"] {
        tool.has(text);
    }
    assert_eq!(ann.get("/ui/tools/no_such_tool").await.status, 404);
    let blind = Visitor::signed_in(&url, &api.token("ann", &["runs:read"]).await).await;
    for page in ["/ui/tools", "/ui/tools/current_time"] {
        let refused = blind.get(page).await;
        assert_eq!(refused.status, 403, "{page}");
        refused.has("tasks:read");
    }
}

async fn definition_that_was_looked_at_is_accepted_on_its_page_by_the_operator_alone(api: Api) {
    let url = listing(&api, &[accepted_definition(), waiting_definition()]).await;
    let hash = waiting_definition().hash;
    let ann = Visitor::signed_in(&url, &api.token("ann", &["*"]).await).await;
    let seen = ann.get(TOOL).await;
    seen.has("- Asks first.");
    seen.has("+ Asks nobody.");
    seen.lacks("Accept this definition");
    assert_eq!(ann.post("/ui/tools", ACCEPT, &[("definition", &hash)]).await.status, 403);
    assert_eq!(pin_state(&api).await, "changed");

    let operator = Visitor::signed_in(&url, ADMIN).await;
    let seen = operator.get(TOOL).await;
    seen.has("Accept this definition");
    seen.has(&format!("name=\"definition\" value=\"{hash}\""));
    let unnamed = operator.post(TOOL, ACCEPT, &[]).await;
    assert_eq!(unnamed.status, 422);
    unnamed.has("does not say which definition was looked at");
    assert_eq!(pin_state(&api).await, "changed", "a form without the hash accepts nothing");
    let accepted = operator.post(TOOL, ACCEPT, &[("definition", &hash)]).await;
    assert_eq!(accepted.status, 303);
    let place = accepted.location.expect("a place");
    assert_eq!(place, "/ui/tools/github%2Emerge?done=accepted");
    operator.get(&place).await.has("The tool’s definition is accepted.");
    assert_eq!(pin_state(&api).await, "accepted");
}

async fn definition_that_is_another_one_by_now_is_not_accepted(api: Api) {
    let url = listing(&api, &[accepted_definition(), waiting_definition()]).await;
    let operator = Visitor::signed_in(&url, ADMIN).await;
    let old = "0".repeat(64);
    let refused = operator.post(TOOL, ACCEPT, &[("definition", &old)]).await;
    assert_eq!(refused.status, 409);
    refused.has(&waiting_definition().hash);
    refused.has("Accept this definition");
    assert_eq!(pin_state(&api).await, "changed");
}

async fn words_of_a_server_are_text(api: Api) {
    let text = json!({ "description": "<script>alert(1)</script>\npay \u{202e}001", "name": "merge" }).to_string();
    let hostile = SeenDefinition { tool: "merge".into(), hash: text_hash(&text), text };
    let url = listing(&api, &[accepted_definition(), hostile]).await;
    let shown = Visitor::signed_in(&url, ADMIN).await.get(TOOL).await;
    shown.has("&lt;script&gt;alert(1)");
    shown.has("\u{27e6}U+202E\u{27e7}");
    shown.lacks("<script>alert");
    shown.lacks("\u{202e}");
}
