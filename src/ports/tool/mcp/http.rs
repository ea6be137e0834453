//! MCP over HTTP: the library's requests leave by egress, with the credential of a tenant where the server has one.

mod answer;
pub mod call_origin;
pub mod client;
mod event_meter;
mod http_error;
mod stream_pace;
