//! Skills over MCP, as the extension `io.modelcontextprotocol/skills` has them: each with its properties and the
//! address of its `SKILL.md`.
//!
//! They are those in the operator's folders, the same for all tenants. The folders may change at any time, so no list
//! of a skill's files with their hashes goes along: its files are read by their addresses.

use serde_json::{Map, Value, json};

use crate::base::token::Permission;
use crate::http::mcp::call::McpCall;
use crate::http::mcp::client::Era;
use crate::http::mcp::rpc_error::RpcError;
use crate::ports::skill::{DOCUMENT, Skill, SkillSet, unknown_skill};

/// Skills of a page.
pub const PAGE: usize = 50;
/// Longest address of a file that is looked up, in bytes.
const URI_BYTES: usize = 2_048;
/// Longest cursor, which is the name of a skill, in bytes.
const CURSOR_BYTES: usize = 64;
/// For how long a client may keep what it was told of skills.
pub const KEPT_FOR_MS: u32 = 60_000;
/// The scheme of addresses.
const SCHEME: &str = "skill://";
/// In the old era: there is no such resource.
const NOT_FOUND_OF_OLD: i64 = -32002;

/// `skills/list`.
///
/// # Errors
/// The token does not permit it, or the cursor is none.
pub async fn list(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    may_look(call)?;
    let set = call.state.skills.current();
    let (skills, next) = page(&set, &params)?;
    Ok(listing("skills", skills.iter().map(entry).collect(), next))
}

/// `skills/get`.
///
/// # Errors
/// The token does not permit it, or there is no such skill.
pub async fn get(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    may_look(call)?;
    let uri = asked_uri(&params)?;
    let set = call.state.skills.current();
    let found = match parts(uri) {
        Some((name, DOCUMENT)) => set.find(name).ok_or_else(|| unknown_skill(name, set.names())),
        _ => Err(format!("`uri` must be the address of a skill, such as `{SCHEME}NAME/{DOCUMENT}`")),
    };
    let skill = found.map_err(|why| not_found(call.client.era, uri, why))?;
    Ok(json!({ "skill": entry(skill), "ttlMs": KEPT_FOR_MS, "cacheScope": "private" }))
}

/// Whether the caller may look at skills.
pub(super) fn may_look(call: &McpCall) -> Result<(), RpcError> {
    match call.holds(Permission::TasksRead) {
        true => Ok(()),
        false => Err(RpcError::refused(
            "skills are for tokens with the scope `tasks:read`; tell the person, and do not try again",
        )),
    }
}

/// The skills of the page that is asked for, and the cursor of the next one.
pub(super) fn page<'a>(
    set: &'a SkillSet,
    params: &Map<String, Value>,
) -> Result<(&'a [Skill], Option<&'a str>), RpcError> {
    let after = match params.get("cursor") {
        None => "",
        Some(cursor) => cursor.as_str().filter(|cursor| is_cursor(cursor)).ok_or_else(|| {
            RpcError::invalid_params("`cursor` must be the `nextCursor` of the page before, or be absent")
        })?,
    };
    let first = set.skills.partition_point(|skill| skill.document.name.as_str() <= after);
    let rest = &set.skills[first..];
    let skills = &rest[..rest.len().min(PAGE)];
    let next = skills.last().filter(|_| rest.len() > PAGE).map(|skill| skill.document.name.as_str());
    Ok((skills, next))
}

/// Whether this can be the name of a skill.
fn is_cursor(cursor: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    (1..=CURSOR_BYTES).contains(&cursor.len()) && cursor.bytes().all(fits)
}

/// A page of a list, under the name that its method gives it.
pub(super) fn listing(name: &str, items: Vec<Value>, next: Option<&str>) -> Value {
    let mut page = json!({ name: items, "ttlMs": KEPT_FOR_MS, "cacheScope": "private" });
    if let Some(next) = next {
        page["nextCursor"] = next.into();
    }
    page
}

fn entry(skill: &Skill) -> Value {
    json!({ "uri": uri_of(skill), "frontmatter": skill.document.frontmatter, "resources": "dynamic" })
}

/// The address of a skill's `SKILL.md`.
pub(super) fn uri_of(skill: &Skill) -> String {
    uri_within(skill, DOCUMENT)
}

