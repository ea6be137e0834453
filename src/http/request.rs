//! The way of each request: limits, identity, body, query, and its answer.

pub mod answer;
pub mod auth;
pub mod body;
pub mod guard;
pub mod host;
pub mod idempotency;
pub mod page;
pub mod path;
pub mod query;
pub(in crate::http) mod token_checks;
pub mod wrong_tokens;

pub use answer::Json;
pub use auth::{AuthenticatedCaller, Call};
pub use body::{JsonBody, RawBody};
pub use idempotency::{EarlyResponse, RequestKey};
pub use page::{ForwardPage, Items, ListPage, NamePage};
pub use path::{Id, Pair};
pub use query::Query;
pub use wrong_tokens::WrongTokens;
