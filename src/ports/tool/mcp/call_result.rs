//! The answer of a call, as the service knows answers of tools.
//!
//! Structured content is the data, else the texts are. Links are named and not followed. Images, sounds and embedded
//! data are kept as data files, as the base64 text that they came as, and the answer names them: no model is shown
//! their bytes.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use rmcp::model::{CallToolResult, ContentBlock, Resource, ResourceContents};
use serde_json::{Map, Value, json};

use crate::base::compute::{JSON_IN_PLACE, steps_to_parse};
use crate::base::json::length::estimated_bytes;
use crate::domain::data_file::{FILE_BYTES, NewDataFile};
use crate::ports::tool::{ToolCaller, ToolContext, ToolError, ToolFailure, ToolOutput};

/// Most links of an answer that are named.
const LINKS: usize = 50;
/// Most attachments of an answer that are kept.
const FILES: usize = 20;
/// Longest message of a failed tool, in characters.
const MESSAGE_CHARS: usize = 4_000;
/// Longest media type.
const MEDIA_TYPE_BYTES: usize = 100;
/// The type of an attachment that has no sound one.
const ANY_TYPE: &str = "application/octet-stream";

/// The answer of a call as the service knows answers; attachments are kept as data files and named. `tool`: its full
/// name.
///
/// # Errors
/// The tool says that it failed.
pub async fn output(result: CallToolResult, context: &ToolContext, tool: &str) -> Result<ToolOutput, ToolError> {
    let steps = steps_to_read(&result);
    let read = context.compute.run_if_costly(context.tenant.as_str(), steps, move || ReadResult::of(result));
    let ReadResult { is_error, data, mut found, attachments } = read.await?;
    if is_error {
        return Err(failure(data));
    }
    if !attachments.is_empty() {
        let mut files = Vec::with_capacity(attachments.len());
        for (number, attachment) in attachments.into_iter().enumerate() {
            files.push(kept(attachment, number, context, tool).await);
        }
        found.insert("files".to_owned(), Value::Array(files));
    }
    Ok(with_found(data, found))
}

/// The answer of a call with a notice of ours about it, which a model reads beside what the tool says.
pub fn with_notice(output: Result<ToolOutput, ToolError>, notice: &str) -> Result<ToolOutput, ToolError> {
    match output {
        Ok(output) => {
            let instructions = match &output.instructions {
                Some(before) => format!("{before}\n\n{notice}"),
                None => notice.to_owned(),
            };
            Ok(output.with_instructions(instructions))
        }
        Err(ToolError::Tell { kind, code, message }) => {
            Err(ToolError::Tell { kind, code, message: format!("{notice} {message}") })
        }
        Err(error) => Err(error),
    }
}

/// An answer that was gone through.
struct ReadResult {
    is_error: bool,
    /// The structured content, else the texts; `None`: there is neither.
    data: Option<Value>,
    /// Named beside it: links, and how much was left out.
    found: Map<String, Value>,
    attachments: Vec<Attachment>,
}

/// Data that comes with an answer.
#[derive(Debug, PartialEq)]
struct Attachment {
    /// `image`, `audio` or `resource`.
    kind: &'static str,
    media_type: String,
    uri: Option<String>,
    /// Base64, if `bytes` says how many these are.
    content: String,
    /// `None`: the content is no base64.
    bytes: Option<usize>,
}

impl ReadResult {
    fn of(result: CallToolResult) -> ReadResult {
        let (mut texts, mut links, mut attachments, mut left_out) = (Vec::new(), Vec::new(), Vec::new(), 0_usize);
        for block in result.content {
            match block {
                ContentBlock::Text(text) => texts.push(text.text),
                ContentBlock::Resource(embedded) => match embedded.resource {
                    ResourceContents::TextResourceContents { uri, text, .. } => texts.push(format!("[{uri}]\n{text}")),
                    ResourceContents::BlobResourceContents { uri, mime_type, blob, .. }
                        if attachments.len() < FILES =>
                    {
                        attachments.push(Attachment::new("resource", mime_type, Some(uri), blob));
                    }
                    _ => left_out += 1,
                },
                ContentBlock::Image(image) if attachments.len() < FILES => {
                    attachments.push(Attachment::new("image", Some(image.mime_type), None, image.data));
                }
                ContentBlock::Audio(audio) if attachments.len() < FILES => {
                    attachments.push(Attachment::new("audio", Some(audio.mime_type), None, audio.data));
                }
                ContentBlock::ResourceLink(resource) if links.len() < LINKS => links.push(link(resource)),
                _ => left_out += 1,
            }
        }
        let mut found = Map::new();
        if !links.is_empty() {
            found.insert("links".to_owned(), Value::Array(links));
        }
        if left_out > 0 {
            found.insert("left_out".to_owned(), json!(left_out));
        }
        let is_error = result.is_error == Some(true);
        let words = (!texts.is_empty()).then(|| Value::String(texts.join("\n\n")));
        // a failure is told in words, where there are any
        let data = match is_error {
            true => words.or(result.structured_content),
            false => result.structured_content.or(words),
        };
        ReadResult { is_error, data, found, attachments }
    }
}

