//! The notices about budgets: that most of one is used, and that one of a day is used up. Each is told once, of a day
//! or of a run, whatever runs and instances see it.

use std::sync::Arc;

use chrono::NaiveDate;
use uuid::Uuid;

use crate::domain::budget::{BudgetQuantity, BudgetScope, WARNED_AT_PERCENT};
use crate::domain::notification::{MessageLanguage, NewDelivery, NoticeKind, Recipient, SubjectRef, dedupe};
use crate::domain::task::{Output, Task};

/// Whom a run's owner is, for notices about the budgets that it spends.
#[derive(Debug, Clone)]
pub struct BudgetNotice {
    tenant_id: String,
    task_id: Uuid,
    task_name: String,
    output: Output,
    recipient: Option<Arc<Recipient>>,
}

impl BudgetNotice {
    /// For the runs of a task.
    pub fn new(task: &Task, recipient: Option<Arc<Recipient>>) -> BudgetNotice {
        BudgetNotice {
            tenant_id: task.tenant_id.clone(),
            task_id: task.id,
            task_name: task.name.clone(),
            output: task.spec.output.clone(),
            recipient,
        }
    }

    /// Whether it may be about this ledger: the tenant's own has no task but zeros.
    pub fn is_about(&self, tenant: &str, task_id: Uuid) -> bool {
        self.tenant_id == tenant && (task_id.is_nil() || task_id == self.task_id)
    }

    /// The notice about one ledger; `None` where nobody can be told. That of a tenant goes by its recipient's order, as
    /// it is about no single task.
    pub fn delivery(
        &self,
        (scope, quantity): (BudgetScope, BudgetQuantity),
        kind: NoticeKind,
        day: NaiveDate,
    ) -> Option<NewDelivery> {
        let language = Recipient::language_of(self.recipient.as_deref());
        let of_task = scope == BudgetScope::Task;
        let key = match of_task {
            true => dedupe::budget(kind, self.task_id, day),
            false => dedupe::budget(kind, &self.tenant_id, day),
        };
        let words = words(language, of_task.then_some(self.task_name.as_str()), quantity, kind);
        let about = (SubjectRef::Notice { notice: kind, task_id: self.task_id }, key);
        let output = if of_task { &self.output } else { &Output::default() };
        NewDelivery::notice_of(&self.tenant_id, output, self.recipient.as_deref(), about, words)
    }

    /// The notice that most of a run's own budget is used; `None` where nobody can be told.
    pub fn run_delivery(&self, run_id: Uuid, quantity: BudgetQuantity) -> Option<NewDelivery> {
        let words = run_words(Recipient::language_of(self.recipient.as_deref()), &self.task_name, quantity);
        let subject = SubjectRef::Notice { notice: NoticeKind::BudgetWarning, task_id: self.task_id };
        let about = (subject, dedupe::run_budget(run_id));
        NewDelivery::notice_of(&self.tenant_id, &self.output, self.recipient.as_deref(), about, words)
    }
}

/// Subject and text about one run of a task.
fn run_words(language: MessageLanguage, task: &str, quantity: BudgetQuantity) -> (String, String) {
    match language {
        MessageLanguage::English => {
            let of = match quantity {
                BudgetQuantity::Turns => "turns",
                BudgetQuantity::WallTime => "time",
                BudgetQuantity::Tokens => "tokens",
                BudgetQuantity::Cost => "money",
            };
            let text = format!(
                "A run of the task \"{task}\" has used {WARNED_AT_PERCENT} % of its budget of {of}. Once it is used up, the run ends \
                 without an answer."
            );
            (format!("A run has used {WARNED_AT_PERCENT} % of its budget: {task}"), text)
        }
        MessageLanguage::German => {
            let of = match quantity {
                BudgetQuantity::Turns => "Runden",
                BudgetQuantity::WallTime => "Zeit",
                BudgetQuantity::Tokens => "Token",
                BudgetQuantity::Cost => "Geld",
            };
            let text = format!(
                "Ein Lauf der Aufgabe „{task}“ hat {WARNED_AT_PERCENT} % seines Budgets ({of}) verbraucht. Wenn alles verbraucht ist, \
                 endet er ohne Antwort."
            );
            (format!("Ein Lauf hat {WARNED_AT_PERCENT} % seines Budgets verbraucht: {task}"), text)
        }
    }
}

