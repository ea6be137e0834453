//! The words for the owner of a task of which a tool waits for the operator. Nothing of them is the server's but the
//! name of the tool.

use crate::domain::notification::MessageLanguage;

/// Subject and text of the notice that the definition of a tool that a task names is changed, or new.
pub fn tool_changed(language: MessageLanguage, task_name: &str, tool: &str, is_new: bool) -> (String, String) {
    match language {
        MessageLanguage::English => {
            let what = if is_new { "is new" } else { "has changed" };
            let text = format!(
                "The tool `{tool}`, which the task \"{task_name}\" names, {what}: its server describes it in words that the \
                 operator has yet to accept. Until then nobody uses the tool, and runs that name it wait for half an hour and \
                 fail then. Other tasks may name it, too. You hear of this change once."
            );
            (format!("A tool waits: {task_name}"), text)
        }
        MessageLanguage::German => {
            let what = if is_new { "ist neu" } else { "hat sich geändert" };
            let text = format!(
                "Das Werkzeug `{tool}`, das die Aufgabe „{task_name}“ nennt, {what}: Sein Server beschreibt es mit Worten, die \
                 der Betreiber noch annehmen muss. Bis dahin benutzt es niemand; Läufe, die es nennen, warten eine halbe Stunde \
                 und schlagen dann fehl. Auch andere Aufgaben können es nennen. Von dieser Änderung hören Sie einmal."
            );
            (format!("Ein Werkzeug wartet: {task_name}"), text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_of_a_tool_names_it_and_its_task_in_the_language_of_its_reader() {
        for (language, subject, words) in [
            (MessageLanguage::English, "A tool waits: Post", ["is new", "has changed", "\"Post\""]),
            (MessageLanguage::German, "Ein Werkzeug wartet: Post", ["ist neu", "hat sich geändert", "„Post“"]),
        ] {
            let [new, changed] = [true, false].map(|is_new| tool_changed(language, "Post", "github.merge", is_new));
            assert_eq!((new.0.as_str(), changed.0.as_str()), (subject, subject));
            assert!(new.1.contains(words[0]) && changed.1.contains(words[1]), "{new:?} {changed:?}");
            for (_, text) in [new, changed] {
                assert!(text.contains("`github.merge`") && text.contains(words[2]), "{text}");
            }
        }
    }
}
