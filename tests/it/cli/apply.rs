//! Tasks by the file: imported, exported, and applied from a folder, with the real binary.

use std::path::Path;

use serde_json::{Value, json};

use super::Shell;
use crate::support::binary::Service;

/// A service that runs nothing: no task of these tests is due.
async fn service() -> Service {
    let mut service = Service::new();
    service.start().await;
    service
}

fn line(key: &str, more: Value) -> String {
    let mut task = json!({
        "tenant_id": "ann", "key": key, "name": key, "trigger": { "type": "schedule", "cron": "@yearly" },
        "action": { "instruction": "Say hello." }, "output": null,
    });
    task.as_object_mut().unwrap().extend(more.as_object().unwrap().clone());
    task.to_string()
}

fn write(folder: &Path, file: &str, text: &str) {
    let path = folder.join(file);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

const DAILY: &str = "trigger = { type = \"schedule\", cron = \"0 8 * * *\" }\n[action]\ninstruction = \"\"\"\nRead my mail.\nBe short.\n\"\"\"\n";

#[tokio::test]
async fn exported_tasks_can_be_imported_elsewhere_and_again() {
    let (from, to) = (service().await, service().await);
    let (here, there) = (Shell::beside(&from), Shell::beside(&to));
    let lines = [
        line("a", json!({ "metadata": { "ü": [1, null] }, "max_runs": 3, "output": null })),
        "no JSON".to_owned(),
        line("b", json!({ "output": { "channel": "emial" } })),
        line("c", json!({ "trigger": { "type": "event", "source": "shop", "event_type": "order" } })),
        line("d", json!({})),
    ];
    let done = here.fed(&["task", "import", "-"], &lines.join("\n")).await;
    assert_eq!(done.code, 1, "{}{}", done.out, done.err);
    assert_eq!(done.out, "created    3\nunchanged  0\nrejected   2\n");
    assert!(done.err.starts_with("error: 2 of 5 lines are not stored\n  line 2: must be JSON"), "{}", done.err);
    assert!(done.err.contains("\n  line 3: output.channel: unknown channel `emial`"), "{}", done.err);

    let paused = here.json(&["task", "list", "--key", "d"]).await["items"][0]["id"].as_str().unwrap().to_owned();
    here.ok(&["task", "pause", &paused]).await;
    assert_eq!(
        here.ok(&["task", "export", "--tenant", "ann", "--output", "tasks.ndjson"]).await,
        "2 tasks are in tasks.ndjson\n"
    );
    let exported = std::fs::read_to_string(from.dir.path().join("tasks.ndjson")).unwrap();
    assert_eq!(here.ok(&["task", "export"]).await, exported);
    assert_eq!(here.ok(&["task", "export", "--all"]).await.lines().count(), 3);

    write(to.dir.path(), "tasks.ndjson", &exported);
    assert_eq!(there.ok(&["task", "import", "tasks.ndjson"]).await, "created    2\nunchanged  0\nrejected   0\n");
    assert_eq!(there.ok(&["task", "import", "tasks.ndjson"]).await, "created    0\nunchanged  2\nrejected   0\n");
    let sorted = |lines: &str| {
        let mut lines: Vec<_> = lines.lines().map(str::to_owned).collect();
        lines.sort();
        lines
    };
    let there_now = there.ok(&["task", "export"]).await;
    assert_eq!(sorted(&there_now), sorted(&exported), "nothing was lost on the way");
    assert_eq!(
        there.json(&["task", "import", "tasks.ndjson", "--tenant", "bob"]).await,
        json!({ "lines": 2, "created": 2, "unchanged": 0, "rejected": 0, "errors": [] })
    );
    assert_eq!(there.json(&["task", "list", "--tenant", "bob"]).await["items"].as_array().unwrap().len(), 2);
}

#[tokio::test]
async fn tasks_without_a_key_are_exported_and_imported_once_here_and_elsewhere() {
    let (from, to) = (service().await, service().await);
    let (here, there) = (Shell::beside(&from), Shell::beside(&to));
    let nameless = |name: &str| line(name, json!({ "key": null, "metadata": { "reveille_apply": "default" } }));
    let lines = [nameless("one"), nameless("two"), line("keyed", json!({}))].join("\n");
    assert_eq!(here.fed(&["task", "import", "-"], &lines).await.out, "created    3\nunchanged  0\nrejected   0\n");
    let exported = here.ok(&["task", "export"]).await;
    let ids = async |shell: &Shell, tenant: &str| {
        let tasks = shell.json(&["task", "list", "--tenant", tenant]).await;
        let mut ids: Vec<String> =
            tasks["items"].as_array().unwrap().iter().map(|task| task["id"].as_str().unwrap().to_owned()).collect();
        ids.sort();
        ids
    };
    let before = ids(&here, "ann").await;

    write(from.dir.path(), "tasks.ndjson", &exported);
    let import = ["task", "import", "tasks.ndjson"];
    assert_eq!(here.ok(&import).await, "created    0\nunchanged  3\nrejected   0\n");
    assert_eq!(ids(&here, "ann").await, before, "nothing is doubled");
    assert_eq!(here.ok(&["task", "export"]).await, exported, "nothing is changed");
    let key = format!("export:{}", before[0]);
    assert!(exported.contains(&key), "{exported}");
    assert_eq!(here.json(&["task", "show", &key]).await["id"], json!(before[0]), "its key finds it");

    write(to.dir.path(), "tasks.ndjson", &exported);
    assert_eq!(there.ok(&import).await, "created    3\nunchanged  0\nrejected   0\n");
    let made = ids(&there, "ann").await;
    assert_eq!(there.ok(&import).await, "created    0\nunchanged  3\nrejected   0\n");
    assert_eq!(ids(&there, "ann").await, made);
    // for another tenant they are others, and made once
    for (shell, created) in [(&here, 3), (&here, 0)] {
        let report = shell.json(&["task", "import", "tasks.ndjson", "--tenant", "bob"]).await;
        assert_eq!((&report["created"], &report["unchanged"]), (&json!(created), &json!(3 - created)));
    }
    // what was made of them is exported by the same keys, and comes home to the tasks that they were
    write(from.dir.path(), "back.ndjson", &there.ok(&["task", "export"]).await);
    assert_eq!(here.ok(&["task", "import", "back.ndjson"]).await, "created    0\nunchanged  3\nrejected   0\n");

    // a folder does not take them for its own, and has no file for them
    let folder = to.dir.path().join("tasks");
    write(&folder, "a.toml", DAILY);
    let apply = ["task", "apply", "tasks", "--tenant", "ann", "--prune", "--yes"];
    let applied = there.ok(&apply).await;
    assert!(applied.ends_with("1 to create, 0 to update, 0 to delete, 0 unchanged\ndone a\n"), "{applied}");
    assert_eq!(ids(&there, "ann").await.len(), 4, "nothing is pruned");
    write(&folder, &format!("{key}.toml"), DAILY);
    let said = there.refused(&apply).await;
    assert!(said.contains(&format!("`{key}` is the key of an exported task")), "{said}");
}

#[tokio::test]
async fn secret_is_not_exported_and_is_asked_for_on_import() {
    let service = service().await;
    let shell = Shell::beside(&service);
    let secret = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
    let config = json!({ "url": "https://runtime.example.org/runs", "secret": secret });
    let line = line("hook", json!({ "executor": "webhook", "action": { "config": config } }));
    assert_eq!(shell.fed(&["task", "import", "-"], &line).await.code, 0);
    let exported = shell.ok(&["task", "export"]).await;
    assert!(!exported.contains("whsec_") && !exported.contains("sealed"), "{exported}");
    let task: Value = serde_json::from_str(&exported).unwrap();
    assert_eq!(task["action"]["config"]["secret_set"], json!(true));
    let done = shell.fed(&["task", "import", "-", "--tenant", "bob"], &exported).await;
    assert_eq!(done.code, 1);
    assert!(done.err.contains("line 1: action.config.secret: is missing"), "{}", done.err);
}

#[tokio::test]
async fn folder_is_planned_shown_applied_and_then_unchanged() {
    let service = service().await;
    let shell = Shell::beside(&service);
    let folder = service.dir.path().join("tasks");
    write(&folder, "reports/daily.toml", DAILY);
    write(&folder, "news.yaml", "name: News\ntrigger: {type: event, source: shop}\naction: {instruction: Tell me.}\n");
    write(
        &folder,
        "once.json",
        r#"{"trigger": {"type": "schedule", "at": "2099-01-01T00:00:00Z"}, "action": {"instruction": "x"}}"#,
    );
    write(&folder, "README.md", "not a task");
    write(&folder, ".git/config.toml", "not = \"a task\"");
    let with = |more: &[&'static str]| [&["task", "apply", "tasks", "--tenant", "ann"][..], more].concat();

    let plan = shell.ok(&with(&["--plan"])).await;
    assert!(plan.contains("+ news\n") && plan.contains("+ reports/daily\n    action: "), "{plan}");
    assert!(plan.ends_with("3 to create, 0 to update, 0 to delete, 0 unchanged\n"), "{plan}");
    assert_eq!(shell.json(&["task", "list"]).await["items"], json!([]), "a plan makes nothing");

    // who is not there to answer has not said yes
    let said = shell.fed(&with(&[]), "").await;
    assert_eq!((said.code, said.err.as_str()), (1, "error: nothing was applied\nhint: answer `y`, or pass --yes\n"));
    assert_eq!(shell.json(&["task", "list"]).await["items"], json!([]));
    let said = shell.fed(&with(&[]), "y\n").await;
    assert_eq!(said.code, 0, "{}{}", said.out, said.err);
    assert!(said.out.ends_with("apply this? [y/N] done news\ndone once\ndone reports/daily\n"), "{}", said.out);
    let daily = &shell.json(&["task", "list", "--key", "reports/daily"]).await["items"][0];
    assert_eq!(
        (&daily["name"], &daily["metadata"]),
        (&json!("reports/daily"), &json!({ "reveille_apply": "default" }))
    );
    assert_eq!(shell.ok(&with(&["--yes"])).await, "0 to create, 0 to update, 0 to delete, 3 unchanged\n");

    write(&folder, "reports/daily.toml", &DAILY.replace("0 8", "0 9").replace("Be short.", "Be brief."));
    assert_eq!(
        shell.ok(&with(&["--yes"])).await,
        "~ reports/daily\n    action.instruction:\n      - Be short.\n      + Be brief.\n    \
         trigger.cron: \"0 8 * * *\" → \"0 9 * * *\"\n\
         0 to create, 1 to update, 0 to delete, 2 unchanged\ndone reports/daily\n"
    );
    assert_eq!(shell.ok(&with(&["--yes"])).await, "0 to create, 0 to update, 0 to delete, 3 unchanged\n");

    // somebody changed a task by hand: the folder says what it is to be
    let id = shell.json(&["task", "list", "--key", "news"]).await["items"][0]["id"].as_str().unwrap().to_owned();
    shell.ok(&["task", "update", &id, "--no-output", "--max-runs", "3"]).await;
    let plan = shell.ok(&with(&["--yes"])).await;
    assert!(plan.contains("~ news\n    max_runs: 3 → (none)\n    output: null → (none)\n"), "{plan}");
    assert_eq!(shell.ok(&with(&["--plan"])).await, "0 to create, 0 to update, 0 to delete, 3 unchanged\n");
}

#[tokio::test]
async fn only_tasks_of_the_folder_are_pruned_and_no_other_is_touched() {
    let service = service().await;
    let shell = Shell::beside(&service);
    let folder = service.dir.path().join("tasks");
    write(&folder, "a.toml", DAILY);
    write(&folder, "b.toml", DAILY);
    let other = service.dir.path().join("other");
    write(&other, "c.toml", DAILY);
    shell.ok(&["task", "apply", "tasks", "--tenant", "ann", "--yes"]).await;
    shell.ok(&["task", "apply", "tasks", "--tenant", "bob", "--yes"]).await;
    shell.ok(&["task", "apply", "other", "--tenant", "ann", "--label", "other", "--yes"]).await;
    let by_hand = [line("by-hand", json!({})), line("nameless", json!({ "key": null }))].join("\n");
    assert_eq!(shell.fed(&["task", "import", "-"], &by_hand).await.code, 0);

    std::fs::remove_file(folder.join("b.toml")).unwrap();
    let plan = shell.ok(&["task", "apply", "tasks", "--tenant", "ann", "--yes"]).await;
    assert!(plan.contains("? b has no file any more; --prune would delete it\n"), "{plan}");
    let done = shell.ok(&["task", "apply", "tasks", "--tenant", "ann", "--prune", "--yes"]).await;
    assert_eq!(done, "- b\n0 to create, 0 to update, 1 to delete, 1 unchanged\ndone b\n");
    let keys = async |tenant: &str| {
        let tasks = shell.json(&["task", "list", "--tenant", tenant]).await;
        let mut keys: Vec<String> =
            tasks["items"].as_array().unwrap().iter().map(|task| task["key"].to_string()).collect();
        keys.sort();
        keys
    };
    assert_eq!(keys("ann").await, ["\"a\"", "\"by-hand\"", "\"c\"", "null"]);
    assert_eq!(keys("bob").await, ["\"a\"", "\"b\""]);

    // a key that somebody else has is not taken over
    write(&folder, "by-hand.toml", DAILY);
    write(&folder, "c.toml", DAILY);
    let said = shell.refused(&["task", "apply", "tasks", "--tenant", "ann", "--yes"]).await;
    assert_eq!(
        said,
        "error: the folder can't be applied; nothing was changed\n  \
         by-hand: the task that has this key was not made by apply\n  \
         c: the task that has this key belongs to the folder with the label `other`\n"
    );
}

#[tokio::test]
async fn every_fault_of_a_folder_is_told_before_anything_is_done() {
    let service = service().await;
    let shell = Shell::beside(&service);
    let folder = service.dir.path().join("tasks");
    let apply = ["task", "apply", "tasks", "--tenant", "ann", "--yes"];
    std::fs::create_dir(&folder).unwrap();
    let said = shell.refused(&apply).await;
    assert!(said.starts_with("error: there are no task files in tasks\nhint: "), "{said}");

    write(&folder, "good.toml", DAILY);
    write(&folder, "zone.toml", &DAILY.replace("cron =", "timezone = \"Europe/Berln\", cron ="));
    write(&folder, "empty.yaml", "{}");
    let said = shell.refused(&apply).await;
    assert!(said.contains("zone: ") && said.contains("did you mean `Europe/Berlin`?"), "{said}");
    assert!(said.contains("empty: ") && said.contains("trigger: is missing"), "{said}");

    write(&folder, "broken.toml", "trigger = ");
    write(&folder, "good.yaml", "trigger: {type: schedule, cron: \"@daily\"}");
    write(&folder, "key.toml", &format!("key = \"other\"\n{DAILY}"));
    write(&folder, "tenant.toml", &format!("tenant_id = \"bob\"\n{DAILY}"));
    write(&folder, "label.toml", &format!("{DAILY}[metadata]\nreveille_apply = \"x\"\n"));
    let said = shell.refused(&apply).await;
    for part in [
        "broken.toml is not TOML",
        "another file has the key `good`",
        "leave `key` out",
        "leave `tenant_id` out",
        "written by apply",
    ] {
        assert!(said.contains(part), "{part}: {said}");
    }
    assert_eq!(shell.json(&["task", "list"]).await["items"], json!([]));
}
