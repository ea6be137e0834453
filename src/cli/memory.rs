//! What the process holds in memory stays there: secrets are in it while they are used.

use rustix::process::{DumpableBehavior, Resource, Rlimit, set_dumpable_behavior, setrlimit};

/// Turns core dumps off, for this process and what it starts, whatever the limit was; and lets no other process of the
/// same user read its memory. A limit of zero alone would not do: a core that is piped to a program ignores it.
///
/// # Errors
/// The system refuses one of them.
pub fn keep_private() -> std::io::Result<()> {
    setrlimit(Resource::Core, Rlimit { current: Some(0), maximum: Some(0) })?;
    set_dumpable_behavior(DumpableBehavior::NotDumpable)?;
    Ok(())
}
