//! Texts as vectors, made by an endpoint of the form of OpenAI's: texts of about the same meaning are near each other.
//!
//! Source of the shapes: <https://platform.openai.com/docs/api-reference/embeddings>.

use std::collections::BTreeMap;
use std::pin::pin;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use aws_lc_rs::digest::{SHA256, digest};
use serde::Deserialize;
use serde_json::{Map, json};

use crate::base::clock::Clock;
use crate::base::collections::fair_queue::{FairQueue, QueuePermit};
use crate::base::compute::Compute;
use crate::base::secret::Secret;
use crate::ports::llm::connections::ModelConnections;
use crate::ports::llm::{LlmError, ModelSettings, wire};

/// Texts of one request.
pub const TEXTS_AT_ONCE: usize = 16;
/// Most dimensions of a vector.
pub const MOST_DIMENSIONS: u32 = 4_096;
/// In whose turn calls are made that nobody waits for; no tenant has this name.
const IN_BACKGROUND: &str = "";
/// Sums of a comparison that go on side by side.
const LANES: usize = 8;
/// Steps to read a byte of an answer, as [`Compute`] counts them.
const READ_BYTE: u64 = 5;
/// An endpoint that did not answer is left alone for so long by those who can do without.
const REST: Duration = Duration::from_secs(30);
/// Once it has failed so many tenants without an answer between, all leave it alone; until then each does for itself.
const TENANTS_IN_VAIN: usize = 3;

/// The endpoint. Cheap to clone.
#[derive(Clone)]
pub struct Embeddings(Arc<EmbeddingEndpoint>);

struct EmbeddingEndpoint {
    connections: ModelConnections,
    url: String,
    keys: Vec<Secret>,
    /// Places of the calls that are made at once, which tenants have in turn; `None`: there is no limit.
    calls: Option<FairQueue<String>>,
    model: String,
    dimensions: Option<u32>,
    space: String,
    clock: Clock,
    compute: Compute,
    /// The tenants that it has not answered since its last answer, each with the time until which they leave it alone,
    /// by [`Clock::elapsed`].
    in_vain: Mutex<BTreeMap<String, Duration>>,
}

/// A vector of length 1.
#[derive(Debug, Clone, PartialEq)]
pub struct Embedding(Vec<f32>);

#[derive(Deserialize)]
struct EmbeddingAnswer {
    data: Vec<AnsweredText>,
}

#[derive(Deserialize)]
struct AnsweredText {
    index: usize,
    embedding: Vec<f32>,
}

impl Embeddings {
    /// The endpoint of a model of `[llm.models]`; `None`: its provider makes no vectors.
    pub fn new(
        settings: &ModelSettings,
        dimensions: Option<u32>,
        clock: Clock,
        compute: Compute,
    ) -> Option<Embeddings> {
        let endpoint = settings.endpoint().filter(|_| settings.makes_embeddings())?;
        Some(Embeddings(Arc::new(EmbeddingEndpoint {
            connections: ModelConnections::new(Duration::from_secs(settings.timeout_seconds)),
            url: format!("{endpoint}/embeddings"),
            keys: settings.keys().cloned().collect(),
            calls: settings.max_concurrent_calls.map(FairQueue::new),
            model: settings.model.clone(),
            dimensions,
            space: space_of(&settings.model, dimensions),
            clock,
            compute,
            in_vain: Mutex::default(),
        })))
    }

    /// Name of the space in which the vectors are: those of another model, or of another length, can't be compared with
    /// them.
    pub fn space(&self) -> &str {
        &self.0.space
    }

    /// The vectors of at most [`TEXTS_AT_ONCE`] texts of a tenant, in their order; `None`: a text has no direction.
    /// Nobody waits for them: all such calls have one turn together, beside the tenants whose runs wait. The endpoint
    /// has so long from the turn on.
    ///
    /// # Errors
    /// As of a model. `Rejected` and `Overflow`: it will not have one of the texts, or none at all.
    pub async fn embed(
        &self,
        tenant: &str,
        texts: &[&str],
        within: Duration,
    ) -> Result<Vec<Option<Embedding>>, LlmError> {
        let _place = self.place(IN_BACKGROUND).await;
        let answer = tokio::select! {
            biased;
            answer = self.ask(texts) => answer?,
            () = self.0.clock.sleep(within) => return Err(too_late()),
        };
        self.read(tenant, answer, texts.len()).await
    }

    /// Whether [`Embeddings::try_embed`] would ask the endpoint for the vector of a text.
    pub fn may_ask(&self, tenant: &str, text: &str) -> bool {
        !text.trim().is_empty() && !self.rests(tenant)
    }

