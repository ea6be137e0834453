//! The client of a request: the revision of the protocol that it speaks, and what it can show to a person.
//!
//! Nothing is remembered between requests. A client of the new era says all of it with each request; one of the old era
//! has said it in `initialize`, so it counts as one that can show nothing.

use axum::http::{HeaderMap, HeaderName};
use serde_json::{Map, Value};

use crate::http::mcp::envelope::RpcRequest;
use crate::http::mcp::rpc_error::RpcError;
pub use crate::http::mcp::version::{NEWEST, OLD};

/// The extension by which a long tool is a task.
pub const TASKS: &str = "io.modelcontextprotocol/tasks";

const VERSION_HEADER: HeaderName = HeaderName::from_static("mcp-protocol-version");
const VERSION: &str = "io.modelcontextprotocol/protocolVersion";
const CAPABILITIES: &str = "io.modelcontextprotocol/clientCapabilities";
const KEY: &str = "reveille/idempotency-key";
/// Longest key of a request, in bytes.
const KEY_BYTES: usize = 200;

/// The two ways to speak the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Era {
    /// Each request says what it needs.
    New,
    /// Clients begin with `initialize`.
    Old,
}

/// The client of a request.
#[derive(Debug, Clone)]
pub struct McpCaller {
    /// Its way to speak the protocol.
    pub era: Era,
    /// It shows forms to a person.
    pub shows_forms: bool,
    /// It opens addresses for a person.
    pub opens_links: bool,
    /// It follows tasks.
    pub has_tasks: bool,
    /// `_meta["reveille/idempotency-key"]`: the request takes effect once.
    pub key: Option<String>,
}

impl McpCaller {
    /// The client of a request.
    pub fn of(headers: &HeaderMap, request: &RpcRequest) -> Result<McpCaller, RpcError> {
        let header = version_header(headers)?;
        let meta = request.params.get("_meta").and_then(Value::as_object);
        let key = meta.and_then(|meta| meta.get(KEY)).map(read_key).transpose()?;
        match is_old(header, meta, &request.method) {
            true => Ok(McpCaller { key, ..McpCaller::without_abilities(Era::Old) }),
            false => {
                let capabilities = declared(header, meta)?;
                let elicitation = capabilities.get("elicitation").and_then(Value::as_object);
                let has = |mode: &str| elicitation.is_some_and(|modes| modes.contains_key(mode));
                let extensions = capabilities.get("extensions").and_then(Value::as_object);
                Ok(McpCaller {
                    era: Era::New,
                    shows_forms: has("form") || elicitation.is_some_and(Map::is_empty),
                    opens_links: has("url"),
                    has_tasks: extensions.is_some_and(|extensions| extensions.contains_key(TASKS)),
                    key,
                })
            }
        }
    }

    fn without_abilities(era: Era) -> McpCaller {
        McpCaller { era, shows_forms: false, opens_links: false, has_tasks: false, key: None }
    }
}

/// The version in the header, which is there once at most.
fn version_header(headers: &HeaderMap) -> Result<Option<&str>, RpcError> {
    let mut sent = headers.get_all(VERSION_HEADER).iter();
    let Some(value) = sent.next() else { return Ok(None) };
    match value.to_str() {
        Ok(version) if sent.next().is_none() => Ok(Some(version.trim())),
        _ => Err(RpcError::header_mismatch("`MCP-Protocol-Version` must be there once, as `_meta` has it")),
    }
}

/// Whether a request is of a client that began with `initialize`.
fn is_old(header: Option<&str>, meta: Option<&Map<String, Value>>, method: &str) -> bool {
    match meta.and_then(|meta| meta.get(VERSION)) {
        // a revision that we have told of in `server/discover`
        Some(Value::String(version)) => {
            OLD.contains(&version.as_str()) && header.is_none_or(|header| header == version)
        }
        Some(_) => false,
        None => method != "server/discover" && header.is_none_or(|header| OLD.contains(&header)),
    }
}

/// The capabilities that a request of the new era declares, once its version is right.
fn declared<'a>(
    header: Option<&str>,
    meta: Option<&'a Map<String, Value>>,
) -> Result<&'a Map<String, Value>, RpcError> {
    let Some(meta) = meta else {
        return Err(match header {
            Some(header) if header != NEWEST && !OLD.contains(&header) => RpcError::unsupported_version(header),
            _ => RpcError::malformed_meta(format!("`params._meta` must have `{VERSION}` and `{CAPABILITIES}`")),
        });
    };
    let Some(version) = meta.get(VERSION).and_then(Value::as_str) else {
        return Err(RpcError::malformed_meta(format!(
            "`params._meta[\"{VERSION}\"]` must be there, such as \"{NEWEST}\""
        )));
    };
    let Some(capabilities) = meta.get(CAPABILITIES).and_then(Value::as_object) else {
        let why = format!("`params._meta[\"{CAPABILITIES}\"]` must be there, an object; `{{}}` where there are none");
        return Err(RpcError::malformed_meta(why));
    };
    if header != Some(version) {
        let why = format!("the header `MCP-Protocol-Version` must say what `params._meta[\"{VERSION}\"]` says");
        return Err(RpcError::header_mismatch(why));
    }
    match version == NEWEST {
        true => Ok(capabilities),
        false => Err(RpcError::unsupported_version(version)),
    }
}

