//! A clock that a test steps, for processes that are started with it.

use std::path::Path;

use super::servers;

/// Moves the clock in this file to so many seconds from the machine's.
pub fn step(file: &Path, seconds: i64) {
    // put in its place whole: the process reads it at each look at the clock
    let new = file.with_extension("new");
    std::fs::write(&new, format!("{seconds:+}\n")).unwrap();
    std::fs::rename(&new, file).unwrap();
}

/// The environment that makes a process go by the clock in this file.
pub fn by_the_clock_in(file: &Path) -> [(&'static str, String); 4] {
    [
        ("LD_PRELOAD", servers::faketime()),
        ("FAKETIME_TIMESTAMP_FILE", file.display().to_string()),
        ("FAKETIME_NO_CACHE", "1".into()),
        ("FAKETIME_DONT_FAKE_MONOTONIC", "1".into()),
    ]
}