    /// The vector of a text, where there is a place and the endpoint answers within this time. After it did not answer,
    /// it is not asked for a while, unless it had less than half of the time.
    pub async fn try_embed(&self, tenant: &str, text: &str, within: Duration) -> Option<Embedding> {
        let clock = &self.0.clock;
        if !self.may_ask(tenant, text) {
            return None;
        }
        let texts = [text];
        let mut late = pin!(clock.sleep(within));
        let _place = tokio::select! {
            biased;
            place = self.place(tenant) => place,
            () = &mut late => return None,
        };
        let began = clock.elapsed();
        let asked = tokio::select! {
            biased;
            asked = self.ask(&texts) => asked,
            () = late => Err(too_late()),
        };
        let vectors = match asked {
            Ok(answer) => {
                self.0.in_vain.lock().expect("rest lock").clear();
                self.read(tenant, answer, 1).await
            }
            Err(error) => {
                let had_time = clock.elapsed().saturating_sub(began) >= within / 2;
                if !is_of_text(&error) && (had_time || !matches!(error, LlmError::Timeout { .. })) {
                    let until = clock.elapsed() + REST;
                    self.0.in_vain.lock().expect("rest lock").insert(tenant.to_owned(), until);
                }
                Err(error)
            }
        };
        vectors
            .inspect_err(|error| tracing::warn!(%error, "facts are looked for without vectors"))
            .ok()
            .and_then(|mut vectors| vectors.pop().flatten())
    }

    /// The right to make one of the calls that may be made at once, where they are limited.
    async fn place(&self, tenant: &str) -> Option<QueuePermit<String>> {
        match &self.0.calls {
            Some(calls) => Some(calls.acquire(tenant).await),
            None => None,
        }
    }

    fn rests(&self, tenant: &str) -> bool {
        let now = self.0.clock.elapsed();
        let mut in_vain = self.0.in_vain.lock().expect("rest lock");
        in_vain.retain(|_, until| *until > now);
        in_vain.len() >= TENANTS_IN_VAIN || in_vain.contains_key(tenant)
    }

    /// The answer for these texts, as it was written, by the first key that will do.
    async fn ask(&self, texts: &[&str]) -> Result<Vec<u8>, LlmError> {
        let keys = &self.0.keys;
        let mut answer = self.ask_with(texts, keys.first()).await;
        for key in keys.iter().skip(1) {
            if !matches!(answer, Err(LlmError::Auth { .. } | LlmError::RateLimited { .. })) {
                break;
            }
            answer = self.ask_with(texts, Some(key)).await;
        }
        answer
    }

    async fn ask_with(&self, texts: &[&str], key: Option<&Secret>) -> Result<Vec<u8>, LlmError> {
        let EmbeddingEndpoint { connections, url, model, dimensions, .. } = &*self.0;
        let mut body = Map::new();
        body.insert("model".into(), json!(model));
        body.insert("input".into(), json!(texts));
        body.insert("encoding_format".into(), json!("float"));
        wire::insert(&mut body, "dimensions", *dimensions);
        let place = connections.acquire();
        let request = wire::post_with_bearer(&place.client, url, key)?.json(&body);
        wire::read_whole(wire::send(request, key, &self.0.clock).await?).await
    }

    /// The vectors of an answer, read on a computing thread unless there are few.
    async fn read(&self, tenant: &str, answer: Vec<u8>, count: usize) -> Result<Vec<Option<Embedding>>, LlmError> {
        let steps = READ_BYTE * answer.len() as u64;
        let read = self.0.compute.run_if_costly(tenant, steps, move || read(&answer, count)).await;
        read.unwrap_or_else(|panicked| Err(wire::transient(panicked.to_string())))
    }
}

fn too_late() -> LlmError {
    LlmError::Timeout { message: "no vectors in time".into() }
}

/// Whether an endpoint refuses a text, and may answer the next one.
pub fn is_of_text(error: &LlmError) -> bool {
    matches!(error, LlmError::Rejected { .. } | LlmError::Overflow { .. })
}

impl Embedding {
    /// The vector in this direction; `None`: it has no direction, or what is no number.
    pub fn new(mut values: Vec<f32>) -> Option<Embedding> {
        let length = values.iter().map(|value| f64::from(*value).powi(2)).sum::<f64>().sqrt();
        if !length.is_normal() || values.len() > MOST_DIMENSIONS as usize {
            return None;
        }
        values.iter_mut().for_each(|value| *value = (f64::from(*value) / length) as f32);
        Some(Embedding(values))
    }

    /// How many numbers it has.
    pub fn dimensions(&self) -> usize {
        self.0.len()
    }

