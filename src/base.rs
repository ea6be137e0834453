//! Time, identifiers, texts and limits: parts without I/O of the product.

#[macro_use]
pub mod failpoint;
pub mod backoff;
pub mod clock;
pub mod collections;
pub mod compute;
pub mod expr;
pub mod field;
pub mod id;
pub mod invalid;
pub mod json;
pub mod limiter;
pub mod metrics;
pub mod redact;
pub mod secret;
pub mod signature;
pub mod template;
pub mod threads;
pub mod token;
pub mod unicode_safety;
pub mod words;
