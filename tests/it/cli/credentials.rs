//! `reveille credential` beside a real service: what is typed, what is printed, and what never is.

use std::os::unix::fs::PermissionsExt;

use reveille::base::clock::pause;
use serde_json::{Value, json};
use sqlx::{Connection, Executor, SqliteConnection};

use super::Shell;
use crate::support::binary::{Service, TempDir};

const CANARY: &str = "canary-91ab";
const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

#[tokio::test]
async fn credential_is_set_listed_shown_and_deleted() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell::beside(&service);
    let bearer = ["credential", "set", "shop", "--tenant", "ann", "--host", "Api.shop.example", "--inject", "bearer"];
    let set = shell.fed(&bearer, &format!("{CANARY}\n")).await;
    assert_eq!((set.code, set.err.as_str()), (0, ""), "{}", set.out);
    for part in ["shop", "active", "api.shop.example", "bearer"] {
        assert!(set.out.contains(part), "`{part}` is missing in:\n{}", set.out);
    }
    let login = service.dir.path().join("login.json");
    std::fs::write(&login, json!({ "login": { "username": "ann", "password": CANARY } }).to_string()).unwrap();
    let basic = shell
        .json(&[
            "credential",
            "set",
            "mail/work",
            "--tenant",
            "ann",
            "--file",
            login.to_str().unwrap(),
            "--host",
            "*.mail.example",
            "--host",
            "mail.example:993",
            "--inject",
            "basic",
            "--from",
            "/login",
        ])
        .await;
    assert_eq!(basic["hosts"], json!(["*.mail.example", "mail.example:993"]));
    assert_eq!(basic["inject"], json!({ "as": "basic", "from": "/login" }));
    let oauth = service.dir.path().join("oauth.json");
    std::fs::write(&oauth, r#"{"token_url": "https://id.example/token", "client_id": "c"}"#).unwrap();
    let kept = [
        "credential",
        "set",
        "mail/work",
        "--tenant",
        "ann",
        "--keep-document",
        "--inject",
        "header:X-Key",
        "--template",
        "{/login/password}",
    ];
    let renewed: Vec<&str> = kept.into_iter().chain(["--oauth-file", oauth.to_str().unwrap()]).collect();
    let refused = shell.refused(&renewed).await;
    assert!(refused.contains("--oauth-file: send the document again"), "{refused}");
    let file = ["--file", login.to_str().unwrap()];
    let anew: Vec<&str> = renewed
        .iter()
        .flat_map(|argument| match *argument {
            "--keep-document" => file.to_vec(),
            argument => vec![argument],
        })
        .collect();
    shell.json(&anew).await;
    let kept = shell.json(&renewed).await;
    assert_eq!((&kept["version"], &kept["oauth"]["client_id"]), (&json!(3), &json!("c")));

    let table = shell.ok(&["credential", "list", "--tenant", "ann"]).await;
    let rows: Vec<&str> = table.lines().skip(1).collect();
    assert!(rows[0].contains("mail/work") && rows[0].contains("none, so it is not used"), "{table}");
    assert!(rows[1].contains("shop") && rows[1].contains("api.shop.example") && rows[1].contains("bearer"), "{table}");
    for (flag, value, count) in [("--service", "shop", 1), ("--status", "active", 2), ("--status", "needs_consent", 0)]
    {
        let listed = shell.json(&["credential", "list", flag, value]).await;
        assert_eq!(listed["items"].as_array().unwrap().len(), count, "{flag} {value}");
    }
    let shown = shell.ok(&["credential", "show", "mail/work", "--tenant", "ann"]).await;
    assert!(
        shown.contains("header X-Key `{/login/password}`") && shown.contains("https://id.example/token"),
        "{shown}"
    );
    assert_eq!(shell.json(&["credential", "uses", "shop", "--tenant", "ann"]).await, json!({ "items": [] }));
    assert_eq!(shell.ok(&["credential", "delete", "shop", "--tenant", "ann"]).await, "deleted shop\n");
    let gone = shell.refused(&["credential", "show", "shop", "--tenant", "ann"]).await;
    assert_eq!(gone, "error: there is no such credential\n");

    for printed in [set.out, basic.to_string(), kept.to_string(), table, shown, service.log()] {
        assert!(!printed.contains(CANARY), "{printed}");
    }
    for (arguments, said) in [
        (&["credential", "set", "a/b/c", "--tenant", "ann"][..], "expected `service` or `service/account`"),
        (&["credential", "set", "a", "--tenant", "ann", "--inject", "cookie"], "hint: --inject bearer"),
        (&["credential", "set", "a", "--tenant", "ann"], "the document is empty"),
    ] {
        let refused = shell.refused(arguments).await;
        assert!(refused.contains(said), "{arguments:?}: {refused}");
    }
    for (arguments, said) in [
        (&["credential", "set", "a", "--tenant", "ann", "--host", "*"][..], "--host: would be every host there is"),
        (&["credential", "set", "a", "--inject", "bearer"], "an admin token names the tenant"),
    ] {
        let done = shell.fed(arguments, CANARY).await;
        assert!(done.code == 1 && done.err.contains(said), "{arguments:?}: {}{}", done.out, done.err);
    }
}

