//! Failures of the provider and of the way to it, and answers that make no sense.

use std::time::Duration;

use reveille::domain::run::outcome::RunError;
use reveille::ports::llm::ModelSettings;

use super::{Case, PlayedCase, play};
use crate::agent::wire::fakes::{Ending, Wire, calling, said};
use crate::agent::wire::server::{End, Reply};

/// Replies with `first`, then with an answer.
fn then_answer(first: Vec<Reply>, wire: Wire, stream: bool) -> Vec<Reply> {
    let mut all = first;
    all.push(said("Fine.").reply(wire, stream));
    all
}

fn status(status: u16, wire: Wire) -> Reply {
    wire.failure(status, "no")
}

fn html(status: u16) -> Reply {
    let headers = vec![("content-type", "text/html".to_owned())];
    Reply { status, headers, body: vec![b"<html>Bad gateway</html>".to_vec()], end: End::Whole }
}

/// Half an answer, on a connection that ends like this.
fn half(wire: Wire, stream: bool, end: End) -> Reply {
    let whole = said("This is never whole.").reply(wire, stream);
    let bytes: Vec<u8> = whole.body.concat();
    let cut = bytes.len() / 2;
    Reply { body: vec![bytes[..cut].to_vec()], ..whole }.ending(end)
}

/// A stream, or a body, that is no JSON.
fn garbled(stream: bool) -> Reply {
    match stream {
        true => Reply::events("data: {\"choices\": [{\n\n", 13),
        false => Reply { body: vec![b"{\"choices\": [{".to_vec()], ..Reply::json(200, &serde_json::json!({})) },
    }
}

fn impatient(settings: &mut ModelSettings) {
    settings.timeout_seconds = 1;
}

fn waited_20_seconds(played: &PlayedCase) {
    assert!(played.took >= Duration::from_secs(20), "only {:?} have passed", played.took);
}

fn asks_to_come_back_after_90_seconds(played: &PlayedCase) {
    let after = match &played.error {
        Some(RunError::Retry { after, .. }) => *after,
        other => panic!("{other:?}"),
    };
    assert_eq!(after, Some(Duration::from_secs(90)));
}

fn names_the_reason(played: &PlayedCase) {
    let message = played.error_message();
    assert!(message.contains("`novel_reason`"), "{message}");
    assert_eq!(played.paid, (3, 300, 30), "each answer was paid for");
}

fn keeps_the_key(played: &PlayedCase) {
    assert!(!played.error_message().contains("sk-canary"), "{}", played.error_message());
}

