//! `reveille demo`: the story is told in order, in time, and leaves nothing behind.

use std::process::Stdio;
use std::time::{Duration, Instant};

use tokio::io::{AsyncBufReadExt, BufReader};

use super::Shell;
use crate::support::binary::TempDir;

#[tokio::test]
async fn demo_tells_the_whole_story_in_under_a_minute_and_cleans_up() {
    let dir = TempDir::new();
    let began = Instant::now();
    let shell = Shell::in_dir(&dir).with("TMPDIR", dir.path().display().to_string());
    let told = shell.ok(&["demo"]).await;
    assert!(began.elapsed() < Duration::from_secs(60));
    assert!(!told.contains('\u{1b}'), "a pipe gets plain text");
    let story = [
        "the service is up",
        "Ann can be reached",
        "a task is created",
        "the schedule fires",
        "turn 1: the model",
        "→ current_time",
        "turn 2: the model",
        "Mia asks about lunch",
        "→ http_send",
        "the run waits",
        "Ann's phone rings",
        "its signature is right; the delivery is delivered",
        "│ Morning mail asks for your approval",
        "│ POST to http://127.0.0.1:",
        "/approvals/",
        "the page: Approve",
        "nobody answered here, so the demo opened the link",
        "← http_send",
        "turn 3: the model",
        "the run has succeeded",
        "3 turns, 3 tool calls",
        "Ann's phone rings",
        "its signature is right; the delivery is delivered",
        "│ Morning mail",
        "The railway writes",
        "She has your answer.",
        "That took",
    ];
    let mut rest = told.as_str();
    for beat in story {
        let at = rest.find(beat).unwrap_or_else(|| panic!("`{beat}` is not told in its place:\n{told}"));
        rest = &rest[at + beat.len()..];
    }
    assert!(told.contains("→ http_request"), "{told}");
    let is_stamp = |word: &&str| word.len() == 12 && word.split(':').count() == 3;
    let stamps: Vec<&str> = told.lines().filter_map(|line| line.split(' ').next().filter(is_stamp)).collect();
    assert!(stamps.len() >= 8, "{told}");
    let in_order = |pair: &[&str]| pair[0] <= pair[1] || pair[1].starts_with("00:00"); // midnight
    assert!(stamps.windows(2).all(in_order), "{told}");
    assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0, "its directory goes with it");
}

#[tokio::test]
async fn demo_with_wait_follows_the_decision_of_a_person() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir).with("TMPDIR", dir.path().display().to_string());
    let mut command = shell.command(&["demo", "--wait"]);
    let mut demo = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn().expect("the demo");
    let input = demo.stdin.take().expect("its stdin");
    let mut told = BufReader::new(demo.stdout.take().expect("its stdout")).lines();
    let mut link = String::new();
    loop {
        let line = told.next_line().await.expect("a line").expect("the demo waits");
        assert!(!line.contains("the demo opened the link"), "{line}");
        if line.trim().starts_with("http://127.0.0.1:") && line.contains("/approvals/") {
            link = line.trim().to_owned();
        }
        if line.contains("your turn") {
            break;
        }
    }
    let browser = reveille::ports::egress::operator_client(Duration::from_secs(30));
    let page = browser.get(&link).send().await.expect("the link opens").text().await.expect("a page");
    let nonce = page.split_once("name=\"nonce\" value=\"").expect("a form").1.split_once('"').expect("its end").0;
    let answer = browser.post(&link).form(&[("nonce", nonce), ("do", "cancel:all")]).send().await;
    assert_eq!(answer.expect("an answer").status(), 303, "it leads to what came of it");
    let (mut rest, mut dashboard) = (Vec::new(), String::new());
    while let Some(line) = told.next_line().await.expect("a line") {
        rest.push(line);
        // the story ends with the link
        let line = rest.last().expect("a line").trim();
        if line.contains("/ui/login/") {
            dashboard = line.to_owned();
            break;
        }
    }
    assert!(rest.iter().any(|line| line.contains("until you press Enter")), "{rest:?}");
    look_at_the_run(&browser, &dashboard).await;
    drop(input);
    while let Some(line) = told.next_line().await.expect("a line") {
        assert!(line.trim().is_empty(), "nothing is told behind the link: {line}");
    }
    let rest = rest.join("\n");
    assert!(demo.wait().await.expect("an end").success(), "{rest}");
    for part in ["User cancelled this action.", "the run has succeeded", "│ Morning mail"] {
        assert!(rest.contains(part), "`{part}` is missing in:\n{rest}");
    }
    assert!(!rest.contains("She has your answer."), "nothing was sent:\n{rest}");
}

/// The link leads to the demo's own run in the dashboard, once its button was pressed.
async fn look_at_the_run(browser: &reqwest::Client, link: &str) {
    let page = browser.get(link).send().await.expect("the link opens");
    assert_eq!(page.status(), 200, "{link}");
    let page = page.text().await.expect("a page");
    assert!(page.contains("Sign in"), "{page}");
    let url = url::Url::parse(link).expect("a link");
    let next = url.query_pairs().find(|(name, _)| name == "next").expect("the run").1.into_owned();
    let signed_in = browser.post(link).form(&[("next", next.as_str())]).send().await.expect("an answer");
    assert_eq!(signed_in.status(), 303, "it leads to the run");
    let header = |name: &str| signed_in.headers()[name].to_str().expect("a text").to_owned();
    assert_eq!(header("location"), next);
    let cookie = header("set-cookie").split(';').next().expect("a cookie").to_owned();
    let run = browser.get(url.join(&next).expect("an address")).header("cookie", cookie).send().await;
    let run = run.expect("the run opens");
    assert_eq!(run.status(), 200);
    let run = run.text().await.expect("a page");
    for part in ["Morning mail", "http_send", "succeeded"] {
        assert!(run.contains(part), "`{part}` is not in\n{run}");
    }
}
