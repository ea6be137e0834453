//! The page's look: one text, named by its hash in the Content-Security-Policy, so that nothing else can style it.

use aws_lc_rs::digest::{SHA256, digest};
use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Everything that the pages look like.
pub const STYLE: &str = include_str!("style.css");

/// The policy of every page: nothing is loaded, run or framed; forms go here only.
pub fn policy() -> String {
    let hash = STANDARD.encode(digest(&SHA256, STYLE.as_bytes()));
    format!(
        "default-src 'none'; style-src 'sha256-{hash}'; form-action 'self'; frame-ancestors 'none'; base-uri 'none'"
    )
}
