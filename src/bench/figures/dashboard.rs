//! The dashboard: how long its pages take beside much that is stored, and what its open streams take from fires.

pub(in crate::bench) mod live_tails;
pub(in crate::bench) mod pages;
