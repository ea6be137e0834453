//! The condition of the README: its sentence is true whichever way the price begins.

use reveille::base::expr::{Language, Variables};
use reveille::domain::run::cause::Cause;
use reveille::domain::trigger::Trigger;
use reveille::domain::trigger::condition::{ConditionState, ConditionSubject, PollResult, Validators};
use serde_json::{Map, Value, json};
use uuid::Uuid;

/// `cheap-flight.json`, as the README has it.
fn flight() -> Value {
    let page = std::fs::read_to_string(concat!(env!("CARGO_MANIFEST_DIR"), "/README.md")).expect("README.md");
    let (_, rest) = page.split_once("`cheap-flight.json`").expect("the example");
    let json = rest.split_once("```json\n").and_then(|(_, rest)| rest.split_once("```")).expect("its text").0;
    serde_json::from_str(json).expect("JSON")
}

/// The answer of the run that the first fire of these prices makes.
fn answer_of_run(prices: &[i64]) -> String {
    let (flight, language) = (flight(), Language::default());
    let trigger: Trigger = serde_json::from_value(flight["trigger"].clone()).expect("a trigger");
    let question = trigger.condition().expect("a condition").compile(&language).expect("expressions");
    let subject = ConditionSubject { id: Uuid::from_u128(1), name: "Cheap flight".into(), metadata: Map::new() };
    let mut state = ConditionState::default();
    for price in prices {
        let seen = PollResult::Value { value: json!({ "price": price }), validators: Validators::default() };
        let step = state.on_poll(&question, &subject, Ok(seen), "2027-03-01T08:00:00Z".parse().unwrap(), 0.0);
        if let Some(fire) = step.fire {
            let Cause::Condition { value, previous, .. } = fire.cause else { panic!("a condition's fire") };
            let map = flight["action"]["config"]["steps"][0]["map"].as_str().expect("a map");
            let variables = Variables::new().with("value", &value).with("previous", &previous);
            let sentence = language.read(map, &["value", "previous"]).expect("an expression").value(&variables);
            return sentence.expect("a sentence").as_str().expect("a text").to_owned();
        }
        state = step.state;
    }
    panic!("nothing fired");
}

#[test]
fn readme_condition_tells_the_truth_whichever_way_it_starts() {
    assert_eq!(answer_of_run(&[612, 480, 470]), "The flight costs 480 now, it was 612.");
    assert_eq!(answer_of_run(&[480]), "The flight costs 480 now.");
}
