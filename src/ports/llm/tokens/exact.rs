//! Exact counts: encoders that an embedder has registered for models. They count on computing threads. The estimate of
//! a conversation is scaled to what they have counted, so that parts of it can be estimated where nobody waits for a
//! thread.

use std::collections::hash_map::RandomState;
use std::hash::BuildHasher;
use std::num::NonZeroUsize;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use lru::LruCache;
use tokio::time::timeout;

use crate::base::compute::Compute;
use crate::base::invalid::ValidationErrors;
use crate::domain::run::TranscriptMessage;
use crate::ports::llm::OfferedTools;
use crate::ports::llm::text_size::TextSize;
use crate::ports::llm::tokens::encoders::{check_name, fitting};
use crate::ports::llm::tokens::{TokenCounter, each_text};

/// Seconds that counts are waited for at most, by the machine's clock: an encoder takes time where no other part does.
const WAITED_SECONDS: u64 = 5;
/// Texts of one model whose counts are remembered, at most; a few bytes each.
const KNOWN_TEXTS: usize = 20_000;
const REMEMBERED: NonZeroUsize = NonZeroUsize::new(KNOWN_TEXTS).unwrap();
/// The ratio of what is counted to the estimate stays within these bounds, whatever an encoder says.
const RATIOS: (f64, f64) = (0.1, 20.0);

/// An encoder of a model, as far as its tokens are counted.
pub trait TokenEncoder: Send + Sync {
    /// Tokens of a text. Called on a computing thread, for each text of a conversation once. It waits for nothing.
    /// Where the counts of a conversation are not there after 5 seconds, its tokens are estimated, and the next turn
    /// finds those that came later.
    fn count(&self, text: &str) -> usize;
}

/// An encoder that an embedder has made.
#[derive(Clone)]
pub struct OwnEncoder {
    /// The provider's name of a model, or the beginning of such names with a `*` behind it, as in `[encoders]`.
    pub models: String,
    /// The encoder.
    pub encoder: Arc<dyn TokenEncoder>,
}

impl OwnEncoder {
    /// Adds names that can be no model's; pointers begin with `/encoders`.
    pub fn check(added: &[OwnEncoder], faults: &mut ValidationErrors) {
        added.iter().for_each(|own| check_name(&own.models, faults));
    }

    /// The counts of a model by the encoder whose name fits it best; `None`: none is for it.
    pub fn counts_of(added: &[OwnEncoder], model: &str) -> Option<ExactCounts> {
        let own = fitting(added.iter().map(|own| (own.models.as_str(), own)), model)?;
        Some(ExactCounts::new(Arc::clone(&own.encoder)))
    }
}

/// The encoder of one model, and its counts of texts that it has seen lately.
pub struct ExactCounts {
    encoder: Arc<dyn TokenEncoder>,
    /// By the hash of the text.
    known: Arc<Mutex<LruCache<u64, u64>>>,
    hashes: RandomState,
    /// The longest that counts are waited for.
    within: Duration,
}

/// The texts of a conversation.
#[derive(Default)]
struct CountedTexts {
    /// Tokens as they are estimated without a margin.
    estimated: f64,
    /// Tokens of those whose counts are known.
    exact: u64,
    /// The others, with their hashes.
    unknown: Vec<(u64, String)>,
}

impl ExactCounts {
    /// No text is counted yet.
    pub fn new(encoder: Arc<dyn TokenEncoder>) -> ExactCounts {
        ExactCounts {
            encoder,
            known: Arc::new(Mutex::new(LruCache::new(REMEMBERED))),
            hashes: RandomState::new(),
            within: Duration::from_secs(WAITED_SECONDS),
        }
    }

