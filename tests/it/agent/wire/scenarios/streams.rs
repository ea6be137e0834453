//! Answers on their way: connections that drop or say nothing, streams in unusual and in broken forms, and failures
//! that a provider states behind `200 OK`.

use super::{Case, PlayedCase, body, keys, play, two_keys};
use crate::agent::wire::fakes::{FakeReply, Wire, calling, said};
use crate::agent::wire::server::{End, Reply};

const CALL: &[(&str, &str, &str)] = &[("c1", "echo", r#"{"n":1}"#)];

fn fine(wire: Wire, stream: bool) -> Reply {
    said("Fine.").reply(wire, stream)
}

/// The first part of an answer, on a connection that ends like this. `parts`: how many of eight.
fn cut(said: &FakeReply, parts: usize, wire: Wire, stream: bool, end: End) -> Reply {
    let whole = said.reply(wire, stream);
    let bytes: Vec<u8> = whole.body.concat();
    let length = bytes.len() * parts / 8;
    Reply { body: vec![bytes[..length].to_vec()], ..whole }.ending(end)
}

/// An answer whose text is written in another way.
fn rewritten(said: &FakeReply, wire: Wire, stream: bool, write: impl Fn(&str) -> Vec<u8>) -> Reply {
    let whole = said.reply(wire, stream);
    let text = String::from_utf8(whole.body.concat()).expect("text");
    Reply { body: write(&text).chunks(17).map(<[u8]>::to_vec).collect(), ..whole }
}

/// Lines that end as on another system, and comments between them; an answer in one piece gets spaces around it.
fn with_comments(wire: Wire, stream: bool) -> Reply {
    rewritten(&said("Fine."), wire, stream, |text| match stream {
        true => format!(": begins\n\n{}", text.replace("\n\n", "\n\n: keep-alive\n\n")).replace('\n', "\r\n").into(),
        false => format!("\r\n {text} \r\n").into(),
    })
}

/// Each event in two lines of data; an answer in one piece is broken into lines, too.
fn in_lines(wire: Wire, stream: bool) -> Reply {
    rewritten(&said("Fine."), wire, stream, |text| match stream {
        true => text.replace("data: {", "data: {\ndata: ").into(),
        false => text.replacen('{', "{\n", 1).into(),
    })
}

/// Events and fields that are yet to be invented.
fn with_novelties(wire: Wire, stream: bool) -> Reply {
    rewritten(&said("Fine."), wire, stream, |text| match stream {
        true => format!("event: novel\ndata: {{\"type\":\"novel\",\"novel\":[1]}}\n\n{text}").into(),
        false => text.replacen('{', r#"{"novel":[1],"#, 1).into(),
    })
}

/// A byte that begins no letter, in the middle of the text.
fn with_a_broken_letter(wire: Wire, stream: bool) -> Reply {
    rewritten(&said("Fi~ne."), wire, stream, |text| {
        text.bytes().map(|byte| if byte == b'~' { 0xff } else { byte }).collect()
    })
}

/// Rubbish behind an answer that has ended.
fn with_rubbish_behind(wire: Wire, stream: bool) -> Reply {
    rewritten(&said("Fine."), wire, stream, |text| match stream {
        true => format!("{text}data: {{broken\n\n").into(),
        false => text.into(),
    })
}

fn limited(wire: Wire, stream: bool) -> Reply {
    let kind = if wire == Wire::Anthropic { "rate_limit_error" } else { "rate_limit_exceeded" };
    wire.failure_in_answer(stream, kind, "slow down")
}

fn refused_key(wire: Wire, stream: bool) -> Reply {
    wire.failure_in_answer(stream, "authentication_error", "bad key sk-canary")
}

/// The call ran once, and its result went back.
fn one_result(played: &PlayedCase) {
    assert_eq!(played.results, [("c1".to_owned(), r#"{"n":1}"#.to_owned(), false)]);
    assert_eq!(played.sent_results(), [("c1".to_owned(), r#"{"n":1}"#.to_owned())]);
}

/// The last request is the one before, once more.
fn asks_the_same_again(played: &PlayedCase) {
    one_result(played);
    let last = played.requests.len() - 1;
    assert_eq!(body(played, last), body(played, last - 1));
}

pub static CASES: [Case; 24] = [
    Case::new("a drop before the first byte", |w, s| vec![fine(w, s).ending(End::Dropped), fine(w, s)], Ok("Fine."), 2),
    Case::new(
        "drops before the first byte for ever",
        |w, s| [(); 3].map(|()| fine(w, s).ending(End::Dropped)).into(),
        Err("llm_unavailable"),
        3,
    ),
    Case::new("silence", |w, s| vec![fine(w, s).ending(End::Silent), fine(w, s)], Ok("Fine."), 2)
        .model(|model| model.timeout_seconds = 2),
    Case::new("silence twice", |w, s| [(); 2].map(|()| fine(w, s).ending(End::Silent)).into(), Err("llm_timeout"), 2)
        .model(|model| model.timeout_seconds = 2),
    Case::new(
        "a drop behind the first piece",
        |w, s| vec![cut(&said("This is never whole."), 1, w, s, End::Broken), fine(w, s)],
        Ok("Fine."),
        2,
    ),
    Case::new(
        "a drop before the last piece",
        |w, s| vec![cut(&said("This is never whole."), 6, w, s, End::Broken), fine(w, s)],
        Ok("Fine."),
        2,
    ),
    Case::new(
        "a drop in the middle of a call",
        |w, s| vec![cut(&calling(CALL), 4, w, s, End::Broken), calling(CALL).reply(w, s), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .holds(one_result),
    Case::new(
        "a call that ends before its end",
        |w, s| vec![cut(&calling(CALL), 4, w, s, End::Whole), calling(CALL).reply(w, s), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .holds(one_result),
    Case::new(
        "a hang in the middle of a call",
        |w, s| vec![cut(&calling(CALL), 4, w, s, End::Hangs), calling(CALL).reply(w, s), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .model(|model| model.timeout_seconds = 2)
    .holds(one_result),
    Case::new(
        "a drop behind a tool",
        |w, s| vec![calling(CALL).reply(w, s), cut(&said("This is never whole."), 4, w, s, End::Broken), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .holds(asks_the_same_again),
    Case::new(
        "silence behind a tool",
        |w, s| vec![calling(CALL).reply(w, s), fine(w, s).ending(End::Silent), fine(w, s)],
        Ok("Fine."),
        3,
    )
    .model(|model| model.timeout_seconds = 3)
    .holds(asks_the_same_again),
    Case::new("comments and other line ends", |w, s| vec![with_comments(w, s)], Ok("Fine."), 1),
    Case::new("data in several lines", |w, s| vec![in_lines(w, s)], Ok("Fine."), 1),
    Case::new("events and fields that nobody knows", |w, s| vec![with_novelties(w, s)], Ok("Fine."), 1),
    Case::new("rubbish behind the end", |w, s| vec![with_rubbish_behind(w, s)], Ok("Fine."), 1),
    Case::new("a letter that is none", |w, s| vec![with_a_broken_letter(w, s), fine(w, s)], Ok("Fine."), 2),
    Case::new(
        "letters that are none for ever",
        |w, s| [(); 3].map(|()| with_a_broken_letter(w, s)).into(),
        Err("llm_unavailable"),
        3,
    ),
    Case::new("a rate limit behind 200", |w, s| vec![limited(w, s), fine(w, s)], Ok("Fine."), 2),
    Case::new(
        "a rate limit behind 200 for ever",
        |w, s| [(); 3].map(|()| limited(w, s)).into(),
        Err("llm_rate_limited"),
        3,
    ),
    Case::new(
        "an overloaded provider behind 200",
        |w, s| vec![w.failure_in_answer(s, "overloaded_error", "come back"), fine(w, s)],
        Ok("Fine."),
        2,
    ),
    Case::new("a refused key behind 200", |w, s| vec![refused_key(w, s)], Err("llm_auth"), 1)
        .holds(|played| assert!(!played.error_message().contains("sk-canary"))),
    Case::new(
        "the next key behind a refused one behind 200",
        |w, s| vec![refused_key(w, s), fine(w, s)],
        Ok("Fine."),
        2,
    )
    .model(two_keys)
    .holds(|played| assert_eq!(keys(played), ["sk-canary", "sk-second"])),
    Case::new(
        "too long behind 200",
        |w, s| {
            let too_long = w.failure_in_answer(s, "invalid_request_error", "prompt is too long: 9 tokens > 8 maximum");
            vec![too_long, fine(w, s)]
        },
        Ok("Fine."),
        2,
    ),
    Case::new(
        "a request that is refused behind 200",
        |w, s| vec![w.failure_in_answer(s, "invalid_request_error", "unknown field")],
        Err("llm_rejected"),
        1,
    ),
];

#[tokio::test]
async fn answers_on_their_way_are_read_or_asked_for_again_over_every_wire() {
    play(&CASES).await;
}
