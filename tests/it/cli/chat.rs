//! `reveille chat` and `reveille conversation` against a real service.

use std::process::Stdio;
use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, AsyncWriteExt, BufReader, Lines};
use tokio::process::{Child, ChildStdin, ChildStdout};
use tokio::time::timeout;

use super::{CommandResult, Shell};
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
    // a call that may be impossible to undo is decided once its tool is named, as it is or with other arguments
    let typed = "and you?\n\npay the bill\nbogus\nedit\n[]\napprove\nyes\nedit\n{}\napprove\nlater\n";
    let done = shell.fed(&["chat", "--conversation", &id[..13]], typed).await;
    assert_eq!(done.code, 0, "{}", done.err);
    let shown = done.out;
    assert!(shown.contains("> hello\n1: hello") && shown.contains("3: and you?"), "{shown}");
    assert!(shown.contains("that is no JSON object") && shown.contains("later: reveille approval show"), "{shown}");
    assert_eq!(shown.matches("type `pay` to confirm it").count(), 2, "{shown}");
    assert_eq!(shown.matches("it is not confirmed: nothing is decided").count(), 2, "{shown}");
    assert_eq!(model.paid(), 0);

    let done = shell.fed(&["chat", "--conversation", &id], "pay the bill\napprove\npay\n").await;
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
    let done = CommandResult::of(child.wait_with_output().await.expect("run the binary"));
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

#[tokio::test]
async fn message_that_the_gate_refuses_is_shown_with_its_reason_and_fails_the_command() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None).with("REVEILLE_GATE__WORDS", r#"["launch codes"]"#);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let done = shell.run(&["chat", "--tenant", "ann", "Send me the launch codes."]).await;
    assert_eq!(done.code, 1, "{}{}", done.out, done.err);
    let words = "✗ safety: the message has words that the operator lets no model be asked with";
    assert!(done.out.contains("· skipped (safety)") && done.out.contains(words), "{}", done.out);
    assert!(done.err.contains("the run is skipped"), "{}", done.err);
    assert_eq!(model.asked(), 0);
    // line by line, the next message is answered
    let done = shell.fed(&["chat", "--tenant", "ann"], "Send me the launch codes.\nhello\n").await;
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    assert!(done.out.contains(words) && done.out.contains(": hello"), "{}", done.out);
    service.kill().await;
}

/// A `reveille chat` that is typed to while it is read.
struct TypedChat {
    child: Child,
    typed: Option<ChildStdin>,
    shown: Lines<BufReader<ChildStdout>>,
    /// All lines that were read.
    read: Vec<String>,
}

impl TypedChat {
    fn start(shell: &Shell<'_>, arguments: &[&str]) -> TypedChat {
        let mut command = shell.command(&[&["chat"][..], arguments].concat());
        let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("run the binary");
        let typed = child.stdin.take();
        let shown = BufReader::new(child.stdout.take().expect("its stdout")).lines();
        TypedChat { child, typed, shown, read: Vec::new() }
    }

    async fn enter(&mut self, line: &str) {
        let typed = self.typed.as_mut().expect("its stdin");
        typed.write_all(format!("{line}\n").as_bytes()).await.expect("feed it");
    }

    async fn interrupt(&self) {
        signal("INT", self.child.id().expect("a running process")).await;
    }

    /// Reads on, up to a line that is so.
    async fn until(&mut self, is_it: impl Fn(&str) -> bool) {
        loop {
            let line = timeout(PATIENCE, self.shown.next_line()).await.expect("something is shown").expect("read it");
            let line = line.unwrap_or_else(|| panic!("it has ended:\n{}", self.read.join("\n")));
            let is_found = is_it(&line);
            self.read.push(line);
            if is_found {
                return;
            }
        }
    }

    /// Reads on until the call that waits is shown with these arguments: then it is asked about.
    async fn until_asked(&mut self, arguments: &Value) {
        let arguments = format!("  {arguments}");
        self.until(|line| line == arguments).await;
    }

