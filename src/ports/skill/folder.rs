//! Folders of skills, as they lie on the disk.

use std::io::Read;
use std::path::{Path, PathBuf};

use crate::ports::skill::document::{SkillReading, read};
use crate::ports::skill::{Skill, SkillSet, UnusableSkill};

/// Name of the file that makes a folder a skill.
pub const DOCUMENT: &str = "SKILL.md";
/// Skills at most; others are left out.
const MOST_SKILLS: usize = 200;
/// Files of a skill at most; others are left out.
const MOST_FILES: usize = 100;
/// Folders inside each other whose files are found.
const DEPTH: usize = 4;
/// Longest `SKILL.md`, in bytes.
pub const LONGEST: u64 = 256 * 1024;
/// Folders that are looked at for skills, at most.
const MOST_FOLDERS: usize = 1_000;
/// Entries of one folder that are looked at, at most.
const MOST_ENTRIES: usize = 2_000;

/// The skills in the folders of these folders; of two of one name, the first.
pub fn scan(dirs: &[PathBuf]) -> SkillSet {
    let mut set = SkillSet::default();
    for dir in dirs.iter().flat_map(|dir| folders_of(dir)).take(MOST_FOLDERS) {
        let Some(reading) = reading_of(&dir) else { continue };
        let SkillReading { document, mut warnings, mut faults } = reading;
        if faults.is_empty() && set.find(&document.name).is_some() {
            faults.push(format!("another folder has a skill `{}`", document.name));
        }
        if faults.is_empty() && set.skills.len() == MOST_SKILLS {
            faults.push(format!("there are {MOST_SKILLS} skills before it, and no more are used"));
        }
        if !faults.is_empty() {
            set.unusable.push(UnusableSkill { dir, faults });
            continue;
        }
        let mut files = Vec::new();
        add_files(&dir, "", DEPTH, &mut MOST_ENTRIES.clone(), &mut files);
        if files.len() > MOST_FILES {
            warnings.push(format!("it has more than {MOST_FILES} files; the others can't be read"));
            files.truncate(MOST_FILES);
        }
        set.skills.push(Skill { document, dir, files, warnings });
    }
    set.skills.sort_by(|one, other| one.document.name.cmp(&other.document.name));
    set
}

/// The folders in a folder, in the order of their names.
fn folders_of(dir: &Path) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten();
    let entries = entries.take(MOST_ENTRIES).map(|entry| entry.path());
    let mut folders: Vec<PathBuf> = entries.filter(|path| path.is_dir()).collect();
    folders.sort();
    folders
}

/// `None`: the folder is no skill.
fn reading_of(dir: &Path) -> Option<SkillReading> {
    let file = dir.join(DOCUMENT);
    std::fs::metadata(&file).ok()?;
    let folder = dir.file_name().unwrap_or_default().to_string_lossy().into_owned();
    Some(match read_text(&file, LONGEST) {
        Ok(text) => read(&text, &folder),
        Err(why) => SkillReading { faults: vec![format!("its {DOCUMENT}: {why}")], ..SkillReading::default() },
    })
}

/// The text of a file, if it is one and has so many bytes at the most. Nothing else is opened: a pipe or a device would
/// not end.
pub fn read_text(file: &Path, most: u64) -> Result<String, String> {
    let is_file = std::fs::metadata(file).map_err(|error| error.to_string())?.is_file();
    if !is_file {
        return Err("it is no file".into());
    }
    let mut bytes = Vec::new();
    let opened = std::fs::File::open(file).map_err(|error| error.to_string())?;
    opened.take(most + 1).read_to_end(&mut bytes).map_err(|error| error.to_string())?;
    if bytes.len() as u64 > most {
        return Err(format!("it has more than {most} bytes"));
    }
    String::from_utf8(bytes).map_err(|_| "it is no text".into())
}

