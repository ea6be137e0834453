//! `reveille schedule preview`: alone, and as a program's oracle line by line.

use std::process::Stdio;
use std::time::Duration;

use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;

use super::Shell;
use crate::support::binary::TempDir;

#[tokio::test]
async fn next_fires_are_shown_in_local_time_and_in_utc() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    let typed = [
        "schedule",
        "preview",
        "0 8 * * *",
        "--timezone",
        "Asia/Shanghai",
        "--count",
        "2",
        "--from",
        "2026-11-20T00:00:00Z",
    ];
    assert_eq!(
        shell.ok(&typed).await,
        "LOCAL TIME                       UTC\n\
         Sat  2026-11-21 08:00:00 +08:00  2026-11-21T00:00:00Z\n\
         Sun  2026-11-22 08:00:00 +08:00  2026-11-22T00:00:00Z\n"
    );
    assert_eq!(shell.json(&typed).await, json!({ "fires": ["2026-11-21T00:00:00Z", "2026-11-22T00:00:00Z"] }));
}

#[tokio::test]
async fn rules_around_a_schedule_are_typed_as_flags() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    let at_half_past_two =
        ["schedule", "preview", "30 2 * * *", "--timezone", "Europe/Berlin", "--from", "2027-03-26T12:00:00Z"];
    let fires = |more: &'static [&'static str]| [&at_half_past_two[..], more].concat();
    assert_eq!(
        shell.json(&fires(&["--dst-gap", "skip", "--exclude", "2027-03-27", "--end-at", "2027-03-30T00:00:00"])).await,
        json!({ "fires": ["2027-03-29T00:30:00Z"] })
    );
    assert_eq!(
        shell.json(&fires(&["--start-at", "2027-10-31T00:00:00", "--dst-fold", "both", "--count", "2"])).await,
        json!({ "fires": ["2027-10-31T00:30:00Z", "2027-10-31T01:30:00Z"] })
    );
}

#[tokio::test]
async fn wrong_schedule_is_refused_with_what_was_meant() {
    let dir = TempDir::new();
    let said = Shell::in_dir(&dir).refused(&["schedule", "preview", "0 8 * * *", "--timezone", "Europe/Berln"]).await;
    assert_eq!(
        said,
        "error: the schedule is not valid\n  --timezone: unknown time zone `Europe/Berln`; did you mean `Europe/Berlin`?\n"
    );
}

#[tokio::test]
async fn batch_answers_each_question_before_the_next_is_asked() {
    let dir = TempDir::new();
    let mut command = Shell::in_dir(&dir).command(&["schedule", "preview", "--batch"]);
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().unwrap();
    let mut questions = child.stdin.take().unwrap();
    let mut answers = BufReader::new(child.stdout.take().unwrap()).lines();
    let exchanges = [
        (
            json!({ "cron": "0 0 L * *", "timezone": "UTC", "from": "2027-02-01T00:00:00Z", "count": 2 }),
            json!({ "fires": ["2027-02-28T00:00:00Z", "2027-03-31T00:00:00Z"] }),
        ),
        (
            json!({ "interval": "PT90M", "from": "2026-11-21T00:00:00Z", "count": 1 }),
            json!({ "fires": ["2026-11-21T01:30:00Z"] }),
        ),
    ];
    for (question, expected) in exchanges {
        questions.write_all(format!("{question}\n").as_bytes()).await.unwrap();
        let answer = timeout(Duration::from_secs(30), answers.next_line()).await.expect("an answer at once");
        let answer: Value = serde_json::from_str(&answer.unwrap().unwrap()).unwrap();
        assert_eq!(answer, expected);
    }
    drop(questions);
    assert!(child.wait().await.unwrap().success());
}
