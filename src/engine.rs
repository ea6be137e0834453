//! The services that move runs and deliveries on. Each is a tick; what they do is committed row by row.

pub mod attempt;
