//! One model's address at its provider, and the key with which it is asked.

use std::sync::Arc;

use crate::base::clock::Clock;
use crate::base::secret::Secret;
use crate::ports::llm::ModelParts;
use crate::ports::llm::connections::ModelConnections;

/// All that a request to a model needs besides its words, in whatever format it is written. Cheap to clone.
#[derive(Clone)]
pub struct ModelEndpoint {
    /// Connections to the provider.
    pub connections: Arc<ModelConnections>,
    /// The whole address that requests are posted to.
    pub url: String,
    /// The key with which requests go; `None`: without one.
    pub key: Option<Secret>,
    /// The time by which a provider's dates are read.
    pub clock: Clock,
    /// Whether answers are streamed where somebody reads along.
    pub streams: bool,
}

impl ModelEndpoint {
    /// The endpoint at this path, such as `/messages`, below the address of the model's settings.
    pub fn new(parts: &ModelParts, path: &str) -> ModelEndpoint {
        ModelEndpoint {
            connections: Arc::clone(parts.connections),
            url: format!("{}{path}", parts.settings.endpoint().unwrap_or_default()),
            key: parts.key.cloned(),
            clock: parts.clock.clone(),
            streams: parts.settings.stream,
        }
    }
}
