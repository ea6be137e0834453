//! `reveille chat` and `reveille conversation` against a real service.

use super::Shell;
use crate::support::talking_model::{TOKEN, TalkingModel};

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
