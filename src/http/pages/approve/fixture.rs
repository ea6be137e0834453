//! A proposal for the tests of the page.

use serde_json::Value;

use crate::domain::approval::{ApprovalChoice, Category, Consequence, OnExpiry, Proposal};

/// A proposal to call a tool with these parameters.
pub fn proposal(parameters: Value, arguments: Value) -> Proposal {
    Proposal {
        kind: Default::default(),
        tool: "send".into(),
        version: "1".into(),
        definition: "d".into(),
        summary: String::new(),
        description: String::new(),
        arguments,
        parameters,
        lacks: vec![],
        server: None,
        category: Category::SideEffect,
        consequence: Consequence::Low,
        reasons: vec![],
        reason_codes: vec![],
        options: vec![ApprovalChoice::Approve, ApprovalChoice::Edit, ApprovalChoice::Cancel],
        allow_modification: true,
        source: "trigger".into(),
        delegation_chain: vec![],
        step: None,
        on_expiry: OnExpiry::Expire,
        approvers: 1,
        excluded_approver: None,
        confirmation: None,
        undo_seconds: None,
        precheck: None,
        timeout_seconds: 1800,
    }
}
