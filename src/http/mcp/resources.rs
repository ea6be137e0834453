//! Resources: the files of skills, as text. Clients that do not know the extension for skills see them here.

use serde_json::{Map, Value, json};
use url::Url;

use crate::http::mcp::call::McpCall;
use crate::http::mcp::rpc_error::RpcError;
use crate::http::mcp::skills::{KEPT_FOR_MS, asked_uri, listing, may_look, not_found, page, parts, uri_of, uri_within};
use crate::ports::skill::{DOCUMENT, Skill};

/// `resources/list`: the `SKILL.md` of each skill.
///
/// # Errors
/// The token does not permit it, or the cursor is none.
pub async fn list(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    may_look(call)?;
    let set = call.state.skills.current();
    let (skills, next) = page(&set, &params)?;
    Ok(listing("resources", skills.iter().map(resource).collect(), next))
}

/// `resources/read`: the text of a file of a skill.
///
/// # Errors
/// The token does not permit it, or there is no such file.
pub async fn read(call: &McpCall, params: Map<String, Value>) -> Result<Value, RpcError> {
    may_look(call)?;
    let uri = asked_uri(&params)?;
    let text = text_at(call, uri).await.map_err(|why| not_found(call.client.era, uri, why))?;
    let contents = json!([{ "uri": uri, "mimeType": media_type(uri), "text": text }]);
    Ok(json!({ "contents": contents, "ttlMs": KEPT_FOR_MS, "cacheScope": "private" }))
}

/// `resources/templates/list`: there are none.
pub fn templates(_: &McpCall) -> Value {
    listing("resourceTemplates", Vec::new(), None)
}

fn resource(skill: &Skill) -> Value {
    json!({
        "uri": uri_of(skill),
        "name": skill.document.name,
        "description": skill.document.description,
        "mimeType": media_type(DOCUMENT),
    })
}

/// The text at an address. Only files that were found in the skill's folder are read.
async fn text_at(call: &McpCall, uri: &str) -> Result<String, String> {
    let Some((name, path)) = parts(uri) else {
        return Err("there is nothing at this `uri`; `resources/list` has those that there are, of skills".into());
    };
    let skills = &call.state.skills;
    if path == DOCUMENT {
        return skills.read_document(name).await;
    }
    let set = skills.current();
    let file = set.find(name).and_then(|skill| file_at(skill, uri));
    skills.read_file(name, file.unwrap_or(path)).await
}

/// The file of a skill that an address means, whether its special characters are encoded or not.
fn file_at<'a>(skill: &'a Skill, uri: &str) -> Option<&'a str> {
    let files = || skill.files.iter().map(String::as_str);
    files().find(|file| uri_within(skill, file) == uri).or_else(|| {
        let asked = Url::parse(uri).ok()?;
        files().find(|file| Url::parse(&uri_within(skill, file)).is_ok_and(|address| address == asked))
    })
}

fn media_type(path: &str) -> &'static str {
    match path.ends_with(".md") {
        true => "text/markdown",
        false => "text/plain",
    }
}

#[cfg(test)]
mod tests {
    use std::path::PathBuf;

    use super::*;
    use crate::ports::skill::document::SkillDocument;

    #[test]
    fn address_means_a_file_whether_it_is_encoded_or_not() {
        let document = SkillDocument { name: "s".into(), ..SkillDocument::default() };
        let files = ["a b.md", "c%20d.md", "sub/\u{e9}.txt"].map(str::to_owned).to_vec();
        let skill = Skill { document, dir: PathBuf::new(), files, warnings: vec![] };
        let of = |path: &str| file_at(&skill, &format!("skill://s/{path}"));
        assert_eq!((of("a%20b.md"), of("a b.md")), (Some("a b.md"), Some("a b.md")));
        assert_eq!(of("c%20d.md"), Some("c%20d.md"));
        assert_eq!((of("sub/%C3%A9.txt"), of("sub/\u{e9}.txt")), (Some("sub/\u{e9}.txt"), Some("sub/\u{e9}.txt")));
        for other in ["x", "../s/x", "%2e%2e/etc/passwd", "SKILL.md", ""] {
            assert_eq!(of(other), None, "{other}");
        }
    }

    #[test]
    fn markdown_is_told_by_its_ending() {
        assert_eq!((media_type("a/b.md"), media_type("a/b.py")), ("text/markdown", "text/plain"));
    }
}