/// Subject and text; without a task they are about all tasks of the tenant.
fn words(
    language: MessageLanguage,
    task: Option<&str>,
    quantity: BudgetQuantity,
    kind: NoticeKind,
) -> (String, String) {
    let used_up = kind == NoticeKind::BudgetUsedUp;
    match language {
        MessageLanguage::English => {
            let whose = task.map_or("all tasks together".to_owned(), |name| format!("the task \"{name}\""));
            let of = if quantity == BudgetQuantity::Cost { "money" } else { "tokens" };
            match used_up {
                false => (
                    format!("Budget at {WARNED_AT_PERCENT} %: {}", task.unwrap_or("all tasks")),
                    format!(
                        "Of the budget of {of} that {whose} may spend on models today, {WARNED_AT_PERCENT} % is used. Once it is \
                         used up, runs end without an answer until the next day (UTC) begins."
                    ),
                ),
                true => (
                    format!("Budget used up: {}", task.unwrap_or("all tasks")),
                    format!(
                        "Of the budget of {of} that {whose} may spend on models today, less is left than a call of a model may \
                         come to. Runs that need more end without an answer, or are skipped, until the next day (UTC) begins or \
                         the budget is raised."
                    ),
                ),
            }
        }
        MessageLanguage::German => {
            let whose = task.map_or("alle Aufgaben zusammen".to_owned(), |name| format!("die Aufgabe „{name}“"));
            let of = if quantity == BudgetQuantity::Cost { "Geld" } else { "Token" };
            match used_up {
                false => (
                    format!("Budget zu {WARNED_AT_PERCENT} % verbraucht: {}", task.unwrap_or("alle Aufgaben")),
                    format!(
                        "Vom heutigen Budget ({of}) für Modelle sind {WARNED_AT_PERCENT} % verbraucht; es gilt für {whose}. Wenn \
                         alles verbraucht ist, enden Läufe ohne Antwort, bis der nächste Tag (UTC) beginnt."
                    ),
                ),
                true => (
                    format!("Budget verbraucht: {}", task.unwrap_or("alle Aufgaben")),
                    format!(
                        "Vom heutigen Budget ({of}) für Modelle ist weniger übrig, als ein Aufruf eines Modells brauchen kann; es \
                         gilt für {whose}. Läufe, die mehr brauchen, enden ohne Antwort oder werden ausgelassen, bis der nächste \
                         Tag (UTC) beginnt oder das Budget erhöht wird."
                    ),
                ),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notice_is_about_a_task_or_all_of_them_in_the_language_of_its_reader() {
        for kind in [NoticeKind::BudgetWarning, NoticeKind::BudgetUsedUp] {
            let (subject, text) = words(MessageLanguage::English, Some("Post"), BudgetQuantity::Tokens, kind);
            assert!(subject.ends_with(": Post") && text.contains("of tokens that the task \"Post\""), "{text}");
            let (subject, text) = words(MessageLanguage::German, None, BudgetQuantity::Cost, kind);
            assert!(subject.ends_with(": alle Aufgaben") && text.contains("(Geld)"), "{text}");
            assert!(!text.contains(" the "), "{text}");
        }
        let (subject, text) = run_words(MessageLanguage::English, "Post", BudgetQuantity::WallTime);
        assert!(subject.ends_with(": Post") && text.contains("80 % of its budget of time"), "{text}");
        let (_, text) = run_words(MessageLanguage::German, "Post", BudgetQuantity::Turns);
        assert!(text.contains("(Runden)") && !text.contains(" the "), "{text}");
    }
}
