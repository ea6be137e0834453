//! Reveille as a client, by the conformance suite of the protocol: the real binary, with a server of the suite.

use std::path::Path;

use super::suite::{Side, assert_conforms, below, node_22};
use crate::support::binary::TempDir;

/// Runs all scenarios for clients of a revision.
async fn assert_client_conforms(revision: &str) {
    let queue = TempDir::new();
    // the suite puts the address behind it, and hands the whole to a shell
    let quoted = |path: &Path| format!("'{}'", path.display());
    let command = format!("{} {}", quoted(&node_22()), quoted(&below("conformance_client.mjs")));
    let environment =
        [("REVEILLE_TEST_BINARY", Path::new(env!("CARGO_BIN_EXE_reveille"))), ("REVEILLE_TEST_QUEUE", queue.path())];
    assert_conforms(Side::Client, revision, &["--command", &command], &environment).await;
}

#[tokio::test]
async fn client_does_what_the_revision_2025_11_25_asks_of_it() {
    assert_client_conforms("2025-11-25").await;
}

#[tokio::test]
async fn client_does_what_the_revision_2026_07_28_asks_of_it() {
    assert_client_conforms("2026-07-28").await;
}
