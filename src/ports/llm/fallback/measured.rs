//! The conversation of a run as encoders of an embedder have counted it, for the models of its chain that have one.

use crate::base::compute::Compute;
use crate::domain::budget::CallBound;
use crate::domain::run::TranscriptMessage;
use crate::ports::llm::fallback::{Chain, ChainLink, LinkInUse};
use crate::ports::llm::tokens::TokenCounter;
use crate::ports::llm::{ModelRequest, OfferedTools};

impl Chain {
    /// Counts a conversation by the encoders of its models, where an embedder has registered any: [`Chain::counter`]
    /// goes by it until the next time. What can't be counted is estimated.
    pub async fn measure(&self, messages: &[TranscriptMessage], tools: &OfferedTools, compute: &Compute) {
        for used in &self.links {
            let Some(exact) = used.link.calibration.exact() else { continue };
            let margin = exact.margin(messages, tools, used.link.counter, (self.tenant.as_str(), compute)).await;
            *used.measured.lock().expect("margin lock") = margin;
        }
    }

    /// As [`Chain::measure`], for a text alone.
    pub async fn measure_text(&self, text: &str, compute: &Compute) {
        if self.links.iter().any(|used| used.link.calibration.exact().is_some()) {
            self.measure(&[TranscriptMessage::user(text)], &OfferedTools::default(), compute).await;
        }
    }

    /// The most that a call by itself may come to, whichever model answers. Its request is measured first: there was no
    /// turn before that has measured it.
    pub async fn measured_worst_case(&self, request: &ModelRequest, compute: &Compute) -> CallBound {
        self.measure(&request.messages, &request.tools, compute).await;
        self.worst_case(request)
    }

    /// Most tokens that are read and written in answer to a request of this model: as many as were reserved for it.
    pub(super) fn max_tokens_of(&self, link: &ChainLink, request: &ModelRequest) -> (i64, i64) {
        let used = self.links.iter().find(|used| std::ptr::eq(&*used.link, link));
        used.map_or_else(|| link.most(request), |used| used.most(request))
    }
}

impl LinkInUse {
    /// Counts as the conversation was measured, and else as far as that is known of the model by now.
    pub(super) fn counter(&self) -> TokenCounter {
        self.measured_counter().unwrap_or_else(|| self.link.calibrated_counter())
    }

    /// Most tokens that are read and written in answer to a request: the reservation is never less than the estimate.
    pub(super) fn most(&self, request: &ModelRequest) -> (i64, i64) {
        let (input, output) = self.link.most(request);
        let measured = self.measured_counter().map_or(0, |counter| counter.request(request) as i64);
        (input.max(measured), output)
    }

    fn measured_counter(&self) -> Option<TokenCounter> {
        let measured = *self.measured.lock().expect("margin lock");
        measured.map(|margin| TokenCounter { margin, ..self.link.counter })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;
    use std::time::Duration;

    use chrono::DateTime;

    use super::*;
    use crate::base::clock::Clock;
    use crate::ports::llm::fallback::RetryWait;
    use crate::ports::llm::scripted::{Scenario, ScriptedModel};
    use crate::ports::llm::tokens::calibration::TokenCalibration;
    use crate::ports::llm::tokens::encoders::Encoders;
    use crate::ports::llm::tokens::exact::{ExactCounts, TokenEncoder};
    use crate::ports::llm::{OwnModel, ToolChoice};

    struct Characters;

    impl TokenEncoder for Characters {
        fn count(&self, text: &str) -> usize {
            text.chars().count()
        }
    }

    #[tokio::test]
    async fn counter_and_reservation_of_a_run_go_by_its_own_measured_conversation() {
        let clock = Clock::manual(DateTime::UNIX_EPOCH);
        let scenario = Scenario::from_toml("[[steps]]\ntext = 'Hello.'").unwrap();
        let model = Arc::new(ScriptedModel::new(scenario, clock.clone()));
        let own = OwnModel { name: "main".into(), model };
        let exact = TokenCalibration::with_exact(Some(ExactCounts::new(Arc::new(Characters))));
        let encoders = Encoders::default();
        let link = Arc::new(ChainLink { calibration: exact, ..ChainLink::of_embedder(&own, (&encoders, &[])) });
        let retry = RetryWait { max_retries: 0, base_delay: Duration::ZERO };
        let chain = || Chain::new(vec![Arc::clone(&link)], "ann", retry, clock.clone());
        let text = "x".repeat(8_000);
        let request = ModelRequest {
            messages: vec![TranscriptMessage::user(text.as_str())],
            tools: OfferedTools::default(),
            tool_choice: ToolChoice::Auto,
            max_tokens: Some(10),
            temperature: None,
        };
        let (measured, other, compute) = (chain(), chain(), Compute::new(1));
        measured.measure(&request.messages, &request.tools, &compute).await;
        assert_eq!((measured.counter().text(&text), other.counter().text(&text)), (8_000, 2_400));
        let most = |chain: &Chain| chain.worst_case(&request).most.tokens;
        assert_eq!((most(&measured), most(&other)), (8_014, 2_414));
        // a call that nobody has counted takes all that was reserved for it
        let cut_off = measured.budgeted();
        cut_off.note_unmetered(&link, &request);
        assert_eq!(cut_off.take_unusable().input_tokens, 8_004);
        assert_eq!(chain().measured_worst_case(&request, &compute).await.most.tokens, 8_014);
        other.measure_text(&text, &compute).await;
        assert_eq!(other.counter().text("xxxx"), 4);
    }
}