    /// Its numbers as they are stored, four bytes each, the lowest first.
    pub fn bytes(&self) -> Vec<u8> {
        self.0.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    /// How near a stored vector is, from -1 to 1; `None`: it is of another space.
    pub fn similarity(&self, stored: &[u8]) -> Option<f32> {
        if stored.len() != 4 * self.0.len() {
            return None;
        }
        // sums side by side, because one after the other would each wait for the one before
        let mut sums = [0.0; LANES];
        for (own, other) in self.0.chunks(LANES).zip(stored.chunks(4 * LANES)) {
            let numbers = other.as_chunks::<4>().0.iter().map(|bytes| f32::from_le_bytes(*bytes));
            for ((sum, own), other) in sums.iter_mut().zip(own).zip(numbers) {
                *sum += own * other;
            }
        }
        Some(sums.iter().sum())
    }

    /// Steps of [`Embedding::similarity`] with so many vectors.
    pub fn steps(&self, vectors: usize) -> u64 {
        (self.0.len() as u64).saturating_mul(vectors as u64)
    }
}

fn space_of(model: &str, dimensions: Option<u32>) -> String {
    let named = format!("{model}/{}", dimensions.map_or(String::new(), |number| number.to_string()));
    hex::encode(&digest(&SHA256, named.as_bytes()).as_ref()[..8])
}

/// The vectors of an answer, one for each text. What the answer says instead may have a key in it, and is not repeated.
fn read(text: &[u8], count: usize) -> Result<Vec<Option<Embedding>>, LlmError> {
    let answer: EmbeddingAnswer = serde_json::from_slice(text).map_err(|error| {
        wire::transient(format!("the answer has no vectors: line {}, column {}", error.line(), error.column()))
    })?;
    let mut vectors = BTreeMap::new();
    for AnsweredText { index, embedding } in answer.data {
        if embedding.len() > MOST_DIMENSIONS as usize {
            return Err(wire::transient(format!("the vectors have more than {MOST_DIMENSIONS} dimensions")));
        }
        if index >= count || vectors.insert(index, Embedding::new(embedding)).is_some() {
            return Err(wire::transient(format!(
                "the answer has a vector for a text {index} that is not there, or two"
            )));
        }
    }
    match vectors.len() == count {
        true => Ok(vectors.into_values().collect()),
        false => Err(wire::transient(format!("the answer has {} vectors for {count} texts", vectors.len()))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn vector(values: &[f32]) -> Embedding {
        Embedding::new(values.to_vec()).expect("a direction")
    }

    #[test]
    fn vectors_are_compared_by_their_directions_within_their_space() {
        let east = vector(&[3.0, 0.0]);
        let near = |values: &[f32]| east.similarity(&vector(values).bytes()).unwrap();
        assert!((near(&[9.0, 0.0]) - 1.0).abs() < 1e-6 && near(&[0.0, 5.0]).abs() < 1e-6);
        assert!((near(&[-1.0, 0.0]) + 1.0).abs() < 1e-6);
        assert_eq!(east.similarity(&vector(&[1.0]).bytes()), None);
        let many = vector(&(0..2 * LANES + 3).map(|number| number as f32).collect::<Vec<_>>());
        assert!((many.similarity(&many.bytes()).unwrap() - 1.0).abs() < 1e-6, "each number counts");
        for none in [vec![], vec![0.0, 0.0], vec![f32::NAN], vec![1.0; MOST_DIMENSIONS as usize + 1]] {
            assert_eq!(Embedding::new(none), None);
        }
        assert!(Embedding::new(vec![1.0; MOST_DIMENSIONS as usize]).is_some());
    }

    #[test]
    fn answers_are_put_in_the_order_of_their_texts() {
        let of = |data: serde_json::Value, count: usize| read(json!({ "data": data }).to_string().as_bytes(), count);
        let one = |index: usize, embedding: &[f32]| json!({ "index": index, "embedding": embedding });
        let answer = json!([one(1, &[0.0, 2.0]), one(0, &[1.0, 0.0]), one(2, &[0.0, 0.0])]);
        assert_eq!(of(answer, 3).unwrap(), [Some(vector(&[1.0, 0.0])), Some(vector(&[0.0, 1.0])), None]);
        let long = vec![1.0; MOST_DIMENSIONS as usize + 1];
        for (wrong, count) in [
            (json!([one(0, &[1.0]), one(0, &[1.0])]), 2),
            (json!([one(1, &[1.0])]), 1),
            (json!([one(0, &[1.0])]), 2),
            (json!([one(0, &long)]), 1),
        ] {
            assert!(of(wrong, count).is_err());
        }
        let told = read(br#"{"data": "sk-canary"}"#, 1).unwrap_err().to_string();
        assert!(told.contains("no vectors: line 1") && !told.contains("canary"), "{told}");
        assert_ne!(space_of("m", None), space_of("m", Some(2)));
    }
}
