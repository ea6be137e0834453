//! Foundations of integration tests: databases of their own, the real binary, servers that play the other side.
//!
//! Each part starts what it needs, waits until it answers, and removes it when dropped. Nothing outlives a test.

pub mod api;
pub mod app;
pub mod binary;
pub mod broken_servers;
pub mod checker;
pub mod computing;
pub mod effects;
pub mod gate;
pub mod journal;
pub mod log;
pub mod mcp;
pub mod metered_model;
pub mod model;
pub mod oauth;
pub mod outbox;
pub mod postgres;
pub mod postgres_server;
pub mod proxy;
pub mod redis;
pub mod reference;
pub mod servers;
pub mod sink;
pub mod slow_model;
pub mod smtp;
pub mod sqlite;
pub mod sse;
pub mod stepped_clock;
pub mod talking_model;
pub mod tls;
pub mod websocket;
pub mod world;
pub mod zoneinfo;
