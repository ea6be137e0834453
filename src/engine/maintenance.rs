//! Work in the background: housekeeping, quotas, zones, the audit chain.

pub mod byte_counter;
pub mod embedder;
pub mod extractor;
pub mod file_cleaner;
pub mod housekeeping;
pub(super) mod resumer;
pub mod sealer;
pub mod tool_announcer;
pub mod zones;
