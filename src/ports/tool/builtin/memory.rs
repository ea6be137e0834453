//! `remember`, `recall`, `forget`: what is known of the person that an agent works for, through the host.

use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::approval::{Category, Consequence};
use crate::domain::memory::{COLLECTION_LENGTH, FACT_LENGTH, Fact, NewFact, checked_collection, checked_text};
use crate::ports::tool::builtin::BuiltinTool;
use crate::ports::tool::{Definition, FactQuery, ToolError};

/// Name of the tool that notes a fact.
pub const REMEMBER: &str = "remember";
/// Name of the tool that finds facts. An agent that may call it is told of facts before its first turn, too.
pub const RECALL: &str = "recall";
/// Name of the tool that deletes a fact.
pub const FORGET: &str = "forget";
/// By whom a fact is noted that an agent notes.
const AGENT: &str = "agent";
/// Facts that `recall` shows when it is not told how many, and at most.
const SHOWN: usize = 10;
const MOST_SHOWN: usize = 50;

#[derive(Deserialize)]
pub(super) struct RememberArguments {
    text: String,
    collection: Option<String>,
    replaces: Option<String>,
}

#[derive(Deserialize)]
pub(super) struct RecallArguments {
    about: String,
    collection: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
pub(super) struct ForgetArguments {
    id: Uuid,
}

fn collection(description: &str) -> Value {
    json!({ "type": "string", "maxLength": COLLECTION_LENGTH, "description": description })
}

pub(super) fn remember() -> BuiltinTool<RememberArguments> {
    let definition = Definition::new(
        REMEMBER,
        "Note a lasting fact about the person you work for, so that later runs know it: a preference, a name, a date, a decision. \
         One fact in one sentence that makes sense by itself. Not what matters in this run alone, and no passwords.",
        json!({
            "type": "object",
            "properties": {
                "text": { "type": "string", "minLength": 1, "maxLength": FACT_LENGTH },
                "collection": collection(
                    "A path such as `preferences/travel`; facts of `profile` and `preferences` are told in every run",
                ),
                "replaces": {
                    "type": "string", "minLength": 1, "maxLength": FACT_LENGTH,
                    "description": "The fact that is not true any more: its id, or its words",
                },
            },
            "required": ["text"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Low,
    );
    BuiltinTool {
        definition: Definition { idempotent: true, ..definition },
        act: |context, RememberArguments { text, collection, replaces }| {
            Box::pin(async move {
                let wrong = |field: &'static str| move |why: String| ToolError::arguments(format!("`{field}` {why}"));
                let fact = NewFact {
                    collection: collection
                        .map(|path| checked_collection(&path).map_err(wrong("collection")))
                        .transpose()?,
                    text: checked_text(&text).map_err(wrong("text"))?,
                    origin: context.origin,
                    source: Some((context.run_id, context.turn)),
                    noted_by: AGENT.into(),
                    call_key: Some(context.idempotency_key.clone()),
                };
                Ok(context.host.note_fact(&context.tenant, fact, replaces).await?)
            })
        },
    }
}

pub(super) fn recall() -> BuiltinTool<RecallArguments> {
    let definition = Definition::new(
        RECALL,
        "Find facts that were noted about the person you work for, with their ids.",
        json!({
            "type": "object",
            "properties": {
                "about": { "type": "string", "minLength": 1, "maxLength": 1_000, "description": "Words that the facts have" },
                "collection": collection("Only facts of this collection and those below it, such as `preferences`"),
                "limit": { "type": "integer", "minimum": 1, "maximum": MOST_SHOWN },
            },
            "required": ["about"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::Low,
    );
    BuiltinTool {
        definition: Definition { idempotent: true, ..definition },
        act: |context, RecallArguments { about, collection, limit }| {
            Box::pin(async move {
                let query = FactQuery { text: about, collection, limit: limit.unwrap_or(SHOWN) };
                let found = context.host.search_facts(&context.tenant, query).await?;
                Ok(json!({ "items": found.iter().map(shown).collect::<Vec<_>>() }))
            })
        },
    }
}

fn shown(fact: &Fact) -> Value {
    let Fact { id, collection, text, origin, noted_at, mentions, .. } = fact;
    json!({ "id": id, "text": text, "collection": collection, "origin": origin, "noted_at": noted_at, "mentions": mentions })
}

pub(super) fn forget() -> BuiltinTool<ForgetArguments> {
    let definition = Definition::new(
        FORGET,
        "Delete a fact about the person you work for, with all that it said before. To correct one, `remember` it with `replaces`.",
        json!({
            "type": "object",
            "properties": { "id": { "type": "string", "format": "uuid", "description": "The fact's id, as `recall` shows it" } },
            "required": ["id"],
            "additionalProperties": false,
        }),
        Category::Internal,
        Consequence::High,
    );
    BuiltinTool {
        definition,
        act: |context, ForgetArguments { id }| {
            Box::pin(async move { Ok(context.host.delete_fact(&context.tenant, id).await?) })
        },
    }
}
