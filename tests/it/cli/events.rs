//! Events and dead letters from the command line, against a real service; and a Redis that is away.

use serde_json::{Value, json};
use tokio::io::AsyncBufReadExt;

use super::Shell;
use crate::support::api::Api;
use crate::support::binary::Service;
use crate::support::redis::{Redis, RedisServer};

#[tokio::test]
async fn events_are_published_listed_and_followed() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell::beside(&service);
    let typed = [
        "event",
        "publish",
        "--tenant",
        "ann",
        "--source",
        "mail",
        "--type",
        "mail.new",
        "--id",
        "1",
        "--data",
        r#"{"n":1}"#,
    ];
    assert_eq!(shell.ok(&typed).await, "published 1\n");
    std::fs::write(
        service.dir.path().join("events.json"),
        json!([{ "source": "mail", "type": "mail.gone", "id": "2" },
            { "specversion": "1.0", "source": "shop", "type": "order", "id": "3" }])
        .to_string(),
    )
    .unwrap();
    let answer = shell.json(&["event", "publish", "--tenant", "ann", "--file", "events.json"]).await;
    assert_eq!(answer, json!({ "ids": ["2", "3"] }));
    let listed = shell.json(&["event", "list", "--type", "mail.*"]).await;
    let told: Vec<&Value> = listed["items"].as_array().unwrap().iter().map(|event| &event["id"]).collect();
    assert_eq!(told, [&json!("1"), &json!("2")]);
    let listed = shell.json(&["event", "list", "--newest", "--limit", "1"]).await;
    assert_eq!(listed["items"][0]["id"], json!("3"));
    assert!(shell.ok(&["event", "list", "--source", "shop"]).await.contains("order"));

    let mut tail = shell.command(&["event", "tail", "--after", "0", "--source", "shop", "--json"]);
    let mut tail = tail.stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut lines = tokio::io::BufReader::new(tail.stdout.take().unwrap()).lines();
    let line: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!((&line["id"], &line["tenantid"]), (&json!("3"), &json!("ann")));
    shell.ok(&["event", "publish", "--tenant", "ann", "--source", "shop", "--type", "order", "--id", "4"]).await;
    let line: Value = serde_json::from_str(&lines.next_line().await.unwrap().unwrap()).unwrap();
    assert_eq!(line["id"], json!("4"));
    tail.kill().await.unwrap();

    let refused =
        shell.refused(&["event", "publish", "--tenant", "ann", "--source", "mail", "--type", "t", "--data", "{"]).await;
    assert!(refused.contains("--data is not JSON") && refused.contains("hint:"), "{refused}");
    let refused = shell.refused(&["event", "publish", "--source", "mail", "--type", "t"]).await;
    assert!(refused.contains("--tenant: is missing"), "{refused}");
    service.terminate().await;
}

#[tokio::test]
async fn field_that_no_kept_event_has_is_shown_with_the_task_that_looks_for_it() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell::beside(&service);
    let told = "none of the newest events has `event.data.totl`; did you mean `total`?";
    let create = async |key: &str| {
        let task = ["task", "create", "--tenant", "ann", "--key", key, "--name", "Orders", "--instruction", "Say so."];
        let trigger = ["--no-output", "--source", "shop", "--filter", "event.data.totl > 5"];
        shell.ok(&[&task[..], &trigger[..]].concat()).await
    };
    assert!(!create("before").await.contains("missing"), "no event is kept");
    let event = ["event", "publish", "--tenant", "ann", "--source", "shop", "--type", "order"];
    shell.ok(&[&event[..], &["--data", "{\"total\":7}"]].concat()).await;
    let shown = create("after").await;
    assert!(shown.contains(&format!("missing      {told}\n")), "{shown}");
    assert!(!shell.ok(&["task", "show", "after"]).await.contains(told));
    let updated = shell.ok(&["task", "update", "after", "--overlap", "skip"]).await;
    assert!(updated.contains(told), "{updated}");
    assert!(!shell.ok(&["task", "update", "after", "--name", "Large orders"]).await.contains(told));

    let on_orders = "action = { instruction = \"Say so.\" }\n\
                     trigger = { type = \"event\", source = \"shop\", filter = \"event.data.totl > 5\" }\n";
    let folder = service.dir.path().join("tasks");
    std::fs::create_dir_all(&folder).unwrap();
    std::fs::write(folder.join("orders.toml"), on_orders).unwrap();
    let plan = shell.ok(&["task", "apply", "tasks", "--tenant", "ann", "--plan"]).await;
    assert!(plan.contains(&format!("! orders: {told}\n")), "{plan}");

    let line = json!({ "tenant_id": "ann", "name": "Orders", "action": { "instruction": "Say so." }, "output": null,
        "trigger": { "type": "event", "source": "shop", "filter": "event.data.totl > 5" } });
    std::fs::write(service.dir.path().join("tasks.ndjson"), format!("\n{line}\n")).unwrap();
    let imported = shell.ok(&["task", "import", "tasks.ndjson"]).await;
    assert_eq!(imported, format!("created    1\nunchanged  0\nrejected   0\nline 2: {told}\n"));
    service.terminate().await;
}

