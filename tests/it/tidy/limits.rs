//! The table of `docs/limits.md` against the constants that it names: a bound that changes in one place changes in
//! both.

use std::path::Path;

/// The text of a row, and the constants that it names, each with its file.
pub struct Row {
    what: String,
    bound: String,
    pub constants: Vec<(String, String)>,
}

#[test]
fn page_of_limits_says_what_the_code_does() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let read = |path: &str| std::fs::read_to_string(root.join(path)).map_err(|error| format!("{path}: {error}"));
    let page = read("docs/limits.md").expect("the page");
    let rows = rows(&page);
    assert!(rows.len() > 30, "the table was not found");
    let found: Vec<String> = rows.iter().flat_map(|row| faults(row, read)).collect();
    assert!(found.is_empty(), "\n{}\n", found.join("\n"));
}

#[test]
fn each_fault_of_a_row_is_found() {
    let source = "pub const MOST: usize = 4 * 1_024;\nconst LEAST: u64 = 7;\n";
    let fault = |bound: &str, name: &str| {
        let row = Row { what: "a text".into(), bound: bound.into(), constants: vec![("a.rs".into(), name.into())] };
        faults(&row, |_| Ok(source.to_owned())).concat()
    };
    assert_eq!(fault("4,096 bytes", "MOST") + &fault("7", "LEAST"), "");
    assert_eq!(fault("4,097 bytes", "MOST"), "a text: `MOST` is 4,096, the page says `4,097 bytes`");
    assert_eq!(fault("14,096 bytes", "MOST"), "a text: `MOST` is 4,096, the page says `14,096 bytes`");
    assert_eq!(fault("7", "GONE"), "a text: there is no number `GONE` in a.rs");
}

/// The rows that name constants, as `` `FILE: NAME` ``.
pub fn rows(page: &str) -> Vec<Row> {
    let cells = |line: &str| line.trim_matches('|').split(" | ").map(|cell| cell.trim().to_owned()).collect::<Vec<_>>();
    let lines = page.lines().filter(|line| line.starts_with('|') && line.contains(".rs: "));
    lines
        .map(|line| {
            let cells = cells(line);
            let named = cells[2].split('`').filter_map(|code| code.split_once(".rs: "));
            let constants = named.map(|(path, name)| (format!("{path}.rs"), name.to_owned())).collect();
            Row { what: cells[0].clone(), bound: cells[1].clone(), constants }
        })
        .collect()
}

fn faults(row: &Row, read: impl Fn(&str) -> Result<String, String>) -> Vec<String> {
    let Row { what, bound, constants } = row;
    let fault = |(path, name): &(String, String)| {
        let source = match read(path) {
            Ok(source) => source,
            Err(error) => return Some(format!("{what}: {error}")),
        };
        let Some(number) = constant(&source, name) else {
            return Some(format!("{what}: there is no number `{name}` in {path}"));
        };
        let shown = thousands(number);
        let said = bound.split(|c: char| !c.is_ascii_digit() && c != ',').any(|word| word == shown);
        (!said).then(|| format!("{what}: `{name}` is {shown}, the page says `{bound}`"))
    };
    constants.iter().filter_map(fault).collect()
}

/// The value of `const NAME: … = 2 * 1_024;`, also where it is the end of a range.
pub fn constant(source: &str, name: &str) -> Option<u64> {
    let (_, rest) = source.split_once(&format!("const {name}: "))?;
    let value = rest.split_once(';')?.0.split_once('=')?.1;
    value.split('*').map(|factor| factor.trim().replace('_', "").parse::<u64>().ok()).product()
}

pub fn thousands(number: u64) -> String {
    let digits = number.to_string();
    let groups: Vec<&str> =
        digits.as_bytes().rchunks(3).rev().map(|group| std::str::from_utf8(group).unwrap()).collect();
    groups.join(",")
}
