//! The event bus: what every adapter does, on every database; and what only a real Redis can show.

mod cluster;
mod looks;
mod outbox;
mod redis;
mod suite;
mod world;