    /// The margin with which a counter estimates as many tokens for these messages and tools as they are; `None`: they
    /// can't be counted.
    pub async fn margin(
        &self,
        messages: &[TranscriptMessage],
        tools: &OfferedTools,
        counter: TokenCounter,
        (tenant, compute): (&str, &Compute),
    ) -> Option<f64> {
        let mut texts = self.texts(messages, tools, counter);
        if !texts.unknown.is_empty() {
            let (encoder, known) = (Arc::clone(&self.encoder), Arc::clone(&self.known));
            let unknown = std::mem::take(&mut texts.unknown);
            let count = move || {
                let mut sum = 0_u64;
                for (hash, text) in unknown {
                    let tokens = encoder.count(&text) as u64;
                    sum = sum.saturating_add(tokens);
                    // one by one: those that nobody waits for any more are there for the next time
                    known.lock().expect("counts lock").put(hash, tokens);
                }
                sum
            };
            let counted = match timeout(self.within, compute.run(tenant, count)).await {
                Ok(Ok(counted)) => counted,
                Ok(Err(panicked)) => {
                    tracing::error!(%panicked, "an encoder broke down; tokens are estimated");
                    return None;
                }
                Err(_) => {
                    tracing::warn!("an encoder took too long; tokens are estimated");
                    return None;
                }
            };
            texts.exact = texts.exact.saturating_add(counted);
        }
        let (least, most) = RATIOS;
        (texts.estimated > 0.0).then(|| (texts.exact as f64 / texts.estimated).clamp(least, most))
    }

    fn texts(&self, messages: &[TranscriptMessage], tools: &OfferedTools, counter: TokenCounter) -> CountedTexts {
        let mut found = CountedTexts::default();
        let mut known = self.known.lock().expect("counts lock");
        let mut add = |text: &str| {
            if text.is_empty() {
                return;
            }
            found.estimated += counter.without_margin(TextSize::of([text]));
            let hash = self.hashes.hash_one(text);
            match known.get(&hash) {
                Some(tokens) => found.exact = found.exact.saturating_add(*tokens),
                None => found.unknown.push((hash, text.to_owned())),
            }
        };
        for message in messages {
            each_text(message, &mut add);
        }
        for tool in tools.iter() {
            add(&tool.name);
            add(&tool.description);
            add(&tool.parameters.to_string());
        }
        found
    }
}

#[cfg(test)]
mod tests {
    use std::ops::Range;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::sync::mpsc::{Receiver, channel};

    use super::*;
    use crate::ports::llm::ToolSchema;

    /// Counts each character as a token, and breaks down at an exclamation mark.
    #[derive(Default)]
    struct Characters(AtomicUsize);

    impl TokenEncoder for Characters {
        fn count(&self, text: &str) -> usize {
            self.0.fetch_add(1, Ordering::Relaxed);
            assert!(!text.contains('!'));
            text.chars().count()
        }
    }

    #[tokio::test]
    async fn estimate_is_scaled_to_the_counts_of_the_encoder_and_no_text_is_counted_twice() {
        let encoder = Arc::new(Characters::default());
        let counts = ExactCounts::new(Arc::clone(&encoder) as Arc<dyn TokenEncoder>);
        let (compute, counter) = (Compute::new(1), TokenCounter::of("claude"));
        let margin = async |messages: &[TranscriptMessage], tools: &OfferedTools| {
            counts.margin(messages, tools, counter, ("ann", &compute)).await
        };
        let said = [TranscriptMessage::system("Be brief."), TranscriptMessage::user("早上好, and good morning")];
        let parameters = serde_json::json!({}).into();
        let look = ToolSchema { name: "look".into(), description: String::new(), parameters };
        let tools = OfferedTools::from(vec![look]);
        let found = margin(&said, &tools).await.expect("a margin");
        assert_eq!(encoder.0.load(Ordering::Relaxed), 4, "each text that there is");
        let exact = TokenCounter { margin: found, ..counter };
        let characters = [9, 21, 4, 2].map(|count| count as f64);
        let counted = (exact.messages(&said) + exact.tools(&tools)) as f64;
        let frames = 3.0 * 4.0;
        let difference = counted - frames - characters.iter().sum::<f64>();
        assert!((0.0..4.0).contains(&difference), "each part is rounded up: {difference}");

        assert_eq!(margin(&said, &tools).await, Some(found));
        assert_eq!(encoder.0.load(Ordering::Relaxed), 4, "it is remembered");
        assert_eq!(margin(&[TranscriptMessage::user("Stop!")], &tools).await, None, "it broke down");
        assert_eq!(margin(&said, &tools).await, Some(found));
        assert_eq!(margin(&[], &OfferedTools::default()).await, None, "there is nothing");
    }

