//! `reveille demo`: the story is told in order, in time, and leaves nothing behind.

use std::time::{Duration, Instant};

use super::Shell;
use crate::support::binary::TempDir;

#[tokio::test]
async fn the_demo_tells_the_whole_story_in_under_a_minute_and_cleans_up() {
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
        "the run has succeeded",
        "Ann's phone rings",
        "its signature is right; the delivery is delivered",
        "│ Morning mail",
        "The railway writes",
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
