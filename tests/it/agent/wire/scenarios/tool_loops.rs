//! Tool loops of several turns: failures behind a tool, results of every kind, and a conversation that is shortened
//! step by step.

use reveille::agent::Settings as ReactSettings;

use super::{Case, PlayedCase, body, keys, play, two_keys};
use crate::agent::wire::fakes::{Ending, FakeReply, Wire, calling, said};
use crate::agent::wire::server::Reply;

const CALL: &[(&str, &str, &str)] = &[("c1", "echo", r#"{"n":1}"#)];

/// Calls of one turn each, with results of 9,000 letters.
const LONG: [(&str, &str, &str); 5] = [
    ("c1", "long", r#"{"n":1}"#),
    ("c2", "long", r#"{"n":2}"#),
    ("c3", "long", r#"{"n":3}"#),
    ("c4", "long", r#"{"n":4}"#),
    ("c5", "long", r#"{"n":5}"#),
];

fn fine(wire: Wire, stream: bool) -> Reply {
    said("Fine.").reply(wire, stream)
}

/// A call, these replies, and an answer.
fn behind_a_tool(replies: Vec<Reply>, wire: Wire, stream: bool) -> Vec<Reply> {
    let mut all = vec![calling(CALL).reply(wire, stream)];
    all.extend(replies);
    all.push(fine(wire, stream));
    all
}

/// Five turns with long results, then the provider finds the conversation too long so many times.
fn too_long(times: usize, wire: Wire, stream: bool) -> Vec<Reply> {
    let mut all: Vec<Reply> = LONG.iter().map(|call| calling(&[*call]).reply(wire, stream)).collect();
    all.extend((0..times).map(|_| wire.failure(400, "context_length_exceeded: the prompt is too long")));
    all.push(fine(wire, stream));
    all
}

fn short_history(react: &mut ReactSettings) {
    react.max_history_messages = 7;
    react.loop_repetitions = 0;
}

/// For each request from the sixth on, how many results it brings, and how long the longest is.
fn sizes(played: &PlayedCase) -> Vec<(usize, usize)> {
    let size = |index: usize| {
        let results = played.wire.results(body(played, index));
        (results.len(), results.iter().map(|(_, text)| text.len()).max().unwrap_or_default())
    };
    (5..played.requests.len()).map(size).collect()
}

/// The end of a result that was cut.
const CUT: usize = "\n[...truncated]".len();

fn is_shortened_once(played: &PlayedCase) {
    assert_eq!(sizes(played), [(5, 9000), (4, 9000)]);
    assert_eq!(played.results.len(), 5, "the transcript keeps all");
}

fn is_shortened_by_each_step(played: &PlayedCase) {
    assert_eq!(sizes(played), [(5, 9000), (4, 9000), (4, 2000 + CUT), (3, 2000 + CUT)]);
    assert_eq!(played.results.len(), 5, "the transcript keeps all");
}

fn last_results(played: &PlayedCase) {
    assert_eq!(sizes(played), [(3, 2400 + CUT)], "the last messages alone, each result within its share");
}

fn asks_the_same_again(played: &PlayedCase) {
    assert_eq!(played.results, [("c1".to_owned(), r#"{"n":1}"#.to_owned(), false)]);
    let last = played.requests.len() - 1;
    assert_eq!(body(played, last), body(played, last - 1));
}

/// The results as they went back last.
fn sent(played: &PlayedCase, expected: &[(&str, &str)]) {
    let results = played.sent_results();
    let found: Vec<(&str, &str)> = results.iter().map(|(id, text)| (id.as_str(), text.as_str())).collect();
    assert_eq!(found, expected);
}

const EIGHT: [(&str, &str, &str); 8] = [
    ("c1", "echo", "1"),
    ("c2", "echo", r#"{"n":2}"#),
    ("c3", "nope", "{}"),
    ("c4", "echo", r#"{"n":4}"#),
    ("c5", "fails", "{}"),
    ("c6", "empty", "{}"),
    ("c7", "panics", "{}"),
    ("c8", "echo", r#"{"n":8}"#),
];

fn eight_results(played: &PlayedCase) {
    let failed: Vec<bool> = played.results.iter().map(|(.., failed)| *failed).collect();
    assert_eq!(failed, [true, false, true, false, true, false, true, false], "{:?}", played.results);
    let ids: Vec<String> = played.sent_results().into_iter().map(|(id, _)| id).collect();
    assert_eq!(ids, EIGHT.map(|(id, ..)| id), "in the order of the calls");
}

fn thinking_of_both_turns(played: &PlayedCase) {
    let sent = &played.requests[2].text;
    assert!(sent.contains("b25l") && sent.contains("dHdv"), "{sent}");
    assert!(!played.requests[1].text.contains("dHdv"));
}

pub static CASES: [Case; 24] = [
    Case::new("a rate limit behind a tool", |w, s| behind_a_tool(vec![w.failure(429, "no")], w, s), Ok("Fine."), 3)
        .holds(asks_the_same_again),
    Case::new(
        "a rate limit behind a tool for ever",
        |w, s| behind_a_tool([(); 3].map(|()| w.failure(429, "no")).into(), w, s),
        Err("llm_rate_limited"),
        4,
    )
    .holds(asks_the_same_again),
    Case::new("a time-out behind a tool", |w, s| behind_a_tool(vec![w.failure(504, "no")], w, s), Ok("Fine."), 3)
        .holds(asks_the_same_again),
    Case::new("the next key behind a tool", |w, s| behind_a_tool(vec![w.failure(401, "no")], w, s), Ok("Fine."), 3)
        .model(two_keys)
        .holds(|played| assert_eq!(keys(played), ["sk-canary", "sk-canary", "sk-second"])),
    Case::new(
        "a refused key behind a tool",
        |w, s| behind_a_tool(vec![w.failure(401, "no")], w, s),
        Err("llm_auth"),
        2,
    ),
    Case::new("an empty answer behind a tool", |w, s| behind_a_tool(vec![said("").reply(w, s)], w, s), Ok("Fine."), 3)
        .holds(asks_the_same_again),
    Case::new(
        "calls with one id behind a tool",
        |w, s| behind_a_tool(vec![calling(&[("c2", "echo", "{}"), ("c2", "echo", "{}")]).reply(w, s)], w, s),
        Ok("Fine."),
        3,
    )
    .holds(asks_the_same_again),
    Case::new(
        "a call without a name",
        |w, s| vec![calling(&[("c1", "", "{}")]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    ),
    Case::new(
        "a novel end behind a tool",
        |w, s| behind_a_tool(vec![said("A").ending(Ending::Novel).reply(w, s)], w, s),
        Ok("Fine."),
        3,
    )
    .holds(asks_the_same_again),
    Case::new(
        "an answer behind a tool that is cut off",
        |w, s| behind_a_tool(vec![said("Half").ending(Ending::Length).reply(w, s)], w, s),
        Ok("Half"),
        2,
    ),
    Case::new(
        "a model that declines",
        |w, s| vec![said("I can't.").ending(Ending::Declined).reply(w, s)],
        Err("llm_refused"),
        1,
    ),
    Case::new(
        "a model that declines behind a tool",
        |w, s| behind_a_tool(vec![said("I can't.").ending(Ending::Declined).reply(w, s)], w, s),
        Err("llm_refused"),
        2,
    )
    .holds(|played| assert_eq!(played.results.len(), 1)),
    Case::new(
        "a refusal with a call",
        |w, s| vec![calling(CALL).ending(Ending::Refusal).reply(w, s)],
        Err("llm_refused"),
        1,
    )
    .holds(|played| assert!(played.results.is_empty(), "it is not run")),
    Case::new(
        "a result that is empty",
        |w, s| vec![calling(&[("c1", "empty", "{}")]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .holds(|played| sent(played, &[("c1", "")])),
    Case::new(
        "a result of odd letters",
        |w, s| vec![calling(&[("c1", "echo", r#"{"t":"\u0001 \" \\ \u2028 </tool> 😀"}"#)]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .holds(|played| sent(played, &[("c1", "{\"t\":\"\\u0001 \\\" \\\\ \u{2028} </tool> 😀\"}")])),
    Case::new(
        "eight calls of every kind at once",
        |w, s| vec![calling(&EIGHT).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .holds(eight_results),
    Case::new(
        "one call twice in a turn",
        |w, s| vec![calling(&[("c1", "echo", "{}"), ("c2", "echo", "{}")]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .holds(|played| sent(played, &[("c1", "{}"), ("c2", "{}")])),
    Case::new(
        "arguments that are a text",
        |w, s| vec![calling(&[("c1", "echo", r#""n""#)]).reply(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .holds(|played| assert!(played.results[0].2, "{:?}", played.results)),
    Case::new(
        "thinking in two turns",
        |w, s| {
            let one = calling(CALL).thinking("b25l");
            let two = FakeReply { text: Some("And again."), ..calling(&[("c2", "echo", "{}")]) }.thinking("dHdv");
            vec![one.reply(w, s), two.reply(w, s), fine(w, s)]
        },
        Ok("Fine."),
        3,
    )
    .holds(thinking_of_both_turns),
    Case::new("too long by its history", |w, s| too_long(1, w, s), Ok("Fine."), 7)
        .react(short_history)
        .holds(is_shortened_once),
    Case::new("too long at each step", |w, s| too_long(3, w, s), Ok("Fine."), 9)
        .react(short_history)
        .holds(is_shortened_by_each_step),
    Case::new("too long behind each step", |w, s| too_long(4, w, s), Err("context_overflow"), 9)
        .react(short_history)
        .holds(is_shortened_by_each_step),
    Case::new(
        "a failure between two steps",
        |w, s| {
            let mut replies = too_long(2, w, s);
            replies.insert(6, w.failure(500, "no"));
            replies
        },
        Ok("Fine."),
        9,
    )
    .react(short_history)
    .holds(|played| assert_eq!(sizes(played)[1..], [(4, 9000), (4, 9000), (4, 2000 + CUT)])),
    Case::new("a window that is too small", |w, s| too_long(0, w, s), Ok("Fine."), 6)
        .react(|react| {
            react.context_token_limit = 2000;
            react.loop_repetitions = 0;
        })
        .holds(last_results),
];

#[tokio::test]
async fn tool_loops_come_to_their_end_over_every_wire() {
    play(&CASES).await;
}
