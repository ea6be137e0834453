//! The HTTP face.
pub mod error;
