//! One source file as text: its code without comments and strings, and the paths in it.

use std::path::Path;

/// Folders of `src` that group modules by their kind.
pub const GROUPS: [&str; 3] = ["base", "domain", "ports"];

/// A file of the tree.
pub struct Source {
    /// From the root of the package, with `/`.
    pub path: String,
    pub raw: String,
    /// `raw` with comments and literals blanked, line for line the same.
    code: String,
}

/// A comment of one or more lines.
pub struct Comment {
    pub marker: &'static str,
    /// The text of each line without the marker, with the line's number.
    pub lines: Vec<(usize, String)>,
}

impl Comment {
    fn ends_at(&self) -> usize {
        self.lines.last().map_or(0, |(line, _)| *line)
    }

    pub fn is_doc(&self) -> bool {
        matches!(self.marker, "///" | "//!")
    }

    /// The words of all lines, each with the number of its line.
    pub fn words(&self) -> impl Iterator<Item = (usize, &str)> {
        self.lines.iter().flat_map(|(line, text)| text.split_whitespace().map(|word| (*line, word)))
    }
}

/// A path into this crate, without the leading `crate::`.
#[derive(Debug, PartialEq)]
pub struct Import {
    /// One to three names, without the folder that only groups modules: `clock` or `store::tasks`.
    pub path: String,
    pub line: usize,
}

impl Source {
    pub fn new(path: &str, raw: &str) -> Source {
        Source { path: path.to_owned(), raw: raw.to_owned(), code: blank(raw) }
    }

    /// Every file with one of these extensions below `folders` of `root`, in order.
    pub fn read_all(root: &Path, folders: &[&str], extensions: &[&str]) -> Vec<Source> {
        let mut found = Vec::new();
        let mut folders: Vec<_> = folders.iter().map(|folder| root.join(folder)).collect();
        while let Some(folder) = folders.pop() {
            for entry in std::fs::read_dir(&folder).expect("a folder of the tree") {
                let path = entry.expect("an entry").path();
                if path.is_dir() {
                    folders.push(path);
                } else if path.extension().is_some_and(|extension| extensions.iter().any(|one| extension == *one)) {
                    let name =
                        path.strip_prefix(root).expect("a path below the root").to_str().expect("a name in UTF-8");
                    found.push(Source::new(name, &std::fs::read_to_string(&path).expect("a source in UTF-8")));
                }
            }
        }
        found.sort_by(|a, b| a.path.cmp(&b.path));
        found
    }

    /// Its module: `store` for `src/store/tasks.rs`, `task` for `src/domain/task/draft.rs`.
    pub fn module(&self) -> &str {
        let path = self.path.strip_prefix("src/").unwrap_or(&self.path).trim_end_matches(".rs");
        let mut names = path.split('/');
        let first = names.next().unwrap_or(path);
        if GROUPS.contains(&first) { names.next().unwrap_or(first) } else { first }
    }

    /// Whether it is one of these files or lies in one of these folders; `src/http` is `src/http.rs` as well.
    pub fn is_one_of(&self, places: &[&str]) -> bool {
        places.iter().any(|place| {
            let rest = self.path.strip_prefix(place);
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/') || rest == ".rs")
        })
    }

    /// The code's lines before the tests, numbered from 1.
    pub fn code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code_before_tests().lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    /// The code's lines with those of the tests, numbered from 1.
    pub fn all_code_lines(&self) -> impl Iterator<Item = (usize, &str)> {
        self.code.lines().enumerate().map(|(index, line)| (index + 1, line))
    }

    pub fn lines_without_tests(&self) -> usize {
        self.code_before_tests().lines().count()
    }

    /// The comments, each with its marker, in order: lines that follow each other are one comment.
    pub fn comments(&self) -> Vec<Comment> {
        let mut comments: Vec<Comment> = Vec::new();
        for (index, (raw, code)) in self.raw.lines().zip(self.code.lines()).enumerate() {
            let Some((marker, text)) = self.comment_of(raw, code) else { continue };
            let line = (index + 1, text.trim().to_owned());
            match comments.last_mut() {
                Some(last) if last.marker == marker && last.ends_at() + 1 == line.0 => last.lines.push(line),
                _ => comments.push(Comment { marker, lines: vec![line] }),
            }
        }
        comments
    }

