//! The chain of a call: retry, next key, less thinking, next model, final error; and models that are passed over.

use reveille::agent::AgentResponse;
use reveille::ports::llm::ModelSettings;
use reveille::ports::llm::thinking::ThinkingEffort;
use serde_json::json;

use super::{Case, PlayedCase, keys, patiently, play, two_keys, with_models};
use crate::agent::harness::AgentHarness;
use crate::agent::wire::fakes::{Ending, Wire, calling, said};
use crate::agent::wire::rules::broken_rules;
use crate::agent::wire::server::{Reply, Server, settings};
use crate::agent::wire::vendors::{SentRequest, faults_of};

fn fine(wire: Wire, stream: bool) -> Reply {
    said("Fine.").reply(wire, stream)
}

fn refused(status: u16, wire: Wire) -> Reply {
    wire.failure(status, "no")
}

fn thinks(settings: &mut ModelSettings) {
    settings.effort = Some(ThinkingEffort::High);
}

/// The levels of thinking that requests asked for, in order.
fn efforts(played: &PlayedCase, expected: &[&str]) {
    let found: Vec<&str> =
        played.requests.iter().map(|request| played.wire.effort(&request.body).as_str().unwrap_or_default()).collect();
    assert_eq!(found, expected);
}

fn two_levels_lower(played: &PlayedCase) {
    efforts(played, &["high", "medium", "low"]);
}

/// The level that has answered stays for the rest of the loop.
fn stays_lower(played: &PlayedCase) {
    efforts(played, &["high", "medium", "medium"]);
}

fn second_key_answers(played: &PlayedCase) {
    assert_eq!(keys(played), ["sk-canary", "sk-second"]);
}

