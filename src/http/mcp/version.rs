//! The revisions of the protocol that are spoken.

/// The stateless revision.
pub const NEWEST: &str = "2026-07-28";
/// Revisions whose clients begin with `initialize`, the newest first.
pub const OLD: [&str; 4] = ["2025-11-25", "2025-06-18", "2025-03-26", "2024-11-05"];

/// All of them, the newest first.
pub fn all() -> impl Iterator<Item = &'static str> {
    [NEWEST].into_iter().chain(OLD)
}