impl Attachment {
    fn new(kind: &'static str, media_type: Option<String>, uri: Option<String>, content: String) -> Attachment {
        let media_type = media_type.as_deref().and_then(sound_media_type).unwrap_or_else(|| ANY_TYPE.to_owned());
        let bytes = STANDARD.decode(&content).ok().map(|decoded| decoded.len());
        Attachment { kind, media_type, uri, content, bytes }
    }

    /// How it is named in the answer.
    fn named(&self) -> Map<String, Value> {
        named([
            ("kind", Some(json!(self.kind))),
            ("media_type", Some(json!(self.media_type))),
            ("bytes", self.bytes.map(Value::from)),
            ("uri", self.uri.clone().map(Value::from)),
        ])
    }
}

/// The steps that it takes at most to go through an answer.
fn steps_to_read(result: &CallToolResult) -> u64 {
    let texts: usize = result.content.iter().map(bytes_of_block).sum();
    let structured = result.structured_content.as_ref().map_or(0, |data| estimated_bytes(data, JSON_IN_PLACE));
    steps_to_parse(texts.saturating_add(structured))
}

fn bytes_of_block(block: &ContentBlock) -> usize {
    match block {
        ContentBlock::Text(text) => text.text.len(),
        ContentBlock::Image(image) => image.data.len(),
        ContentBlock::Audio(audio) => audio.data.len(),
        ContentBlock::Resource(embedded) => match &embedded.resource {
            ResourceContents::TextResourceContents { text, .. } => text.len(),
            ResourceContents::BlobResourceContents { blob, .. } => blob.len(),
            _ => 0,
        },
        ContentBlock::ResourceLink(link) => link.uri.len() + link.description.as_ref().map_or(0, String::len),
        _ => 0,
    }
}

fn link(resource: Resource) -> Value {
    let Resource { uri, name, title, description, mime_type, size, .. } = resource;
    Value::Object(named([
        ("uri", Some(json!(uri))),
        ("name", Some(json!(name))),
        ("title", title.map(Value::from)),
        ("description", description.map(Value::from)),
        ("media_type", mime_type.map(Value::from)),
        ("bytes", size.map(Value::from)),
    ]))
}

/// The fields that there are.
fn named<const N: usize>(fields: [(&str, Option<Value>); N]) -> Map<String, Value> {
    fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
}

/// The media type in small letters and without parameters; `None`: it is none.
fn sound_media_type(written: &str) -> Option<String> {
    let bare = written.split(';').next().unwrap_or_default().trim().to_ascii_lowercase();
    let is_part = |part: &str| {
        let is_of_part = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit() || ".+-".contains(c);
        !part.is_empty() && part.chars().all(is_of_part)
    };
    let is_sound = bare.len() <= MEDIA_TYPE_BYTES
        && bare.split_once('/').is_some_and(|(kind, subtype)| is_part(kind) && is_part(subtype));
    is_sound.then_some(bare)
}

fn failure(data: Option<Value>) -> ToolError {
    let words = match data {
        Some(Value::String(words)) => words,
        Some(data) => data.to_string(),
        None => String::new(),
    };
    let words: String = match words.trim() {
        "" => "the tool failed and does not say why".to_owned(),
        words => words.chars().take(MESSAGE_CHARS).collect(),
    };
    ToolError::for_model(ToolFailure::ExecutionError, "mcp_tool_error", words)
}

/// The data alone, or in an object with what was found beside it.
fn with_found(data: Option<Value>, mut found: Map<String, Value>) -> ToolOutput {
    match (data, found.is_empty()) {
        (Some(data), true) => ToolOutput::json(data),
        (None, true) => ToolOutput::text(""),
        (data, false) => {
            if let Some(data) = data {
                found.insert("result".to_owned(), data);
            }
            ToolOutput::json(Value::Object(found))
        }
    }
}

