//! Comforts of typing: beginnings of ids, keys, other words for commands, lengths of time, profiles, a question before
//! what can't be taken back, and faults in the words of who typed.

use std::os::unix::fs::PermissionsExt;
use std::process::Stdio;
use std::time::Duration;

use reveille::base::token::{TokenKind, TokenText};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::process::Command;
use tokio::time::timeout;

use super::Shell;
use crate::support::binary::{Service, TempDir, reveille};

async fn running() -> Service {
    let mut service = Service::new();
    service.start().await;
    service
}

/// A pipeline task of ann's that succeeds.
fn task(name: &str, key: Option<&str>) -> Vec<u8> {
    let mut task = json!({ "tenant_id": "ann", "name": name, "trigger": { "type": "schedule", "cron": "@yearly" },
        "executor": "pipeline", "action": { "config": { "steps": [{ "name": "one", "map": "1" }] } }, "output": null });
    if let Some(key) = key {
        task["key"] = json!(key);
    }
    task.to_string().into_bytes()
}

async fn create(shell: &Shell<'_>, name: &str, key: Option<&str>) -> String {
    std::fs::write(shell.dir.join("task.json"), task(name, key)).unwrap();
    let made = shell.json(&["task", "create", "--file", "task.json"]).await;
    made["id"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn ids_are_typed_by_their_beginning_and_tasks_by_their_key() {
    let service = running().await;
    let shell = Shell::beside(&service);
    let first = create(&shell, "First", Some("reports/daily")).await;
    let second = create(&shell, "Second", None).await;
    let named = async |typed: &str| shell.json(&["task", "show", typed]).await["name"].clone();
    assert_eq!(named("reports/daily").await, "First");
    let typed =
        ["--tenant", "ann", "--key", "mail/daily", "--name", "Third", "--cron", "@yearly", "--instruction", "x"];
    let third = shell.json(&[&["task", "create"], &typed[..]].concat()).await;
    assert_eq!((&third["key"], named("mail/daily").await), (&json!("mail/daily"), json!("Third")));
    assert_eq!(named(&second[..32]).await, "Second");
    assert_eq!(named(&first.replace('-', "")[..30]).await, "First");
    // both were made within the same minute
    let said = shell.refused(&["task", "show", &first[..6]]).await;
    assert!(said.contains("means more than one task") && said.contains("hint: type more"), "{said}");
    let said = shell.refused(&["task", "show", "nothing/like/it"]).await;
    assert!(said.starts_with("error: there is no task `nothing/like/it`\nhint: "), "{said}");
    let said = shell.refused(&["task", "show", "ffff"]).await;
    assert!(said.starts_with("error: there is no task `ffff`"), "{said}");

    let run = shell.json(&["task", "run", "reports/daily"]).await["id"].as_str().unwrap().to_owned();
    shell.ok(&["run", "watch", &run[..32]]).await;
    let listed = shell.json(&["run", "list", "--task", "reports/daily", "--since", "2h"]).await;
    assert_eq!(listed["items"].as_array().unwrap().len(), 1);
    let none = shell.json(&["run", "list", "--task", "reports/daily", "--until", "1h"]).await;
    assert_eq!(none["items"], json!([]), "it was scheduled later than an hour ago");
}

#[tokio::test]
async fn commands_have_the_names_that_people_try_and_a_change_of_nothing_is_said() {
    let service = running().await;
    let shell = Shell::beside(&service);
    let id = create(&shell, "Quiet", None).await;
    assert!(shell.ok(&["task", "ls"]).await.contains("Quiet"));
    assert!(shell.ok(&["task", "get", &id]).await.contains("Quiet"));
    let help = shell.ok(&["help", "task"]).await;
    assert!(help.contains("Create, list, change and run tasks") && help.contains("backfill"), "{help}");
    let said = shell.ok(&["task", "update", &id, "--name", "Quiet"]).await;
    assert!(said.starts_with("nothing was changed: what was typed is what is stored\n"), "{said}");
    let typed = ["task", "create", "--tenant", "ann", "--name", "x", "--instruction", "y", "--cron", "0 8 * * *"];
    let said = shell.refused(&[&typed[..], &["--timezone", "Europe/Berln", "--max-attempts", "0"]].concat()).await;
    assert!(said.contains("  --timezone: unknown time zone `Europe/Berln`"), "{said}");
    assert!(said.contains("  --max-attempts: "), "{said}");
}

/// The output of a command on a terminal, and whether it succeeded, when this is typed.
async fn on_a_terminal(shell: &Shell<'_>, arguments: &str, typed: &str) -> (bool, String) {
    let mut command = Command::new("script");
    let program = reveille(shell.dir);
    let program = program.as_std().get_program().to_str().unwrap().to_owned();
    command.current_dir(shell.dir).args(["-qec", &format!("{program} {arguments}"), "/dev/null"]).env_clear();
    command
        .envs(shell.environment.iter().map(|(name, value)| (name, value)))
        .env("NO_COLOR", "1")
        .env("SHELL", "/bin/sh");
    command.env("HOME", shell.dir).env("PATH", "/usr/bin:/bin");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).kill_on_drop(true).spawn().expect("script");
    let mut stdin = child.stdin.take().unwrap();
    stdin.write_all(typed.as_bytes()).await.unwrap();
    let done = timeout(Duration::from_secs(60), child.wait_with_output()).await.expect("it ends").unwrap();
    drop(stdin);
    (done.status.success(), String::from_utf8_lossy(&done.stdout).into_owned())
}

#[tokio::test]
async fn irreversible_command_asks_on_a_terminal_only() {
    let service = running().await;
    let shell = Shell::beside(&service);
    let id = create(&shell, "Precious", None).await;
    let (done, said) = on_a_terminal(&shell, &format!("task delete {id}"), "n\n").await;
    assert!(!done && said.contains("delete the task `Precious` of ann? [y/N]"), "{said}");
    shell.ok(&["task", "show", &id]).await;
    let (done, said) = on_a_terminal(&shell, &format!("task delete {id}"), "y\n").await;
    assert!(done && said.contains("deleted"), "{said}");
    let (done, said) = on_a_terminal(&shell, "dead-letter drop --all", "n\n").await;
    assert!(!done && said.contains("[y/N]") && said.contains("nothing was done"), "{said}");
    let (done, said) = on_a_terminal(&shell, "dead-letter drop --all --yes", "").await;
    assert!(done && !said.contains("[y/N]"), "{said}");
    let (done, said) = on_a_terminal(&shell, "credential delete shop --tenant ann", "n\n").await;
    assert!(!done && said.contains("delete the credential shop of ann?"), "{said}");
    // a script is not asked
    let id = create(&shell, "Of a script", None).await;
    assert_eq!(shell.ok(&["task", "delete", &id]).await, format!("deleted {id}\n"));
}

#[tokio::test]
async fn tool_that_acts_is_called_once_a_person_has_said_yes() {
    let service = running().await;
    let shell = Shell::beside(&service);
    let id = create(&shell, "Precious", None).await;
    let status = async || shell.json(&["task", "show", &id]).await["status"].clone();
    let call = format!("tool call pause_task --tenant ann --args '{{\"id\": \"{id}\"}}'");
    let (done, said) = on_a_terminal(&shell, &call, "n\n").await;
    assert!(!done && said.contains("make this call? [y/N]") && said.contains("nothing was done"), "{said}");
    assert!(
        said.contains("pause_task") && said.contains("internal") && said.contains(&id),
        "what is asked about: {said}"
    );
    assert_eq!(status().await, "active");
    // where nobody can be asked nothing is done by itself
    let arguments = json!({ "id": id }).to_string();
    let call_in_script = ["tool", "call", "pause_task", "--tenant", "ann", "--args", &arguments];
    let said = shell.refused(&call_in_script).await;
    assert!(said.contains("no terminal to ask on") && said.contains("hint: --yes"), "{said}");
    assert_eq!(status().await, "active");
    let (done, said) = on_a_terminal(&shell, &call, "y\n").await;
    assert!(done && said.contains("took"), "{said}");
    assert_eq!(status().await, "paused");
}

#[tokio::test]
async fn profile_keeps_address_and_token_and_is_for_its_owner_alone() {
    let mut service = running().await;
    let home = TempDir::new();
    let path = home.path().to_str().unwrap().to_owned();
    let shell = Shell { dir: home.path(), environment: vec![("HOME", path)] };
    let (url, token) = (service.url().to_owned(), service.admin_token().unwrap().to_owned());
    let refused =
        shell.fed(&["login", "--url", &url], &format!("{}\n", TokenText::new(TokenKind::Admin).expose())).await;
    assert_eq!(refused.code, 1, "{}", refused.err);
    let file = home.path().join(".config/reveille/profiles.toml");
    assert!(!file.exists(), "a token that is refused is not kept");

    let done = shell.fed(&["login", "--url", &url, "--profile", "work"], &format!("{token}\n")).await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("profile `work`") && !format!("{}{}", done.out, done.err).contains(&token));
    assert_eq!(std::fs::metadata(&file).unwrap().permissions().mode() & 0o777, 0o600);
    assert_eq!(shell.json(&["task", "list", "--profile", "work"]).await, json!({ "items": [] }));
    let said = shell.refused(&["task", "list", "--profile", "wrok"]).await;
    assert_eq!(said, "error: there is no profile `wrok`\nhint: reveille login --profile wrok\n");
    let said = shell.refused(&["task", "list", "--url", &url]).await;
    assert!(said.contains("`reveille login`"), "a profile that is not named is not used: {said}");

    assert_eq!(shell.fed(&["login", "--url", &url], &format!("{token}\n")).await.code, 0);
    assert_eq!(shell.json(&["task", "list"]).await, json!({ "items": [] }), "the usual profile");
    // a token goes to the address that it was kept for
    let said = shell.refused(&["task", "list", "--url", "http://127.0.0.1:1"]).await;
    assert!(said.contains("can't reach http://127.0.0.1:1/"), "{said}");
    service.terminate().await;
}