    /// The marker and the text of the comment at the end of a line.
    fn comment_of<'a>(&self, raw: &'a str, code: &str) -> Option<(&'static str, &'a str)> {
        let (text, markers): (&str, &[&str]) = match self.path.rsplit_once('.') {
            Some((_, "rs")) => {
                let length = code.trim_end().chars().count();
                let from = raw.char_indices().nth(length).map_or(raw.len(), |(at, _)| at);
                (&raw[from..], &["///", "//!", "//"])
            }
            Some((_, "sql")) => (raw, &["--"]),
            _ => (raw, &["#"]),
        };
        let text = text.trim_start();
        let marker = markers.iter().find(|marker| text.starts_with(**marker))?;
        Some((marker, &text[marker.len()..]))
    }

    /// Every `crate::…`, in `use` lists and inline.
    pub fn imports(&self) -> Vec<Import> {
        let code = self.code_before_tests();
        let mut found = Vec::new();
        for (at, _) in code.match_indices("crate::") {
            if code[..at].ends_with(is_name) {
                continue;
            }
            let line = code[..at].matches('\n').count() + 1;
            for path in heads(&code[at + "crate::".len()..]) {
                let path = match path.split_once("::") {
                    Some((group, path)) if GROUPS.contains(&group) => path.to_owned(),
                    _ => path,
                };
                found.push(Import { path, line });
            }
        }
        found
    }

    /// The lines whose code has this name, those aside that name it only as `declared` does and not from the root.
    pub fn lines_that_name(&self, name: &str, declared: Option<&str>) -> Vec<usize> {
        let names_it = |line: &str| line.split(|c| !is_name(c)).any(|word| word == name);
        let is_declared =
            |line: &str| declared.is_some_and(|text| line.contains(text)) && !line.contains(&format!("crate::{name}"));
        let lines = self.all_code_lines().filter(|(_, line)| names_it(line) && !is_declared(line));
        lines.map(|(line, _)| line).collect()
    }

    /// The lines where a chain of `super::` reaches the top of the crate.
    pub fn climbs_to_the_root(&self) -> Vec<usize> {
        let depth = self.path.matches('/').count();
        let chain = "super::".repeat(depth);
        self.code_lines().filter(|(_, line)| line.contains(&chain)).map(|(line, _)| line).collect()
    }

    /// The lines that name the crate in a path or a `use`.
    pub fn uses_of_crate(&self, name: &str) -> Vec<usize> {
        let names_it = |line: &str| {
            line.match_indices(&format!("{name}::")).any(|(at, _)| {
                let before = &line[..at];
                !before.ends_with(is_name) && (!before.ends_with("::") || before.trim_end() == "::")
            }) || line.trim() == format!("use {name};")
        };
        self.code_lines().filter(|(_, line)| names_it(line)).map(|(line, _)| line).collect()
    }

    /// Tests may use what they like, and are as long as they are.
    pub fn code_before_tests(&self) -> &str {
        let end = self.code.find("#[cfg(test)]\nmod tests").unwrap_or(self.code.len());
        &self.code[..end]
    }
}

fn is_name(c: char) -> bool {
    c.is_alphanumeric() || c == '_'
}

/// The first three names of each path of a tree: `a::{b::{c, d}, e}` → `a::b::c`, `a::b::d`, `a::e`.
fn heads(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    expand(text, &[], &mut found);
    found
}

/// Takes one path or tree off the text, and answers what follows it.
fn expand<'a>(text: &'a str, before: &[&'a str], found: &mut Vec<String>) -> &'a str {
    let text = text.trim_start();
    if let Some(mut rest) = text.strip_prefix('{') {
        loop {
            rest = rest.trim_start();
            match rest.chars().next() {
                None => return rest,
                Some('}') => return &rest[1..],
                Some(',') => rest = &rest[1..],
                Some(_) => {
                    let after = expand(rest, before, found);
                    // neither a name nor a group
                    rest = if after.len() == rest.len() { &rest[1..] } else { after };
                }
            }
        }
    }
    let length = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
    let (name, rest) = text.split_at(length);
    if name.is_empty() {
        return text;
    }
    let path: Vec<&str> = before.iter().copied().chain([name]).collect();
    match rest.strip_prefix("::").filter(|_| path.len() < 3) {
        Some(rest) if rest.starts_with(|c: char| is_name(c) || c == '{') => expand(rest, &path, found),
        _ => {
            found.push(path.join("::"));
            rest
        }
    }
}

/// Blanks comments, strings and characters; keeps every line where it is.
fn blank(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let skipped = literal_or_comment(rest, out.ends_with(is_name));
        let length = if skipped > 0 { skipped } else { c.len_utf8() };
        match skipped {
            0 => out.push(c),
            _ => out.extend(rest[..length].chars().map(|c| if c == '\n' { '\n' } else { ' ' })),
        }
        rest = &rest[length..];
    }
    out
}

/// The length in bytes of the comment or literal that `text` begins with; 0 where it begins with code.
fn literal_or_comment(text: &str, within_name: bool) -> usize {
    if text.starts_with("//") {
        return text.find('\n').unwrap_or(text.len());
    }
    if text.starts_with("/*") {
        return text.find("*/").map_or(text.len(), |end| end + 2);
    }
    if !within_name && text.starts_with('r') {
        let hashes = text[1..].chars().take_while(|c| *c == '#').count();
        if text[1 + hashes..].starts_with('"') {
            let close = format!("\"{}", "#".repeat(hashes));
            let from = hashes + 2;
            return text[from..].find(&close).map_or(text.len(), |end| from + end + close.len());
        }
    }
    match text.as_bytes() {
        [b'"', ..] => quoted(text, '"'),
        // a character, not a lifetime
        [b'\'', b'\\', ..] => quoted(text, '\''),
        [b'\'', ..] => match text.char_indices().nth(2) {
            Some((at, '\'')) => at + 1,
            _ => 0,
        },
        _ => 0,
    }
}

/// The length of a literal with escapes, both quotes included.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}