/// Keeps an attachment, and tells its name, or why it is not kept.
async fn kept(attachment: Attachment, number: usize, context: &ToolContext, tool: &str) -> Value {
    let mut entry = attachment.named();
    match keep(attachment, number, context, tool).await {
        Ok(file) => entry.insert("file".to_owned(), file),
        Err(why) => {
            entry.insert("kept".to_owned(), json!(false));
            entry.insert("why".to_owned(), json!(why))
        }
    };
    Value::Object(entry)
}

/// Writes an attachment to a data file; the same call's attachment takes the place of an earlier one.
async fn keep(attachment: Attachment, number: usize, context: &ToolContext, tool: &str) -> Result<Value, String> {
    let Attachment { kind, media_type, content, bytes, .. } = attachment;
    let bytes = bytes.ok_or("it is no base64 text")?;
    if context.called_by == ToolCaller::Poll || context.run_id.is_nil() {
        return Err("only runs keep files".to_owned());
    }
    if content.len() > FILE_BYTES {
        return Err(format!("it has {} bytes as base64, and a file has at most {FILE_BYTES}", content.len()));
    }
    if context.used_secrets.finds(&content).await {
        return Err("it may hold a secret".to_owned());
    }
    let file = NewDataFile {
        run_id: context.run_id,
        call_key: file_key(&context.idempotency_key, number),
        tool: tool.to_owned(),
        media_type: format!("{media_type};base64").into(),
        summary: format!("{kind} of {bytes} bytes, base64"),
        content,
    };
    let kept = context.host.keep_data_file(&context.tenant, file).await;
    kept.map(|id| json!(id)).map_err(|error| error.to_string())
}

