//! A document as a person hands it over: from a file or standard input.

use std::io::Read;
use std::path::Path;

use anyhow::Context;
use serde_json::Value;
use zeroize::Zeroizing;

use crate::cli::CliFailure;

/// The document in `file`, else on standard input.
pub fn read(file: Option<&Path>) -> anyhow::Result<Value> {
    let mut text = Zeroizing::new(String::new());
    match file {
        Some(file) => {
            let mut opened = std::fs::File::open(file).with_context(|| format!("read {}", file.display()))?;
            opened.read_to_string(&mut text).with_context(|| format!("read {}", file.display()))?;
        }
        None => {
            std::io::stdin().read_to_string(&mut text).context("read the document from standard input")?;
        }
    }
    document_of(&text)
}

/// JSON that a file holds.
pub fn json_of(file: &Path) -> anyhow::Result<Value> {
    let text = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    let read = serde_json::from_str(&text);
    read.map_err(|error| CliFailure::new(format!("{} is not JSON: {error}", file.display())).into())
}

/// Reads a typed document: a text that begins like an object, a list or a quoted text is JSON, any other is plain text.
/// A key of digits stays text.
fn document_of(text: &str) -> anyhow::Result<Value> {
    let line = text.trim_end_matches(['\r', '\n']);
    if line.is_empty() {
        return Err(CliFailure::new("the document is empty").hint("pipe it in, or name a file with --file").into());
    }
    if !line.trim_start().starts_with(['{', '[', '"']) {
        return Ok(Value::String(line.to_owned()));
    }
    // the fault of the parser has no part of the text in it
    let read = serde_json::from_str(line);
    read.map_err(|error| CliFailure::new(format!("the document begins like JSON and is not: {error}")).into())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn document_that_is_no_json_object_list_or_quoted_text_is_taken_as_it_stands() {
        for (text, document) in [
            ("00123\n", json!("00123")),
            ("t0ken \r\n", json!("t0ken ")),
            ("{\"a\": 1}\n", json!({ "a": 1 })),
            ("[1]", json!([1])),
            ("\"quoted\"", json!("quoted")),
        ] {
            assert_eq!(document_of(text).unwrap(), document, "{text:?}");
        }
        for text in ["", "\n", "{canary", "\"canary"] {
            let refused = document_of(text).unwrap_err().to_string();
            assert!(!refused.contains("canary"), "{refused}");
        }
    }
}