fn read_key(value: &Value) -> Result<String, RpcError> {
    let is_plain = |key: &str| key.bytes().all(|byte| (b' '..=b'~').contains(&byte));
    match value.as_str() {
        Some(key) if (1..=KEY_BYTES).contains(&key.len()) && is_plain(key) => Ok(key.to_owned()),
        _ => {
            let why = format!("`params._meta[\"{KEY}\"]` must be a text of 1 to {KEY_BYTES} ASCII characters");
            Err(RpcError::invalid_params(why))
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn of(header: Option<&str>, method: &str, params: Value) -> Result<McpCaller, RpcError> {
        let headers = header.map(|header| (VERSION_HEADER, header.parse().unwrap()));
        let Value::Object(params) = params else { panic!("no parameters") };
        let request = RpcRequest { id: json!(1), method: method.into(), params };
        McpCaller::of(&headers.into_iter().collect(), &request)
    }

    fn meta(version: &str, capabilities: Value) -> Value {
        json!({ "_meta": { VERSION: version, CAPABILITIES: capabilities } })
    }

    fn fault(header: Option<&str>, params: Value) -> (i64, u16) {
        let error = of(header, "tools/list", params).unwrap_err();
        (error.code, error.status.as_u16())
    }

    #[test]
    fn client_of_the_new_era_says_its_version_twice_and_what_it_can_do() {
        let client = of(Some(NEWEST), "tools/list", meta(NEWEST, json!({}))).unwrap();
        assert_eq!(
            (client.era, client.shows_forms, client.opens_links, client.has_tasks),
            (Era::New, false, false, false)
        );
        let able = |capabilities: Value| {
            let client = of(Some(NEWEST), "tools/list", meta(NEWEST, capabilities)).unwrap();
            (client.shows_forms, client.opens_links, client.has_tasks)
        };
        assert_eq!(able(json!({ "elicitation": {} })), (true, false, false));
        assert_eq!(able(json!({ "elicitation": { "form": {} } })), (true, false, false));
        assert_eq!(able(json!({ "elicitation": { "url": {} } })), (false, true, false));
        assert_eq!(able(json!({ "elicitation": { "form": {}, "url": {} } })), (true, true, false));
        assert_eq!(able(json!({ "elicitation": true, "extensions": { TASKS: {} } })), (false, false, true));
    }

    #[test]
    fn fault_of_the_version_is_told_by_its_code() {
        let right = Some(NEWEST);
        assert_eq!(fault(right, json!({})), (-32602, 400));
        assert_eq!(fault(right, json!({ "_meta": { CAPABILITIES: {} } })), (-32602, 400));
        assert_eq!(fault(right, json!({ "_meta": { VERSION: NEWEST } })), (-32602, 400));
        assert_eq!(fault(right, json!({ "_meta": { VERSION: NEWEST, CAPABILITIES: [] } })), (-32602, 400));
        assert_eq!(fault(right, json!({ "_meta": { VERSION: 7, CAPABILITIES: {} } })), (-32602, 400));
        assert_eq!(fault(right, meta("v999.0.0", json!({}))), (-32020, 400));
        assert_eq!(fault(None, meta(NEWEST, json!({}))), (-32020, 400));
        assert_eq!(fault(Some(OLD[0]), meta(NEWEST, json!({}))), (-32020, 400));
        assert_eq!(fault(Some("v999.0.0"), meta("v999.0.0", json!({}))), (-32022, 400));
        assert_eq!(fault(Some("v999.0.0"), json!({})), (-32022, 400));
        let error = of(Some("v999.0.0"), "tools/list", json!({})).unwrap_err();
        assert_eq!(error.data.unwrap()["requested"], "v999.0.0");
        assert_eq!(of(None, "server/discover", json!({})).unwrap_err().code, -32602);
        let mut twice = HeaderMap::from_iter([(VERSION_HEADER, NEWEST.parse().unwrap())]);
        twice.append(VERSION_HEADER, NEWEST.parse().unwrap());
        let Value::Object(params) = meta(NEWEST, json!({})) else { unreachable!() };
        let request = RpcRequest { id: json!(1), method: "tools/list".into(), params };
        assert_eq!(McpCaller::of(&twice, &request).unwrap_err().code, -32020);
    }

    #[test]
    fn client_of_the_old_era_says_nothing_or_an_old_version() {
        let era = |header, method, params| of(header, method, params).unwrap().era;
        assert_eq!(era(None, "initialize", json!({ "protocolVersion": "2025-11-25", "capabilities": {} })), Era::Old);
        for version in OLD {
            assert_eq!(era(Some(version), "tools/list", json!({})), Era::Old);
            assert_eq!(era(Some(version), "tools/list", meta(version, json!({}))), Era::Old);
        }
        assert_eq!(era(None, "tools/call", json!({ "_meta": { "progressToken": 1 } })), Era::Old);
        let client = of(None, "tools/call", json!({ "_meta": { CAPABILITIES: { "elicitation": {} } } })).unwrap();
        assert!(!client.shows_forms, "it is not asked");
    }

    #[test]
    fn key_is_read_at_its_longest_and_refused_one_byte_beyond() {
        let of = |key: Value| of(None, "tools/call", json!({ "_meta": { KEY: key } })).map(|client| client.key);
        let longest = "k".repeat(KEY_BYTES);
        assert_eq!(of(json!(longest)), Ok(Some(longest)));
        for bad in [json!("k".repeat(KEY_BYTES + 1)), json!(""), json!("é"), json!("a\nb"), json!(7), json!(null)] {
            assert_eq!(of(bad).unwrap_err().code, -32602);
        }
    }
}