pub static CASES: [Case; 35] = [
    Case::new("a rate limit is waited for", |w, s| then_answer(vec![status(429, w)], w, s), Ok("Fine."), 2),
    Case::new("a rate limit twice", |w, s| then_answer(vec![status(429, w), status(429, w)], w, s), Ok("Fine."), 3),
    Case::new(
        "a rate limit for ever",
        |w, _| vec![status(429, w), status(429, w), status(429, w)],
        Err("llm_rate_limited"),
        3,
    ),
    Case::new("an overloaded provider", |w, s| then_answer(vec![status(529, w)], w, s), Ok("Fine."), 2),
    Case::new(
        "the wait that is asked for",
        |w, s| then_answer(vec![status(429, w).with("retry-after", "20")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(waited_20_seconds),
    Case::new(
        "that wait in milliseconds",
        |w, s| then_answer(vec![status(429, w).with("retry-after-ms", "20000")], w, s),
        Ok("Fine."),
        2,
    )
    .holds(waited_20_seconds),
    Case::new(
        "a wait that is too long",
        |w, _| vec![status(429, w).with("retry-after", "90")],
        Err("llm_rate_limited"),
        1,
    )
    .holds(asks_to_come_back_after_90_seconds),
    Case::new("500", |w, s| then_answer(vec![status(500, w)], w, s), Ok("Fine."), 2),
    Case::new("502 in HTML", |w, s| then_answer(vec![html(502)], w, s), Ok("Fine."), 2),
    Case::new("503 for ever", |w, _| vec![status(503, w), status(503, w), status(503, w)], Err("llm_unavailable"), 3),
    Case::new("504 is a time-out", |w, s| then_answer(vec![status(504, w)], w, s), Ok("Fine."), 2),
    Case::new("408 twice", |w, _| vec![status(408, w), status(408, w)], Err("llm_timeout"), 2),
    Case::new("409", |w, s| then_answer(vec![status(409, w)], w, s), Ok("Fine."), 2),
    Case::new("401", |w, _| vec![w.failure(401, "bad key sk-canary")], Err("llm_auth"), 1).holds(keeps_the_key),
    Case::new("402", |w, _| vec![status(402, w)], Err("llm_auth"), 1),
    Case::new("403", |w, _| vec![status(403, w)], Err("llm_auth"), 1),
    Case::new("429 without quota", |w, _| vec![w.failure(429, "insufficient_quota")], Err("llm_auth"), 1),
    Case::new("400", |w, _| vec![w.failure(400, "unknown field sk-canary")], Err("llm_rejected"), 1)
        .holds(keeps_the_key),
    Case::new("404", |w, _| vec![status(404, w)], Err("llm_no_model"), 1),
    Case::new("422", |w, _| vec![status(422, w)], Err("llm_rejected"), 1),
    Case::new("a server that hangs", |w, s| then_answer(vec![half(w, s, End::Hangs)], w, s), Ok("Fine."), 2)
        .model(impatient),
    Case::new(
        "a server that hangs twice",
        |w, s| vec![half(w, s, End::Hangs), half(w, s, End::Hangs)],
        Err("llm_timeout"),
        2,
    )
    .model(impatient),
    Case::new("a drop in the middle", |w, s| then_answer(vec![half(w, s, End::Broken)], w, s), Ok("Fine."), 2),
    Case::new("drops for ever", |w, s| [(); 3].map(|()| half(w, s, End::Broken)).into(), Err("llm_unavailable"), 3),
    Case::new("an end before the end", |w, s| then_answer(vec![half(w, s, End::Whole)], w, s), Ok("Fine."), 2),
    Case::new("malformed JSON", |w, s| then_answer(vec![garbled(s)], w, s), Ok("Fine."), 2),
    Case::new("malformed JSON for ever", |_, s| [(); 3].map(|()| garbled(s)).into(), Err("llm_unavailable"), 3),
    Case::new("HTML with 200", |w, s| then_answer(vec![html(200)], w, s), Ok("Fine."), 2),
    Case::new(
        "an error behind 200",
        |w, s| then_answer(vec![w.failure_in_answer(s, "server_error", "broken")], w, s),
        Ok("Fine."),
        2,
    ),
    Case::new("an empty answer", |w, s| then_answer(vec![said("").reply(w, s)], w, s), Ok("Fine."), 2),
    Case::new(
        "empty answers for ever",
        |w, s| [(); 3].map(|()| said(" ").reply(w, s)).into(),
        Err("llm_unavailable"),
        3,
    ),
    Case::new(
        "calls with one id",
        |w, s| then_answer(vec![calling(&[("c1", "echo", "{}"), ("c1", "echo", "{}")]).reply(w, s)], w, s),
        Ok("Fine."),
        2,
    ),
    Case::new(
        "a call without an id",
        |w, s| then_answer(vec![calling(&[("", "echo", "{}")]).reply(w, s)], w, s),
        Ok("Fine."),
        2,
    ),
    Case::new(
        "an end that nobody knows",
        |w, s| then_answer(vec![said("A").ending(Ending::Novel).reply(w, s)], w, s),
        Ok("Fine."),
        2,
    ),
    Case::new(
        "that end for ever",
        |w, s| [(); 3].map(|()| said("A").ending(Ending::Novel).reply(w, s)).into(),
        Err("llm_unavailable"),
        3,
    )
    .holds(names_the_reason),
];

#[tokio::test]
async fn failures_of_a_provider_are_healed_or_named_over_every_wire() {
    play(&CASES).await;
}
