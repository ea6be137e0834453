//! No method of the store without a case.

use std::path::{Path, PathBuf};

fn sources(folder: &Path, found: &mut Vec<PathBuf>) {
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            sources(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

fn text_of(folder: &str) -> String {
    let mut files = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join(folder), &mut files);
    files.into_iter().map(|file| std::fs::read_to_string(file).unwrap()).collect()
}

#[test]
fn every_public_method_of_the_store_is_called_by_a_case() {
    let store = text_of("src/store");
    let cases = text_of("tests/it/conformance");
    let methods: Vec<&str> =
        store.split("    pub async fn ").skip(1).map(|rest| rest.split(['(', '<']).next().unwrap()).collect();
    assert!(methods.len() > 40, "only {} methods found", methods.len());
    let without: Vec<_> = methods
        .into_iter()
        .filter(|method| ![format!(".{method}("), format!("::{method}(")].iter().any(|call| cases.contains(call)))
        .collect();
    assert!(without.is_empty(), "no case in tests/it/conformance calls {without:?}");
}
