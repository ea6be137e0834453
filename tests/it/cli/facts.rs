//! `reveille fact` against a real service.

use serde_json::{Value, json};

use super::Shell;
use crate::support::binary::Service;

#[tokio::test]
async fn facts_are_noted_corrected_exported_and_deleted() {
    let mut service = Service::new();
    service.start().await;
    let shell = Shell::beside(&service);
    let add = ["fact", "add", "Prefers window seats.", "--tenant", "ann", "--collection", "preferences/travel"];
    let shown = shell.ok(&add).await;
    assert!(shown.contains("Prefers window seats.") && shown.contains("person"), "{shown}");
    shell.ok(&["fact", "add", "Has a dog.", "--tenant", "ann"]).await;
    shell.ok(&["fact", "add", "Has a cat.", "--tenant", "bob"]).await;
    let listed = shell.json(&["fact", "list", "--tenant", "ann", "--collection", "preferences"]).await;
    let items = listed["items"].as_array().unwrap();
    assert_eq!((items.len(), &items[0]["text"]), (1, &json!("Prefers window seats.")), "{listed}");
    let id = items[0]["id"].as_str().unwrap();
    let table = shell.ok(&["fact", "ls", "-q", "DOG", "--tenant", "ann"]).await;
    assert!(table.starts_with("ID") && table.contains("Has a dog.") && !table.contains("cat"), "{table}");

    shell.ok(&["fact", "correct", id, "--text", "Prefers aisle seats."]).await;
    let whole = shell.ok(&["fact", "show", id]).await;
    assert!(whole.contains("Prefers aisle seats.") && whole.contains(": Prefers window seats."), "{whole}");
    let lines = shell.ok(&["fact", "export", "--tenant", "ann"]).await;
    let facts: Vec<Value> = lines.lines().map(|line| serde_json::from_str(line).expect("JSON")).collect();
    let earlier: Vec<_> = facts.iter().map(|fact| fact["versions"].as_array().unwrap().len()).collect();
    assert_eq!(earlier, [0, 1], "{lines}");

    let refused = shell.refused(&["fact", "add", "x", "--tenant", "ann", "--collection", "Not a path"]).await;
    assert!(refused.contains("--collection: must be words of lower-case letters"), "{refused}");
    let refused = shell.refused(&["fact", "correct", id, "--text", " "]).await;
    assert!(refused.contains("--text: must be a sentence"), "{refused}");
    shell.ok(&["fact", "delete", id]).await;
    let refused = shell.refused(&["fact", "show", id]).await;
    assert!(refused.contains("there is no such fact"), "{refused}");
    assert_eq!(shell.ok(&["fact", "delete", "--all", "--tenant", "ann"]).await.trim(), "deleted 1 fact");
    let left = shell.json(&["fact", "list"]).await;
    assert_eq!(left["items"].as_array().unwrap().len(), 1, "{left}");
}
