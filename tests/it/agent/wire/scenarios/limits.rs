//! Limits of a tool loop: turns that are used up, and calls that repeat themselves.

use reveille::agent::Settings as ReactSettings;

use super::{Case, PlayedCase, play};
use crate::agent::wire::fakes::{FakeReply, Wire, calling, said};
use crate::agent::wire::server::Reply;

const IDS: [&str; 4] = ["c1", "c2", "c3", "c4"];

/// One call so many times, each a turn of its own.
fn same(times: usize, wire: Wire, stream: bool) -> Vec<Reply> {
    IDS[..times].iter().map(|id| calling(&[(*id, "echo", r#"{"n":7}"#)]).reply(wire, stream)).collect()
}

/// Turns, and an answer behind them.
fn answered(mut turns: Vec<Reply>, wire: Wire, stream: bool) -> Vec<Reply> {
    turns.push(said("It is 7.").reply(wire, stream));
    turns
}

fn one_turn(react: &mut ReactSettings) {
    react.max_turns = 1;
}

/// Results as the last request brings them: which begin with the notice.
fn notices(played: &PlayedCase, expected: &[bool]) {
    let told: Vec<bool> = played.sent_results().iter().map(|(_, text)| text.starts_with("[Repetition] ")).collect();
    assert_eq!(told, expected);
    assert!(played.sent_results().iter().all(|(_, text)| text.ends_with(r#"{"n":7}"#)), "the results are whole");
}

pub static CASES: [Case; 5] = [
    Case::new(
        "an answer at the limit of turns",
        |w, s| vec![calling(&[("c1", "echo", "{}")]).reply(w, s), said("This far.").reply(w, s)],
        Ok("This far."),
        2,
    )
    .react(one_turn),
    Case::new(
        "a last turn that says nothing behind one that spoke",
        |w, s| {
            let speaks = FakeReply { text: Some("Halfway."), ..calling(&[("c1", "echo", "{}")]) };
            vec![speaks.reply(w, s), calling(&[("c2", "echo", "{}")]).reply(w, s)]
        },
        Ok("Halfway."),
        2,
    )
    .react(one_turn),
    Case::new("the same call four times", |w, s| same(4, w, s), Err("loop"), 4)
        .holds(|played| notices(played, &[false, false, true])),
    Case::new("a model that heeds the notice", |w, s| answered(same(3, w, s), w, s), Ok("It is 7."), 4)
        .holds(|played| notices(played, &[false, false, true])),
    Case::new("the same call as often as it likes", |w, s| answered(same(4, w, s), w, s), Ok("It is 7."), 5)
        .react(|react| react.loop_repetitions = 0)
        .holds(|played| notices(played, &[false; 4])),
];

#[tokio::test]
async fn limits_of_a_loop_hold_over_every_wire() {
    play(&CASES).await;
}
