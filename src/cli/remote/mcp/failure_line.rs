//! The line that answers a message: what the service said, or an error that says what to do where it said nothing of
//! the protocol.

use reqwest::StatusCode;
use serde_json::{Value, json};

use crate::cli::failure::apart;
use crate::cli::{Client, RawAnswer};

/// The code of a message that the service did not answer in the protocol.
const UNANSWERED: i64 = -32_000;
/// The code of a line that is no message.
const UNREADABLE: i64 = -32_700;

/// The answer to the request with this id, on one line.
pub fn line_of(answered: anyhow::Result<RawAnswer>, client: &Client, id: Option<&Value>) -> String {
    let message = match answered {
        Ok(answer) => match told(&answer) {
            Some(line) => return line,
            None => refused(&answer, client),
        },
        Err(error) => lost(&error),
    };
    error_line(UNANSWERED, &message, id)
}

/// The error for a line that is no message; there is no id to tell.
pub fn unreadable_line(why: &str) -> String {
    error_line(UNREADABLE, why, None)
}

/// An answer in the protocol, whatever its status.
fn told(answer: &RawAnswer) -> Option<String> {
    let text = std::str::from_utf8(&answer.body).ok()?;
    let message: Value = serde_json::from_str(text).ok()?;
    if message.get("jsonrpc")? != "2.0" {
        return None;
    }
    message.get("result").or(message.get("error"))?;
    match text.contains(['\n', '\r']) {
        true => Some(message.to_string()),
        false => Some(text.to_owned()),
    }
}

/// A refusal of the service, or of what stands before it.
fn refused(answer: &RawAnswer, client: &Client) -> String {
    let refusal = client.refusal_of(answer);
    let (text, hint) = apart(&refusal);
    match advice(answer) {
        Some(advice) => sentence(&text, &advice),
        None => hint.map_or(text.clone(), |hint| sentence(&text, hint)),
    }
}

fn advice(answer: &RawAnswer) -> Option<String> {
    Some(match answer.status {
        StatusCode::UNAUTHORIZED => {
            "`reveille login` keeps a token that is taken; then start `reveille mcp` anew".into()
        }
        StatusCode::NOT_FOUND => "is a Reveille that serves MCP at this address?".into(),
        StatusCode::PAYLOAD_TOO_LARGE => "send less at once".into(),
        StatusCode::TOO_MANY_REQUESTS | StatusCode::SERVICE_UNAVAILABLE => match &answer.retry_after {
            Some(seconds) if seconds.bytes().all(|byte| byte.is_ascii_digit()) => {
                format!("try again in {seconds} seconds")
            }
            _ => "try again in a minute".into(),
        },
        _ => return None,
    })
}

/// The service is away, or its answer did not arrive.
fn lost(error: &anyhow::Error) -> String {
    let mut said = String::new();
    let mut advice = None;
    for cause in error.chain() {
        let (text, hint) = apart(cause);
        if !said.is_empty() {
            said.push_str(": ");
        }
        said.push_str(&text);
        advice = advice.or(hint);
    }
    advice.map_or(said.clone(), |advice| sentence(&said, advice))
}

fn sentence(said: &str, advice: &str) -> String {
    format!("{}; {advice}", said.replace('\n', " "))
}

fn error_line(code: i64, message: &str, id: Option<&Value>) -> String {
    let mut line = json!({ "jsonrpc": "2.0", "error": { "code": code, "message": message } });
    if let Some(id) = id {
        line["id"] = id.clone();
    }
    line.to_string()
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;

    use super::*;
    use crate::base::secret::Secret;
    use crate::cli::CliFailure;

    fn client() -> Client {
        Client::to("http://127.0.0.1:7700", Some(Secret::new("a token"))).unwrap()
    }

    fn answer(status: u16, retry_after: Option<&str>, body: &'static str) -> RawAnswer {
        let status = StatusCode::from_u16(status).unwrap();
        RawAnswer { status, retry_after: retry_after.map(str::to_owned), body: Bytes::from_static(body.as_bytes()) }
    }

    fn line(answer: RawAnswer) -> String {
        line_of(Ok(answer), &client(), Some(&json!("a")))
    }

    fn message(answered: anyhow::Result<RawAnswer>) -> String {
        let line: Value = serde_json::from_str(&line_of(answered, &client(), Some(&json!(7)))).unwrap();
        assert_eq!((&line["jsonrpc"], &line["id"], &line["error"]["code"]), (&json!("2.0"), &json!(7), &json!(-32000)));
        line["error"]["message"].as_str().unwrap().to_owned()
    }

    #[test]
    fn answer_of_the_protocol_goes_through_on_one_line() {
        for body in [
            r#"{"jsonrpc":"2.0","id":"a","result":{"big":12345678901234567890123,"a":1.0}}"#,
            r#"{"jsonrpc":"2.0","id":"a","error":{"code":-32601,"message":"no"}}"#,
        ] {
            assert_eq!(line(answer(404, None, body)), body);
        }
        let broken = line(answer(200, None, "{\"jsonrpc\": \"2.0\",\r\n \"id\": \"a\", \"result\": {}}\n"));
        assert!(!broken.contains(['\n', '\r']), "{broken}");
        let broken: Value = serde_json::from_str(&broken).unwrap();
        assert_eq!(broken, json!({ "jsonrpc": "2.0", "id": "a", "result": {} }));
    }

    #[test]
    fn refusal_says_what_to_do() {
        let problem =
            r#"{"type":"urn:reveille:problem:x","title":"No","detail":"The token is not known.","status":401}"#;
        for (status, retry_after, body, expected) in [
            (
                401,
                None,
                problem,
                "the token is not known; `reveille login` keeps a token that is taken; then start `reveille mcp` anew",
            ),
            (403, None, problem, "the token is not known; `reveille token create --scope …` makes a token that may"),
            (429, Some("7"), problem, "the token is not known; try again in 7 seconds"),
            (503, None, "", "the service answered 503 Service Unavailable; try again in a minute"),
            (503, Some("Fri, 01 Jan"), "", "the service answered 503 Service Unavailable; try again in a minute"),
            (413, None, "", "the service answered 413 Payload Too Large; send less at once"),
            (404, None, "<html>", "the service answered 404 Not Found; is a Reveille that serves MCP at this address?"),
            (200, None, "<html>", "the service answered 200 OK"),
            (200, None, r#"{"jsonrpc":"2.0","id":"a"}"#, "the service answered 200 OK"),
        ] {
            assert_eq!(message(Ok(answer(status, retry_after, body))), expected);
        }
    }

    #[test]
    fn service_that_is_away_is_told_of_with_its_hint() {
        let away =
            CliFailure::new("can't reach http://127.0.0.1:7700/: refused").hint("start it with `reveille serve`");
        let said = message(Err(away.into()));
        assert_eq!(said, "can't reach http://127.0.0.1:7700/: refused; start it with `reveille serve`");
        let broken = anyhow::anyhow!("connection reset").context("the answer broke off");
        assert_eq!(message(Err(broken)), "the answer broke off: connection reset");
    }

    #[test]
    fn line_that_is_no_message_is_answered_without_an_id() {
        let line: Value = serde_json::from_str(&unreadable_line("no")).unwrap();
        assert_eq!(line, json!({ "jsonrpc": "2.0", "error": { "code": -32700, "message": "no" } }));
    }
}
