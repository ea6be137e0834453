//! The decision matrix: what a tool does × how much it matters → whether a person is asked first.
//!
//! Risk classes come from our registry of tools, never from what a tool or a model says about itself.

use crate::base::words::words;

words! {
    /// Kinds of effects that a tool has on the world.
    #[derive(utoipa::ToSchema)]
    pub enum Category {
        /// It only reads.
        Read = "read",
        /// It changes data that can be changed back.
        Write = "write",
        /// It removes data.
        Delete = "delete",
        /// It acts outside of the service, as a message does.
        SideEffect = "side_effect",
        /// It computes, and touches no data.
        Analysis = "analysis",
        /// Touches only the tenant's own things inside Reveille: its recipient, tasks, memory.
        Internal = "internal",
    }
}

words! {
    /// How much it matters when a call was wrong.
    #[derive(utoipa::ToSchema)]
    pub enum Consequence {
        /// A mistake costs little.
        Low = "low",
        /// A mistake costs effort or money.
        Medium = "medium",
        /// A mistake can't be made good.
        High = "high",
    }
}

words! {
    /// Degrees of approval between a call and its execution.
    #[derive(utoipa::ToSchema)]
    pub enum ApprovalLevel {
        /// Nothing: it runs.
        Auto = "auto",
        /// A person's consent.
        Confirm = "confirm",
    }
}

/// Whether a call may be impossible to undo: no word alone decides it.
pub fn is_irreversible(category: Category, consequence: Consequence) -> bool {
    category == Category::Delete || consequence == Consequence::High
}

/// The gate of a call. `requires_confirmation` raises it and never lowers it.
pub fn approval_level(category: Category, consequence: Consequence, requires_confirmation: bool) -> ApprovalLevel {
    use Category::*;
    use Consequence::*;
    match (category, consequence) {
        _ if requires_confirmation => ApprovalLevel::Confirm,
        (Read | Analysis | Internal, Low | Medium) => ApprovalLevel::Auto,
        (Read | Analysis | Internal, High) => ApprovalLevel::Confirm,
        (Write | Delete | SideEffect, Low | Medium | High) => ApprovalLevel::Confirm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_is_the_one_that_is_written_down() {
        let mut table = String::new();
        for category in Category::ALL {
            let row = Consequence::ALL.map(|consequence| approval_level(category, consequence, false));
            table.push_str(&format!("{category:?} {row:?}\n"));
        }
        insta::assert_snapshot!(table, @r"
        Read [Auto, Auto, Confirm]
        Write [Confirm, Confirm, Confirm]
        Delete [Confirm, Confirm, Confirm]
        SideEffect [Confirm, Confirm, Confirm]
        Analysis [Auto, Auto, Confirm]
        Internal [Auto, Auto, Confirm]
        ");
    }

    #[test]
    fn call_may_be_impossible_to_undo_that_deletes_or_whose_mistake_can_not_be_made_good() {
        for category in Category::ALL {
            for consequence in Consequence::ALL {
                let is_worst = category == Category::Delete || consequence == Consequence::High;
                assert_eq!(is_irreversible(category, consequence), is_worst, "{category:?} {consequence:?}");
            }
        }
        assert!(!is_irreversible(Category::SideEffect, Consequence::Medium));
    }

    #[test]
    fn tool_that_asks_for_confirmation_always_gets_it() {
        for category in Category::ALL {
            for consequence in Consequence::ALL {
                assert_eq!(approval_level(category, consequence, true), ApprovalLevel::Confirm);
            }
        }
    }
}
