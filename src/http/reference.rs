//! The reference of the API: the OpenAPI document, and Swagger UI as a page that reads it.
//!
//! Swagger UI comes as an archive of four megabytes, of which the page needs two files. The compiler takes these two
//! out of it, compressed as they are there, so that the binary has half a megabyte of it and browsers are sent the
//! same.

use std::io::{self, Read};
use std::sync::Arc;

use axum::Router;
use axum::body::Bytes;
use axum::http::{HeaderMap, header};
use axum::response::{IntoResponse, Redirect};
use axum::routing::{MethodRouter, get};
use flate2::read::GzDecoder;
use serde_json::Value;
use tokio::sync::OnceCell;
use tokio::task::spawn_blocking;
use utoipa_swagger_ui_vendored::SWAGGER_UI_VENDORED as ARCHIVE;

use crate::http::error::ApiError;

const PAGE: &str = include_str!("reference/index.html");
const INITIALIZER: &str = include_str!("reference/initializer.js");

const SCRIPT_ENTRY: Entry = entry("/dist/swagger-ui-bundle.js");
const STYLE_ENTRY: Entry = entry("/dist/swagger-ui.css");
static SCRIPT: [u8; gzip_length(SCRIPT_ENTRY)] = gzip(SCRIPT_ENTRY);
static STYLE: [u8; gzip_length(STYLE_ENTRY)] = gzip(STYLE_ENTRY);

/// The document at `/openapi.json`, and the page at `/docs/`.
pub fn routes<S: Clone + Send + Sync + 'static>(document: &Value) -> Router<S> {
    let document = Bytes::from(document.to_string());
    Router::new()
        .route("/openapi.json", get(move || async { ([(header::CONTENT_TYPE, "application/json")], document) }))
        .route("/docs", get(|| async { Redirect::to("/docs/") }))
        .route("/docs/", get(|| async { ([(header::CONTENT_TYPE, "text/html")], PAGE) }))
        .route(
            "/docs/swagger-initializer.js",
            get(|| async { ([(header::CONTENT_TYPE, "text/javascript")], INITIALIZER) }),
        )
        .route("/docs/swagger-ui-bundle.js", compressed("text/javascript", &SCRIPT))
        .route("/docs/swagger-ui.css", compressed("text/css", &STYLE))
}

/// A file that is sent as it is compressed, or unpacked to a client that asks for no compression.
fn compressed<S: Clone + Send + Sync + 'static>(kind: &'static str, file: &'static [u8]) -> MethodRouter<S> {
    let unpacked = Arc::<OnceCell<Bytes>>::default();
    get(move |asked: HeaderMap| async move {
        let headers = [(header::CONTENT_TYPE, kind), (header::VARY, "accept-encoding")];
        if takes_gzip(&asked) {
            return (headers, [(header::CONTENT_ENCODING, "gzip")], file).into_response();
        }
        match unpacked.get_or_try_init(|| unpack(file)).await {
            Ok(plain) => (headers, plain.clone()).into_response(),
            Err(error) => ApiError::Internal { log: format!("Swagger UI: {error}") }.into_response(),
        }
    })
}

/// Unpacks a file on a thread of its own: a megabyte takes some milliseconds.
async fn unpack(file: &'static [u8]) -> io::Result<Bytes> {
    let unpacked = spawn_blocking(move || {
        let mut plain = Vec::new();
        GzDecoder::new(file).read_to_end(&mut plain).map(|_| Bytes::from(plain))
    });
    unpacked.await.unwrap_or_else(|error| Err(io::Error::other(error)))
}

fn takes_gzip(asked: &HeaderMap) -> bool {
    let codings = asked.get_all(header::ACCEPT_ENCODING).iter().filter_map(|value| value.to_str().ok());
    codings.flat_map(|value| value.split(',')).any(|coding| {
        let (name, weight) = coding.split_once(';').unwrap_or((coding, ""));
        let weight = weight.trim().strip_prefix("q=").and_then(|weight| weight.parse::<f32>().ok());
        name.trim().eq_ignore_ascii_case("gzip") && weight.is_none_or(|weight| weight > 0.0)
    })
}

