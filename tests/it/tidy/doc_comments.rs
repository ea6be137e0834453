//! Doc comments: each type, function and constant that another module may name says what it is.
//!
//! The compiler asks for them only where a name leaves the crate.

use super::source::Source;

/// Folders of items that nobody but their own command or measurement reads.
const UNDESCRIBED: [&str; 2] = ["src/cli", "src/bench"];

/// Keywords that begin the declaration of a type.
const TYPES: [&str; 5] = ["struct ", "enum ", "trait ", "type ", "union "];

/// Keywords that begin the declaration of a function or a constant.
const VALUES: [&str; 4] = ["fn ", "async fn ", "const fn ", "const "];

/// The public items of the product, private modules included, that have no doc comment.
pub fn undescribed_items(sources: &[Source]) -> Vec<String> {
    let of_product = |source: &&Source| source.path.starts_with("src/") && !source.is_one_of(&UNDESCRIBED);
    sources.iter().filter(of_product).flat_map(undescribed).collect()
}

fn undescribed(source: &Source) -> Vec<String> {
    let name = |line| public_type(line).or_else(|| public_value(line));
    let named = source.code_lines().filter_map(|(number, line)| name(line).map(|name| (number, name)));
    let bare = named.filter(|(number, _)| !is_described(source, *number));
    bare.map(|(number, name)| format!("{}:{number}: `{name}` has no doc comment", source.path)).collect()
}

/// The name of the public type that a line begins to declare, at any depth.
fn public_type(line: &str) -> Option<&str> {
    let rest = line.trim_start().strip_prefix("pub")?;
    let declared = match rest.strip_prefix('(') {
        Some(rest) => rest.split_once(") ")?.1,
        None => rest.strip_prefix(' ')?,
    };
    declared_name(declared, &TYPES)
}

/// The name of the function or constant that a line begins to declare for the whole crate, at any depth.
fn public_value(line: &str) -> Option<&str> {
    declared_name(line.trim_start().strip_prefix("pub ")?, &VALUES)
}

fn declared_name<'a>(declared: &'a str, keywords: &[&str]) -> Option<&'a str> {
    let name = keywords.iter().find_map(|keyword| declared.strip_prefix(keyword))?;
    let end = name.find(|c: char| !c.is_alphanumeric() && c != '_').unwrap_or(name.len());
    // a macro names its items by its parameters
    (end > 0).then(|| &name[..end])
}

/// Whether a doc comment stands above this line, with nothing but attributes between them.
fn is_described(source: &Source, number: usize) -> bool {
    let above: Vec<(&str, &str)> =
        source.raw.lines().zip(source.all_code_lines()).map(|(raw, (_, code))| (raw, code)).take(number - 1).collect();
    // brackets of an attribute that begins further up
    let mut closing = 0_i64;
    for (raw, code) in above.into_iter().rev() {
        if closing == 0 && raw.trim_start().starts_with("///") {
            return true;
        }
        closing += code.matches(']').count() as i64 - code.matches('[').count() as i64;
        if closing == 0 && !code.trim_start().starts_with("#[") {
            return false;
        }
    }
    false
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn public_items_without_a_doc_comment_are_found() {
        let found = |path: &str, text: &str| undescribed_items(&[Source::new(path, &format!("//! A.\n\n{text}"))]);
        let described = r#"/// Seen.
#[derive(Debug)]
#[schema(example = json!({
    "a": [1]
}))]
pub struct Seen;
struct Own;
/// Told.
pub const fn told() {}
pub(super) fn own() {}
"#;
        assert_eq!(found("src/a.rs", described), [""; 0]);
        let bare = r#"/// Own.
struct Own;
#[derive(Debug)]
pub(super) enum Seen {}
mod b {
    pub trait Inner {}
}
"#;
        let faults = ["src/a.rs:6: `Seen` has no doc comment", "src/a.rs:8: `Inner` has no doc comment"];
        assert_eq!(found("src/a.rs", bare), faults);
        assert_eq!(found("src/cli/a.rs", bare), [""; 0]);
        for value in
            ["pub async fn told() {}", "pub const fn told() {}", "    pub fn told() {}", "pub const told: u8 = 1;"]
        {
            assert_eq!(found("src/a.rs", value), ["src/a.rs:3: `told` has no doc comment"], "{value}");
        }
    }
}
