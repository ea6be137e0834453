//! `remember`, `recall`, `forget`: what is known of the person that an agent works for, through the host.

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::{Value, json};
use uuid::Uuid;

use crate::domain::approval::{Category, Consequence};
use crate::domain::memory::{COLLECTION_LENGTH, FACT_LENGTH, Fact, NewFact, checked_collection, checked_text};
use crate::ports::tool::builtin::{BuiltinTool, read};
use crate::ports::tool::{Definition, FactQuery, Tool, ToolContext, ToolError, ToolOutput, ToolSource};

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

/// Arguments of `remember`.
#[derive(Deserialize)]
pub(super) struct RememberArguments {
    text: String,
    collection: Option<String>,
    replaces: Option<String>,
}

/// Arguments of `recall`.
#[derive(Deserialize)]
pub(super) struct RecallArguments {
    about: String,
    collection: Option<String>,
    limit: Option<usize>,
}

#[derive(Deserialize)]
struct ForgetArguments {
    id: Uuid,
}

fn collection(description: &str) -> Value {
    json!({ "type": "string", "maxLength": COLLECTION_LENGTH, "description": description })
}

pub(super) fn remember() -> BuiltinTool<RememberArguments> {
    let definition = Definition::new(
        REMEMBER,
        "Note a lasting fact about the person you work for, so that later runs know it: a preference, a name, a date, a decision. \
         One fact in one sentence that makes sense by itself, in the person's own words where they have said it. Not what matters in this run alone, and no passwords.",
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
                let text = checked_text(&text).map_err(wrong("text"))?;
                if context.used_secrets.finds(&text).await {
                    return Err(ToolError::arguments("`text` has a secret in it, which is not noted"));
                }
                let collection = collection.map(|path| checked_collection(&path).map_err(wrong("collection")));
                let fact = NewFact {
                    collection: collection.transpose()?,
                    origin: context.words.origin_of(&text),
                    is_direct: context.words.is_all,
                    text,
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
                if let Some(Err(why)) = collection.as_deref().map(checked_collection) {
                    return Err(ToolError::arguments(format!("`collection` {why}")));
                }
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

/// `forget`. The person who is asked about a call is shown the fact.
pub(super) struct Forget(Definition);

pub(super) fn forget() -> Forget {
    Forget(Definition::new(
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
    ))
}

impl Tool for Forget {
    fn definition(&self) -> &Definition {
        &self.0
    }

    fn source(&self) -> ToolSource {
        ToolSource::Builtin
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let ForgetArguments { id } = read(arguments)?;
            Ok(ToolOutput::json(context.host.delete_fact(&context.tenant, id, context.run_id).await?))
        })
    }

    fn precheck<'a>(
        &'a self,
        context: &'a ToolContext,
        arguments: &'a Value,
    ) -> Option<BoxFuture<'a, Result<Value, ToolError>>> {
        Some(Box::pin(async move {
            let ForgetArguments { id } = read(arguments.clone())?;
            let fact = context.host.find_fact(&context.tenant, id).await?;
            Ok(json!({ "text": fact.text, "collection": fact.collection, "origin": fact.origin }))
        }))
    }
}
