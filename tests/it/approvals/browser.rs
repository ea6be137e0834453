//! The page in a real browser: a phone-sized Chromium, driven by `tests/browser/approval.mjs`, by keyboard alone.
//!
//! Without `REVEILLE_TEST_IMAGES` the pictures are looked at and thrown away; with it they are kept there
//! (`docs/images`, shown in the README).

use std::path::Path;
use std::process::Stdio;

use chrono::TimeDelta;
use reveille::domain::approval::{ApprovalChoice, CallOutcome, Proposal, QuestionKind, ServerAnswer};
use reveille::http::server::{self, ServerLimits};
use serde_json::json;
use tokio::io::AsyncWriteExt;
use tokio::net::TcpListener;
use tokio::process::Command;
use tokio_util::sync::CancellationToken;

use super::harness::{AskingRun, TIME, ask, note, note_of};
use super::servers::survey;
use crate::api::service::Api;
use crate::support::servers::{chromium, images};

#[tokio::test(flavor = "multi_thread")]
async fn person_on_a_phone_can_read_and_answer_every_page() {
    let api = Api::new().await;
    let recipient = json!({ "timezone": "Europe/Berlin", "addresses": { "email": "ann@example.org" } });
    api.admin("PUT", "/v1/recipients/ann", Some(recipient)).await.expect(200);
    let expired = ask(&api, "ann", vec![note()]).await;
    api.clock.advance(TIME + TimeDelta::minutes(1));

    let attic = Proposal {
        summary: "Send a note to the room attic".into(),
        ..note_of(json!({ "room": "attic", "text": "two" }))
    };
    let two = ask(&api, "ann", vec![note(), attic]).await;
    let grave = ask(&api, "ann", vec![Proposal { confirmation: Some("SEND".into()), ..note() }]).await;
    let held = ask(&api, "ann", vec![Proposal { undo_seconds: Some(60), ..note() }]).await;
    held.send(&api, &[("do", "approve:0")]).await.expect(303);
    let done = ask(&api, "ann", vec![note()]).await;
    done.send(&api, &[("do", "approve:0"), ("0.comment", "Go ahead")]).await.expect(303);
    let outcome = CallOutcome { is_error: false, text: "The note was sent to 9 people.".into() };
    api.store.note_outcome(done.approvals[0].id, &outcome).await.unwrap();
    let right_to_left = ask(&api, "ann", vec![odd()]).await;
    let dark = ask(&api, "ann", vec![note()]).await;
    let options = vec![ApprovalChoice::Edit, ApprovalChoice::Cancel];
    let arguments = json!({ "room": "lobby" });
    let input = ask(&api, "ann", vec![Proposal { kind: QuestionKind::Input, options, arguments, ..note() }]).await;
    let server = ask(&api, "ann", vec![survey()]).await;
    let path = |asked: &AskingRun| asked.path();

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let base = format!("http://{}", listener.local_addr().unwrap());
    let stop = CancellationToken::new();
    let serving = server::serve(
        listener,
        api.app.clone(),
        ServerLimits::default(),
        Default::default(),
        api.metrics.clone(),
        stop.clone(),
    );
    let serving = tokio::spawn(serving);
    let kept = images();
    let said = drive(
        "approval.mjs",
        &json!({
            "chromium": chromium(),
            "images": kept.unwrap_or_else(|| api.dir.path().join("images").display().to_string()),
            "base": base,
            "pages": {
                "two": path(&two), "grave": path(&grave), "held": path(&held), "done": path(&done),
                "expired": path(&expired), "rightToLeft": path(&right_to_left), "dark": path(&dark),
                "input": path(&input), "server": path(&server),
            },
        }),
    )
    .await;
    assert_eq!(said, Ok(()));
    let given = json!({ "to": "ann@example.org", "branch": "m", "checks": ["lints"] });
    assert_eq!(server.only(&api).await.server_answer(), Some(ServerAnswer::Accept(given)));
    assert_eq!(input.statuses(&api).await, ["edited"]);
    let answer = json!({ "room": "lobby", "text": "The build is green" });
    assert_eq!(input.now(&api).await[0].modifications, Some(answer));
    assert_eq!(two.statuses(&api).await, ["edited", "cancelled"]);
    assert_eq!(two.now(&api).await[0].modifications, Some(json!({ "room": "lobby", "text": "The build is green" })));
    for untouched in [&grave, &dark, &right_to_left, &expired] {
        assert_eq!(untouched.statuses(&api).await, ["pending"]);
    }
    stop.cancel();
    serving.await.unwrap();
}

/// Long words, right-to-left text and what can't be seen.
fn odd() -> Proposal {
    let mut odd = note_of(json!({
        "room": "חדר הישיבות הגדול", "text": "שלום לכולם, הבנייה נכשלה שוב 3 פעמים",
        "address": format!("https://example.org/{}", "a-very-long-path-without-a-break".repeat(6)),
        "hidden": "pay \u{202e}001\u{202c} now",
    }));
    odd.summary = "שליחת הודעה לחדר הישיבות הגדול".into();
    odd.parameters =
        json!({ "type": "object", "properties": { "room": { "type": "string" }, "text": { "type": "string" } } });
    odd
}

/// Runs a script of `tests/browser`; what it complained of is the error.
pub async fn drive(script: &str, with: &serde_json::Value) -> Result<(), String> {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/browser");
    assert!(dir.join("node_modules/playwright-core").is_dir(), "run the tests with scripts/test.sh, which installs it");
    let mut node = Command::new("node")
        .arg(script)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .kill_on_drop(true)
        .spawn()
        .expect("node");
    let mut input = node.stdin.take().expect("its input");
    input.write_all(with.to_string().as_bytes()).await.expect("written");
    drop(input);
    let ended = node.wait_with_output().await.expect("an end");
    match ended.status.success() {
        true => Ok(()),
        false => Err(String::from_utf8_lossy(&ended.stderr).into_owned()),
    }
}