/// The key of a file of a call: never that of its whole result, which has the key of the call itself.
fn file_key(idempotency_key: &str, number: usize) -> String {
    hex::encode(digest(&SHA256, format!("{idempotency_key}|file|{number}").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(written: Value) -> ReadResult {
        ReadResult::of(serde_json::from_value(written).unwrap())
    }

    /// The answer without its attachments.
    fn answered(written: Value) -> Value {
        let ReadResult { data, found, .. } = read(written);
        with_found(data, found).data
    }

    fn failed(written: Value) -> String {
        let read = read(written);
        assert!(read.is_error);
        failure(read.data).to_string()
    }

    fn text(text: &str) -> Value {
        json!({ "type": "text", "text": text })
    }

    fn image(data: &str, media_type: &str) -> Value {
        json!({ "type": "image", "data": data, "mimeType": media_type })
    }

    #[test]
    fn structured_content_is_the_data_and_else_the_texts_are() {
        let both = json!({ "content": [text("{\"grams\":7}")], "structuredContent": { "grams": 7 } });
        assert_eq!(answered(both), json!({ "grams": 7 }));
        assert_eq!(answered(json!({ "content": [], "structuredContent": null })), Value::Null);
        assert_eq!(answered(json!({ "content": [text("one"), text("two")] })), "one\n\ntwo");
        let embedded = json!({ "type": "resource", "resource": { "uri": "file:///a.txt", "text": "hello" } });
        assert_eq!(answered(json!({ "content": [embedded] })), "[file:///a.txt]\nhello");
        assert_eq!(answered(json!({ "content": [] })), "");
    }

    #[test]
    fn links_are_named_beside_the_result_up_to_their_most() {
        let link =
            |n: usize| json!({ "type": "resource_link", "uri": format!("file:///{n}"), "name": format!("n{n}") });
        let whole = json!({
            "type": "resource_link", "uri": "https://example.org/a", "name": "a", "title": "A", "description": "An A.",
            "mimeType": "text/plain", "size": 5,
        });
        assert_eq!(
            answered(json!({ "content": [text("see"), whole] })),
            json!({ "result": "see", "links": [{
                "uri": "https://example.org/a", "name": "a", "title": "A", "description": "An A.",
                "media_type": "text/plain", "bytes": 5,
            }] })
        );
        let many = |count: usize| answered(json!({ "content": (0..count).map(link).collect::<Vec<_>>() }));
        assert_eq!(many(1), json!({ "links": [{ "uri": "file:///0", "name": "n0" }] }), "there is no other result");
        let (most, more) = (many(LINKS), many(LINKS + 2));
        assert_eq!((most["links"].as_array().unwrap().len(), most.get("left_out")), (LINKS, None));
        assert_eq!((more["links"].as_array().unwrap().len(), &more["left_out"]), (LINKS, &json!(2)));
    }

    #[test]
    fn attachments_are_taken_up_to_their_most_with_their_types_and_lengths() {
        let blob = json!({ "type": "resource", "resource": { "uri": "file:///a.bin", "blob": "aGVsbG8=" } });
        let audio = json!({ "type": "audio", "data": "AAAA", "mimeType": "audio/WAV; rate=8000" });
        let found = read(json!({ "content": [image("iVBORw==", "image/png"), audio, blob, image("%", "image/png")] }));
        let named: Vec<Value> = found.attachments.iter().map(|attachment| Value::Object(attachment.named())).collect();
        assert_eq!(
            named,
            [
                json!({ "kind": "image", "media_type": "image/png", "bytes": 4 }),
                json!({ "kind": "audio", "media_type": "audio/wav", "bytes": 3 }),
                json!({ "kind": "resource", "media_type": ANY_TYPE, "bytes": 5, "uri": "file:///a.bin" }),
                json!({ "kind": "image", "media_type": "image/png" }),
            ]
        );
        let many = read(json!({ "content": vec![image("AAAA", "image/png"); FILES + 1] }));
        assert_eq!((many.attachments.len(), &many.found["left_out"]), (FILES, &json!(1)));
    }

    #[test]
    fn media_type_is_taken_if_it_is_one() {
        let long = format!("image/{}", "a".repeat(MEDIA_TYPE_BYTES - "image/".len()));
        assert_eq!(sound_media_type("Image/SVG+XML; charset=utf-8").as_deref(), Some("image/svg+xml"));
        assert_eq!(sound_media_type(&long).as_deref(), Some(long.as_str()));
        for none in ["", "image", "image/", "/png", "image/p ng", "image/png\n.", "image/a/b", &(long + "a")] {
            assert_eq!(sound_media_type(none), None, "{none:?}");
        }
    }

    #[test]
    fn failed_tool_says_why_in_its_words() {
        let error = |more: Value| {
            let mut written = json!({ "isError": true });
            written.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
            failed(written)
        };
        assert_eq!(error(json!({ "content": [text("no such repo")] })), "execution_error: no such repo");
        let both = json!({ "content": [text("no such repo")], "structuredContent": { "code": 404 } });
        assert_eq!(error(both), "execution_error: no such repo");
        assert_eq!(error(json!({ "structuredContent": { "code": 404 } })), "execution_error: {\"code\":404}");
        let silent = "execution_error: the tool failed and does not say why";
        assert_eq!(error(json!({ "content": [] })), silent);
        assert_eq!(error(json!({ "content": [text(" \n")] })), silent);
        let long = error(json!({ "content": [text(&"é".repeat(MESSAGE_CHARS + 1))] }));
        assert_eq!(long.chars().count(), "execution_error: ".len() + MESSAGE_CHARS);
    }

    #[test]
    fn notice_stands_beside_the_data_and_before_the_words_of_a_failure() {
        let told = with_notice(Ok(ToolOutput::json(json!({ "a": 1 }))), "Nobody chose.").unwrap();
        assert_eq!((told.data.clone(), told.instructions.as_deref()), (json!({ "a": 1 }), Some("Nobody chose.")));
        let both = with_notice(Ok(told), "Twice.").unwrap();
        assert_eq!(both.instructions.as_deref(), Some("Nobody chose.\n\nTwice."));
        let failed = |message: &str| ToolError::for_model(ToolFailure::ExecutionError, "mcp_tool_error", message);
        assert_eq!(with_notice(Err(failed("no")), "Nobody chose."), Err(failed("Nobody chose. no")));
        let away = || ToolError::Unsent { code: "away".into(), message: "no".into() };
        assert_eq!(with_notice(Err(away()), "Nobody chose."), Err(away()));
    }

    #[test]
    fn each_file_of_a_call_has_a_key_of_its_own() {
        let key = ToolContext::key_of(uuid::Uuid::from_u128(7), 1, "call_1");
        let keys = [file_key(&key, 0), file_key(&key, 1), key];
        assert!(keys.iter().all(|key| key.len() == 64));
        assert!(keys[0] != keys[1] && keys[0] != keys[2] && keys[1] != keys[2]);
    }
}
