//! The decision matrix: what a tool does × how much it matters → whether a person is asked first.
//!
//! Risk classes come from our registry of tools, never from what a tool or a model says about itself.

use serde::{Deserialize, Serialize};

/// Kinds of effects that a tool has on the world.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Category {
    /// It only reads.
    Read,
    /// It changes data that can be changed back.
    Write,
    /// It removes data.
    Delete,
    /// It acts outside of the service, as a message does.
    SideEffect,
    /// It computes, and touches no data.
    Analysis,
    /// Touches only the tenant's own things inside Reveille: its recipient, tasks, memory.
    Internal,
}

/// How much it matters when a call was wrong.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Consequence {
    /// A mistake costs little.
    Low,
    /// A mistake costs effort or money.
    Medium,
    /// A mistake can't be made good.
    High,
}

/// Degrees of approval between a call and its execution.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Gate {
    /// Nothing: it runs.
    Auto,
    /// A person's consent.
    Confirm,
}

impl Category {
    /// Every category, in the order of the matrix.
    pub const ALL: [Category; 6] = [
        Category::Read,
        Category::Write,
        Category::Delete,
        Category::SideEffect,
        Category::Analysis,
        Category::Internal,
    ];

    /// The word in settings, in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Category::Read => "read",
            Category::Write => "write",
            Category::Delete => "delete",
            Category::SideEffect => "side_effect",
            Category::Analysis => "analysis",
            Category::Internal => "internal",
        }
    }
}

impl Consequence {
    /// Every degree, the lowest first.
    pub const ALL: [Consequence; 3] = [Consequence::Low, Consequence::Medium, Consequence::High];

    /// The word in settings, in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Consequence::Low => "low",
            Consequence::Medium => "medium",
            Consequence::High => "high",
        }
    }
}

impl Gate {
    /// The word in settings, in the API and in the database.
    pub fn as_str(self) -> &'static str {
        match self {
            Gate::Auto => "auto",
            Gate::Confirm => "confirm",
        }
    }
}

/// The gate of a call. `requires_confirmation` raises it and never lowers it.
pub fn gate(category: Category, consequence: Consequence, requires_confirmation: bool) -> Gate {
    use Category::*;
    use Consequence::*;
    match (category, consequence) {
        _ if requires_confirmation => Gate::Confirm,
        (Read | Analysis | Internal, Low | Medium) => Gate::Auto,
        (Read | Analysis | Internal, High) => Gate::Confirm,
        (Write | Delete | SideEffect, Low | Medium | High) => Gate::Confirm,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_matrix_is_the_one_that_is_written_down() {
        let mut table = String::new();
        for category in Category::ALL {
            let row = Consequence::ALL.map(|consequence| gate(category, consequence, false));
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
    fn a_tool_that_asks_for_confirmation_always_gets_it() {
        for category in Category::ALL {
            for consequence in Consequence::ALL {
                assert_eq!(gate(category, consequence, true), Gate::Confirm);
            }
        }
    }
}
