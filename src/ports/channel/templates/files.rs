//! Where templates lie: the embedded ones, and the operator's directory.

use std::path::Path;

use crate::base::invalid::ValidationErrors;
use crate::ports::channel::templates::name::TemplateName;
use crate::ports::channel::templates::phrases::Catalogue;
use crate::ports::channel::templates::set::TemplateSet;

macro_rules! embedded {
    ($($name:literal),* $(,)?) => { [$(($name, include_str!($name))),*] };
}

/// Every embedded template, by its file's name.
pub const EMBEDDED: [(&str, &str); 66] = embedded![
    "ask.de.html",
    "ask.de.mrkdwn",
    "ask.de.telegram",
    "ask.de.txt",
    "ask.html",
    "ask.mrkdwn",
    "ask.telegram",
    "ask.txt",
    "digest.de.html",
    "digest.de.mrkdwn",
    "digest.de.telegram",
    "digest.de.txt",
    "digest.html",
    "digest.mrkdwn",
    "digest.telegram",
    "digest.txt",
    "failure.de.html",
    "failure.de.mrkdwn",
    "failure.de.telegram",
    "failure.de.txt",
    "failure.html",
    "failure.mrkdwn",
    "failure.telegram",
    "failure.txt",
    "input.de.html",
    "input.de.mrkdwn",
    "input.de.telegram",
    "input.de.txt",
    "input.html",
    "input.mrkdwn",
    "input.telegram",
    "input.txt",
    "layout.html",
    "message.de.html",
    "message.de.txt",
    "message.html",
    "message.mrkdwn",
    "message.telegram",
    "message.txt",
    "notice_credential.de.html",
    "notice_credential.de.mrkdwn",
    "notice_credential.de.telegram",
    "notice_credential.de.txt",
    "notice_credential.html",
    "notice_credential.mrkdwn",
    "notice_credential.telegram",
    "notice_credential.txt",
    "page.de.html",
    "page.html",
    "question.de.html",
    "question.html",
    "reminder.de.txt",
    "reminder.txt",
    "result.html",
    "result.mrkdwn",
    "result.sms.txt",
    "result.telegram",
    "result.txt",
    "undo_window.de.html",
    "undo_window.de.mrkdwn",
    "undo_window.de.telegram",
    "undo_window.de.txt",
    "undo_window.html",
    "undo_window.mrkdwn",
    "undo_window.telegram",
    "undo_window.txt",
];

/// Where the setting lies.
const PLACE: &str = "/channels/templates_dir";
/// Largest file, in bytes.
const LARGEST: u64 = 64 * 1024;

/// Adds the templates of a directory and the words of the approval page, and says all that is wrong with them.
pub fn add_own(set: &mut TemplateSet, phrases: &mut Catalogue, dir: &Path) -> Result<(), ValidationErrors> {
    let unreadable =
        |path: &Path, why: &dyn std::fmt::Display| ValidationErrors::one(PLACE, format!("{}: {why}", path.display()));
    let mut faults = ValidationErrors::new();
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
        let added = match Catalogue::language_of(&name) {
            Some(language) => read(&path).and_then(|text| phrases.add_own(language, &text)),
            None => TemplateName::read(&name).and_then(|_| read(&path)).and_then(|text| set.add_own(&name, &text)),
        };
        if let Err(why) = added {
            faults.add(PLACE, format!("{}: {why}", path.display()));
        }
    }
    faults.into_result(())
}

fn read(path: &Path) -> Result<String, String> {
    let length = std::fs::metadata(path).map_err(|error| error.to_string())?.len();
    if length > LARGEST {
        return Err(format!("has {length} bytes; a template has at most {LARGEST}"));
    }
    std::fs::read_to_string(path).map_err(|error| error.to_string())
}
