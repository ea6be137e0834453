//! Skills in the Agent Skills format: folders with a `SKILL.md`. A model is shown their names first, the instructions
//! of one that it uses, and files of that one when it asks for them. Scripts among these are text like the rest:
//! nothing here executes them.

pub mod document;
mod folder;

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, RwLock};
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::base::clock::Clock;
use crate::base::invalid::{NAMED, ValidationErrors, did_you_mean, is_known_name};
use crate::ports::skill::document::SkillDocument;

pub use folder::{DOCUMENT, scan};
use folder::{LONGEST, read_text};

/// How old a look at the folders may be.
const RESCAN: Duration = Duration::from_secs(10);
/// Folders that may be named.
const MOST_DIRS: usize = 20;
/// Longest file that is read, in bytes.
const LONGEST_FILE: u64 = 1024 * 1024;

/// `[skills]`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Deserialize, Serialize)]
#[serde(default, deny_unknown_fields)]
pub struct Settings {
    /// The folder whose folders are skills, or several of them.
    pub dir: SkillDirs,
}

/// One folder, or several.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize, Serialize)]
#[serde(untagged)]
pub enum SkillDirs {
    /// One.
    One(PathBuf),
    /// Several; of two skills of one name, that of the earlier folder counts.
    Several(Vec<PathBuf>),
}

impl Default for SkillDirs {
    fn default() -> SkillDirs {
        SkillDirs::Several(Vec::new())
    }
}

impl Settings {
    /// The folders, in order.
    pub fn dirs(&self) -> Vec<PathBuf> {
        match &self.dir {
            SkillDirs::One(dir) => vec![dir.clone()],
            SkillDirs::Several(dirs) => dirs.clone(),
        }
    }

    /// Adds directories that do not exist; pointers begin with `/skills`.
    pub fn check(&self, faults: &mut ValidationErrors) {
        let dirs = self.dirs();
        if dirs.len() > MOST_DIRS {
            faults.add("/skills/dir", format!("must be at most {MOST_DIRS} folders"));
        }
        for dir in dirs.iter().filter(|dir| !dir.is_dir()) {
            faults.add("/skills/dir", format!("there is no folder {}", dir.display()));
        }
    }
}

/// One skill.
#[derive(Debug, Clone, PartialEq)]
pub struct Skill {
    /// Its `SKILL.md`.
    pub document: SkillDocument,
    /// Its folder.
    pub dir: PathBuf,
    /// Its other files, by their paths within the folder.
    pub files: Vec<String>,
    /// Oddities that do not keep it from being used.
    pub warnings: Vec<String>,
}

impl Skill {
    /// Its oddities, and the names in it that stand for no tool and no model: `tools` and `models` are those that there
    /// are.
    pub fn findings(&self, tools: &[&str], models: &[&str]) -> Vec<String> {
        let unknown_tools = self.document.allowed_tools.as_deref().and_then(|allowed| unknown_tools(allowed, tools));
        let unknown_model = self.document.model().filter(|model| !models.contains(model)).map(|model| {
            let near = did_you_mean(model, models.iter().copied());
            let why = format!("its `metadata.model` is `{model}`, which is not in [llm.models]{near}");
            format!("the agent's own model answers: {why}")
        });
        self.warnings.iter().cloned().chain(unknown_tools).chain(unknown_model).collect()
    }
}

/// The sentence that names in `allowed-tools` are those of no tool; `None`: each is one.
fn unknown_tools(allowed: &[String], tools: &[&str]) -> Option<String> {
    let unknown: Vec<&str> = allowed.iter().map(String::as_str).filter(|name| !is_known_name(name, tools)).collect();
    let near = match unknown.as_slice() {
        [] => return None,
        [only] => did_you_mean(only, tools.iter().copied()),
        _ => String::new(),
    };
    let named = unknown.iter().take(NAMED).map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
    Some(match unknown.len() == allowed.len() {
        true => format!("its `allowed-tools` has no tool that there is here, so it may call none: {named}{near}"),
        false => format!("its `allowed-tools` has names of no tool here: {named}{near}"),
    })
}

/// A folder without a valid `SKILL.md`, and why.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnusableSkill {
    /// The folder.
    pub dir: PathBuf,
    /// Each reason, in a sentence.
    pub faults: Vec<String>,
}

/// The skills at one time, by their names.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct SkillSet {
    /// Those that can be used, in the order of their names.
    pub skills: Vec<Skill>,
    /// Folders without a valid `SKILL.md`.
    pub unusable: Vec<UnusableSkill>,
}

impl SkillSet {
    /// The skill of this name.
    pub fn find(&self, name: &str) -> Option<&Skill> {
        self.skills.iter().find(|skill| skill.document.name == name)
    }

    /// Names of all.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.skills.iter().map(|skill| skill.document.name.as_str())
    }
}

/// The skills in the folders, looked for again every few seconds. Cheap to clone.
#[derive(Clone)]
pub struct SkillLibrary(Arc<SkillFolders>);

struct SkillFolders {
    dirs: Vec<PathBuf>,
    clock: Clock,
    set: RwLock<Arc<SkillSet>>,
    looked_at: Mutex<Duration>,
    is_looking: AtomicBool,
}

/// Guard of a scan of the folders: the next one may begin once it is dropped, however this one ends.
struct ScanGuard<'a>(&'a AtomicBool);

impl Drop for ScanGuard<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Release);
    }
}