#[tokio::test]
async fn master_key_is_changed_and_check_says_what_can_go() {
    let dir = TempDir::new();
    let key_file = dir.path().join("new.key");
    std::fs::write(&key_file, format!("{NEW}\n")).unwrap();
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let keys = |keys: &str| ("REVEILLE_VAULT__MASTER_KEYS", format!("[{keys}]"));
    let old = format!("\"{OLD}\"");
    let new = format!("{{ file = \"{}\" }}", key_file.display());
    let printed = format!("{{ command = [\"cat\", \"{}\"] }}", key_file.display());

    let mut service = Service::new().with(keys(&old).0, keys(&old).1);
    service.start().await;
    let webhook = json!({ "addresses": { "webhook": {
        "url": "https://hooks.example.org/1", "secret": "whsec_c2VjcmV0IGNhbmFyeSBvZiB0aGUgdGVzdHMgMDEyMzQ1Njc=" } } });
    let task = json!({
        "tenant_id": "ann", "name": "Hook", "trigger": { "type": "schedule", "interval": "1d" }, "executor": "webhook",
        "action": { "config": { "url": "https://hooks.example.org/2",
            "secret": "whsec_c2VjcmV0IGNhbmFyeSBvZiB0aGUgdGVzdHMgMDEyMzQ1Njc=" } },
    });
    let (recipient, task_file) = (service.dir.path().join("recipient.json"), service.dir.path().join("task.json"));
    std::fs::write(&recipient, webhook.to_string()).unwrap();
    std::fs::write(&task_file, task.to_string()).unwrap();
    let token = service.admin_token().unwrap().to_owned();
    {
        let shell = Shell::beside(&service);
        shell.ok(&["recipient", "set", "ann", "--file", recipient.to_str().unwrap()]).await;
        shell.ok(&["task", "create", "--file", task_file.to_str().unwrap()]).await;
        for name in ["one", "two"] {
            shell.fed(&["credential", "set", name, "--tenant", "ann", "--inject", "bearer"], CANARY).await;
        }
        let already = shell.ok(&["credential", "rotate-key"]).await;
        assert_eq!(
            already,
            "everything is under `old` already\nkey `old` is needed by 2 credentials, 1 recipient, 1 task\n"
        );
        // until the record is sealed with the old key
        let sealed = |acts: &Value| acts["items"].as_array().unwrap().iter().all(|act| act["position"].is_i64());
        while !sealed(&shell.json(&["audit", "list"]).await) {
            pause(std::time::Duration::from_millis(100)).await;
        }
    }
    assert!(service.terminate().await.success());

    let mut service = service.with(keys(&format!("{new}, {old}")).0, keys(&format!("{new}, {old}")).1);
    service.start().await;
    let check = async |service: &Service| -> Vec<Value> {
        let text = service.command().args(["check", "--json"]).output().await.unwrap();
        let answer: Value = serde_json::from_slice(&text.stdout).unwrap();
        let keys = answer["checks"].as_array().unwrap().iter();
        keys.filter(|check| check["name"].as_str().unwrap().starts_with("key")).cloned().collect()
    };
    // beside the running service
    let needed = check(&service).await;
    assert_eq!(needed[0]["message"], "2 configured, `new` encrypts");
    assert_eq!(
        needed[1],
        json!({ "name": "key old", "verdict": "odd", "message": "is still needed by 2 credentials, 1 recipient, 1 task",
                "hint": "reveille credential rotate-key, beside the running service" })
    );
    let shell = Shell {
        dir: service.dir.path(),
        environment: vec![("REVEILLE_URL", service.url().to_owned()), ("REVEILLE_TOKEN", token.clone())],
    };
    let rotated = shell.ok(&["credential", "rotate-key"]).await;
    assert_eq!(
        rotated,
        "put under `new`: 2 credentials, 1 recipient, 1 task\n\
         key `new` is needed by 2 credentials, 1 recipient, 1 task\n\
         key `old` opens nothing any more; `reveille check` says whether it can go\n"
    );
    let after = check(&service).await;
    assert_eq!((&after[1]["name"], &after[1]["verdict"]), (&json!("key old"), &json!("fine")));
    assert!(service.terminate().await.success());
    // stopped, it says the same: what was sealed of the record under the old key is known
    let stopped = check(&service).await;
    let message = stopped[1]["message"].as_str().unwrap();
    assert!(message.starts_with("opens nothing any more; it stays for `reveille audit verify`"), "{message}");

    let mut service = service.with(keys(&printed).0, keys(&printed).1);
    service.start().await;
    let shell = Shell {
        dir: service.dir.path(),
        environment: vec![("REVEILLE_URL", service.url().to_owned()), ("REVEILLE_TOKEN", token)],
    };
    for name in ["one", "two"] {
        // to be held against the new way of use, the document is opened
        let set = ["credential", "set", name, "--tenant", "ann", "--keep-document", "--inject", "query:k"];
        assert_eq!(shell.json(&set).await["version"], 2);
    }
    assert!(!service.log().contains(CANARY));
    assert!(service.terminate().await.success());

    // the old key alone is of no use now, and check says which one is missing
    let service = service.with(keys(&old).0, keys(&old).1);
    let missing = check(&service).await;
    assert_eq!((&missing[1]["name"], &missing[1]["verdict"]), (&json!("key new"), &json!("wrong")));
    // what can't be counted is said, and not taken for nothing
    let file = format!("sqlite://{}", service.dir.path().join("data/reveille.db").display());
    let mut database = SqliteConnection::connect(&file).await.unwrap();
    database.execute("alter table credentials rename to away").await.unwrap();
    let uncounted = check(&service).await;
    let message = uncounted[1]["message"].as_str().unwrap();
    assert_eq!(uncounted[1]["verdict"], "odd");
    assert!(message.starts_with("what is sealed under which key can't be counted: "), "{message}");
    std::fs::set_permissions(&key_file, std::fs::Permissions::from_mode(0o644)).unwrap();
    let service = service.with(keys(&new).0, keys(&new).1);
    let open = check(&service).await;
    let message = open[0]["message"].as_str().unwrap();
    assert!(
        message.starts_with("vault.master_keys[0] the file ") && message.contains("others may read it"),
        "{message}"
    );
}
