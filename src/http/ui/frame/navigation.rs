//! The pages by their names, and the sentences about what was just done.

use serde_json::{Value, json};

/// The pages of each section, each with its address.
const SECTIONS: [(&str, &[(&str, &str)]); 4] = [
    ("Now", &[("Today", "/ui"), ("Approvals", "/ui/approvals"), ("Inbox", "/ui/inbox")]),
    (
        "Work",
        &[
            ("Tasks", "/ui/tasks"),
            ("Runs", "/ui/runs"),
            ("Events", "/ui/events"),
            ("Dead letters", "/ui/dead-letters"),
            ("Deliveries", "/ui/deliveries"),
        ],
    ),
    (
        "People",
        &[
            ("Conversations", "/ui/conversations"),
            ("Memory", "/ui/memory"),
            ("Recipients", "/ui/recipients"),
            ("Credentials", "/ui/credentials"),
        ],
    ),
    (
        "Operations",
        &[
            ("Tools", "/ui/tools"),
            ("Skills", "/ui/skills"),
            ("Budgets", "/ui/budgets"),
            ("Usage", "/ui/usage"),
            ("Audit", "/ui/audit"),
            ("System", "/ui/system"),
        ],
    ),
];

/// Words by which an address says what was just done, each with its sentence.
const DONE: [(&str, &str); 31] = [
    ("accepted", "The tool’s definition is accepted."),
    ("added", "It was added."),
    ("all_dropped", "The dead letters were dropped."),
    ("all_replayed", "The events of the dead letters were published again."),
    ("answered", "Your answer was recorded."),
    ("backfilled", "The fires that were missed will run."),
    ("cancelled", "It was cancelled."),
    ("cancelling", "It was asked to end, and ends soon."),
    ("connected", "The account is connected."),
    ("corrected", "It was corrected."),
    ("created", "It was created."),
    ("decided", "Your decision was recorded."),
    ("deleted", "It was deleted."),
    ("disabled", "It is disabled."),
    ("dropped", "It was dropped."),
    ("enabled", "It is enabled."),
    ("paused", "It is paused."),
    ("published", "The event was published."),
    ("removed", "It was removed."),
    ("replayed", "It will be tried again."),
    ("requested", "The run was asked for. It is below as soon as it has begun."),
    ("resumed", "It goes on."),
    ("retried", "It will be tried again."),
    ("revoked", "It was revoked."),
    ("run_again", "The run was retried. This is the new run."),
    ("saved", "Your changes were saved."),
    ("sent", "It was sent."),
    ("signed-out", "You are signed out."),
    ("started", "Work goes on."),
    ("stopped", "Work is stopped."),
    ("tested", "A test message is on its way."),
];

/// The sections with their links; the page at this path, or that it is below of, is the current one.
pub fn sections(path: &str) -> Vec<Value> {
    let is_current = |href: &str| path == href || (href != "/ui" && path.starts_with(&format!("{href}/")));
    let link = |(name, href): &(&str, &str)| json!({ "name": name, "href": href, "is_current": is_current(href) });
    let section = |(name, links): (&str, &[(&str, &str)])| {
        let links: Vec<Value> = links.iter().map(link).collect();
        json!({ "name": name, "links": links })
    };
    SECTIONS.into_iter().map(section).collect()
}

/// The sentence of a word; none for a word that is not ours.
pub fn done(word: &str) -> Option<&'static str> {
    DONE.iter().find(|(known, _)| *known == word).map(|(_, sentence)| *sentence)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn current_page_is_the_one_that_the_path_is_at_or_below_of() {
        let current = |path: &str| {
            let links = sections(path).into_iter().flat_map(|section| section["links"].as_array().unwrap().clone());
            let current = links.filter(|link| link["is_current"] == true).map(|link| link["name"].clone());
            current.collect::<Vec<_>>()
        };
        assert_eq!(current("/ui"), ["Today"]);
        assert_eq!(current("/ui/tasks"), ["Tasks"]);
        assert_eq!(current("/ui/tasks/0199"), ["Tasks"]);
        assert!(current("/ui/tasksx").is_empty());
    }

    #[test]
    fn only_our_own_words_are_told() {
        assert_eq!(done("paused"), Some("It is paused."));
        assert_eq!(done("<script>"), None);
        assert!(DONE.is_sorted_by_key(|(word, _)| *word));
    }
}
