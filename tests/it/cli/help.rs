//! Texts of `--help` are locked: a changed word is seen in review.

use clap::CommandFactory;
use reveille::cli::Cli;

use super::Shell;
use crate::support::binary::TempDir;

#[test]
fn every_page_of_help_is_the_one_that_was_reviewed() {
    let mut root = Cli::command().term_width(100);
    root.build();
    let mut pages = String::new();
    write_pages(&mut root, &mut pages);
    insta::assert_snapshot!("help", pages);
}

fn write_pages(command: &mut clap::Command, pages: &mut String) {
    let name = command.get_bin_name().unwrap_or("reveille").to_owned();
    pages.push_str(&format!("=== {name}\n{}\n", command.render_help()));
    for below in command.get_subcommands_mut() {
        write_pages(below, pages);
    }
}

#[tokio::test]
async fn wrong_usage_exits_with_2_and_says_what_is_right() {
    let dir = TempDir::new();
    let shell = Shell::in_dir(&dir);
    for (arguments, hint) in [
        (&["tsak"][..], "similar subcommand"),
        (&["task", "create", "--name", "x"], "--cron <EXPR>"),
        (&["task", "create", "--cron", "@daily", "--interval", "5m"], "cannot be used with"),
        (&["task", "create", "--cron", "@daily", "--timeout", "soon"], "invalid value 'soon'"),
        (&["schedule", "preview"], "required arguments"),
        (&["token", "create", "--name", "x"], "--admin"),
    ] {
        let done = shell.run(arguments).await;
        assert_eq!(done.code, 2, "{arguments:?}\n{}", done.err);
        assert!(done.err.contains(hint), "{arguments:?}\n{}", done.err);
    }
}

#[tokio::test]
async fn version_names_what_is_compiled_in() {
    let dir = TempDir::new();
    let version = Shell::in_dir(&dir).json(&["version"]).await;
    assert_eq!(version["reveille"], env!("CARGO_PKG_VERSION"));
    let zones = reveille::domain::trigger::zone::ZoneTable::bundled();
    assert!(version["zone_database"].as_str().unwrap() >= zones.release().as_str(), "{version}");
    assert!(["bundled", "folder"].contains(&version["zone_source"].as_str().unwrap()), "{version}");
    let sqlite: Vec<u32> = version["sqlite"].as_str().unwrap().split('.').map(|part| part.parse().unwrap()).collect();
    assert!(sqlite >= vec![3, 51, 3], "earlier ones can corrupt a database: {sqlite:?}");
}

#[tokio::test]
async fn completions_of_bash_are_a_script_that_bash_reads() {
    let dir = TempDir::new();
    let script = Shell::in_dir(&dir).ok(&["completions", "bash"]).await;
    assert!(
        script.contains("reveille__schedule__preview") || script.contains("reveille__subcmd__schedule"),
        "{script}"
    );
    let file = dir.path().join("completions.bash");
    std::fs::write(&file, script).unwrap();
    let read = tokio::process::Command::new("bash").arg("-n").arg(&file).status().await.unwrap();
    assert!(read.success());
}

#[tokio::test]
async fn reader_that_has_seen_enough_is_no_error() {
    let dir = TempDir::new();
    let mut command = Shell::in_dir(&dir).command(&["schedule", "preview", "* * * * * *", "--count", "100000"]);
    let mut child = command.stdout(std::process::Stdio::piped()).stderr(std::process::Stdio::piped()).spawn().unwrap();
    drop(child.stdout.take());
    let done = child.wait_with_output().await.unwrap();
    assert_eq!((done.status.code(), String::from_utf8(done.stderr).unwrap()), (Some(0), String::new()));
}