pub static CASES: [Case; 8] = [
    Case::new("the next key", |w, s| vec![refused(401, w), fine(w, s)], Ok("Fine."), 2)
        .model(two_keys)
        .holds(second_key_answers),
    Case::new(
        "the next key behind retries",
        |w, s| vec![refused(429, w), refused(429, w), refused(429, w), fine(w, s)],
        Ok("Fine."),
        4,
    )
    .model(two_keys)
    .holds(|played| assert_eq!(keys(played), ["sk-canary", "sk-canary", "sk-canary", "sk-second"])),
    Case::new("every key is refused", |w, _| vec![refused(401, w), refused(403, w)], Err("llm_auth"), 2)
        .model(two_keys),
    Case::new("a level that is refused", |w, s| vec![refused(400, w), refused(400, w), fine(w, s)], Ok("Fine."), 3)
        .model(thinks)
        .holds(two_levels_lower),
    Case::new(
        "a level that is lowered for a loop",
        |w, s| vec![refused(400, w), calling(&[("c1", "echo", "{}")]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .model(thinks)
    .holds(stays_lower),
    Case::new("keys that are refused are refused at every level", |w, _| vec![refused(401, w)], Err("llm_auth"), 1)
        .model(thinks),
    Case::new("a model that is not there is there at no level", |w, _| vec![refused(404, w)], Err("llm_no_model"), 1)
        .model(thinks),
    Case::new(
        "a time-out, then less thinking",
        |w, s| vec![refused(504, w), refused(504, w), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .model(thinks)
    .holds(|played| efforts(played, &["high", "high", "medium"])),
];

#[tokio::test]
async fn call_goes_by_retry_key_and_thinking_over_every_wire() {
    play(&CASES).await;
}

fn model(server: &Server, wire: Wire, stream: bool, name: &str) -> ModelSettings {
    settings(server, |settings| {
        settings.provider = wire.provider().into();
        settings.stream = stream;
        settings.model = name.into();
    })
}

/// Answers to the message, with the agent of these models.
async fn handle(stage: &AgentHarness, models: Vec<(&str, ModelSettings)>) -> Option<String> {
    let agent = with_models(stage, models);
    match patiently(&stage.clock, agent.handle_message(&stage.incoming("Go."))).await? {
        Ok(AgentResponse::Answered(result)) => {
            stage.store.end();
            Some(result.response)
        }
        other => panic!("{other:?}"),
    }
}

/// The first model thinks and calls a tool, then fails for good; the next one, on any wire, goes on with the result and
/// without what the first one wrote for itself.
#[tokio::test]
async fn next_model_goes_on_in_the_middle_of_a_tool_loop_without_the_echo() {
    for (from, to) in Wire::ALL.into_iter().flat_map(|from| Wire::ALL.map(|to| (from, to))) {
        for stream in [false, true] {
            let first = calling(&[("c1", "echo", r#"{"n":1}"#)]).thinking("c2lnbmVk").reply(from, stream);
            let main = Server::start(vec![first, refused(400, from)]).await;
            let spare = Server::start(vec![fine(to, stream)]).await;
            let stage = AgentHarness::new(vec![], super::tools());
            let models =
                vec![("main", model(&main, from, stream, "model-7")), ("spare", model(&spare, to, stream, "model-8"))];
            let answer = handle(&stage, models).await;
            assert_eq!(answer.as_deref(), Some("Fine."), "{from:?} to {to:?}, stream {stream}");
            let back = main.requests()[1].text.clone();
            assert!(back.contains("c2lnbmVk"), "the same model gets its own back: {back}");
            let sent = spare.requests().remove(0);
            assert!(!sent.text.contains("c2lnbmVk"), "{from:?} to {to:?}: {}", sent.text);
            assert_eq!(to.results(&sent.body), [("c1".to_owned(), r#"{"n":1}"#.to_owned())]);
            let models: Vec<String> = stage
                .store
                .entries
                .lock()
                .unwrap()
                .iter()
                .filter_map(|entry| entry.model_call.as_ref())
                .map(|call| call.model.clone())
                .collect();
            assert_eq!(models, ["main", "spare"], "the transcript says which model answered");
        }
    }
}

/// Ids and names that only the first provider takes: the next one is sent others, and each result with that of its
/// call.
#[tokio::test]
async fn next_model_gets_ids_that_its_provider_takes() {
    const LONG: &str = "call_0123456789012345678901234567890123456789012345678901234";
    let ids = [("functions.echo:0", "echo", r#"{"n":1}"#), (LONG, "my tool", "{}"), ("c3", "echo", r#"{"n":3}"#)];
    let mut sent = Vec::new();
    for to in Wire::ALL {
        let turns = [calling(&ids).reply(Wire::Chat, true), calling(&ids).reply(Wire::Chat, true)];
        let main = Server::start(turns.into_iter().chain([refused(400, Wire::Chat)]).collect()).await;
        let spare = Server::start(vec![fine(to, true)]).await;
        let stage = AgentHarness::new(vec![], super::tools());
        let models =
            vec![("main", model(&main, Wire::Chat, true, "model-7")), ("spare", model(&spare, to, true, "model-8"))];
        assert_eq!(handle(&stage, models).await.as_deref(), Some("Fine."), "to {to:?}");
        assert!(main.requests()[2].text.contains(LONG), "its own model gets its own back");
        let body = spare.requests().remove(0).body;
        assert_eq!(broken_rules(to, &body), [""; 0], "to {to:?}: {body}");
        let results: Vec<String> = to.results(&body).into_iter().map(|(_, text)| text).collect();
        assert_eq!((results[0].as_str(), results[5].as_str()), (r#"{"n":1}"#, r#"{"n":3}"#), "{results:?}");
        let stored: Vec<String> = stage.results().into_iter().map(|(id, ..)| id).collect();
        assert_eq!(stored, [ids.map(|(id, ..)| id), ids.map(|(id, ..)| id)].concat(), "the transcript keeps them");
        sent.push(SentRequest { title: format!("to {to:?}"), wire: to, body });
    }
    assert_eq!(faults_of(&sent).await, [""; 0]);
}

/// After five failed calls a model is asked only when the others have failed, too; after half a minute one call tries
/// it.
#[tokio::test]
async fn model_that_keeps_failing_is_passed_over_until_one_call_has_tried_it() {
    for wire in Wire::ALL {
        let main =
            Server::start((0..5).map(|_| refused(500, wire)).chain([fine(wire, true), fine(wire, true)]).collect())
                .await;
        let spare = Server::start((0..6).map(|_| fine(wire, true)).collect()).await;
        let stage = AgentHarness::with_settings(
            vec![],
            vec![],
            reveille::agent::Settings { llm_max_retries: 0, ..Default::default() },
        );
        let agent = with_models(
            &stage,
            vec![("main", model(&main, wire, true, "m")), ("spare", model(&spare, wire, true, "s"))],
        );
        let ask = async || {
            let fresh = AgentHarness { clock: stage.clock.clone(), ..AgentHarness::new(vec![], vec![]) };
            agent.handle_message(&fresh.incoming("Go.")).await.expect("an answer");
            (main.requests().len(), spare.requests().len())
        };
        let mut asked = Vec::new();
        for _ in 0..6 {
            asked.push(ask().await);
        }
        assert_eq!(asked[4..], [(5, 5), (5, 6)], "{wire:?}: {asked:?}");
        stage.clock.advance(chrono::TimeDelta::seconds(31));
        assert_eq!([ask().await, ask().await], [(6, 6), (7, 6)], "{wire:?}: it is back");
    }
}

/// Anthropic alone: a model that pauses gets its turn back as it is, and the answer is one.
#[tokio::test]
async fn paused_turn_is_sent_back_as_it_is_until_it_ends() {
    for stream in [false, true] {
        let wire = Wire::Anthropic;
        let paused = |text| said(text).thinking("c2lnbmVk").ending(Ending::Pause).reply(wire, stream);
        let last = calling(&[("c1", "echo", "{}")]).reply(wire, stream);
        let server = Server::start(vec![paused("One, "), paused("two. "), last, fine(wire, stream)]).await;
        let stage = AgentHarness::new(vec![], super::tools());
        let answer = handle(&stage, vec![("main", model(&server, wire, stream, "model-7"))]).await;
        assert_eq!(answer.as_deref(), Some("Fine."));
        let requests = server.requests();
        assert_eq!(requests.len(), 4);
        let blocks = |index: usize| requests[index].body["messages"][1]["content"].as_array().unwrap().len();
        assert_eq!([blocks(1), blocks(2), blocks(3)], [2, 4, 5], "all of it goes back each time");
        assert!(requests[1].body["messages"].as_array().unwrap().len() == 2, "and nothing behind it");
        let turns =
            stage.store.entries.lock().unwrap().iter().filter_map(|entry| entry.model_call.clone()).collect::<Vec<_>>();
        assert_eq!((turns.len(), turns[0].tokens.output), (2, 30), "it is one turn, and counts as all of it");
        assert_eq!(json!(stage.results()), json!([["c1", "{}", false]]));
    }
    let server =
        Server::start((0..11).map(|_| said("…").ending(Ending::Pause).reply(Wire::Anthropic, false)).collect()).await;
    let stage = AgentHarness::with_settings(
        vec![],
        vec![],
        reveille::agent::Settings { llm_max_retries: 0, ..Default::default() },
    );
    let agent = with_models(&stage, vec![("main", model(&server, Wire::Anthropic, false, "model-7"))]);
    let error = agent.handle_message(&stage.incoming("Go.")).await.unwrap_err();
    assert_eq!((super::code(&error).as_str(), server.requests().len()), ("llm_unavailable", 11), "not for ever");
}

/// A level that is refused is lowered; what else says how the model thinks stays.
#[tokio::test]
async fn anthropic_s_thinking_is_configured_and_its_level_lowered_alone() {
    let server = Server::start(vec![refused(400, Wire::Anthropic), fine(Wire::Anthropic, false)]).await;
    let stage = AgentHarness::new(vec![], vec![]);
    let model = toml::from_str::<ModelSettings>("thinking = 'adaptive'\neffort = 'max'\ntop_k = 40").unwrap();
    let model = ModelSettings {
        provider: "anthropic".into(),
        stream: false,
        base_url: Some(format!("{}/v1", server.address)),
        model: "model-7".into(),
        ..model
    };
    assert_eq!(handle(&stage, vec![("main", model)]).await.as_deref(), Some("Fine."));
    let requests = server.requests();
    for (request, effort) in requests.iter().zip(["max", "high"]) {
        let sent = &request.body;
        assert_eq!((&sent["thinking"], &sent["top_k"]), (&json!({ "type": "adaptive" }), &json!(40)));
        assert_eq!(sent["output_config"], json!({ "effort": effort }));
    }
}