/// Where a file stands in the archive, which is a ZIP file, and what is known of it.
#[derive(Clone, Copy)]
struct Entry {
    start: usize,
    length: usize,
    checksum: usize,
    plain_length: usize,
}

/// Header and trailer of gzip around what is deflated.
const GZIP_HEADER: [u8; 10] = [0x1f, 0x8b, 8, 0, 0, 0, 0, 0, 0, 255];
const GZIP_TRAILER: usize = 8;

/// Finds the file whose path ends so, by the directory at the end of the archive.
const fn entry(path: &str) -> Entry {
    let mut at = ARCHIVE.len() - 22;
    while number(at, 4) != 0x0605_4b50 {
        at -= 1;
    }
    let mut left = number(at + 10, 2);
    at = number(at + 16, 4);
    while left > 0 {
        let name = number(at + 28, 2);
        if is_at(path.as_bytes(), at + 46, name) {
            assert!(number(at + 10, 2) == 8, "the file is not deflated");
            let header = number(at + 42, 4);
            return Entry {
                start: header + 30 + number(header + 26, 2) + number(header + 28, 2),
                length: number(at + 20, 4),
                checksum: number(at + 16, 4),
                plain_length: number(at + 24, 4),
            };
        }
        at += 46 + name + number(at + 30, 2) + number(at + 32, 2);
        left -= 1;
    }
    panic!("the archive has no such file")
}

/// Whether the name of so many bytes ends with the path.
const fn is_at(path: &[u8], name: usize, length: usize) -> bool {
    if length < path.len() {
        return false;
    }
    let mut at = 0;
    while at < path.len() {
        if ARCHIVE[name + length - path.len() + at] != path[at] {
            return false;
        }
        at += 1;
    }
    true
}

/// The number in so many bytes of the archive, the lowest first.
const fn number(at: usize, bytes: usize) -> usize {
    let (mut number, mut byte) = (0, bytes);
    while byte > 0 {
        byte -= 1;
        number = number << 8 | ARCHIVE[at + byte] as usize;
    }
    number
}

const fn gzip_length(entry: Entry) -> usize {
    GZIP_HEADER.len() + entry.length + GZIP_TRAILER
}

/// The file as gzip, of `N` bytes: [`gzip_length`].
const fn gzip<const N: usize>(entry: Entry) -> [u8; N] {
    let mut all = [0; N];
    let (header, rest) = all.split_at_mut(GZIP_HEADER.len());
    header.copy_from_slice(&GZIP_HEADER);
    let (deflated, trailer) = rest.split_at_mut(entry.length);
    deflated.copy_from_slice(ARCHIVE.split_at(entry.start).1.split_at(entry.length).0);
    let (checksum, plain_length) = trailer.split_at_mut(4);
    checksum.copy_from_slice(&(entry.checksum as u32).to_le_bytes());
    plain_length.copy_from_slice(&(entry.plain_length as u32).to_le_bytes());
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn files_of_the_archive_unpack_to_what_its_directory_says() {
        for (file, entry) in [(&SCRIPT[..], SCRIPT_ENTRY), (&STYLE[..], STYLE_ENTRY)] {
            let mut plain = Vec::new();
            GzDecoder::new(file).read_to_end(&mut plain).unwrap(); // compares the checksum
            assert_eq!(plain.len(), entry.plain_length);
        }
    }

    #[test]
    fn compression_is_for_those_who_take_it() {
        for (asked, takes) in
            [("gzip", true), ("deflate, GZIP;q=0.5", true), ("br, gzip;q=0", false), ("identity", false), ("", false)]
        {
            let headers = HeaderMap::from_iter([(header::ACCEPT_ENCODING, asked.parse().unwrap())]);
            assert_eq!(takes_gzip(&headers), takes, "{asked}");
        }
    }
}
