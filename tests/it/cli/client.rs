//! The client commands against a real service: what they send is what the API wants, what they print is what it says.

use serde_json::{Value, json};

use super::Shell;
use crate::support::binary::{Service, TempDir};
use crate::support::smtp::MailServer;

/// A service whose model asks for the time and answers.
fn scripted() -> Service {
    let service = Service::new();
    let scenario = "[[steps]]\nturn = 1\ntext = \"Let me look.\"\n[[steps.calls]]\ntool = \"current_time\"\n\
        [[steps]]\nturn = 2\ntext = \"It is {{ current_time/weekday }} somewhere.\"\n";
    std::fs::write(service.dir.path().join("scenario.toml"), scenario).unwrap();
    service.with_config("[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n")
}

fn id(value: &Value) -> String {
    value["id"].as_str().expect("an id").to_owned()
}

#[tokio::test]
async fn task_lives_from_create_to_delete() {
    let mut service = scripted();
    service.start().await;
    let shell = Shell::beside(&service);
    let typed = [
        "task",
        "create",
        "--tenant",
        "ann",
        "--name",
        "Morning",
        "--cron",
        "0 8 * * *",
        "--timezone",
        "Asia/Shanghai",
        "--instruction",
        "Say what day it is.",
        "--no-output",
        "--timeout",
        "2m",
        "--max-attempts",
        "2",
        "--metadata",
        "team=home",
    ];
    let task = shell.json(&typed).await;
    let task_id = id(&task);
    let expected = json!({
        "tenant_id": "ann", "name": "Morning", "status": "active", "executor": "orchestrator", "output": null,
        "action": { "instruction": "Say what day it is.", "config": {} }, "timeout_seconds": 120,
        "retry": { "max_attempts": 2, "backoff_seconds": 10 }, "metadata": { "team": "home" },
    });
    for (key, value) in expected.as_object().unwrap() {
        assert_eq!(&task[key], value, "{key}");
    }
    assert_eq!(task["trigger"]["cron"], "0 8 * * *");

    let table = shell.ok(&["task", "list", "--status", "active", "-q", "morn"]).await;
    let mut lines = table.lines();
    assert!(lines.next().unwrap().starts_with("ID "), "{table}");
    let row = lines.next().unwrap();
    assert!(row.starts_with(&task_id) && row.contains("cron 0 8 * * * Asia/Shanghai"), "{table}");

    let updated = shell.json(&["task", "update", &task_id, "--interval", "6h", "--name", "Every six hours"]).await;
    assert_eq!((&updated["name"], &updated["trigger"]["interval"]), (&json!("Every six hours"), &json!("6h")));
    assert_eq!(updated["trigger"].get("cron"), None);
    assert_eq!(updated["action"]["instruction"], "Say what day it is.", "what was not typed stays");
    assert_eq!(
        shell.json(&["task", "update", &task_id]).await["version"],
        updated["version"],
        "nothing typed, nothing sent"
    );

    assert_eq!(shell.json(&["task", "pause", &task_id]).await["status"], "paused");
    assert!(shell.ok(&["task", "show", &task_id]).await.contains("paused"));
    assert_eq!(shell.json(&["task", "resume", &task_id]).await["status"], "active");
    assert_eq!(shell.ok(&["task", "delete", &task_id]).await, format!("deleted {task_id}\n"));
    let said = shell.refused(&["task", "show", &task_id]).await;
    assert_eq!(said, "error: there is no such task\n");
}

