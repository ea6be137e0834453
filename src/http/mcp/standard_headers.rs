//! The headers that repeat what a request of the new era asks for, so that a proxy need not read its body: they must
//! say what the body says.

use axum::http::{HeaderMap, HeaderName};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::Value;

use crate::http::mcp::envelope::RpcRequest;
use crate::http::mcp::rpc_error::RpcError;

const METHOD: HeaderName = HeaderName::from_static("mcp-method");
const NAME: HeaderName = HeaderName::from_static("mcp-name");

/// Refuses a request whose `Mcp-Method` or `Mcp-Name` says something else than its body.
pub fn check(headers: &HeaderMap, request: &RpcRequest) -> Result<(), RpcError> {
    expect(headers, METHOD, "Mcp-Method", &request.method, "`method`")?;
    match name_of(request) {
        Some((field, name)) => expect(headers, NAME, "Mcp-Name", name, &format!("`params.{field}`")),
        None => Ok(()),
    }
}

/// The parameter that `Mcp-Name` repeats, where the method has one and it is a text.
fn name_of(request: &RpcRequest) -> Option<(&'static str, &str)> {
    let field = match request.method.as_str() {
        "tools/call" | "prompts/get" => "name",
        "resources/read" => "uri",
        "tasks/get" | "tasks/update" | "tasks/cancel" => "taskId",
        _ => return None,
    };
    // one that is missing is the method's to refuse
    request.params.get(field).and_then(Value::as_str).map(|name| (field, name))
}

fn expect(headers: &HeaderMap, header: HeaderName, shown: &str, wanted: &str, place: &str) -> Result<(), RpcError> {
    let mut sent = headers.get_all(header).iter();
    let value = match (sent.next(), sent.next()) {
        (Some(value), None) => value.to_str().ok(),
        _ => {
            return Err(RpcError::header_mismatch(format!(
                "the header `{shown}` must be there once, as {place} has it"
            )));
        }
    };
    let said = value.and_then(decoded);
    match said.as_deref() == Some(wanted) {
        true => Ok(()),
        false => Err(RpcError::header_mismatch(format!("the header `{shown}` must say what {place} says"))),
    }
}

/// The text of a header: as it is, or of `=?base64?…?=`.
fn decoded(value: &str) -> Option<String> {
    let value = value.trim();
    match value.strip_prefix("=?base64?").and_then(|rest| rest.strip_suffix("?=")) {
        Some(encoded) => String::from_utf8(STANDARD.decode(encoded).ok()?).ok(),
        None => Some(value.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use axum::http::HeaderValue;
    use serde_json::json;

    use super::*;

    fn is_right(sent: &[(&'static str, &[u8])], method: &str, params: Value) -> bool {
        let mut headers = HeaderMap::new();
        for (name, value) in sent {
            headers.append(HeaderName::from_static(name), HeaderValue::from_bytes(value).unwrap());
        }
        let Value::Object(params) = params else { panic!("no parameters") };
        let checked = check(&headers, &RpcRequest { id: json!(1), method: method.into(), params });
        if let Err(error) = &checked {
            assert_eq!((error.code, error.status.as_u16()), (-32020, 400));
        }
        checked.is_ok()
    }

    #[test]
    fn method_is_repeated_letter_by_letter() {
        let is_right = |sent: &[(&'static str, &[u8])]| is_right(sent, "tools/list", json!({}));
        assert!(is_right(&[("mcp-method", b"tools/list")]));
        assert!(is_right(&[("mcp-method", b"  tools/list  ")]));
        assert!(is_right(&[("mcp-method", b"tools/list"), ("mcp-name", b"whatever")]), "it has no name");
        for wrong in [&b"prompts/list"[..], b"TOOLS/LIST", b"", b"tools/list\xff"] {
            assert!(!is_right(&[("mcp-method", wrong)]), "{wrong:?}");
        }
        assert!(!is_right(&[]));
        assert!(!is_right(&[("mcp-method", b"tools/list"), ("mcp-method", b"tools/list")]));
    }

    #[test]
    fn name_is_repeated_where_the_method_has_one() {
        for (method, field) in [
            ("tools/call", "name"),
            ("prompts/get", "name"),
            ("resources/read", "uri"),
            ("tasks/get", "taskId"),
            ("tasks/update", "taskId"),
            ("tasks/cancel", "taskId"),
        ] {
            let of = |sent: &[&[u8]], name: &str| {
                let mut headers: Vec<(&'static str, &[u8])> = vec![("mcp-method", method.as_bytes())];
                headers.extend(sent.iter().map(|value| ("mcp-name", *value)));
                is_right(&headers, method, json!({ field: name }))
            };
            assert!(of(&[b"abc"], "abc") && of(&[b"\t abc "], "abc"), "{method}");
            assert!(!of(&[], "abc") && !of(&[b"wrong"], "abc") && !of(&[b"ABC"], "abc"), "{method}");
            assert!(!of(&[b"abc", b"abc"], "abc"), "{method}: twice");
            let encoded = format!("=?base64?{}?=", STANDARD.encode("größe"));
            assert!(of(&[encoded.as_bytes()], "größe"), "{method}");
            assert!(!of(&["größe".as_bytes()], "größe"), "{method}: bytes that are no ASCII");
            assert!(!of(&[b"=?base64?!?="], "abc") && !of(&[b"=?base64?/w==?="], "abc"), "{method}: no text");
        }
        assert!(is_right(&[("mcp-method", b"tools/call")], "tools/call", json!({})), "the method refuses it");
        let unknown = is_right(&[("mcp-method", b"tasks/result")], "tasks/result", json!({ "taskId": "abc" }));
        assert!(unknown, "a method that there is not is refused as that");
        assert!(is_right(&[("mcp-method", b"skills/get")], "skills/get", json!({ "uri": "skill://a/SKILL.md" })));
    }
}
