//! The style and the script of the pages, at addresses that change with their content.

use aws_lc_rs::digest::{SHA256, digest};
use axum::Router;
use axum::extract::Path;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use axum::routing::get;

use crate::http::HttpState;

/// The style.
const STYLE: &str = include_str!("../templates/dashboard.css");
/// The script.
const SCRIPT: &str = include_str!("../templates/dashboard.js");
/// Bytes of a hash in an address.
const HASH: usize = 8;

/// Address of the style.
pub fn style_href() -> String {
    format!("/ui/assets/{}/dashboard.css", hash(STYLE))
}

/// Address of the script.
pub fn script_href() -> String {
    format!("/ui/assets/{}/dashboard.js", hash(SCRIPT))
}

/// The files, which anybody may read.
pub fn routes() -> Router<HttpState> {
    Router::new().route("/ui/assets/{hash}/{name}", get(show_asset))
}

async fn show_asset(Path((asked, name)): Path<(String, String)>) -> Response {
    let (kind, text) = match name.as_str() {
        "dashboard.css" => ("text/css; charset=utf-8", STYLE),
        "dashboard.js" => ("text/javascript; charset=utf-8", SCRIPT),
        _ => return StatusCode::NOT_FOUND.into_response(),
    };
    // an instance of another version may have made the page: its file must not be taken for this one
    let kept = if asked == hash(text) { "public, max-age=31536000, immutable" } else { "no-store" };
    let headers = [
        (header::CONTENT_TYPE, HeaderValue::from_static(kind)),
        (header::CACHE_CONTROL, HeaderValue::from_static(kept)),
    ];
    (headers, text).into_response()
}

fn hash(text: &str) -> String {
    hex::encode(&digest(&SHA256, text.as_bytes()).as_ref()[..HASH])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn script_of_our_own_has_at_most_300_lines() {
        assert!(SCRIPT.lines().count() <= 300, "{}", SCRIPT.lines().count());
    }

    #[tokio::test]
    async fn file_is_kept_under_the_address_of_its_content_alone() {
        let kept = async |asked: String| {
            let answer = show_asset(Path((asked, "dashboard.js".to_owned()))).await;
            answer.headers()[header::CACHE_CONTROL].to_str().unwrap().to_owned()
        };
        assert!(kept(hash(SCRIPT)).await.contains("immutable"));
        assert_eq!(kept(hash("of another version")).await, "no-store");
    }

    #[test]
    fn address_changes_with_the_content() {
        assert_ne!(hash("a"), hash("b"));
        assert!(style_href().starts_with("/ui/assets/") && style_href().ends_with("/dashboard.css"));
    }
}