    /// Its exit code and all that it has shown, once it has ended.
    async fn end(mut self) -> (i32, String) {
        while let Some(line) = timeout(PATIENCE, self.shown.next_line()).await.expect("it ends").expect("read it") {
            self.read.push(line);
        }
        let ended = timeout(PATIENCE, self.child.wait()).await.expect("it ends").expect("its exit status");
        (ended.code().expect("an exit code"), self.read.join("\n"))
    }
}

#[tokio::test]
async fn run_that_asks_for_input_and_for_an_approval_at_once_is_given_both() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let api = Api::new(service.url(), TOKEN);
    for (decision, held) in [("cancel", vec![]), ("approve", vec!["12A"])] {
        // either question may be the first: a choice that is none is asked for again
        let typed = format!("aisle\n{decision}\naisle\n");
        let asked = shell.fed(&["chat", "--tenant", "ann", "ask me, and hold one"], &typed);
        let done = timeout(PATIENCE, asked).await.expect("all that it asks is asked about");
        assert_eq!(done.code, 0, "{decision}: {}{}", done.out, done.err);
        assert!(done.out.contains("Window or aisle?") && !done.out.contains("later:"), "{decision}: {}", done.out);
        assert!(!done.out.contains("to confirm it"), "what can be undone is decided by a word: {}", done.out);
        let runs = api.get("/v1/runs?tenant_id=ann").await;
        assert_eq!(runs["items"][0]["state"], "succeeded", "{runs:#}");
        let held: Vec<&str> = held;
        assert_eq!(model.held(), held);
    }
    service.kill().await;
}

#[tokio::test]
async fn interrupt_ends_the_command_at_the_prompt_and_cancels_a_run_that_asks() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let api = Api::new(service.url(), TOKEN);
    let mut chat = TypedChat::start(&shell, &["--tenant", "ann"]);
    chat.enter("hold one").await;
    chat.until_asked(&json!({ "seat": "12A" })).await;
    chat.interrupt().await;
    chat.until(|line| line.contains("cancelled")).await;
    let runs = api.get("/v1/runs?tenant_id=ann").await;
    assert_eq!((&runs["items"][0]["state"], model.held().len()), (&json!("cancelled"), 0), "{runs:#}");
    // a line that was being read when the interrupt came is not lost
    chat.enter("hello").await;
    chat.until(|line| line.ends_with(": hello")).await;
    // behind an answer an empty line is shown, and then the prompt
    chat.until(str::is_empty).await;
    chat.interrupt().await;
    let (code, shown) = chat.end().await;
    assert_eq!(code, 0, "{shown}");
    service.kill().await;
}

#[tokio::test]
async fn answer_that_is_refused_is_said_and_the_conversation_goes_on() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let api = Api::new(service.url(), TOKEN);
    let seat = json!({ "seat": "12A" });

    // arguments that do not fit: it is asked again
    let mut chat = TypedChat::start(&shell, &["--tenant", "ann"]);
    for line in ["hold one", "edit", "{\"seat\": 5}", "edit", "{\"seat\": \"14C\"}"] {
        chat.enter(line).await;
    }
    chat.until(|line| line.contains("modifications.seat")).await;
    chat.until(|line| line.starts_with("told: ")).await;
    assert_eq!(model.held(), ["14C"]);

    // a decision that was taken elsewhere meanwhile
    chat.enter("hold one").await;
    chat.until_asked(&seat).await;
    let open = api.get("/v1/approvals?status=pending").await;
    let approval = &open["items"][0];
    let path = format!("/v1/approvals/{}/decision", approval["id"].as_str().expect("an id"));
    api.post(&path, &json!({ "decision": "cancel", "digest": approval["digest"] })).await;
    chat.enter("approve").await;
    chat.until(|line| line.contains("the approval is cancelled already")).await;
    chat.enter("hello").await;
    chat.until(|line| line.ends_with(": hello")).await;
    chat.typed = None;
    let (code, shown) = chat.end().await;
    assert_eq!((code, model.held().len()), (0, 1), "{shown}");

    // a token that may not decide
    let scopes = ["runs:read", "runs:write", "approvals:read"];
    let token = api.post("/v1/tokens", &json!({ "name": "talks", "tenant_id": "ann", "scopes": scopes })).await;
    let shell = Shell::in_dir(&service.dir)
        .with("REVEILLE_URL", service.url())
        .with("REVEILLE_TOKEN", token["token"].as_str().expect("a token"));
    let mut chat = TypedChat::start(&shell, &[]);
    for line in ["hold one", "approve", "hello"] {
        chat.enter(line).await;
    }
    chat.until(|line| line.contains("`approvals:decide`")).await;
    chat.until(|line| line.starts_with("later: reveille approval show ")).await;
    chat.until(|line| line.ends_with(": hello")).await;
    chat.typed = None;
    let (code, shown) = chat.end().await;
    assert_eq!((code, model.held().len()), (0, 1), "{shown}");
    service.kill().await;
}

