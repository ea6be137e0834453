//! Tools of MCP servers: of the official SDK and of the reference server, over standard input and output and over HTTP,
//! and of one that keeps to nothing.

mod agents;
mod changes;
mod check;
mod harness;
mod http;
mod results;
mod stdio;
mod supervision;
