//! Protection of secrets in the memory of this process: no core dumps, and no reading by other processes.

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

#[cfg(test)]
mod tests {
    use rustix::process::{dumpable_behavior, getrlimit};

    use super::*;

    #[test]
    fn no_core_is_left_and_no_other_process_reads_the_memory() {
        keep_private().unwrap();
        let (kept, limit) = (dumpable_behavior().unwrap(), getrlimit(Resource::Core));
        // other tests of this process may look at themselves
        set_dumpable_behavior(DumpableBehavior::Dumpable).unwrap();
        assert_eq!(kept, DumpableBehavior::NotDumpable);
        assert_eq!((limit.current, limit.maximum), (Some(0), Some(0)));
    }
}