#[tokio::test]
async fn run_is_watched_shown_and_retried() {
    let mut service = scripted();
    service.start().await;
    let shell = Shell::beside(&service);
    let typed = [
        "task",
        "create",
        "--tenant",
        "ann",
        "--name",
        "Day",
        "--cron",
        "@yearly",
        "--instruction",
        "Which day?",
        "--no-output",
    ];
    let task = id(&shell.json(&typed).await);

    let watched = shell.ok(&["task", "run", &task, "--input", "{\"place\": \"home\"}", "--watch"]).await;
    for part in ["Let me look.", "→ current_time", "← current_time", " somewhere.", "· succeeded"] {
        assert!(watched.contains(part), "`{part}` is missing in:\n{watched}");
    }
    let runs = shell.json(&["run", "list", "--task", &task, "--state", "succeeded"]).await;
    let run = id(&runs["items"][0]);
    assert_eq!(runs["items"][0]["input_bytes"], r#"{"place":"home"}"#.len());

    let shown = shell.json(&["run", "show", &run]).await;
    let roles: Vec<&str> =
        shown["transcript"].as_array().unwrap().iter().filter_map(|entry| entry["role"].as_str()).collect();
    assert_eq!(roles, ["system", "user", "assistant", "tool", "assistant"]);
    assert!(shell.ok(&["run", "show", &run]).await.contains("[Scheduled Task] Which day?"));

    let retried = shell.json(&["run", "retry", &run]).await;
    assert_eq!(retried["retry_of"], json!(run));
    shell.ok(&["run", "watch", &id(&retried)]).await;
    assert!(shell.refused(&["run", "cancel", &run]).await.starts_with("error: "));
    let backfilled = ["task", "backfill", &task, "--from", "2025-06-01T00:00:00Z", "--to", "2026-06-01T00:00:00Z"];
    assert_eq!(shell.json(&backfilled).await["fires"], json!(["2026-01-01T00:00:00Z"]));
}

#[tokio::test]
async fn run_that_fails_ends_its_watch_with_1() {
    let service = Service::new();
    std::fs::write(service.dir.path().join("scenario.toml"), "[[steps]]\nwhen = \"never said\"\ntext = \"x\"\n")
        .unwrap();
    let mut service = service.with_config("[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n");
    service.start().await;
    let shell = Shell::beside(&service);
    let typed = [
        "task",
        "create",
        "--tenant",
        "ann",
        "--name",
        "Lost",
        "--cron",
        "@yearly",
        "--instruction",
        "Go.",
        "--no-output",
    ];
    let task = id(&shell.json(&typed).await);
    let said = shell.refused(&["task", "run", &task, "--watch"]).await;
    assert_eq!(said, "error: the run is failed\n");
}

#[tokio::test]
async fn task_is_read_from_yaml_and_its_faults_are_told_with_their_places() {
    let mut service = scripted();
    service.start().await;
    let file = service.dir.path().join("task.yaml");
    let yaml = "tenant_id: ann\nname: From a file\ntrigger:\n  type: schedule\n  rrule: FREQ=WEEKLY;BYDAY=MO\naction:\n  instruction: Plan the week.\n";
    std::fs::write(&file, yaml).unwrap();
    let shell = Shell::beside(&service);
    let task = shell.json(&["task", "create", "--file", "task.yaml", "--tenant", "bob"]).await;
    assert_eq!((&task["tenant_id"], &task["name"]), (&json!("bob"), &json!("From a file")));

    std::fs::write(&file, yaml.replace("type: schedule", "type: schedule\n  timezone: Europe/Berln")).unwrap();
    let said = shell.refused(&["task", "create", "--file", "task.yaml"]).await;
    assert!(
        said.contains("  trigger.timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?\n"),
        "{said}"
    );
}

#[tokio::test]
async fn tokens_and_recipients_are_made_shown_and_revoked() {
    let mut service = scripted();
    service.start().await;
    let shell = Shell::beside(&service);
    let made = shell.json(&["token", "create", "--tenant", "ann", "--name", "phone", "--scope", "tasks:read"]).await;
    let text = made["token"].as_str().unwrap().to_owned();
    assert!(text.starts_with("rv_tenant_"));
    let ann = Shell {
        dir: shell.dir,
        environment: vec![("REVEILLE_URL", service.url().to_owned()), ("REVEILLE_TOKEN", text.clone())],
    };
    assert_eq!(ann.json(&["task", "list"]).await, json!({ "items": [] }));
    let said = ann.refused(&["recipient", "show", "ann"]).await;
    assert!(said.contains("recipients:read") && said.contains("\nhint: "), "{said}");
    let listed = shell.ok(&["token", "list"]).await;
    assert!(listed.contains("phone") && !listed.contains(&text), "{listed}");
    shell.ok(&["token", "revoke", &id(&made)]).await;
    let said = ann.refused(&["task", "list"]).await;
    assert!(
        said.contains("hint: is it the right token (REVEILLE_TOKEN, or that of the profile), and not revoked?"),
        "{said}"
    );

    let typed =
        ["recipient", "set", "ann", "--email", "ann@example.org", "--timezone", "Europe/Berlin", "--fallback", "email"];
    let set = shell.json(&typed).await;
    assert_eq!(set["addresses"], json!({ "email": "ann@example.org" }));
    assert!(shell.ok(&["recipient", "show", "ann"]).await.contains("ann@example.org"));
    assert_eq!(shell.json(&["delivery", "list"]).await, json!({ "items": [] }));
}

#[tokio::test]
async fn test_message_is_waited_for_until_it_has_arrived_or_not() {
    let mail = MailServer::start().await;
    let mut service = Service::new()
        .with("REVEILLE_CHANNELS__EMAIL__URL", format!("smtp://{}", mail.address()))
        .with("REVEILLE_CHANNELS__EMAIL__FROM", "reveille@example.org");
    service.start().await;
    let shell = Shell::beside(&service);
    assert_eq!(shell.refused(&["notify", "test", "--tenant", "ann"]).await, "error: there is no such recipient\n");
    shell.ok(&["recipient", "set", "ann", "--email", "ann@example.org"]).await;
    let delivery = shell.json(&["notify", "test", "--tenant", "ann", "--channel", "email"]).await;
    assert_eq!((&delivery["state"], &delivery["kind"]), (&json!("delivered"), &json!("test")));
    let mails = mail.messages();
    assert_eq!(mails.len(), 1);
    assert_eq!(mails[0].header("Subject"), "Reveille can reach you");

    let typed = ["recipient", "set", "bob", "--webhook", "https://127.0.0.1/closed", "--webhook-secret-stdin"];
    let done = shell.fed(&typed, "whsec_c2VjcmV0IGNhbmFyeSBvZiB0aGUgdGVzdHMgMDEyMzQ1Njc=\n").await;
    assert_eq!(done.code, 0, "{}", done.err);
    assert!(done.out.contains("https://127.0.0.1/closed (signed)") && !done.out.contains("c2Vj"), "{}", done.out);
    let done = shell.run(&["notify", "test", "--tenant", "bob"]).await;
    assert_eq!(done.code, 1);
    assert!(done.out.contains("127.0.0.1") && done.err.contains("the message is failed"), "{}{}", done.out, done.err);
}

#[tokio::test]
async fn cli_without_service_or_token_hints_what_to_do() {
    let dir = TempDir::new();
    let nobody = Shell::in_dir(&dir).with("REVEILLE_URL", "http://127.0.0.1:1");
    let said = nobody.refused(&["task", "list"]).await;
    assert!(
        said.starts_with("error: can't reach http://127.0.0.1:1/: ") && said.contains("`reveille serve`"),
        "{said}"
    );

    let mut service = scripted();
    service.start().await;
    let stranger = Shell { dir: dir.path(), environment: vec![("REVEILLE_URL", service.url().to_owned())] };
    let said = stranger.refused(&["task", "list"]).await;
    assert!(said.contains("hint: `reveille login`, or set REVEILLE_TOKEN"), "{said}");
}
