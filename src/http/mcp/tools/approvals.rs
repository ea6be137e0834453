//! Tools for approvals: to look at them. A person decides, by the message that was sent to them; nothing here can.

use chrono::{DateTime, Utc};
use serde::Deserialize;
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::base::token::Permission;
use crate::domain::approval::ApprovalStatus;
use crate::domain::approval::link::SHOWS_FOR;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::{Answered, ToolResult};
use crate::http::mcp::questions::page_url;
use crate::http::mcp::tools::{ServedTool, ToolEffect, ToolFuture, ToolInput, arguments};

/// Goes with every approval.
const ONLY_THE_PERSON: &str = "Only the person decides, by the message that was sent to them. Nothing here can: tell \
    the person. `url` is a page that shows it and decides nothing.";

/// Fields of an approval in a list, under their names here. The digest, which a decision needs, is none of them.
const IN_LIST: [(&str, &str); 10] = [
    ("id", "id"),
    ("kind", "kind"),
    ("status", "status"),
    ("run_id", "run_id"),
    ("task_id", "task_id"),
    ("tool", "agent_name"),
    ("summary", "action_summary"),
    ("created_at", "created_at"),
    ("expires_at", "expires_at"),
    ("decided_at", "decided_at"),
];
/// The fields that the approval by itself has besides.
const ALONE: [(&str, &str); 11] = [
    ("description", "description"),
    ("arguments", "details"),
    ("category", "category"),
    ("consequence", "consequence"),
    ("reasons", "reasons"),
    ("step", "step"),
    ("decided_by", "decided_by"),
    ("comment", "comment"),
    ("changed_arguments", "modifications"),
    ("outcome", "outcome"),
    ("hold_until", "hold_until"),
];

/// The tools of this file.
pub fn tools() -> Vec<ServedTool> {
    vec![
        ServedTool {
            name: "list_approvals",
            title: "List approvals",
            description: "Lists questions to people about calls of agents, the newest first: all, or those of one \
                status, task or run. They can only be looked at.",
            permission: Permission::ApprovalsRead,
            effect: ToolEffect::Reads,
            names_tenant: true,
            schema: list_schema,
            act: list_approvals,
        },
        ServedTool {
            name: "get_approval",
            title: "Look at an approval",
            description: "Reads a question to a person about a call of an agent: what the call would do, why it is \
                asked, and what came of it. It can only be looked at.",
            permission: Permission::ApprovalsRead,
            effect: ToolEffect::Reads,
            names_tenant: false,
            schema: id_schema,
            act: get_approval,
        },
    ]
}

fn id_schema() -> Value {
    let id = json!({ "type": "string", "format": "uuid", "description": "The id of the approval" });
    arguments::object(json!({ "id": id }), &["id"])
}

fn list_schema() -> Value {
    let id = |what: &str| json!({ "type": "string", "format": "uuid", "description": what });
    arguments::object(
        json!({
            "status": { "type": "string", "enum": ApprovalStatus::WORDS },
            "task_id": id("Of runs of this task alone"),
            "run_id": id("Of this run alone"),
            "limit": { "type": "integer", "minimum": 1, "description": "How many at most; 20 where it is absent" },
            "cursor": { "type": "string", "description": "`next_cursor` of the page before" },
        }),
        &[],
    )
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ApprovalId {
    id: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedApprovals {
    tenant_id: Option<String>,
    status: Option<String>,
    task_id: Option<String>,
    run_id: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

fn list_approvals(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ListedApprovals { tenant_id, status, task_id, run_id, limit, cursor } = arguments::read(&input)?;
        let task_id = task_id.map(|id| arguments::id(&id, "task")).transpose()?.map(|id| id.to_string());
        let run_id = run_id.map(|id| arguments::id(&id, "run")).transpose()?.map(|id| id.to_string());
        let fields = [
            ("tenant_id", tenant_id),
            ("status", status),
            ("task_id", task_id),
            ("run_id", run_id),
            ("limit", Some(arguments::limit(limit))),
            ("cursor", cursor),
        ];
        let query: Vec<(&str, String)> = fields.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
        let mut page = call.get(&["v1", "approvals"], &query).await?;
        if let Some(items) = page["items"].as_array_mut() {
            items.iter_mut().for_each(|approval| *approval = shown(call, approval, &IN_LIST).into());
        }
        let has_more = page["next_cursor"].is_string();
        let listed = ToolResult::of(page).then(ONLY_THE_PERSON);
        Ok(Answered::Result(match has_more {
            true => listed.then("There are more: call `list_approvals` again with `cursor` as in `next_cursor`."),
            false => listed,
        }))
    })
}

fn get_approval(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ApprovalId { id } = arguments::read(&input)?;
        let id = arguments::id(&id, "approval")?.to_string();
        let approval = call.get(&["v1", "approvals", &id], &[]).await?;
        let mut told = shown(call, &approval, &IN_LIST);
        told.extend(fields_of(&approval, &ALONE));
        Ok(Answered::Result(ToolResult::of(told.into()).then(ONLY_THE_PERSON)))
    })
}

/// These fields of an approval, with the page that shows it.
fn shown(call: &McpCall, approval: &Value, fields: &[(&str, &str)]) -> Map<String, Value> {
    let mut told: Map<String, Value> = fields_of(approval, fields).collect();
    told.extend(url_of(call, approval).map(|url| ("url".to_owned(), url.into())));
    told
}

fn fields_of(approval: &Value, fields: &[(&str, &str)]) -> impl Iterator<Item = (String, Value)> {
    fields.iter().filter_map(move |(name, of_api)| {
        let value = approval.get(*of_api).filter(|value| !value.is_null())?;
        Some(((*name).to_owned(), value.clone()))
    })
}

/// The page that shows an approval, as long as it does.
fn url_of(call: &McpCall, approval: &Value) -> Option<String> {
    let batch = Uuid::try_parse(approval["batch_id"].as_str()?).ok()?;
    let expires_at: DateTime<Utc> = approval["expires_at"].as_str()?.parse().ok()?;
    let is_shown = call.state.clock.now() < expires_at + SHOWS_FOR;
    is_shown.then(|| page_url(call, batch, approval["tenant_id"].as_str().unwrap_or_default(), expires_at))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digest_that_a_decision_needs_is_not_shown() {
        assert!(IN_LIST.iter().chain(&ALONE).all(|(name, of_api)| ![*name, *of_api].contains(&"digest")));
        let approval = json!({ "id": "a", "agent_name": "pay", "digest": "d", "comment": null });
        let told: Map<String, Value> = fields_of(&approval, &IN_LIST).chain(fields_of(&approval, &ALONE)).collect();
        assert_eq!(Value::from(told), json!({ "id": "a", "tool": "pay" }));
    }
}
