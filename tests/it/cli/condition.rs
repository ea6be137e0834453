//! `reveille condition test`, and conditions as tasks: typed, tried, shown.

use serde_json::{Value, json};
use wiremock::matchers::any;
use wiremock::{Mock, MockServer, ResponseTemplate};

use super::Shell;
use crate::support::binary::Service;

/// A service that may poll this price.
async fn service(price: i64) -> (Service, MockServer) {
    let shop = MockServer::start().await;
    let answer = ResponseTemplate::new(200).set_body_json(json!({ "price": price }));
    Mock::given(any()).respond_with(answer).mount(&shop).await;
    let config = format!("[egress]\nallow = [\"127.0.0.1:{}\"]\n", shop.address().port());
    let service = Service::new();
    std::fs::write(service.dir.path().join("scenario.toml"), "[[steps]]\nturn = 1\ntext = \"It is cheap.\"\n").unwrap();
    let model = "[llm.models.main]\nprovider = \"scripted\"\nscenario = \"scenario.toml\"\n";
    let mut service = service.with_config(&format!("{config}{model}"));
    service.start().await;
    (service, shop)
}

#[tokio::test]
async fn condition_is_tried_from_flags_and_from_a_file() {
    let (service, shop) = service(480).await;
    let shell = Shell::beside(&service);
    let url = shop.uri();
    let typed =
        ["condition", "test", "--tenant", "ann", "--poll-url", &url, "--expression", "value.price < previous.price"];
    let said = shell.ok(&[&typed[..], &["--previous", "{\"price\": 500}"]].concat()).await;
    assert_eq!(
        said,
        "value    {\"price\":480}\n\
         verdict  true\n\
         PART                          VALUE\n\
         value.price < previous.price  true\n\
         value.price                   480\n\
         value                         {\"price\":480}\n\
         previous.price                500\n\
         previous                      {\"price\":500}\n"
    );
    let task = json!({ "name": "x", "trigger": {
        "type": "condition", "poll": { "http": { "url": url } }, "interval": "1m", "expression": "value.price > 1000",
    } });
    let file = service.dir.path().join("task.json");
    std::fs::write(&file, task.to_string()).unwrap();
    let trial = shell.json(&["condition", "test", "--tenant", "ann", "--file", file.to_str().unwrap()]).await;
    assert_eq!((&trial["verdict"], &trial["value"]), (&json!(false), &json!({ "price": 480 })));
    let refused = shell.refused(&["condition", "test", "--tenant", "ann", "--poll-url", &url]).await;
    assert!(refused.contains("expression: is missing"), "{refused}");
    let refused = shell
        .refused(&["condition", "test", "--tenant", "ann", "--poll-url", "http://10.0.0.1/", "--expression", "true"])
        .await;
    assert!(refused.contains("egress.allow"), "{refused}");
}

#[tokio::test]
async fn condition_becomes_true_once_and_its_task_says_so() {
    let (service, shop) = service(480).await;
    let shell = Shell::beside(&service);
    let url = shop.uri();
    let typed = [
        "task",
        "create",
        "--tenant",
        "ann",
        "--name",
        "Cheap flight",
        "--interval",
        "1s",
        "--poll-url",
        &url,
        "--expression",
        "value.price < 500",
        "--instruction",
        "Say so.",
        "--no-output",
    ];
    let task = shell.json(&typed).await;
    let id = task["id"].as_str().unwrap();
    assert_eq!(
        task["trigger"],
        json!({
            "type": "condition", "poll": { "http": { "url": url } }, "interval": "1s", "expression": "value.price < 500",
            "fire": "on_true", "failure_notice_after": 3, "overlap": "queue_one",
        })
    );
    // three polls later there is one run
    let polled = async {
        while shop.received_requests().await.unwrap().len() < 4 {
            reveille::base::clock::pause(std::time::Duration::from_millis(50)).await;
        }
    };
    tokio::time::timeout(std::time::Duration::from_secs(60), polled).await.expect("it is polled");
    let shown = shell.json(&["task", "show", id]).await;
    assert_eq!((&shown["condition"]["edges"], &shown["run_count"]), (&json!(1), &json!(1)));
    let page = shell.ok(&["task", "show", id]).await;
    assert!(page.contains("trigger      every 1s: value.price < 500\n"), "{page}");
    assert!(page.contains("condition    true since ") && page.contains("value        {\"price\":480}\n"), "{page}");
    let runs = shell.json(&["run", "list"]).await;
    let fired: Vec<&Value> = runs["items"].as_array().unwrap().iter().map(|run| &run["fire_key"]).collect();
    assert_eq!(fired, ["c:1"]);
    shell.ok(&["task", "delete", id]).await;
}
