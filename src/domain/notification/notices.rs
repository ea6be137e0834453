//! The words of notices: what the owner of a task is told about it, in their language. They are written when it
//! happens, and kept with the delivery.

mod tool_changed;

use chrono::{DateTime, Utc};

use crate::base::expr::MissingField;
use crate::domain::notification::{MessageLanguage, NoticeKind, SubjectRef};
use crate::domain::task::Task;
use crate::domain::task::change::FaultyPart;
use crate::domain::trigger::condition::{ConditionNotice, PollFailures};
use crate::domain::trigger::zone::{Zone, ZoneRelease};

pub use tool_changed::tool_changed;

/// The notice to the owner of a condition about its poll: the subject as data with the key, and subject and text.
pub fn of_poll(
    language: MessageLanguage,
    task: &Task,
    notice: &ConditionNotice,
) -> ((SubjectRef, String), (String, String)) {
    // the instant at which it began tells one time of failing from the next
    let since = |kind, failing: &PollFailures| SubjectRef::notice(kind, task.id, failing.since.timestamp_millis());
    match notice {
        ConditionNotice::Failing(failing) => {
            (since(NoticeKind::PollFailing, failing), poll_failing(language, &task.name, failing))
        }
        ConditionNotice::Recovered(failing) => {
            (since(NoticeKind::PollRecovered, failing), poll_recovered(language, &task.name, failing))
        }
        ConditionNotice::Missing(missing) => {
            let about = SubjectRef::missing_field(task.id, &missing.expression);
            (about, missing_field(language, &task.name, ArrivalNotice::Answer, missing))
        }
    }
}

/// Subject and text of the notice that a task keeps failing and is paused.
pub fn paused(language: MessageLanguage, task_name: &str, failures: u32) -> (String, String) {
    match language {
        MessageLanguage::English => (
            format!("Paused: {task_name}"),
            format!(
                "The task \"{task_name}\" failed {failures} times in a row and is paused now. It fires again once it is resumed."
            ),
        ),
        MessageLanguage::German => (
            format!("Angehalten: {task_name}"),
            format!(
                "Die Aufgabe „{task_name}“ ist {failures}-mal hintereinander fehlgeschlagen und jetzt angehalten. Sie läuft \
                 wieder, sobald sie fortgesetzt wird."
            ),
        ),
    }
}

/// Subject and text of the notice that a task can't go on as it is stored and is disabled.
pub fn disabled(language: MessageLanguage, task_name: &str, faulty: FaultyPart, why: &str) -> (String, String) {
    match language {
        MessageLanguage::English => {
            let (what, part) = match faulty {
                FaultyPart::Action => ("run", "action"),
                FaultyPart::Trigger => ("scheduled", "trigger"),
            };
            let text = format!(
                "The task \"{task_name}\" can't be {what} any more and is disabled now: {why}. It fires again once its {part} \
                 is corrected."
            );
            (format!("Disabled: {task_name}"), text)
        }
        MessageLanguage::German => {
            let (what, part) = match faulty {
                FaultyPart::Action => ("ausgeführt", "ihre Aktion"),
                FaultyPart::Trigger => ("geplant", "ihr Auslöser"),
            };
            let text = format!(
                "Die Aufgabe „{task_name}“ kann nicht mehr {what} werden und ist jetzt abgeschaltet: {why}. Sie läuft wieder, \
                 sobald {part} berichtigt ist."
            );
            (format!("Abgeschaltet: {task_name}"), text)
        }
    }
}

/// Subject and text of the notice that a task goes on failing as it was told.
pub fn still_failing(language: MessageLanguage, task_name: &str, count: i64, code: &str) -> (String, String) {
    match language {
        MessageLanguage::English => (
            format!("Still failing: {task_name}"),
            format!(
                "The task \"{task_name}\" has failed {count} times now for the same reason ({code}), without a success in \
                 between. You hear of it once a day, and when it works again."
            ),
        ),
        MessageLanguage::German => (
            format!("Schlägt weiter fehl: {task_name}"),
            format!(
                "Die Aufgabe „{task_name}“ ist jetzt {count}-mal aus demselben Grund fehlgeschlagen ({code}), ohne einen Erfolg \
                 dazwischen. Sie hören davon einmal am Tag, und wenn sie wieder gelingt."
            ),
        ),
    }
}