impl SkillLibrary {
    /// The skills in these folders as they are now. Reads files: for a thread that may wait.
    pub fn open(dirs: Vec<PathBuf>, clock: Clock) -> SkillLibrary {
        let set = RwLock::new(Arc::new(scan(&dirs)));
        let looked_at = Mutex::new(clock.elapsed());
        SkillLibrary(Arc::new(SkillFolders { dirs, clock, set, looked_at, is_looking: AtomicBool::new(false) }))
    }

    /// No skills.
    pub fn empty() -> SkillLibrary {
        SkillLibrary::open(Vec::new(), Clock::system())
    }

    /// Whether any folder is named.
    pub fn is_configured(&self) -> bool {
        !self.0.dirs.is_empty()
    }

    /// The skills as they were a few seconds ago at the most; a look that is due is taken aside.
    pub fn current(&self) -> Arc<SkillSet> {
        let folders = &self.0;
        let is_old = folders.clock.elapsed().saturating_sub(*folders.looked_at.lock().expect("folders lock")) >= RESCAN;
        if self.is_configured() && is_old && !folders.is_looking.swap(true, Ordering::AcqRel) {
            let folders = Arc::clone(folders);
            tokio::task::spawn_blocking(move || {
                let _looking = ScanGuard(&folders.is_looking);
                let set = scan(&folders.dirs);
                *folders.set.write().expect("folders lock") = Arc::new(set);
                *folders.looked_at.lock().expect("folders lock") = folders.clock.elapsed();
            });
        }
        Arc::clone(&self.0.set.read().expect("folders lock"))
    }

    /// The text of a file of a skill.
    ///
    /// # Errors
    /// There is no such skill or file, or it is no text, in a sentence.
    pub async fn read_file(&self, skill: &str, path: &str) -> Result<String, String> {
        let set = self.current();
        let Some(found) = set.find(skill) else { return Err(unknown_skill(skill, set.names())) };
        if !found.files.iter().any(|file| file == path) {
            let near = did_you_mean(path, found.files.iter().map(String::as_str));
            return Err(format!("the skill `{skill}` has no file `{path}`{near}; it has {}", found.files.join(", ")));
        }
        let read = read_aside(found.dir.join(path), LONGEST_FILE).await;
        read.map_err(|why| format!("`{path}` of `{skill}`: {why}"))
    }

    /// The text of a skill's `SKILL.md`, as it is.
    ///
    /// # Errors
    /// There is no such skill, or its text can't be read now, in a sentence.
    pub async fn read_document(&self, skill: &str) -> Result<String, String> {
        let set = self.current();
        let Some(found) = set.find(skill) else { return Err(unknown_skill(skill, set.names())) };
        let read = read_aside(found.dir.join(DOCUMENT), LONGEST).await;
        read.map_err(|why| format!("`{DOCUMENT}` of `{skill}`: {why}"))
    }
}

/// The text of a file, read on a thread that may wait.
async fn read_aside(file: PathBuf, most: u64) -> Result<String, String> {
    let read = tokio::task::spawn_blocking(move || read_text(&file, most)).await;
    read.unwrap_or_else(|_| Err("it can't be read".into()))
}

/// The sentence that there is no such skill.
pub fn unknown_skill<'a>(name: &str, known: impl Iterator<Item = &'a str>) -> String {
    let known: Vec<&str> = known.collect();
    if known.is_empty() {
        return format!("there is no skill `{name}`");
    }
    let near = did_you_mean(name, known.iter().copied());
    format!("there is no skill `{name}`{near}; there are {}", known.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_no_tool_and_of_no_model_are_findings() {
        let findings = |allowed: Option<&[&str]>, model: Option<&str>| {
            let allowed_tools = allowed.map(|names| names.iter().map(|name| (*name).to_owned()).collect());
            let metadata = model.map(|model| ("model".to_owned(), model.to_owned())).into_iter().collect();
            let document = SkillDocument { allowed_tools, metadata, ..SkillDocument::default() };
            let skill = Skill { document, dir: PathBuf::new(), files: vec![], warnings: vec!["odd".into()] };
            skill.findings(&["http_send", "use_skill"], &["main"])
        };
        assert_eq!(findings(Some(&["use_skill", "http_send"]), Some("main")), ["odd"]);
        assert_eq!(findings(Some(&[]), None), ["odd"], "nothing is named");
        assert_eq!(
            findings(Some(&["Read", "Bash(git:*)"]), Some("mian")),
            [
                "odd",
                "its `allowed-tools` has no tool that there is here, so it may call none: `Read`, `Bash(git:*)`",
                "the agent's own model answers: its `metadata.model` is `mian`, which is not in [llm.models]; \
                 did you mean `main`?",
            ]
        );
        assert_eq!(
            findings(Some(&["http_sent", "use_skill"]), None)[1],
            "its `allowed-tools` has names of no tool here: `http_sent`; did you mean `http_send`?"
        );
    }

    #[test]
    fn name_below_a_server_is_known_while_the_server_is_away() {
        let told = |allowed: &[&str]| {
            let allowed: Vec<String> = allowed.iter().map(|name| (*name).to_owned()).collect();
            unknown_tools(&allowed, &["use_skill", "github.*"])
        };
        assert_eq!(told(&["use_skill", "github.search"]), None);
        assert!(told(&["github.search", "gitlab.search"]).is_some_and(|why| why.ends_with(": `gitlab.search`")));
    }
}
