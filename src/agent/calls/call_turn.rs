//! The turn of a run whose calls are carried out.

use crate::agent::context::active_skills::SkillStack;

/// The turn whose calls are carried out.
#[derive(Debug, Clone, Copy)]
pub struct CallTurn<'a> {
    pub number: i64,
    /// The calls may have been begun before a restart.
    pub resumed: bool,
    /// So much is in the context that results are brief.
    pub is_context_full: bool,
    /// The turn makes one call alone.
    pub is_single: bool,
    /// At most one call of the turn changes which skills are active.
    pub has_one_skill: bool,
    /// The skills that are active.
    pub skills: &'a SkillStack,
}
