//! Clients that others make out of the reference: it is valid, the generators read all of it, what they make has sound
//! types, and a program on top of it makes a task, publishes an event and decides an approval on the real binary.

use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

use serde_json::{Value, json};
use tokio::process::Command;

use crate::cli::approval::asking;
use crate::support::binary::TempDir;
use crate::support::talking_model::{TOKEN, TalkingModel};

/// The directory of the generators and of the programs that use what they make.
fn clients() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/clients")
}

/// A program that `scripts/test.sh` installs there.
fn installed(path: &str) -> String {
    let program = clients().join(path);
    assert!(program.exists(), "run the tests with scripts/test.sh, which installs {path}");
    program.display().to_string()
}

/// A directory with the published document, and with these files of `tests/clients`.
fn workplace(files: &[&str]) -> TempDir {
    let dir = TempDir::new();
    std::fs::write(dir.path().join("openapi.json"), reveille::http::document().to_string()).expect("the document");
    for file in files {
        std::fs::copy(clients().join(file), dir.path().join(file)).expect("a file of the client");
    }
    dir
}

/// Runs a program there, which must succeed; all that it printed.
async fn run(dir: &TempDir, program: &str, arguments: &[&str]) -> String {
    let ended = Command::new(program).args(arguments).current_dir(dir.path()).kill_on_drop(true).output().await;
    let ended = ended.expect("a program that starts");
    let printed = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success(), "{program} {arguments:?} failed:\n{printed}");
    printed
}

/// Starts the program on a service that asks before its model may look at the clock.
async fn tells_the_whole_story(dir: &TempDir, program: &str, client: &str) {
    let service = asking().await;
    let printed = run(dir, program, &[client, service.url(), service.admin_token().expect("a token")]).await;
    let told: Value = serde_json::from_str(&printed).expect("a line of JSON");
    assert_eq!(told, json!({ "events": 1, "event_ids": 1, "output": "In Europe/Berlin." }));
}

#[tokio::test]
async fn reference_is_valid_by_its_specification() {
    let dir = workplace(&[]);
    let validator = installed(".venv/bin/openapi-spec-validator");
    let said = run(&dir, &validator, &["openapi.json"]).await;
    assert_eq!(said.trim(), "openapi.json: OK");
}

#[tokio::test]
async fn client_of_python_is_made_without_a_warning_checked_and_used() {
    let dir = workplace(&["generator.yaml", "client.py"]);
    let generator = installed(".venv/bin/openapi-python-client");
    let options = ["--path", "openapi.json", "--output-path", "reveille_client", "--config", "generator.yaml"];
    let options = [&["generate", "--meta", "none", "--fail-on-warning"], &options[..]].concat();
    let made = run(&dir, &generator, &options).await;
    assert_eq!(made.trim(), "Generating reveille_client");
    run(&dir, &installed(".venv/bin/mypy"), &["--strict", "client.py", "reveille_client"]).await;
    tells_the_whole_story(&dir, &installed(".venv/bin/python"), "client.py").await;
}

#[tokio::test]
async fn client_of_typescript_is_made_without_a_warning_checked_and_used() {
    let dir = workplace(&["package.json", "tsconfig.json", "client.ts"]);
    symlink(installed("node_modules"), dir.path().join("node_modules")).expect("a link to the packages");
    let generator = installed("node_modules/.bin/openapi-typescript");
    let made = run(&dir, &generator, &["openapi.json", "--output", "api.d.ts"]).await;
    let lines: Vec<&str> = made.lines().filter(|line| !line.is_empty()).collect();
    assert!(lines.len() == 2 && lines[1].contains("openapi.json → api.d.ts"), "{made}");
    run(&dir, &installed("node_modules/.bin/tsc"), &["--project", "."]).await;
    tells_the_whole_story(&dir, "node", "built/client.js").await;
}

#[tokio::test]
async fn client_of_a_model_vendor_talks_to_the_agent() {
    let (dir, model) = (workplace(&["responses.py"]), TalkingModel::start().await);
    // of all that is asked there, one message takes more turns
    let mut service = model.service(None).with("REVEILLE_REACT__MAX_TURNS", "2");
    service.start().await;
    let printed = run(&dir, &installed(".venv/bin/python"), &["responses.py", service.url(), TOKEN]).await;
    assert_eq!(printed.trim(), "all of it");
    service.kill().await;
}
