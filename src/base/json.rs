//! JSON: its length in bytes, schemas that it is held against, and requests that are read by theirs.

pub mod length;
pub mod schema;
pub mod typed;
