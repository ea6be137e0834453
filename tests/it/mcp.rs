//! Tools of MCP servers: of the official SDK and of the reference server, over standard input and output and over HTTP,
//! and of one that keeps to nothing; and what the conformance suite of the protocol says.

mod agents;
mod announced;
mod authority;
mod changes;
mod check;
mod conformance;
mod conformance_server;
mod elicitation;
mod harm;
mod harness;
mod http;
mod inbox;
mod oauth;
mod pins;
mod progress;
mod results;
mod stdio;
mod suite;
mod supervision;
mod told;
mod trials;