#[tokio::test]
async fn watch_says_how_to_decide_while_the_run_waits() {
    let scenario = "[[steps]]\nturn = 1\ntext = \"I ask.\"\n[[steps.calls]]\ntool = \"http_send\"\n\
        args = { url = \"https://notes.example.org/\", method = \"POST\", body = { text = \"x\" } }\n\
        [[steps]]\nturn = 2\ntext = \"Then not.\"\n";
    let service = Service::new();
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).unwrap();
    let mut service = service.with_config("[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n");
    service.start().await;
    let shell = Shell::beside(&service);
    let typed = ["task", "create", "--tenant", "ann", "--name", "Asks", "--cron", "@yearly", "--instruction", "Send."];
    let id = shell.json(&typed).await["id"].as_str().unwrap().to_owned();
    let mut watch = shell.command(&["task", "run", &id, "--watch"]).stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(watch.stdout.take().unwrap()).lines();
    let cancel = loop {
        let line = timeout(Duration::from_secs(60), lines.next_line()).await.expect("it says how").unwrap();
        let line = line.expect("the watch goes on while the run waits");
        if let Some(command) = line.trim().strip_prefix("reveille approval cancel ") {
            break command.to_owned();
        }
    };
    let pending: Value = shell.json(&["approval", "list", "--status", "pending"]).await;
    assert_eq!(pending["items"][0]["id"], json!(cancel));
    shell.ok(&["approval", "cancel", &cancel]).await;
    let mut rest = String::new();
    while let Some(line) = timeout(Duration::from_secs(60), lines.next_line()).await.expect("it ends").unwrap() {
        rest.push_str(&line);
        rest.push('\n');
    }
    assert!(!watch.wait().await.unwrap().success() || rest.contains("Then not."), "{rest}");
}

