//! The turn of a run whose calls are carried out.

use std::sync::Arc;

use crate::agent::RunSlot;
use crate::agent::consent::turn_overrides::TurnOverrides;
use crate::agent::context::active_skills::SkillStack;

/// The turn whose calls are carried out.
#[derive(Clone, Copy)]
pub struct CallTurn<'a> {
    pub number: i64,
    /// The calls may have been begun before a restart.
    pub resumed: bool,
    /// So much is in the context that results are brief.
    pub is_context_full: bool,
    /// The run's slot, and for a call of the turn its part in it.
    pub slot: &'a Arc<dyn RunSlot>,
    /// At most one call of the turn changes which skills are active.
    pub has_one_skill: bool,
    /// The skills that are active.
    pub skills: &'a SkillStack,
    /// The overrides of the matrix for its calls.
    pub overrides: &'a TurnOverrides<'a>,
}
