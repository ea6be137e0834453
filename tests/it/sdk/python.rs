//! The package of Python.

use std::path::Path;

use serde_json::json;
use tokio::process::Command;

use super::{in_repository, printed, service_for_runtimes, told};
use crate::support::binary::TempDir;

/// A program that `scripts/test.sh` installs, started in the package; it leaves nothing behind there.
fn installed(program: &str) -> Command {
    let path = in_repository("tests/clients/.venv/bin").join(program);
    assert!(path.exists(), "run the tests with scripts/test.sh, which installs {program}");
    let package = in_repository("sdk/python");
    let mut command = Command::new(path);
    command.env("PYTHONPATH", package.join("src")).env("PYTHONDONTWRITEBYTECODE", "1");
    command.current_dir(package).kill_on_drop(true);
    command
}

fn example() -> String {
    in_repository("examples/runtime/python/runtime.py").display().to_string()
}

#[tokio::test]
async fn package_of_python_has_sound_types() {
    let cache = TempDir::new();
    let mut mypy = installed("mypy");
    mypy.arg("--cache-dir").arg(cache.path()).args(["src", "tests", &example()]);
    let said = printed(mypy.output().await.expect("mypy"));
    assert!(said.starts_with("Success:"), "{said}");
}

#[tokio::test]
async fn package_of_python_passes_its_own_tests() {
    let mut python = installed("python");
    python.args(["-W", "error::ResourceWarning", "-m", "unittest", "discover", "-s", "tests"]);
    let said = printed(python.output().await.expect("the tests"));
    assert!(said.trim_end().ends_with("OK"), "{said}");
}

#[tokio::test]
async fn runtime_of_python_completes_runs_and_its_client_resumes_streams_and_reads_pages() {
    let mut service = service_for_runtimes().await;
    let scenario = Path::new("tests").join("scenario.py");
    let mut python = installed("python");
    python.arg(scenario).args([service.url(), service.admin_token().expect("a token"), &example()]);
    let told = told(&printed(python.output().await.expect("the scenario")));
    let expected = json!({
        "output": { "total": 7, "told": "Pack it." }, "example": "example: did “Pack it.”.",
        "runs": 3, "events": [0, 1, 2], "events_resumed": 2,
    });
    assert_eq!(told, expected);
    service.kill().await;
}