/// Subject and text of the notice that a task works again.
pub fn recovered(language: MessageLanguage, task_name: &str, count: i64) -> (String, String) {
    match language {
        MessageLanguage::English => {
            let failures = if count == 1 { "1 failure".to_owned() } else { format!("{count} failures") };
            (format!("Well again: {task_name}"), format!("The task \"{task_name}\" works again, after {failures}."))
        }
        MessageLanguage::German => {
            let failures = if count == 1 { "1 Fehlschlag".to_owned() } else { format!("{count} Fehlschlägen") };
            (
                format!("Gelingt wieder: {task_name}"),
                format!("Die Aufgabe „{task_name}“ gelingt wieder, nach {failures}."),
            )
        }
    }
}

/// Subject and text of the notice that what a condition polls keeps failing.
pub fn poll_failing(language: MessageLanguage, task_name: &str, failing: &PollFailures) -> (String, String) {
    let (count, why) = (failing.count, &failing.error.message);
    match language {
        MessageLanguage::English => (
            format!("Failing: {task_name}"),
            format!(
                "The poll of the task \"{task_name}\" has failed {count} times in a row: {why}. It is polled on, less often; it \
                 does not fire meanwhile, and you will hear when it answers again."
            ),
        ),
        MessageLanguage::German => (
            format!("Schlägt fehl: {task_name}"),
            format!(
                "Was die Aufgabe „{task_name}“ abfragt, ist {count}-mal hintereinander fehlgeschlagen: {why}. Es wird weiter \
                 abgefragt, seltener; die Aufgabe läuft unterdessen nicht, und Sie hören, wenn wieder eine Antwort kommt."
            ),
        ),
    }
}

/// Requests in which a field may be missing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ArrivalNotice {
    /// An event for an event task.
    Event,
    /// The answer to a poll.
    Answer,
}

/// Subject and text of the notice that an expression looks for a field that what came does not have.
pub fn missing_field(
    language: MessageLanguage,
    task_name: &str,
    arrival: ArrivalNotice,
    missing: &MissingField,
) -> (String, String) {
    let (field, expression, hint) = (&missing.field, &missing.expression, did_you_mean(language, missing));
    match language {
        MessageLanguage::English => {
            let came = if arrival == ArrivalNotice::Event { "An event" } else { "An answer" };
            let text = format!(
                "{came} has come for the task \"{task_name}\" in which there is no `{field}`. Its expression `{expression}` looks \
                 for it, and does not make it fire without it.{hint} Where the field is not always there, ask with `has(…)` \
                 first. This is told once."
            );
            (format!("A field is missing: {task_name}"), text)
        }
        MessageLanguage::German => {
            let came = if arrival == ArrivalNotice::Event { "ein Ereignis" } else { "eine Antwort" };
            let text = format!(
                "Für die Aufgabe „{task_name}“ ist {came} ohne `{field}` gekommen. Ihr Ausdruck `{expression}` sucht danach und \
                 löst ohne dieses Feld nicht aus.{hint} Wo das Feld nicht immer da ist, fragen Sie zuvor mit `has(…)`. Das hören \
                 Sie einmal."
            );
            (format!("Ein Feld fehlt: {task_name}"), text)
        }
    }
}

/// Subject and text of the notice that a step of a pipeline looks for a field that is not there.
pub fn missing_field_of_step(
    language: MessageLanguage,
    task_name: &str,
    step: &str,
    missing: &MissingField,
) -> (String, String) {
    let (field, expression, hint) = (&missing.field, &missing.expression, did_you_mean(language, missing));
    match language {
        MessageLanguage::English => {
            let text = format!(
                "The step `{step}` of the task \"{task_name}\" has looked for `{field}` by its expression `{expression}`, and there \
                 is no such field. A filter lets nothing through without it, any other step fails.{hint} Where the field is not \
                 always there, ask with `has(…)` first. This is told once until the steps are changed."
            );
            (format!("A field is missing: {task_name}"), text)
        }
        MessageLanguage::German => {
            let text = format!(
                "Der Schritt `{step}` der Aufgabe „{task_name}“ hat mit seinem Ausdruck `{expression}` nach `{field}` gesucht, und \
                 dieses Feld gibt es nicht. Ein Filter lässt ohne es nichts durch, jeder andere Schritt schlägt fehl.{hint} Wo das \
                 Feld nicht immer da ist, fragen Sie zuvor mit `has(…)`. Das hören Sie einmal, bis die Schritte geändert werden."
            );
            (format!("Ein Feld fehlt: {task_name}"), text)
        }
    }
}

