//! Limits of a template that count bytes and steps.

/// Longest template, in bytes.
pub const TEMPLATE_BYTES: usize = 64 * 1024;
/// Longest text or largest value that one gives, in bytes.
pub const OUTPUT_BYTES: usize = 256 * 1024;
/// Instructions of one rendering.
pub const FUEL: u64 = 20_000;