/// Adds the files of a folder, without hidden ones and links. `left`: entries that may be looked at yet.
fn add_files(dir: &Path, within: &str, depth: usize, left: &mut usize, files: &mut Vec<String>) {
    let entries = std::fs::read_dir(dir).into_iter().flatten().flatten().take(*left);
    let mut entries: Vec<_> = entries.map(|entry| (entry.file_name().to_string_lossy().into_owned(), entry)).collect();
    *left -= entries.len();
    entries.sort_by(|(one, _), (other, _)| one.cmp(other));
    for (name, entry) in entries {
        let Ok(kind) = entry.file_type() else { continue };
        let path = if within.is_empty() { name.clone() } else { format!("{within}/{name}") };
        match () {
            _ if name.starts_with('.') || files.len() > MOST_FILES => {}
            _ if kind.is_file() && path != DOCUMENT => files.push(path),
            _ if kind.is_dir() && depth > 1 => add_files(&entry.path(), &path, depth - 1, left, files),
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Scratch(PathBuf);

    impl Scratch {
        fn new() -> Scratch {
            Scratch(std::env::temp_dir().join(format!("reveille-skills-{:016x}", fastrand::u64(..))))
        }

        fn file(&self, path: &str, text: &str) {
            let file = self.0.join(path);
            std::fs::create_dir_all(file.parent().unwrap()).unwrap();
            std::fs::write(file, text).unwrap();
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn skill(name: &str) -> String {
        format!("---\nname: {name}\ndescription: Does {name}.\n---\nDo it.")
    }

    #[test]
    fn skills_are_found_with_their_files_and_others_with_what_is_wrong() {
        let scratch = Scratch::new();
        scratch.file("one/b/SKILL.md", &skill("b"));
        scratch.file("one/b/references/table.md", "x");
        scratch.file("one/b/.hidden", "x");
        scratch.file("one/a/SKILL.md", &skill("a"));
        scratch.file("one/none/readme.md", "x");
        scratch.file("two/a/SKILL.md", &skill("a"));
        std::os::unix::fs::symlink("/etc/passwd", scratch.0.join("one/b/link")).unwrap();
        let set = scan(&[scratch.0.join("one"), scratch.0.join("two"), scratch.0.join("three")]);
        assert_eq!(set.names().collect::<Vec<_>>(), ["a", "b"]);
        assert_eq!(set.find("b").unwrap().files, ["references/table.md"], "links and hidden files are not followed");
        assert_eq!(set.unusable[0].faults, ["another folder has a skill `a`"]);
    }

    #[test]
    fn document_is_read_at_its_longest_and_refused_one_byte_beyond_it_and_where_it_is_no_file() {
        let scratch = Scratch::new();
        let long = |bytes: u64| format!("{}{}", skill("a"), "x".repeat(bytes as usize - skill("a").len()));
        let dirs = [scratch.0.join("s")];
        scratch.file("s/a/SKILL.md", &long(LONGEST));
        assert_eq!((scan(&dirs).skills.len(), scan(&dirs).unusable.len()), (1, 0));
        scratch.file("s/a/SKILL.md", &long(LONGEST + 1));
        assert_eq!(scan(&dirs).unusable[0].faults, ["its SKILL.md: it has more than 262144 bytes"]);
        std::fs::remove_file(scratch.0.join("s/a/SKILL.md")).unwrap();
        std::os::unix::fs::symlink("/dev/zero", scratch.0.join("s/a/SKILL.md")).unwrap();
        assert_eq!(scan(&dirs).unusable[0].faults, ["its SKILL.md: it is no file"]);
    }

    #[test]
    fn files_and_skills_are_found_up_to_their_most() {
        let scratch = Scratch::new();
        scratch.file("s/a/SKILL.md", &skill("a"));
        (0..MOST_FILES).for_each(|number| scratch.file(&format!("s/a/{number:03}"), "x"));
        let dirs = [scratch.0.join("s")];
        assert_eq!((scan(&dirs).skills[0].files.len(), scan(&dirs).skills[0].warnings.len()), (MOST_FILES, 0));
        scratch.file("s/a/more", "x");
        assert_eq!((scan(&dirs).skills[0].files.len(), scan(&dirs).skills[0].warnings.len()), (MOST_FILES, 1));
        (1..MOST_SKILLS)
            .for_each(|number| scratch.file(&format!("s/b{number}/SKILL.md"), &skill(&format!("b{number}"))));
        assert_eq!((scan(&dirs).skills.len(), scan(&dirs).unusable.len()), (MOST_SKILLS, 0));
        scratch.file("s/c/SKILL.md", &skill("c"));
        assert_eq!((scan(&dirs).skills.len(), scan(&dirs).unusable.len()), (MOST_SKILLS, 1));
    }
}
