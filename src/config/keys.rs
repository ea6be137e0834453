//! Every key that the configuration knows, asked of serde itself, so that no list can rot.

use std::collections::BTreeSet;

use serde_path_to_error::{Path, Segment};
use toml::{Table, Value};

use super::Config;
use super::fault::expected_fields;

/// No key is called this.
const PROBE: &str = "\u{1}";
/// Stands for the name that the operator gives, as in `llm.models.*.provider`.
pub const ANY: &str = "*";
/// Stands for the entries of a list of tables, as in `agents.[].name`.
const EACH: &str = "[]";

/// The dotted paths of all keys that hold values, those without a default included.
pub fn all() -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    collect(&mut Vec::new(), &mut found);
    found
}

/// The keys that a reference file shows, the commented-out ones included, with [`ANY`] for the names in it.
pub fn shown_in(text: &str) -> BTreeSet<String> {
    let known = all();
    let (mut table, mut list) = (String::new(), None);
    let mut shown = BTreeSet::new();
    for line in text.lines().map(|line| example(line).unwrap_or(line)) {
        if let Some((name, _)) = line.strip_prefix('[').and_then(|line| line.split_once(']')) {
            let (entries, is_list) = name.strip_prefix('[').map_or((name, false), |entries| (entries, true));
            // a table or a list below the list is one of its last entry
            let below = list.as_ref().and_then(|list: &String| Some((list, entries.strip_prefix(list.as_str())?)));
            table = match (below, is_list) {
                (Some((list, below)), true) => format!("{list}{EACH}.{below}.{EACH}"),
                (Some((list, below)), false) => format!("{list}{EACH}.{below}"),
                (None, true) => {
                    list = Some(format!("{entries}."));
                    format!("{entries}.{EACH}")
                }
                (None, false) => entries.to_owned(),
            };
        } else if let Some((key, _)) = line.split_once(" = ").filter(|_| !line.starts_with('#')) {
            let path = format!("{table}.{key}");
            shown.insert(known.iter().find(|key| is_documented_as(key, &path)).unwrap_or(&path).clone());
        }
    }
    shown
}

/// The key or table that a commented-out line shows: `# key = value`, `# [table]`.
pub fn example(line: &str) -> Option<&str> {
    let line = line.strip_prefix("# ")?;
    let is_key = |key: &str| !key.is_empty() && key.chars().all(|c| c.is_ascii_lowercase() || c == '_');
    let shows = line.starts_with('[') || line.split_once(" = ").is_some_and(|(key, _)| is_key(key));
    shows.then_some(line)
}

fn is_documented_as(key: &str, path: &str) -> bool {
    let (key, path) = (key.split('.'), path.split('.'));
    key.clone().count() == path.clone().count()
        && key.zip(path).all(|(known, written)| known == ANY || known == written)
}

/// The keys of a path that serde reports.
pub(super) fn path_of(path: &Path) -> Vec<String> {
    path.iter()
        .filter_map(|segment| match segment {
            Segment::Seq { index } => Some(index.to_string()),
            Segment::Map { key } | Segment::Enum { variant: key } => Some(key.clone()),
            Segment::Unknown => None,
        })
        .collect()
}

/// Asks what stands at `path` by planting a key that can't be there.
fn collect(path: &mut Vec<String>, found: &mut BTreeSet<String>) {
    match fields_at(path) {
        Some(fields) => {
            for field in fields {
                path.push(field);
                collect(path, found);
                path.pop();
            }
        }
        None => {
            let mut leaf = true;
            for below in [ANY, EACH] {
                path.push(below.to_owned());
                if fields_at(path).is_some() {
                    leaf = false;
                    collect(path, found);
                }
                path.pop();
            }
            if leaf {
                found.insert(path.join("."));
            }
        }
    }
}

/// The fields of the struct at `path`; `None` where there is none.
fn fields_at(path: &[String]) -> Option<Vec<String>> {
    let planted = Table::from_iter([(PROBE.to_owned(), Value::Boolean(true))]);
    let nest = |below: Value, key: &String| match key.as_str() {
        EACH => Value::Array(vec![below]),
        _ => Value::Table(Table::from_iter([(key.clone(), below)])),
    };
    let document = path.iter().rev().fold(Value::Table(planted), nest);
    let error = serde_path_to_error::deserialize::<_, Config>(document).err()?;
    let at = path_of(error.path());
    let message = error.into_inner().message().to_owned();
    let here = at.len() == path.len() + 1 && message.starts_with("unknown field");
    here.then(|| expected_fields(&message).map(str::to_owned).collect())
}
