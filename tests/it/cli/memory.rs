//! Memory of a process of ours is written nowhere when it dies.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::process::Stdio;

use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

use crate::support::binary::{TempDir, signal};

/// A shell that allows cores of any size, in `dir`.
fn with_cores(dir: &Path, script: &str) -> Command {
    let mut command = Command::new("sh");
    let script = format!("ulimit -c unlimited 2>/dev/null || ulimit -c hard; {script}");
    command.args(["-c", &script]).current_dir(dir).env_clear().env("PATH", "/usr/bin:/bin").kill_on_drop(true);
    command
}

fn cores(dir: &Path) -> Vec<String> {
    let names = std::fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name().to_string_lossy().into_owned());
    names.filter(|name| name.contains("core")).collect()
}

#[tokio::test]
async fn abort_leaves_no_core_whatever_the_limit_was() {
    // so that it is known whether a core would be seen here at all
    let control = TempDir::new();
    let aborted = with_cores(control.path(), "kill -ABRT $$").status().await.unwrap();
    let seen = aborted.core_dumped();

    let dir = TempDir::new();
    let serve = format!("exec {} serve --listen 127.0.0.1:0", env!("CARGO_BIN_EXE_reveille"));
    let mut child = with_cores(dir.path(), &serve).stdout(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    while !lines.next_line().await.unwrap().expect("it starts").contains("listening") {}
    let id = child.id().unwrap();
    let limits = std::fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
    let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
    let words: Vec<&str> = line.split_whitespace().skip(4).collect();
    assert_eq!(words, ["0", "0", "bytes"]);
    signal("ABRT", id).await;
    let status = child.wait().await.unwrap();
    assert_eq!((status.signal(), status.core_dumped()), (Some(6), false), "cores are seen here: {seen}");
    assert_eq!(cores(dir.path()), Vec::<String>::new());
}

#[tokio::test]
async fn no_command_can_be_dumped_not_even_one_that_only_prints() {
    let dir = TempDir::new();
    // it waits for its input, so that it can be looked at
    let set = format!("exec {} credential set x --tenant a", env!("CARGO_BIN_EXE_reveille"));
    let mut child = with_cores(dir.path(), &set).stdin(Stdio::piped()).stderr(Stdio::null()).spawn().unwrap();
    let id = child.id().unwrap();
    let limits = async || loop {
        let limits = std::fs::read_to_string(format!("/proc/{id}/limits")).unwrap();
        let name = std::fs::read_to_string(format!("/proc/{id}/comm")).unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap().to_owned();
        if name.trim() == "reveille" && line.split_whitespace().nth(4) == Some("0") {
            return line;
        }
        reveille::base::clock::pause(std::time::Duration::from_millis(5)).await;
    };
    tokio::time::timeout(std::time::Duration::from_secs(30), limits()).await.expect("the limit is 0");
    signal("ABRT", id).await;
    assert!(!child.wait().await.unwrap().core_dumped());
    assert_eq!(cores(dir.path()), Vec::<String>::new());
}
