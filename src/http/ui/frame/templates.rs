//! The templates by their names: all markup of the dashboard.

/// Every template.
pub const TEMPLATES: &[(&str, &str)] = &[
    // the frame
    ("layout.html", include_str!("../templates/layout.html")),
    ("macros.html", include_str!("../templates/macros.html")),
    ("failure.html", include_str!("../templates/failure.html")),
    ("login.html", include_str!("../templates/login.html")),
    ("login_link.html", include_str!("../templates/login_link.html")),
    // work
    ("today.html", include_str!("../templates/today.html")),
    ("tasks.html", include_str!("../templates/tasks.html")),
    ("task.html", include_str!("../templates/task.html")),
    ("task_edit.html", include_str!("../templates/task_edit.html")),
    ("task_parts.html", include_str!("../templates/task_parts.html")),
    ("runs.html", include_str!("../templates/runs.html")),
    ("runs_bulk.html", include_str!("../templates/runs_bulk.html")),
    ("run.html", include_str!("../templates/run.html")),
    ("run_head.html", include_str!("../templates/run_head.html")),
    ("run_about.html", include_str!("../templates/run_about.html")),
    ("run_list.html", include_str!("../templates/run_list.html")),
    ("run_said.html", include_str!("../templates/run_said.html")),
    ("run_rows.html", include_str!("../templates/run_rows.html")),
    ("run_detail.html", include_str!("../templates/run_detail.html")),
    ("events.html", include_str!("../templates/events.html")),
    ("event.html", include_str!("../templates/event.html")),
    ("publish.html", include_str!("../templates/publish.html")),
    ("dead_letters.html", include_str!("../templates/dead_letters.html")),
    ("dead_letters_bulk.html", include_str!("../templates/dead_letters_bulk.html")),
    ("dead_letter.html", include_str!("../templates/dead_letter.html")),
    ("deliveries.html", include_str!("../templates/deliveries.html")),
    ("delivery.html", include_str!("../templates/delivery.html")),
    // people
    ("approvals.html", include_str!("../templates/approvals.html")),
    ("approval.html", include_str!("../templates/approval.html")),
    ("grants.html", include_str!("../templates/grants.html")),
    // parts of the link page of a question, which the page of an approval shows, too
    ("approval_all.html", include_str!("../../pages/approval_all.html")),
    ("approval_asker.html", include_str!("../../pages/approval_asker.html")),
    ("approval_card.html", include_str!("../../pages/approval_card.html")),
    ("approval_changes.html", include_str!("../../pages/approval_changes.html")),
    ("approval_controls.html", include_str!("../../pages/approval_controls.html")),
    ("approval_faults.html", include_str!("../../pages/approval_faults.html")),
    ("approval_field.html", include_str!("../../pages/approval_field.html")),
    ("approval_head.html", include_str!("../../pages/approval_head.html")),
    ("approval_no_answer.html", include_str!("../../pages/approval_no_answer.html")),
    ("approval_questions.html", include_str!("../../pages/approval_questions.html")),
    ("approval_settled.html", include_str!("../../pages/approval_settled.html")),
    ("rows.html", include_str!("../../pages/rows.html")),
    ("inbox.html", include_str!("../templates/inbox.html")),
    ("inbox_rows.html", include_str!("../templates/inbox_rows.html")),
    ("inbox_agents.html", include_str!("../templates/inbox_agents.html")),
    ("inbox_question.html", include_str!("../templates/inbox_question.html")),
    ("conversations.html", include_str!("../templates/conversations.html")),
    ("conversation.html", include_str!("../templates/conversation.html")),
    ("memory.html", include_str!("../templates/memory.html")),
    ("fact.html", include_str!("../templates/fact.html")),
    ("fact_new.html", include_str!("../templates/fact_new.html")),
    ("recipients.html", include_str!("../templates/recipients.html")),
    ("recipient.html", include_str!("../templates/recipient.html")),
    ("credentials.html", include_str!("../templates/credentials.html")),
    ("credential.html", include_str!("../templates/credential.html")),
    ("connect_account.html", include_str!("../templates/connect_account.html")),
    ("removal.html", include_str!("../templates/removal.html")),
    // operations
    ("tools.html", include_str!("../templates/tools.html")),
    ("tool.html", include_str!("../templates/tool.html")),
    ("skills.html", include_str!("../templates/skills.html")),
    ("skill.html", include_str!("../templates/skill.html")),
    ("budgets.html", include_str!("../templates/budgets.html")),
    ("budgets_switch.html", include_str!("../templates/budgets_switch.html")),
    ("usage.html", include_str!("../templates/usage.html")),
    ("audit.html", include_str!("../templates/audit.html")),
    ("system.html", include_str!("../templates/system.html")),
];

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    /// Each tag that begins so, with what follows it.
    fn tags<'t>(text: &'t str, beginning: &str) -> Vec<(&'t str, &'t str)> {
        text.match_indices(beginning).filter_map(|(at, _)| text[at..].split_once('>')).collect()
    }

    /// The words of markup that are read.
    fn words(markup: &str) -> String {
        let parts = markup.split('<').enumerate();
        parts.map(|(at, part)| if at == 0 { part } else { part.split_once('>').map_or("", |(_, text)| text) }).collect()
    }

    #[test]
    fn cells_have_the_name_of_their_column_for_narrow_screens_and_tables_have_captions() {
        for (name, text) in TEMPLATES {
            let heads = tags(text, "<th scope").into_iter();
            let heads: BTreeSet<String> =
                heads.filter_map(|(_, rest)| Some(words(rest.split_once("</th>")?.0))).collect();
            for (cell, _) in tags(text, "<td") {
                let label = cell.split_once("data-label=\"").unwrap_or_else(|| panic!("{name}: {cell} has no name")).1;
                let label = label.split_once('"').expect("the end of a name").0;
                assert!(label.contains('{') || heads.contains(label), "{name}: `{label}` is none of {heads:?}");
            }
            for (_, rest) in tags(text, "<table") {
                assert!(rest.trim_start().starts_with("<caption"), "{name}: a table without a caption");
            }
        }
    }

    #[test]
    fn buttons_that_do_nothing_without_script_are_hidden_without_it() {
        for (name, text) in TEMPLATES {
            for (button, _) in tags(text, "<button") {
                assert!(!button.contains("data-copy") || button.ends_with(" hidden"), "{name}: {button}");
            }
        }
    }
}
