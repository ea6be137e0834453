//! Tools of MCP servers over each wire: their names go out in a form that every provider takes, and come back as they
//! are here.

use reveille::agent::AgentResponse;
use serde_json::Value;

use super::fakes::{Wire, calling, said};
use super::rules::broken_rules;
use super::scenarios::{patiently, with_models};
use super::server::{ReceivedRequest, Server, settings};
use crate::agent::harness::{AgentHarness, FakeTool};

/// The tool as it is named here, and as a provider is told.
const OWN: &str = "github.create_issue";
const PORTABLE: &str = "github__create_issue";

/// The names of the tools that a request offers.
fn offered(wire: Wire, request: &ReceivedRequest) -> Vec<String> {
    let name = |tool: &Value| match wire {
        Wire::Chat => tool["function"]["name"].as_str().unwrap_or_default().to_owned(),
        Wire::Responses | Wire::Anthropic => tool["name"].as_str().unwrap_or_default().to_owned(),
    };
    request.body["tools"].as_array().into_iter().flatten().map(name).collect()
}

/// A model calls the tool by the name that it was told, and answers.
async fn plays(wire: Wire, stream: bool) {
    let title = format!("{wire:?}, streamed: {stream}");
    let call = calling(&[("c1", PORTABLE, r#"{"title":"It broke"}"#)]);
    let server = Server::start(vec![call.reply(wire, stream), said("Filed.").reply(wire, stream)]).await;
    let stage = AgentHarness::new(vec![], vec![FakeTool::echo(OWN)]);
    let model = settings(&server, |settings| {
        settings.provider = wire.provider().into();
        settings.stream = stream;
    });
    let agent = with_models(&stage, vec![("main", model)]);
    let ended = patiently(&stage.clock, agent.handle_message(&stage.incoming("Go."))).await;
    stage.store.end();
    assert!(matches!(ended, Some(Ok(AgentResponse::Answered(_)))), "{title}: {ended:?}");

    let messages = stage.store.messages();
    let called: Vec<&str> =
        messages.iter().flat_map(|message| message.tool_calls()).map(|call| call.name.as_str()).collect();
    assert_eq!(called, [OWN], "{title}: the record has the tool's own name");
    let results = stage.results();
    assert!(results.len() == 1 && results[0].1.contains("It broke") && !results[0].2, "{title}: {results:?}");

    let requests = server.requests();
    assert_eq!(requests.len(), 2, "{title}");
    for request in &requests {
        assert_eq!(offered(wire, request), [PORTABLE], "{title}");
        assert!(request.text.contains(&format!("Your tools: {PORTABLE}.")), "{title}: {}", request.text);
        assert_eq!(broken_rules(wire, &request.body), Vec::<String>::new(), "{title}");
    }
}

#[tokio::test]
async fn name_of_an_mcp_tool_goes_to_providers_in_a_form_that_they_take_and_comes_back() {
    for wire in Wire::ALL {
        plays(wire, false).await;
        plays(wire, true).await;
    }
}
