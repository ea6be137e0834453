//! The most that a step reserves for its model.

use std::sync::Arc;

use reveille::agent::Agent;
use reveille::ports::llm::fallback::ChainLink;
use reveille::ports::llm::tokens::calibration::TokenCalibration;
use reveille::ports::llm::tokens::exact::ExactCounts;
use serde_json::json;

use super::harness::answer;
use crate::agent::context::Characters;
use crate::agent::harness::{AgentHarness, Memory, link, models_of, says};

#[tokio::test]
async fn call_of_a_step_is_reserved_as_an_encoder_has_counted_it() {
    let reserved = async |calibration: TokenCalibration| {
        let stage = AgentHarness::new(vec![says("short")], vec![]);
        let model = ChainLink { calibration, ..link("main", stage.model.clone()) };
        let agent =
            Agent { models: models_of(vec![model], &stage.agent.settings, &stage.clock), ..stage.agent.clone() };
        let store = Arc::new(Memory { is_budgeted: true, ..Memory::default() });
        let stage = AgentHarness { agent, store, ..stage };
        let step = json!({ "name": "short", "llm": { "prompt": "x".repeat(8_000), "max_tokens": 10 } });
        assert_eq!(answer(&stage, json!([step]), None).await, "short");
        let bounds = stage.store.bounds.lock().unwrap();
        let [bound] = &bounds[..] else { panic!("one call: {bounds:?}") };
        bound.most.tokens
    };
    assert_eq!(reserved(TokenCalibration::default()).await, 2_014, "four characters a token, and the frame");
    let counts = ExactCounts::new(Arc::new(Characters(1)));
    assert_eq!(reserved(TokenCalibration::with_exact(Some(counts))).await, 8_014);
}
