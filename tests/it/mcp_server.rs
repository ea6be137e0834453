//! The service as MCP clients have it: the protocol over the router, the tools of each scope, durable runs, skills; and the
//! real binary under clients of official SDKs, over HTTP and over standard input and output.

mod conditions;
mod durable;
mod harness;
mod protocol;
mod sdk;
mod skills;
mod stdio;
mod tools;
