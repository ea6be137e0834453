//! Tools for credentials: to see which there are, and to make a link by which a person connects an account. A document
//! is neither taken nor shown.

use serde::Deserialize;
use serde_json::{Map, Value, json};

use crate::base::token::Permission;
use crate::domain::credential::{CredentialStatus, PRIMARY, Reference};
use crate::http::mcp::call::McpCall;
use crate::http::mcp::outcome::{Answered, ToolRefusal, ToolResult};
use crate::http::mcp::tools::{ServedTool, ToolEffect, ToolFuture, ToolInput, arguments};

/// Fields of a credential that are shown, besides its reference.
const SHOWN: [&str; 3] = ["status", "hosts", "expires_at"];

/// The tools of this file.
pub fn tools() -> Vec<ServedTool> {
    vec![
        ServedTool {
            name: "list_credentials",
            title: "List credentials",
            description: "Lists the accounts that are connected: the name by which tasks and tools refer to each, \
                whether it can be used, and the hosts that it may be sent to. Secrets are never shown.",
            permission: Permission::CredentialsRead,
            effect: ToolEffect::Reads,
            names_tenant: true,
            schema: list_schema,
            act: list_credentials,
        },
        ServedTool {
            name: "connect_credential",
            title: "Make a link to connect an account",
            description: "Makes a link by which the owner of an account connects it, for services that the operator \
                has set up. Give the link to that person; do not open it. Never ask anybody for a password or a key: \
                no tool here takes one.",
            permission: Permission::CredentialsWrite,
            effect: ToolEffect::Adds,
            names_tenant: true,
            schema: connect_schema,
            act: connect_credential,
        },
    ]
}

fn list_schema() -> Value {
    arguments::object(
        json!({
            "service": { "type": "string", "description": "Of this service alone" },
            "limit": { "type": "integer", "minimum": 1, "description": "How many at most; 20 where it is absent" },
            "cursor": { "type": "string", "description": "`next_cursor` of the page before" },
        }),
        &[],
    )
}

fn connect_schema() -> Value {
    let reference = json!({
        "type": "string",
        "description": "The credential's name: `service`, or `service/account` for one of several accounts",
    });
    arguments::object(json!({ "reference": reference }), &["reference"])
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ListedCredentials {
    tenant_id: Option<String>,
    service: Option<String>,
    limit: Option<u32>,
    cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct ConnectedCredential {
    tenant_id: Option<String>,
    reference: String,
}

fn list_credentials(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ListedCredentials { tenant_id, service, limit, cursor } = arguments::read(&input)?;
        let query = arguments::query([
            ("tenant_id", tenant_id),
            ("service", service),
            ("limit", Some(arguments::limit(limit))),
            ("cursor", cursor),
        ]);
        let mut page = call.get(&["v1", "credentials"], &query).await?;
        let mut is_usable = true;
        for credential in page["items"].as_array_mut().into_iter().flatten() {
            is_usable &= credential["status"] == CredentialStatus::Active.as_str();
            *credential = shown(credential).into();
        }
        let has_more = page["next_cursor"].is_string();
        let mut listed = ToolResult::of(page);
        if !is_usable {
            listed =
                listed.then("An account that needs consent is connected again by the link of `connect_credential`.");
        }
        if has_more {
            listed = listed.then("There are more: call `list_credentials` again with `cursor` as in `next_cursor`.");
        }
        Ok(Answered::Result(listed))
    })
}

fn connect_credential(call: &McpCall, input: ToolInput) -> ToolFuture<'_> {
    Box::pin(async move {
        let ConnectedCredential { tenant_id, reference } = arguments::read(&input)?;
        let Reference { service, account } =
            Reference::parse(&reference).map_err(|why| ToolRefusal::new(format!("`reference`: {why}")))?;
        let query = arguments::query([("tenant_id", tenant_id)]);
        let link = call.get(&["v1", "credentials", &service, &account, "connect"], &query).await?;
        let told = ToolResult::of(link).then(
            "Give `url` to the owner of the account; do not open it: they agree at the provider, and confirm on the \
             page that they are sent back to.",
        );
        Ok(Answered::Result(told.then("Once they say that it is done, `list_credentials` has it.")))
    })
}

/// A credential in short, under the name that tasks and tools have for it.
fn shown(credential: &Value) -> Map<String, Value> {
    let text = |field: &str| credential[field].as_str().unwrap_or_default();
    let reference = match text("account_name") {
        PRIMARY => text("service").to_owned(),
        account => format!("{}/{account}", text("service")),
    };
    let fields = SHOWN.into_iter().filter_map(|field| {
        let value = credential.get(field).filter(|value| !value.is_null())?;
        Some((field.to_owned(), value.clone()))
    });
    std::iter::once(("reference".to_owned(), reference.into())).chain(fields).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn credential_is_shown_by_its_reference_and_nothing_that_it_holds() {
        let stored = json!({
            "id": "1", "service": "mail", "account_name": "work", "hosts": ["a.example"], "status": "active",
            "status_reason": "x", "expires_at": null, "inject": { "as": "bearer" }, "document": "secret",
        });
        let expected = json!({ "reference": "mail/work", "hosts": ["a.example"], "status": "active" });
        assert_eq!(Value::from(shown(&stored)), expected);
        assert_eq!(shown(&json!({ "service": "mail", "account_name": PRIMARY }))["reference"], "mail");
    }
}
