//! Where templates lie: the embedded ones, and the operator's directory.

use std::path::Path;

use minijinja::Environment;

use crate::channel::templates::{Format, add};
use crate::invalid::{Faults, did_you_mean};
use crate::notification::telling::Purpose;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!($name))),*] };
}

/// Every embedded template, by its file's name.
pub const EMBEDDED: [(&str, &str); 29] = embedded![
    "ask.html",
    "ask.mrkdwn",
    "ask.telegram",
    "ask.txt",
    "digest.html",
    "digest.mrkdwn",
    "digest.telegram",
    "digest.txt",
    "failure.html",
    "failure.mrkdwn",
    "failure.telegram",
    "failure.txt",
    "held.html",
    "held.mrkdwn",
    "held.telegram",
    "held.txt",
    "layout.html",
    "message.html",
    "message.mrkdwn",
    "message.telegram",
    "message.txt",
    "page.html",
    "question.html",
    "reminder.txt",
    "result.html",
    "result.mrkdwn",
    "result.sms.txt",
    "result.telegram",
    "result.txt",
];

/// What others extend.
const SHARED: [&str; 2] = ["layout", "question"];
const NOTICE: &str = "notice_";
/// Where the setting lies.
const PLACE: &str = "/channels/templates_dir";
/// Largest file, in bytes.
const LARGEST: u64 = 64 * 1024;

/// Adds the templates of a directory, and says all that is wrong with them.
pub fn add_own(engine: &mut Environment<'static>, dir: &Path) -> Result<(), Faults> {
    let unreadable =
        |path: &Path, why: &dyn std::fmt::Display| Faults::one(PLACE, format!("{}: {why}", path.display()));
    let mut faults = Faults::new();
    let mut paths = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(|error| unreadable(dir, &error))? {
        paths.push(entry.map_err(|error| unreadable(dir, &error))?.path());
    }
    paths.sort();
    for path in paths {
        let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        if name.starts_with('.') {
            continue;
        }
        let read = match check_name(&name) {
            Ok(()) => read(&path),
            Err(why) => Err(why),
        };
        if let Err(why) = read.and_then(|text| add(engine, &name, &text)) {
            faults.add(PLACE, format!("{}: {why}", path.display()));
        }
    }
    faults.or(())
}

fn read(path: &Path) -> Result<String, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > LARGEST {
        return Err(format!("has {length} bytes; a template has at most {LARGEST}"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}

/// `PURPOSE.FORMAT` or `PURPOSE.CHANNEL.FORMAT`.
fn check_name(name: &str) -> Result<(), String> {
    let parts: Vec<&str> = name.split('.').collect();
    let ([purpose, ending] | [purpose, _, ending]) = parts[..] else {
        return Err("its name is none of a template: PURPOSE.FORMAT or PURPOSE.CHANNEL.FORMAT".into());
    };
    let endings = Format::ALL.map(Format::ending);
    if !endings.contains(&ending) {
        return Err(format!("there is no format `{ending}`{}", did_you_mean(ending, endings)));
    }
    let known = || Purpose::WORDS.into_iter().chain(SHARED);
    match known().any(|word| word == purpose) || purpose.starts_with(NOTICE) {
        true => Ok(()),
        false => {
            let hint = did_you_mean(purpose, known());
            Err(format!("there is no purpose `{purpose}`{hint}; there are {}", Purpose::WORDS.join(", ")))
        }
    }
}