/// The question whether another field is meant, with a space before it.
fn did_you_mean(language: MessageLanguage, missing: &MissingField) -> String {
    missing.did_you_mean.as_ref().map_or(String::new(), |name| match language {
        MessageLanguage::English => format!(" Did you mean `{name}`?"),
        MessageLanguage::German => format!(" Ist `{name}` gemeint?"),
    })
}

/// Subject and text of the notice that it answers again.
pub fn poll_recovered(language: MessageLanguage, task_name: &str, failing: &PollFailures) -> (String, String) {
    let count = failing.count;
    match language {
        MessageLanguage::English => (
            format!("Well again: {task_name}"),
            format!("The poll of the task \"{task_name}\" answers again, after {count} failures."),
        ),
        MessageLanguage::German => (
            format!("Antwortet wieder: {task_name}"),
            format!("Was die Aufgabe „{task_name}“ abfragt, antwortet wieder, nach {count} fehlgeschlagenen Abfragen."),
        ),
    }
}

/// Subject and text of the notice that a task fires at another instant, because the rules of its zone have changed.
pub fn zone_rules(
    language: MessageLanguage,
    task_name: &str,
    (zone, release): (&Zone, &ZoneRelease),
    was: DateTime<Utc>,
    becomes: Option<DateTime<Utc>>,
) -> (String, String) {
    let local = |at: DateTime<Utc>| {
        let (here, abbreviation) = (zone.shows(at).format("%Y-%m-%d %H:%M"), zone.abbreviation(at));
        format!("{here} {abbreviation} ({} UTC)", at.format("%Y-%m-%d %H:%M"))
    };
    let (was, zone) = (local(was), zone.name());
    match language {
        MessageLanguage::English => {
            let next = match becomes {
                Some(at) => format!("It fires next at {}; it was planned for {was}.", local(at)),
                None => format!("It was planned for {was}, and has no further fire."),
            };
            let text = format!(
                "The rules of the time zone {zone} have changed (release {release}), so the task \"{task_name}\" is planned \
                 anew. {next}"
            );
            (format!("Moved: {task_name}"), text)
        }
        MessageLanguage::German => {
            let next = match becomes {
                Some(at) => format!("Sie läuft als Nächstes am {}; geplant war {was}.", local(at)),
                None => format!("Geplant war {was}; danach läuft sie nicht mehr."),
            };
            let text = format!(
                "Die Regeln der Zeitzone {zone} haben sich geändert (Ausgabe {release}), daher ist die Aufgabe „{task_name}“ neu \
                 geplant. {next}"
            );
            (format!("Verschoben: {task_name}"), text)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn notices_are_written_in_the_language_of_their_reader() {
        let missing = MissingField {
            expression: "event.data.totl > 5".into(),
            field: "event.data.totl".into(),
            did_you_mean: Some("total".into()),
        };
        let at = |text: &str| text.parse::<DateTime<Utc>>().unwrap();
        let failing = PollFailures {
            since: at("2027-03-01T08:00:00Z"),
            count: 7,
            error: crate::domain::trigger::condition::PollFault::new("timeout", "keine"),
            notified: true,
        };
        let of = |language| {
            [
                paused(language, "Post", 3),
                disabled(language, "Post", FaultyPart::Trigger, "/trigger/cron: 7"),
                disabled(language, "Post", FaultyPart::Action, "/action/config: 7"),
                still_failing(language, "Post", 9, "timeout"),
                recovered(language, "Post", 1),
                recovered(language, "Post", 2),
                poll_failing(language, "Post", &failing),
                poll_recovered(language, "Post", &failing),
                missing_field(language, "Post", ArrivalNotice::Event, &missing),
                missing_field(language, "Post", ArrivalNotice::Answer, &missing),
                missing_field_of_step(language, "Post", "groß", &missing),
            ]
        };
        let english_words = [" the ", "The ", " is ", " and ", " of ", " it ", "again"];
        for ((subject, text), (english_subject, english)) in
            of(MessageLanguage::German).into_iter().zip(of(MessageLanguage::English))
        {
            assert!(subject.ends_with(": Post") && text.contains("„Post“"), "{subject}: {text}");
            assert!(
                english_subject.ends_with(": Post") && english.contains("\"Post\""),
                "{english_subject}: {english}"
            );
            for word in english_words {
                assert!(!text.contains(word), "{word}: {text}");
            }
            assert!(english_words.iter().any(|word| english.contains(word)), "{english}");
        }
    }
}
