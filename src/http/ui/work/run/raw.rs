//! Answers that are no pages: texts and files, with the headers of the pages.

use axum::http::{HeaderValue, header};
use axum::response::{IntoResponse, Response};

use crate::base::unicode_safety::escape_hidden;
use crate::http::ui::frame::render::secured;
use crate::http::ui::frame::{UiResult, Visit};
use crate::http::ui::work::run::cut::cut_text;
use crate::http::ui::work::run::pages::computed;

/// Bytes of a text that is shown by itself.
const WHOLE_BYTES: usize = 4_194_304;

/// Plain text, which a browser shows as such.
const PLAIN: &str = "text/plain; charset=utf-8";
/// Markdown.
pub const MARKDOWN: &str = "text/markdown; charset=utf-8";

/// A text by itself, with hidden characters made visible.
pub async fn whole_text(visit: &Visit, text: String) -> UiResult {
    Ok(raw(PLAIN, computed(visit, text.len(), move || visible(&text)).await?))
}

fn visible(text: &str) -> String {
    let cut = cut_text(text, WHOLE_BYTES);
    escape_hidden(cut.shown) + if cut.is_cut { "\n… (cut here)\n" } else { "" }
}

/// A text of this media type.
pub fn raw(kind: &'static str, text: String) -> Response {
    let mut response = secured(text.into_response());
    response.headers_mut().insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
    response
}

/// A file of JSON that a browser stores.
pub fn json_file(name: &str, text: String) -> Response {
    let mut response = raw("application/json", text);
    if let Ok(value) = HeaderValue::from_str(&format!("attachment; filename=\"{name}\"")) {
        response.headers_mut().insert(header::CONTENT_DISPOSITION, value);
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_plain_bounded_and_shows_hidden_characters() {
        assert_eq!(visible("<b>\u{202e}"), "<b>\u{27e6}U+202E\u{27e7}");
        assert_eq!(visible(&"x".repeat(WHOLE_BYTES)).len(), WHOLE_BYTES);
        assert!(visible(&"x".repeat(WHOLE_BYTES + 1)).ends_with("x\n… (cut here)\n"));
        let answer = raw(PLAIN, "<script>".into());
        assert_eq!(answer.headers()["content-type"], PLAIN);
        assert_eq!(answer.headers()["x-content-type-options"], "nosniff");
        assert_eq!(
            json_file("run-7.json", "{}".into()).headers()["content-disposition"],
            "attachment; filename=\"run-7.json\""
        );
    }
}
