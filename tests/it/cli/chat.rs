//! `reveille chat` and `reveille conversation` against a real service.

use std::process::Stdio;
use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::{Done, Shell};
use crate::support::api::Api;
use crate::support::binary::signal;
use crate::support::talking_model::{TOKEN, TalkingModel};

/// How long something may take on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);
const LOOK: Duration = Duration::from_millis(20);

#[tokio::test]
async fn conversation_goes_on_in_one_command_and_in_another_and_a_call_is_decided_in_line() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let said = shell.ok(&["chat", "--tenant", "ann", "hello"]).await;
    assert!(said.contains("1: hello"), "{said}");
    let list = shell.json(&["conversation", "list"]).await;
    let id = list["items"][0]["id"].as_str().expect("an id").to_owned();

    // line by line, with what was said before
    let typed = "and you?\n\npay the bill\nbogus\nedit\n[]\nlater\n";
    let done = shell.fed(&["chat", "--conversation", &id[..13]], typed).await;
    assert_eq!(done.code, 0, "{}", done.err);
    let shown = done.out;
    assert!(shown.contains("> hello\n1: hello") && shown.contains("3: and you?"), "{shown}");
    assert!(shown.contains("that is no JSON object") && shown.contains("later: reveille approval show"), "{shown}");
    assert_eq!(model.paid(), 0);

    let done = shell.fed(&["chat", "--conversation", &id], "pay the bill\napprove\n").await;
    assert!(done.code == 0 && done.out.contains("paid"), "{} {}", done.out, done.err);
    assert_eq!(model.paid(), 1);

    let shown = shell.ok(&["conversation", "show", &id]).await;
    assert!(shown.contains("> and you?\n3: and you?") && shown.contains("· pending_approval"), "{shown}");
    shell.ok(&["conversation", "delete", &id]).await;
    let refused = shell.refused(&["conversation", "show", &id]).await;
    assert!(refused.contains("there is no"), "{refused}");
    let refused = shell.refused(&["chat", "hello"]).await;
    assert!(refused.contains("--tenant"), "{refused}");
    service.kill().await;
}

#[tokio::test]
async fn interrupt_cancels_the_run_that_is_answering_and_the_command_goes_on() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let api = Api::new(service.url(), TOKEN);
    let mut command = shell.command(&["chat", "--tenant", "ann"]);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("run the binary");
    let mut typed = child.stdin.take().expect("its stdin");
    typed.write_all(b"talk slowly\n").await.expect("feed it");
    let begun = Instant::now();
    let run = loop {
        let runs = api.get("/v1/runs?tenant_id=ann").await;
        if runs["items"][0]["state"] == "running" && model.asked() == 1 {
            break runs["items"][0]["id"].as_str().expect("an id").to_owned();
        }
        assert!(begun.elapsed() < PATIENCE, "nothing is answered: {runs:#}");
        pause(LOOK).await;
    };
    // a message behind it waits, which is shown, as nothing else is to come for long
    let conversations = shell.json(&["conversation", "list"]).await;
    let id = conversations["items"][0]["id"].as_str().expect("an id").to_owned();
    let mut behind = shell.command(&["chat", "--conversation", &id, "goodbye"]);
    behind.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut behind = behind.spawn().expect("run the binary");
    let mut shown = BufReader::new(behind.stdout.take().expect("its stdout"));
    let mut first = String::new();
    timeout(PATIENCE, shown.read_line(&mut first)).await.expect("something is shown").expect("read it");
    assert_eq!(first.trim_end(), "· queued");
    signal("INT", child.id().expect("a running process")).await;
    typed.write_all(b"hello\n").await.expect("feed it");
    drop(typed);
    let done = Done::of(child.wait_with_output().await.expect("run the binary"));
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains("hello") && begun.elapsed() < PATIENCE, "{}", done.out);
    let cancelled = api.get(&format!("/v1/runs/{run}")).await;
    assert_eq!(cancelled["state"], "cancelled", "{cancelled:#}");
    let mut answer = String::new();
    timeout(PATIENCE, shown.read_to_string(&mut answer)).await.expect("it is answered").expect("read it");
    assert!(answer.contains(": goodbye") && !answer.contains("· running"), "{answer}");
    assert!(behind.wait().await.expect("run the binary").success());
    service.kill().await;
}