    /// Counts a text once it may.
    struct Halting(Mutex<Receiver<()>>);

    impl TokenEncoder for Halting {
        fn count(&self, text: &str) -> usize {
            self.0.lock().unwrap().recv().unwrap();
            text.chars().count()
        }
    }

    #[tokio::test]
    async fn counts_are_waited_for_so_long_and_later_ones_are_there_for_the_next_time() {
        let (go_on, held) = channel();
        let counts = ExactCounts::new(Arc::new(Halting(Mutex::new(held))));
        assert_eq!(counts.within, Duration::from_secs(WAITED_SECONDS));
        let counts = ExactCounts { within: Duration::from_millis(1), ..counts };
        let (compute, tools) = (Compute::new(1), OfferedTools::default());
        let said = [TranscriptMessage::user("one text")];
        let margin = async || counts.margin(&said, &tools, TokenCounter::of(""), ("ann", &compute)).await;
        assert_eq!(margin().await, None, "it is estimated");
        go_on.send(()).unwrap();
        compute.run("bob", || ()).await.expect("the thread, which was busy with the text");
        assert_eq!(margin().await, Some(4.0));
    }

    #[tokio::test]
    async fn counts_of_so_many_texts_are_remembered_and_the_oldest_makes_room() {
        let encoder = Arc::new(Characters::default());
        let counts = ExactCounts::new(Arc::clone(&encoder) as Arc<dyn TokenEncoder>);
        let (compute, tools) = (Compute::new(1), OfferedTools::default());
        let counted = async |texts: Range<usize>| {
            let said: Vec<_> = texts.map(|number| TranscriptMessage::user(number.to_string())).collect();
            counts.margin(&said, &tools, TokenCounter::of(""), ("ann", &compute)).await.expect("a margin");
            encoder.0.swap(0, Ordering::Relaxed)
        };
        assert_eq!(counted(0..KNOWN_TEXTS).await, KNOWN_TEXTS);
        assert_eq!(counted(0..KNOWN_TEXTS).await, 0);
        assert_eq!(counted(KNOWN_TEXTS..KNOWN_TEXTS + 1).await, 1);
        assert_eq!(counted(1..KNOWN_TEXTS).await, 0);
        assert_eq!(counted(0..1).await, 1, "it has made room for the last one");
    }

    #[tokio::test]
    async fn counts_that_make_no_sense_are_bounded() {
        struct Always(usize);

        impl TokenEncoder for Always {
            fn count(&self, _: &str) -> usize {
                self.0
            }
        }

        let compute = Compute::new(1);
        for (count, bound) in [(0, RATIOS.0), (usize::MAX, RATIOS.1)] {
            let counts = ExactCounts::new(Arc::new(Always(count)));
            let said = [TranscriptMessage::user("one"), TranscriptMessage::user("two")];
            let found = counts.margin(&said, &OfferedTools::default(), TokenCounter::of(""), ("ann", &compute)).await;
            assert_eq!(found, Some(bound));
        }
    }

    #[test]
    fn encoder_with_the_longest_name_that_fits_counts_for_a_model() {
        let own = |models: &str, count| {
            let encoder: Arc<dyn TokenEncoder> = Arc::new(Characters(AtomicUsize::new(count)));
            OwnEncoder { models: models.to_owned(), encoder }
        };
        let added = [own("qwen*", 1), own("Qwen3:8b", 2), own("qwen3*", 3)];
        let is_counted_by = |model: &str| {
            let counts = OwnEncoder::counts_of(&added, model)?;
            added.iter().position(|own| Arc::ptr_eq(&own.encoder, &counts.encoder))
        };
        let found = ["qwen2", "qwen3:8b", "qwen3:4b", "gpt-5"].map(is_counted_by);
        assert_eq!(found, [Some(0), Some(1), Some(2), None]);
        let mut faults = ValidationErrors::new();
        OwnEncoder::check(&[own("", 0), own("a*b", 0), own("m*", 0)], &mut faults);
        let places: Vec<&str> = faults.0.iter().map(|fault| fault.pointer.as_str()).collect();
        assert_eq!(places, ["/encoders/", "/encoders/a*b"]);
    }
}
