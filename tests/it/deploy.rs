//! Files of `deploy/`: a program reads each by the schema or the tool of what it is for, finds nothing wrong with them, and
//! finds the faults that it plants itself; and what they set is a configuration.

use std::collections::BTreeMap;
use std::path::Path;

use reveille::config::{Config, Environment};
use tokio::process::Command;

/// Runs `tests/deploy/check.py` on this repository, which must succeed; what it printed.
async fn checked(arguments: &[&str]) -> String {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let place = root.join("tests/deploy");
    let python = place.join(".venv/bin/python");
    assert!(python.exists(), "run the tests with scripts/test.sh, which installs {}", python.display());
    let mut command = Command::new(python);
    // -B: no bytecode beside the sources
    command.arg("-B").arg(place.join("check.py")).arg(root).args(arguments).kill_on_drop(true);
    let ended = command.output().await.expect("a program that starts");
    let printed = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success(), "check.py {arguments:?}:\n{printed}");
    printed
}

#[tokio::test]
async fn files_for_operators_are_valid_and_name_what_there_is() {
    assert_eq!(checked(&[]).await.trim(), "9 checks passed");
}

#[tokio::test]
async fn fault_in_a_file_for_operators_is_found() {
    let printed = checked(&["--plant"]).await;
    assert!(printed.trim().ends_with("planted faults were found"), "{printed}");
}

#[tokio::test]
async fn every_service_of_the_files_starts_with_what_its_file_sets() {
    let printed = checked(&["--settings"]).await;
    let given: BTreeMap<String, BTreeMap<String, String>> = serde_json::from_str(&printed).expect("a line of JSON");
    assert!(given.len() >= 8 && given.values().all(|variables| !variables.is_empty()), "{printed}");
    for (place, variables) in &given {
        let variables: Vec<(&str, &str)> =
            variables.iter().map(|(name, value)| (name.as_str(), value.as_str())).collect();
        let read = Config::read(place, "", &Environment::of(&variables));
        assert!(read.is_ok(), "{place}: {}", read.err().map(|error| error.to_string()).unwrap_or_default());
    }
}