/// The address of a file of a skill.
pub(super) fn uri_within(skill: &Skill, path: &str) -> String {
    format!("{SCHEME}{}/{path}", skill.document.name)
}

/// The address that a request names.
pub(super) fn asked_uri(params: &Map<String, Value>) -> Result<&str, RpcError> {
    match params.get("uri").and_then(Value::as_str) {
        Some(uri) if uri.len() <= URI_BYTES => Ok(uri),
        _ => Err(RpcError::invalid_params(format!("`uri` must be a text of at most {URI_BYTES} bytes"))),
    }
}

/// The name of the skill that an address is of, and the path within its folder.
pub(super) fn parts(uri: &str) -> Option<(&str, &str)> {
    uri.strip_prefix(SCHEME)?.split_once('/')
}

/// There is nothing at this address; the error says at which.
pub(super) fn not_found(era: Era, uri: &str, why: String) -> RpcError {
    let error = RpcError::invalid_params(why).with_data(json!({ "uri": uri }));
    match era {
        Era::New => error,
        Era::Old => RpcError { code: NOT_FOUND_OF_OLD, ..error },
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::ports::skill::document::SkillDocument;

    fn set(count: usize) -> SkillSet {
        let skill = |number: usize| Skill {
            document: SkillDocument { name: format!("s{number:03}"), ..SkillDocument::default() },
            dir: PathBuf::new(),
            files: vec![],
            warnings: vec![],
        };
        SkillSet { skills: (0..count).map(skill).collect(), unusable: vec![] }
    }

    fn params(params: Value) -> Map<String, Value> {
        let Value::Object(params) = params else { panic!("no object") };
        params
    }

    #[test]
    fn skills_come_fifty_to_a_page() {
        let whole = set(PAGE);
        assert_eq!(page(&whole, &Map::new()).map(|(skills, next)| (skills.len(), next)), Ok((PAGE, None)));
        let more = set(PAGE + 1);
        let (first, next) = page(&more, &Map::new()).unwrap();
        assert_eq!((first.len(), next), (PAGE, Some("s049")));
        let (second, end) = page(&more, &params(json!({ "cursor": next }))).unwrap();
        assert_eq!((second[0].document.name.as_str(), second.len(), end), ("s050", 1, None));
        // a cursor is a place in the order of names, so one that has gone meanwhile is one still
        let gone = page(&more, &params(json!({ "cursor": "s049-gone" }))).unwrap();
        assert_eq!(gone.0.len(), 1);
        for bad in [json!(7), json!(null), json!(""), json!("../x"), json!("x".repeat(CURSOR_BYTES + 1))] {
            assert_eq!(page(&more, &params(json!({ "cursor": bad }))).unwrap_err().code, -32602);
        }
    }

    #[test]
    fn address_is_read_at_its_longest_and_refused_one_byte_beyond_it() {
        let of = |uri: Value| asked_uri(&params(json!({ "uri": uri }))).map(str::to_owned);
        let longest = "u".repeat(URI_BYTES);
        assert_eq!(of(json!(longest)), Ok(longest));
        for bad in [json!("u".repeat(URI_BYTES + 1)), json!(7), json!(null)] {
            assert_eq!(of(bad).unwrap_err().code, -32602);
        }
        assert_eq!(asked_uri(&Map::new()).unwrap_err().code, -32602);
    }

    #[test]
    fn address_names_a_skill_and_a_file() {
        assert_eq!(parts("skill://a/SKILL.md"), Some(("a", "SKILL.md")));
        assert_eq!(parts("skill://a/b/c.md"), Some(("a", "b/c.md")));
        for other in ["skill://a", "test://a/SKILL.md", "SKILL://a/b", ""] {
            assert_eq!(parts(other), None, "{other}");
        }
    }

    #[test]
    fn error_of_an_unknown_address_names_it_by_the_code_of_its_era() {
        let error = not_found(Era::New, "test://x", "no".into());
        assert_eq!((error.code, error.data), (-32602, Some(json!({ "uri": "test://x" }))));
        assert_eq!(not_found(Era::Old, "test://x", "no".into()).code, -32002);
    }
}
