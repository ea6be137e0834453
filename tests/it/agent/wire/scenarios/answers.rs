//! Answers of a model in a tool loop: calls of every kind, ends of every kind, and conversations that are too long.

use reveille::agent::Settings as ReactSettings;
use reveille::domain::run::transcript::ModelTokens;
use reveille::ports::llm::ModelSettings;
use reveille::ports::llm::thinking::{PromptCache, ThinkingEffort};

use super::{Case, PlayedCase, body, play};
use crate::agent::wire::fakes::{Ending, FakeReply, Wire, calling, said};
use crate::agent::wire::server::Reply;

/// These answers in turn.
fn turns(turns: &[FakeReply], wire: Wire, stream: bool) -> Vec<Reply> {
    turns.iter().map(|turn| turn.reply(wire, stream)).collect()
}

/// One turn of calls, then an answer.
fn calls(calls: &[(&'static str, &'static str, &'static str)], wire: Wire, stream: bool) -> Vec<Reply> {
    turns(&[calling(calls), said("Fine.")], wire, stream)
}

fn too_long(wire: Wire) -> Reply {
    wire.failure(400, "context_length_exceeded: the prompt is too long")
}

/// The results, each as its call and the beginning of its text, with whether it is an error.
fn results(played: &PlayedCase, expected: &[(&str, &str, bool)]) {
    assert_eq!(played.results.len(), expected.len(), "{:?}", played.results);
    for (found, (call, text, is_error)) in played.results.iter().zip(expected) {
        let (id, content, failed) = found;
        assert!(id == call && content.contains(text) && failed == is_error, "{found:?}, not {text:?}");
    }
    // and so the model reads them, in the order of its calls
    let sent: Vec<String> = played.sent_results().into_iter().map(|(id, _)| id).collect();
    assert_eq!(sent, expected.iter().map(|(call, ..)| *call).collect::<Vec<_>>());
}

fn counts_tokens(played: &PlayedCase) {
    let of_a_call = ModelTokens { cache_read: 40, ..ModelTokens::of(100, 10) };
    assert_eq!(played.tokens, [of_a_call, of_a_call]);
}

fn echoes_thinking(played: &PlayedCase) {
    let sent = &played.requests[1].text;
    assert!(sent.contains("c2lnbmVk"), "{sent}");
}

fn forbids_tools_at_the_end(played: &PlayedCase) {
    let last = played.requests.len() - 1;
    assert!(played.wire.forbids_tools(body(played, last)) && !played.wire.forbids_tools(body(played, 0)));
}

fn shortens_the_result(played: &PlayedCase) {
    let length = |index: usize| played.wire.results(body(played, index))[0].1.len();
    assert_eq!((length(1), length(2) < 2100), (9000, true), "{}", length(2));
}

fn sends_nothing_that_is_not_configured(played: &PlayedCase) {
    let mut expected = match (played.wire, played.stream) {
        (Wire::Chat, true) => vec!["stream", "stream_options"],
        (_, true) => vec!["stream"],
        (_, false) => vec![],
    };
    if played.wire == Wire::Anthropic {
        expected.insert(0, "max_tokens");
    }
    assert_eq!(played.wire.optional_fields(body(played, 0)), expected);
}

/// Everything that all three wires can be asked for.
fn everything(settings: &mut ModelSettings) {
    settings.effort = Some(ThinkingEffort::High);
    settings.temperature = Some(0.5);
    settings.top_p = Some(0.75);
    settings.max_output_tokens = Some(2000);
}

fn sends_what_is_configured(played: &PlayedCase) {
    for request in &played.requests {
        let sent = &request.body;
        let limit = match played.wire {
            Wire::Responses => &sent["max_output_tokens"],
            Wire::Chat | Wire::Anthropic => &sent["max_tokens"],
        };
        assert_eq!((limit, &sent["temperature"], &sent["top_p"]), (&2000.into(), &0.5.into(), &0.75.into()));
        assert_eq!(played.wire.effort(sent), "high", "{sent}");
    }
}

fn one_turn(react: &mut ReactSettings) {
    react.max_turns = 1;
}

pub static CASES: [Case; 36] = [
    Case::new("an answer at once", |w, s| turns(&[said("Grüße, 早 😀")], w, s), Ok("Grüße, 早 😀"), 1)
        .holds(sends_nothing_that_is_not_configured),
    Case::new("everything is configured", |w, s| calls(&[("c1", "echo", "{}")], w, s), Ok("Fine."), 2)
        .model(everything)
        .holds(sends_what_is_configured),
    Case::new("tokens by kind", |w, s| calls(&[("c1", "echo", "{}")], w, s), Ok("Fine."), 2).holds(counts_tokens),
    Case::new("no cache is marked", |w, s| turns(&[said("Fine.")], w, s), Ok("Fine."), 1)
        .model(|model| model.prompt_cache = PromptCache::Off)
        .holds(|played| assert!(!played.requests[0].text.contains("cache_control"))),
    Case::new("a call", |w, s| calls(&[("c1", "echo", r#"{"n":1}"#)], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", r#"{"n":1}"#, false)])),
    Case::new(
        "a call with words",
        |w, s| {
            turns(&[FakeReply { text: Some("Let me look."), ..calling(&[("c1", "echo", "{}")]) }, said("Fine.")], w, s)
        },
        Ok("Fine."),
        2,
    )
    .holds(|played| assert!(played.requests[1].text.contains("Let me look."))),
    Case::new("a call without arguments", |w, s| calls(&[("c1", "echo", "")], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "{}", false)])),
    Case::new("letters of every length", |w, s| calls(&[("c1", "echo", r#"{"t":"é早😀"}"#)], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "é早😀", false)])),
    Case::new("an unknown tool", |w, s| calls(&[("c1", "ehco", "{}")], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "echo", true)])),
    Case::new("arguments that are no JSON", |w, s| calls(&[("c1", "echo", r#"{"n":"#)], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "invalid_parameters", true)])),
    Case::new("arguments of the wrong type", |w, s| calls(&[("c1", "count", r#"{"n":"one"}"#)], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "/n", true)])),
    Case::new("arguments that are missing", |w, s| calls(&[("c1", "count", "{}")], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "n", true)])),
    Case::new("arguments that are a list", |w, s| calls(&[("c1", "echo", "[1]")], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "invalid_parameters", true)])),
    Case::new(
        "three calls at once",
        |w, s| calls(&[("c1", "echo", r#"{"n":1}"#), ("c2", "echo", r#"{"n":2}"#), ("c3", "echo", r#"{"n":3}"#)], w, s),
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "1", false), ("c2", "2", false), ("c3", "3", false)])),
    Case::new(
        "one of three fails",
        |w, s| calls(&[("c1", "echo", r#"{"n":1}"#), ("c2", "fails", "{}"), ("c3", "echo", r#"{"n":3}"#)], w, s),
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "1", false), ("c2", "it is broken", true), ("c3", "3", false)])),
    Case::new("one of two panics", |w, s| calls(&[("c1", "panics", "{}"), ("c2", "echo", "{}")], w, s), Ok("Fine."), 2)
        .holds(|played| results(played, &[("c1", "broke down", true), ("c2", "{}", false)])),
    Case::new("one of two hangs", |w, s| calls(&[("c1", "hangs", "{}"), ("c2", "echo", "{}")], w, s), Ok("Fine."), 2)
        .holds(|played| assert!(played.sent_results()[0].1.contains("no result within 30 s"))),
    Case::new(
        "one of two is unknown",
        |w, s| calls(&[("c1", "nope", "{}"), ("c2", "echo", "{}")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "nope", true), ("c2", "{}", false)])),
    Case::new(
        "one id in two turns",
        |w, s| {
            turns(&[calling(&[("c1", "echo", "{}")]), calling(&[("c1", "echo", r#"{"n":2}"#)]), said("Fine.")], w, s)
        },
        Ok("Fine."),
        3,
    )
    .allows("two calls have one id"),
    Case::new(
        "thinking goes back",
        |w, s| turns(&[calling(&[("c1", "echo", "{}")]).thinking("c2lnbmVk"), said("Fine.")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(echoes_thinking),
    Case::new(
        "a call that is cut off",
        |w, s| turns(&[calling(&[("c1", "echo", r#"{"n":"#)]).ending(Ending::Length), said("Fine.")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "truncated_call", true)])),
    Case::new(
        "a cut-off call that looks whole",
        |w, s| turns(&[calling(&[("c1", "echo", "")]).ending(Ending::Length), said("Fine.")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "truncated_call", true)])),
    Case::new(
        "the last of two calls is cut off",
        |w, s| {
            let both = calling(&[("c1", "echo", r#"{"n":1}"#), ("c2", "echo", "{}")]);
            turns(&[both.ending(Ending::Length), said("Fine.")], w, s)
        },
        Ok("Fine."),
        2,
    )
    .holds(|played| results(played, &[("c1", "1", false), ("c2", "truncated_call", true)])),
    Case::new("an answer that is cut off", |w, s| turns(&[said("Half").ending(Ending::Length)], w, s), Ok("Half"), 1),
    Case::new(
        "a length that is used up",
        |w, s| turns(&[FakeReply { ending: Ending::Length, ..FakeReply::default() }], w, s),
        Err("llm_truncated"),
        1,
    ),
    Case::new("a refusal", |w, s| turns(&[said("No").ending(Ending::Refusal)], w, s), Err("llm_refused"), 1),
    Case::new(
        "a refusal behind a tool",
        |w, s| {
            turns(
                &[calling(&[("c1", "echo", "{}")]), FakeReply { ending: Ending::Refusal, ..FakeReply::default() }],
                w,
                s,
            )
        },
        Err("llm_refused"),
        2,
    ),
    Case::new("the last turn has no tools", |w, s| calls(&[("c1", "echo", "{}")], w, s), Ok("Fine."), 2)
        .react(one_turn)
        .holds(forbids_tools_at_the_end),
    Case::new(
        "a model that calls on all the same",
        |w, s| {
            let calls_on = FakeReply { text: Some("So far."), ..calling(&[("c2", "echo", "{}")]) };
            turns(&[calling(&[("c1", "echo", "{}")]), calls_on], w, s)
        },
        Ok("So far."),
        2,
    )
    .react(one_turn)
    .holds(|played| assert_eq!(played.results.len(), 1)),
    Case::new(
        "a last turn that says nothing",
        |w, s| turns(&[calling(&[("c1", "echo", "{}")]), calling(&[("c2", "echo", "{}")])], w, s),
        Err("no_answer"),
        2,
    )
    .react(one_turn),
    Case::new("too long once", |w, s| vec![too_long(w), said("Fine.").reply(w, s)], Ok("Fine."), 2),
    Case::new("too long for ever", |w, _| vec![too_long(w), too_long(w)], Err("context_overflow"), 2),
    Case::new("413", |w, s| vec![w.failure(413, "large"), said("Fine.").reply(w, s)], Ok("Fine."), 2),
    Case::new(
        "too long by a result",
        |w, s| vec![calling(&[("c1", "long", "{}")]).reply(w, s), too_long(w), said("Fine.").reply(w, s)],
        Ok("Fine."),
        3,
    )
    .holds(shortens_the_result),
    Case::new("too long without recovery", |w, _| vec![too_long(w)], Err("context_overflow"), 1)
        .react(|react| react.max_overflow_recovery_attempts = 0),
    Case::new(
        "a failure behind a tool",
        |w, s| vec![calling(&[("c1", "echo", "{}")]).reply(w, s), w.failure(500, "no"), said("Fine.").reply(w, s)],
        Ok("Fine."),
        3,
    )
    .holds(|played| assert_eq!(body(played, 1), body(played, 2))),
];

#[tokio::test]
async fn answers_of_a_model_are_understood_over_every_wire() {
    play(&CASES).await;
}
