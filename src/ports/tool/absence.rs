//! Tools of MCP servers that are not there, and why.

use crate::ports::tool::{ToolError, ToolFailure};

/// Why a tool of an MCP server is not there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ToolAbsence {
    /// Its server has not listed it.
    Unlisted,
    /// Its server lists it with a definition that nobody has accepted.
    NotAccepted,
}

impl ToolAbsence {
    /// Both.
    pub const ALL: [ToolAbsence; 2] = [ToolAbsence::Unlisted, ToolAbsence::NotAccepted];

    /// The code, for programs.
    pub fn code(self) -> &'static str {
        match self {
            ToolAbsence::Unlisted => "mcp_unavailable",
            ToolAbsence::NotAccepted => "mcp_tool_not_accepted",
        }
    }

    /// A sentence about the tool.
    pub fn message(self, tool: &str) -> String {
        match self {
            ToolAbsence::Unlisted => format!("the MCP server has not listed `{tool}`"),
            ToolAbsence::NotAccepted => format!(
                "the MCP server lists `{tool}` with a definition that is new or changed, and the operator has yet to \
                 accept it"
            ),
        }
    }
}

/// The observation for a call of a tool whose server has another definition than when the run began, or one that nobody
/// has accepted.
pub fn tool_changed(tool: &str) -> ToolError {
    let message = format!(
        "the MCP server has changed the definition of `{tool}` since this run began, or the operator has yet to accept \
         it; the call was not sent"
    );
    ToolError::for_model(ToolFailure::PermissionDenied, "mcp_tool_changed", message)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn absence_has_a_code_and_a_sentence_that_names_the_tool() {
        assert_eq!(ToolAbsence::ALL.map(ToolAbsence::code), ["mcp_unavailable", "mcp_tool_not_accepted"]);
        assert_eq!(ToolAbsence::Unlisted.message("github.search"), "the MCP server has not listed `github.search`");
        let told = ToolAbsence::NotAccepted.message("github.search");
        assert!(told.contains("`github.search`") && told.ends_with("has yet to accept it"), "{told}");
    }

    #[test]
    fn changed_tool_is_refused_for_good_and_its_call_was_not_sent() {
        let error = tool_changed("github.search");
        let (kind, code, message) = error.model_message().unwrap();
        assert_eq!((kind, code), (ToolFailure::PermissionDenied, "mcp_tool_changed"));
        assert!(message.contains("`github.search`") && message.ends_with("the call was not sent"), "{message}");
        assert!(!error.is_unsent(), "no time mends it, so that nothing calls it again");
    }
}