#[tokio::test]
async fn faults_name_what_was_typed_in_every_command() {
    let service = running().await;
    let shell = Shell::beside(&service);
    let id = create(&shell, "Quiet", None).await;
    shell.ok(&["recipient", "set", "ann", "--email", "ann@example.org"]).await;
    let steps = json!({ "steps": [{ "name": "one", "map": "1 +" }] });
    std::fs::write(shell.dir.join("steps.json"), steps.to_string()).unwrap();
    let wrong = "recipient set bob --email nobody --timezone Europe/Berln --quiet-hours 25:00-07:00 --fallback sms
            | --email | --timezone | --quiet-hours from | --fallback
        recipient verify ann --channel fax | --channel
        notify test --tenant ann --channel fax | --channel
        credential set shop --tenant ann --host https://x/ --inject header:a@b | --host | --inject name
        token create --tenant ann --name x --scope tasks:raed --expires-at yesterday | --scope | --expires-at
        task backfill ID --from yesterday --to today | --from | --to
        task list --status actve --trigger-type cron | --status | --trigger-type
        run list --since yesterday --state done | --since | --state
        approval list --status open | --status
        delivery list --state lost | --state
        event publish --tenant ann --source= --type new | --source
        pipeline dry-run --tenant ann --file steps.json | --file steps.0.map
        condition test --tenant ann --poll-url https://x/ --expression value.( | --expression
        task update ID --pause-after-failures 0 | --pause-after-failures
        schedule preview * --timezone Europe/Berln | CRON | --timezone";
    // a line that begins with a bar goes on
    for line in wrong.replace("\n            |", " |").lines() {
        let (command, names) = line.trim().split_once(" | ").unwrap();
        let command = command.replace("ID", &id);
        let words: Vec<&str> = command.split(' ').collect();
        let done = shell.fed(&words, "a secret\n").await;
        assert_eq!(done.code, 1, "{command}\n{}{}", done.out, done.err);
        assert!(!done.err.contains("%2B") && !done.err.contains("invalid characters"), "{}", done.err);
        for name in names.split(" | ") {
            assert!(done.err.contains(&format!("\n  {name}: ")), "{command} does not name {name}:\n{}", done.err);
        }
    }
    let said = shell.refused(&["run", "ls", "--since", "5x"]).await;
    let right = "`5x` must be an RFC 3339 time such as 2026-12-24T15:00:00Z, or how long ago, such as 2h";
    assert!(said.contains(right), "{said}");
    // in a file there are fields
    let task = String::from_utf8(task("x", None)).unwrap().replace("@yearly", "yearly");
    std::fs::write(shell.dir.join("task.json"), task).unwrap();
    let said = shell.refused(&["task", "create", "--file", "task.json"]).await;
    assert!(said.contains("\n  trigger.cron: "), "{said}");
}