#[tokio::test]
async fn dead_letters_are_shown_replayed_and_dropped_on_redis() {
    let server = RedisServer::start(&[]);
    let redis = Redis::at(&server.url());
    let mut service = Service::new().with_config(&format!("[bus]\nurl = \"{}\"\n", server.url()));
    service.start().await;
    let shell = Shell::beside(&service);
    let event = |id: &str, kind: &str| {
        json!({ "specversion": "1.0", "tenantid": "ann", "source": "mail", "type": kind, "id": id }).to_string()
    };
    let dead_letter_entry = |body: &str, error: &str, tenant: &str| {
        let fields = ["event", body, "error", error, "deliveries", "5", "tenant", tenant, "entry", "0/1-1"];
        redis.ask(&[&["XADD", "reveille:events:dead", "*"][..], &fields[..]].concat())
    };
    let first = dead_letter_entry(&event("1", "mail.new"), "boom", "ann");
    for (id, kind) in [("2", "mail.new"), ("3", "order"), ("4", "mail.gone")] {
        dead_letter_entry(&event(id, kind), "timed out", "ann");
    }
    dead_letter_entry("not json", "it is not JSON", "");

    let shown = shell.ok(&["dead-letter", "show", &first]).await;
    assert!(shown.contains("boom") && shown.contains("\"type\": \"mail.new\""), "{shown}");
    assert_eq!(shell.json(&["dead-letter", "list"]).await["items"].as_array().unwrap().len(), 5);
    let table = shell.ok(&["dead-letter", "list", "--error", "TIMED", "--type", "mail.*"]).await;
    assert_eq!(table.lines().count(), 3, "{table}");

    assert_eq!(shell.ok(&["dead-letter", "replay", &first]).await, "1 replayed\n");
    assert_eq!(shell.ok(&["dead-letter", "replay", "--type", "mail.*", "--tenant", "ann"]).await, "2 replayed\n");
    assert_eq!(shell.json(&["dead-letter", "drop", "--source", "mail"]).await, json!({ "count": 1 }));
    assert_eq!(shell.ok(&["dead-letter", "replay", "--all"]).await, "0 replayed\n");
    assert_eq!(shell.ok(&["dead-letter", "drop", "--all"]).await, "1 dropped\n");
    let replayed = shell.json(&["event", "list"]).await;
    assert_eq!(replayed["items"].as_array().unwrap().len(), 3);
    assert_eq!(shell.run(&["dead-letter", "drop"]).await.code, 2, "what is meant must be said");
    service.terminate().await;
}

#[tokio::test]
async fn dead_letters_behind_many_of_others_are_listed_and_replayed_on_redis() {
    let server = RedisServer::start(&[]);
    let redis = Redis::at(&server.url());
    let mut service = Service::new().with_config(&format!("[bus]\nurl = \"{}\"\n", server.url()));
    service.start().await;
    let shell = Shell::beside(&service);
    let add = "for _ = 1, tonumber(ARGV[1]) do
                   redis.call('XADD', KEYS[1], '*', 'entry', '0/1-1', 'event', ARGV[2], 'error', 'boom',
                       'deliveries', '5', 'tenant', ARGV[3])
               end";
    let event = json!({ "specversion": "1.0", "tenantid": "ann", "source": "mail", "type": "mail.new", "id": "1" });
    // one look goes through 10,000
    for (count, body, tenant) in [("1", event.to_string(), "ann"), ("10000", "{}".to_owned(), "bob")] {
        redis.ask(&["EVAL", add, "1", "reveille:events:dead", count, &body, tenant]);
    }
    let page = Api::of(&service).get("/v1/dead-letters?tenant_id=ann").await;
    assert!(page["items"] == json!([]) && page["next_cursor"].is_string(), "{page}");
    let listed = shell.json(&["dead-letter", "list", "--tenant", "ann"]).await;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1));
    assert_eq!(shell.ok(&["dead-letter", "replay", "--all", "--tenant", "ann"]).await, "1 replayed\n");
    assert_eq!(shell.json(&["dead-letter", "list", "--tenant", "ann"]).await["items"], json!([]));
    service.terminate().await;
}

#[tokio::test]
async fn publish_answers_503_while_redis_is_away() {
    let mut server = RedisServer::start(&["--maxmemory-policy", "allkeys-lru"]);
    let mut service = Service::new().with_config(&format!("[bus]\nurl = \"{}\"\n", server.url()));
    service.start().await;
    let shell = Shell::beside(&service);
    let publish = ["event", "publish", "--tenant", "ann", "--source", "mail", "--type", "t"];
    shell.ok(&publish).await;
    let checked = shell.run(&["check"]).await;
    assert!(checked.out.contains("Redis may evict streams"), "{}", checked.out);

    assert_eq!(readiness(&service).await.0, 200);

    server.kill();
    let refused = shell.refused(&publish).await;
    assert!(refused.contains("the event bus is away"), "{refused}");
    let (status, ready) = readiness(&service).await;
    assert_eq!(
        (status, &ready["ready"], &ready["bus"], &ready["database"]),
        (503, &json!(false), &json!(false), &json!(true))
    );
    let checked = shell.run(&["check"]).await;
    assert!(checked.code == 1 && checked.out.contains("is Redis up at"), "{}", checked.out);

    server.start_again();
    reveille::base::clock::pause(std::time::Duration::from_millis(300)).await;
    shell.ok(&publish).await;
    assert_eq!(readiness(&service).await.0, 200);
    service.terminate().await;
}

async fn readiness(service: &Service) -> (u16, Value) {
    let answer = reqwest::get(format!("{}/readyz", service.url())).await.expect("an answer");
    (answer.status().as_u16(), answer.json().await.expect("JSON"))
}
