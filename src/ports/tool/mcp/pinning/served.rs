//! The definitions that a server serves now, whether anybody has accepted them or not.

use std::collections::HashMap;
use std::sync::RwLock;

use crate::domain::approval::SeenDefinition;

/// Hashes of definitions, by the names of their tools at the server.
#[derive(Default)]
pub struct ServedDefinitions(RwLock<HashMap<String, String>>);

impl ServedDefinitions {
    /// Takes the definitions of a list in place of those before. `unfit`: tools that it names with a definition that
    /// can't be used.
    pub fn put(&self, seen: &[SeenDefinition], unfit: &[&str]) {
        // no definition has an empty hash, so each is another one than theirs
        let unfit = unfit.iter().map(|tool| ((*tool).to_owned(), String::new()));
        let seen = seen.iter().map(|seen| (seen.tool.clone(), seen.hash.clone()));
        // of two tools of one name the one that can be used counts
        let served = unfit.chain(seen).collect();
        *self.0.write().expect("the lock of served definitions") = served;
    }

    /// Whether the server serves the tool with another definition than the one of this hash.
    pub fn is_other(&self, tool: &str, hash: &str) -> bool {
        self.0.read().expect("the lock of served definitions").get(tool).is_some_and(|served| served != hash)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn definition_is_another_only_where_the_server_serves_one_of_another_hash() {
        let served = ServedDefinitions::default();
        assert!(!served.is_other("echo", "1"), "nothing was listed yet");
        let seen = |hash: &str| SeenDefinition { tool: "echo".into(), hash: hash.into(), text: String::new() };
        served.put(&[seen("1")], &[]);
        assert!(!served.is_other("echo", "1") && served.is_other("echo", "2") && !served.is_other("gone", "2"));
        served.put(&[seen("2")], &[]);
        assert!(served.is_other("echo", "1") && !served.is_other("echo", "2"));
        served.put(&[seen("2")], &["echo"]);
        assert!(!served.is_other("echo", "2"), "the one that can be used counts");
        served.put(&[], &["echo"]);
        assert!(served.is_other("echo", "1") && served.is_other("echo", "2") && !served.is_other("gone", "2"));
        served.put(&[], &[]);
        assert!(!served.is_other("echo", "1"), "a tool that is gone is away, and not another");
    }
}