#[tokio::test]
async fn events_letters_and_filters_are_typed_by_the_beginnings_of_ids() {
    let service = running().await;
    let shell = Shell::beside(&service);
    for id in ["order-17", "order-18"] {
        shell.ok(&["event", "publish", "--tenant", "ann", "--source", "shop", "--type", "order", "--id", id]).await;
    }
    let explained = shell.json(&["event", "explain", "order-17", "--tenant", "ann"]).await;
    assert_eq!(explained["id"], "order-17");
    let said = shell.refused(&["event", "explain", "order", "--tenant", "ann"]).await;
    assert!(said.contains("several events have an id that begins so"), "{said}");
    shell.ok(&["event", "publish", "--tenant", "ann", "--source", "mail", "--type", "new", "--id", "mail-1"]).await;
    assert_eq!(shell.json(&["event", "explain", "mail", "--tenant", "ann"]).await["id"], "mail-1");

    let said = shell.refused(&["dead-letter", "show", "0193"]).await;
    assert!(said.starts_with("error: there is no dead letter `0193` among the newest 1000\nhint: "), "{said}");
    let said = shell.refused(&["approval", "list", "--batch", "0193"]).await;
    assert!(said.starts_with("error: there is no batch `0193`"), "{said}");
    let id = create(&shell, "Quiet", Some("reports/quiet")).await;
    let run = shell.json(&["task", "run", &id]).await["id"].as_str().unwrap().to_owned();
    for filter in [["--task", "reports/quiet"], ["--task", &id[..32]], ["--run", &run[..32]]] {
        assert_eq!(shell.json(&[&["approval", "list"], &filter[..]].concat()).await["items"], json!([]));
    }
    assert_eq!(shell.json(&["grant", "list", "--task", "reports/quiet"]).await["items"], json!([]));
    assert_eq!(shell.json(&["delivery", "list", "--run", &run[..32]]).await["items"], json!([]));
    let said = shell.refused(&["approval", "list", "--run", "ffff"]).await;
    assert!(said.starts_with("error: there is no run `ffff`"), "{said}");
}

#[tokio::test]
async fn recipients_are_listed_and_deleted_after_a_question() {
    let service = running().await;
    let shell = Shell::beside(&service);
    for tenant in ["bob", "ann"] {
        shell.ok(&["recipient", "set", tenant, "--email", "x@example.org", "--sms", "+4915112345678"]).await;
    }
    let listed = shell.ok(&["recipient", "ls"]).await;
    let lines: Vec<Vec<&str>> = listed.lines().map(|line| line.split("  ").map(str::trim).collect()).collect();
    assert_eq!((lines[1][0], lines[2][0], lines.len()), ("ann", "bob", 3), "{listed}");
    assert!(lines[1].contains(&"email, sms"), "{listed}");
    let (done, said) = on_a_terminal(&shell, "recipient delete ann", "n\n").await;
    assert!(!done && said.contains("delete all addresses of ann?") && said.contains("nothing was done"), "{said}");
    let (done, said) = on_a_terminal(&shell, "recipient delete ann --yes", "").await;
    assert!(done && said.contains("deleted ann"), "{said}");
    assert_eq!(shell.refused(&["recipient", "show", "ann"]).await, "error: there is no such recipient\n");
    assert_eq!(shell.json(&["recipient", "list"]).await["items"][0]["tenant_id"], "bob");
    assert_eq!(shell.ok(&["recipient", "delete", "bob"]).await, "deleted bob\n", "a script is not asked");
}
