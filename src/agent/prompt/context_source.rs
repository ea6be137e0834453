//! `prepare_context`: what an embedder adds to the instructions of a run, such as a profile of the user or what is
//! remembered. A source that fails or takes too long adds nothing.

use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::Duration;

use futures::FutureExt;
use futures::future::{BoxFuture, join_all};

use crate::agent::gate::GateMessage;
use crate::base::clock::Clock;

/// The longest that a source is waited for. All are asked at once.
const TIME_LIMIT: Duration = Duration::from_secs(5);
/// Longest text of a source, in characters; of a longer one the beginning is used.
pub const SOURCE_CHARS: usize = 8_000;

/// One source of context.
pub trait ContextSource: Send + Sync {
    /// Name of the source, for the log.
    fn name(&self) -> &'static str;

    /// The text that stands behind the instructions of the agent; `None`: there is nothing to add. Asked at each start
    /// of a run and each time that it goes on. The model follows what it says: text from outside belongs elsewhere. An
    /// error is logged. Has 5 seconds.
    fn context<'a>(&'a self, message: GateMessage<'a>) -> BoxFuture<'a, Result<Option<String>, String>>;
}

/// The sources, in their order. Cheap to clone.
#[derive(Clone, Default)]
pub struct ContextSources(Arc<Vec<Arc<dyn ContextSource>>>);

impl ContextSources {
    /// These sources, the first one first.
    pub fn new(sources: Vec<Arc<dyn ContextSource>>) -> ContextSources {
        ContextSources(Arc::new(sources))
    }

    /// The texts of all that have one.
    pub async fn texts(&self, message: GateMessage<'_>, clock: &Clock) -> Vec<String> {
        let asked = self.0.iter().map(|source| text_of(&**source, message, clock));
        join_all(asked).await.into_iter().flatten().collect()
    }
}

async fn text_of(source: &dyn ContextSource, message: GateMessage<'_>, clock: &Clock) -> Option<String> {
    let (run_id, name) = (message.run_id, source.name());
    let answered = tokio::select! {
        biased;
        answered = AssertUnwindSafe(source.context(message)).catch_unwind() => Some(answered),
        () = clock.sleep(TIME_LIMIT) => None,
    };
    match answered {
        Some(Ok(Ok(text))) => {
            let text: String = text?.trim().chars().take(SOURCE_CHARS).collect();
            return (!text.is_empty()).then_some(text);
        }
        Some(Ok(Err(error))) => tracing::warn!(%run_id, source = name, error, "a source of context failed"),
        Some(Err(_)) => tracing::error!(%run_id, source = name, "a source of context panicked"),
        None => tracing::warn!(%run_id, source = name, "a source of context took too long"),
    }
    None
}
