//! The packages in `sdk`: each passes its own checks and tests, and a program that uses it works on the real binary,
//! as does the example of a runtime.

mod python;

use std::path::PathBuf;
use std::process::Output;

use serde_json::Value;

use crate::support::binary::Service;
use crate::support::servers::lasting_port;

/// A path of the repository.
fn in_repository(path: &str) -> PathBuf {
    PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(path)
}

/// A service that calls runtimes on this machine, and tells them where it is reached.
async fn service_for_runtimes() -> Service {
    let address = format!("127.0.0.1:{}", lasting_port());
    let mut service = Service::new()
        .with("REVEILLE_SERVER__PUBLIC_URL", format!("http://{address}"))
        .with("REVEILLE_EGRESS__ALLOW", r#"["127.0.0.1:*"]"#);
    service.start_at(&address).await;
    service
}

/// All that a program printed, which must have succeeded.
fn printed(ended: Output) -> String {
    let printed = [ended.stdout, ended.stderr].map(|bytes| String::from_utf8_lossy(&bytes).into_owned()).concat();
    assert!(ended.status.success(), "{}:\n{printed}", ended.status);
    printed
}

/// The line of JSON in which a scenario tells how it went.
fn told(printed: &str) -> Value {
    let last = printed.lines().next_back().unwrap_or_default();
    serde_json::from_str(last).unwrap_or_else(|error| panic!("{error}:\n{printed}"))
}