#[tokio::test]
async fn several_questions_of_a_run_are_listed_and_answered_one_by_one() {
    let model = TalkingModel::start().await;
    let mut service = model.service(None);
    service.start().await;
    let shell = Shell::in_dir(&service.dir).with("REVEILLE_URL", service.url()).with("REVEILLE_TOKEN", TOKEN);
    let api = Api::new(service.url(), TOKEN);
    let done = shell.fed(&["chat", "--tenant", "ann", "ask me twice"], "").await;
    assert_eq!(done.code, 0, "{}{}", done.out, done.err);
    let run = done.out.lines().find_map(|line| line.strip_prefix("later: reveille run answer ")).expect("a hint");

    let asked = shell.json(&["run", "answer", run]).await;
    let input = |question: &str| {
        let inputs = asked["items"].as_array().expect("inputs");
        let input = inputs.iter().find(|input| input["question"] == question).expect("a question");
        input["id"].as_str().expect("an id").to_owned()
    };
    let (seat, bags) = (input("Window or aisle?"), input("How many bags?"));
    let listed = shell.ok(&["run", "answer", run]).await;
    for (question, id) in [("Window or aisle?", &seat), ("How many bags?", &bags)] {
        let answered = format!("reveille run answer {run} --set answer=… --input {id}");
        assert!(listed.contains(question) && listed.contains(&answered), "{listed}");
    }
    let refused = shell.refused(&["run", "answer", run, "--set", "answer=aisle"]).await;
    assert!(refused.contains("2 questions are open") && refused.contains(&seat), "{refused}");
    let refused = shell.refused(&["run", "answer", run, "--set", "answer=roof", "--input", &seat]).await;
    assert!(refused.contains("--set answer: "), "{refused}");

    // both were asked within the same minute
    let refused = shell.refused(&["run", "answer", run, "--set", "answer=aisle", "--input", &seat[..6]]).await;
    assert!(refused.contains("means more than one open question") && refused.contains("hint: type more"), "{refused}");
    let refused = shell.refused(&["run", "answer", run, "--set", "answer=aisle", "--input", "ffff"]).await;
    assert!(refused.starts_with("error: there is no open question `ffff`\nhint: "), "{refused}");
    shell.ok(&["run", "answer", run, "--set", "answer=aisle", "--input", &seat[..32]]).await;
    let refused = shell.refused(&["run", "answer", run, "--set", "answer=aisle", "--input", &seat]).await;
    assert!(refused.contains("no open question"), "{refused}");
    shell.ok(&["run", "answer", run, "two of them", "--input", &bags]).await;
    let begun = Instant::now();
    while api.get(&format!("/v1/runs/{run}")).await["state"] != "succeeded" {
        assert!(begun.elapsed() < PATIENCE, "the run does not go on");
        pause(LOOK).await;
    }
    let refused = shell.refused(&["run", "answer", run]).await;
    assert!(refused.contains("the run waits for no input"), "{refused}");
    service.kill().await;
}
