//! The words of a delivery, made from what it refers to at the moment it is sent.

use chrono_tz::Tz;
use serde_json::{Value, json};

use crate::notification::digest::Digest;
use crate::notification::question::Question;
use crate::notification::{Delivery, Kind};
use crate::run::{Run, RunState};
use crate::secret::Secret;
use crate::trigger::condition::Failing;

/// Longest subject, in characters.
const SUBJECT_LENGTH: usize = 200;
/// What a task is called that is no longer there.
const NAMELESS: &str = "a task";

/// What is said, in words for people and as data for programs.
#[derive(Debug, Clone, PartialEq)]
pub struct Words {
    /// One line.
    pub subject: String,
    /// In the form that the channel takes (plain, or its own markup, escaped), within its length.
    pub text: String,
    /// The same as HTML, for email alone.
    pub html: Option<String>,
    /// Where there is more to see or to decide, for channels that have buttons; it is in `text` as well.
    pub link: Option<Link>,
    /// What messages of one conversation share: the batch of a question, the task of a result.
    pub thread: Option<String>,
    /// What happened, for channels that speak to programs: `run.finished`, `message`, `notice`, `approval.requested`,
    /// `approval.reminder`, `approval.held`, `digest`, `test`, `code`.
    pub event: &'static str,
    /// For `run.finished` the run as the API shows it and its task's name; else the message itself.
    pub data: Value,
}

/// A link to be shown as a button. Whoever has the address may decide, so it is not printed.
#[derive(Clone, PartialEq, Eq)]
pub struct Link {
    /// `Decide`, `Stop it`, `Open`.
    pub label: String,
    pub url: String,
}

impl std::fmt::Debug for Link {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Link").field("label", &self.label).finish_non_exhaustive()
    }
}

/// What a delivery refers to, as it stands when it is sent.
#[derive(Debug, Clone, Copy, Default)]
pub struct References<'a> {
    pub run: Option<&'a Run>,
    /// `None` where the task was deleted.
    pub task_name: Option<&'a str>,
    /// What is asked, with its link; for questions and reminders only.
    pub question: Option<&'a Question>,
    /// What was held; for digests only.
    pub digest: Option<&'a Digest>,
    /// For codes only.
    pub code: Option<&'a Secret>,
}

impl Words {
    /// The words for a delivery, the text no longer than `limit` characters. An error says what is gone.
    pub fn of(delivery: &Delivery, about: References, timezone: Tz, limit: usize) -> Result<Words, String> {
        let name = about.task_name.unwrap_or(NAMELESS);
        if let (Kind::Ask | Kind::Reminder, Some(question)) = (delivery.kind, about.question) {
            return Ok(Words {
                subject: one_line(&question.subject(delivery.kind, name)),
                text: question.text(name, timezone, limit),
                html: None,
                link: None,
                thread: None,
                event: question.event(delivery.kind),
                data: question.data(&delivery.tenant_id, about.task_name),
            });
        }
        let (subject, text) = match (delivery.kind, about.run) {
            (Kind::Message | Kind::Notice | Kind::Test, _) => literal(delivery, name),
            (Kind::Digest, _) => {
                let digest = about.digest.ok_or("nothing of what was held is left to be told")?;
                (digest.subject(), digest.text(timezone, limit))
            }
            (Kind::Code, _) => code(about.code.ok_or("its code can't be made again")?),
            (Kind::Result, Some(run)) => (name.to_owned(), answer(run)),
            (Kind::Failure, Some(run)) => failure(run, name, timezone),
            (Kind::Ask | Kind::Reminder, _) => return Err("what it asks is no longer there".into()),
            (Kind::Result | Kind::Failure, None) => return Err("the run that it tells of is no longer there".into()),
        };
        let whole = about.run.map(|run| format!("the whole is in run {}", run.id));
        let text = cut(&text, limit, whole.as_deref());
        let subject = one_line(&subject);
        let (event, data) = match (delivery.kind, about.run) {
            (Kind::Result | Kind::Failure, Some(run)) => ("run.finished", run_data(run, about.task_name, limit)),
            (Kind::Notice, _) => ("notice", message_data(delivery, &subject, &text)),
            (Kind::Digest, _) => {
                ("digest", about.digest.map(|digest| digest.data(&delivery.tenant_id)).unwrap_or_default())
            }
            (Kind::Test, _) => ("test", message_data(delivery, &subject, &text)),
            (Kind::Code, _) => ("code", message_data(delivery, &subject, &text)),
            _ => ("message", message_data(delivery, &subject, &text)),
        };
        Ok(Words { subject, text, html: None, link: None, thread: None, event, data })
    }
}

/// Subject and text of the notice that a task keeps failing and is paused.
pub fn paused(task_name: &str, failures: u32) -> (String, String) {
    let text = format!(
        "The task \"{task_name}\" failed {failures} times in a row and is paused now. It fires again once it is resumed."
    );
    (format!("Paused: {task_name}"), text)
}

/// Subject and text of the notice that what a condition polls keeps failing.
pub fn poll_failing(task_name: &str, failing: &Failing) -> (String, String) {
    let text = format!(
        "What the task \"{task_name}\" polls has failed {} times in a row: {}. It is polled on, less often; it does not \
         fire meanwhile, and you will hear when it answers again.",
        failing.count, failing.error.message
    );
    (format!("Failing: {task_name}"), text)
}

/// Subject and text of the notice that it answers again.
pub fn poll_recovered(task_name: &str, failing: &Failing) -> (String, String) {
    let text = format!("What the task \"{task_name}\" polls answers again, after {} failing polls.", failing.count);
    (format!("Well again: {task_name}"), text)
}

/// Subject and text of a message with a code that proves an address.
fn code(code: &Secret) -> (String, String) {
    let text = format!(
        "{} is the code that proves that this address is yours. It is good for 10 minutes. If you did not ask for it, \
         do nothing.",
        code.expose()
    );
    ("Your code".into(), text)
}

fn literal(delivery: &Delivery, name: &str) -> (String, String) {
    let subject = delivery.subject.clone().unwrap_or_else(|| format!("Message from {name}"));
    (subject, delivery.text.clone().unwrap_or_default())
}

fn answer(run: &Run) -> String {
    match run.output.as_deref().map(str::trim) {
        None | Some("") => "Done, without an answer.".into(),
        Some(output) => output.to_owned(),
    }
}

fn failure(run: &Run, name: &str, timezone: Tz) -> (String, String) {
    let what = match run.state {
        RunState::Expired => "expired",
        RunState::Cancelled => "was cancelled",
        RunState::Skipped => "was skipped",
        _ => "failed",
    };
    let why = match (&run.error, &run.reason) {
        (Some(fault), _) => format!("{} ({})", fault.message, fault.code),
        (None, Some(reason)) => reason.clone(),
        (None, None) => "no reason was recorded".into(),
    };
    let due = run.scheduled_for.with_timezone(&timezone).format("%Y-%m-%d %H:%M %Z");
    let attempts = match run.attempt {
        ..=1 => String::new(),
        n => format!(" It was tried {n} times."),
    };
    let text = format!("\"{name}\", due {due}, {what}: {why}.{attempts}\n\nRun {}", run.id);
    (format!("{name} {what}"), text)
}

fn run_data(run: &Run, task_name: Option<&str>, limit: usize) -> Value {
    let mut data = serde_json::to_value(run).unwrap_or_default();
    data["task_name"] = json!(task_name);
    if let Some(output) = &run.output {
        data["output"] = json!(cut(output, limit, Some(&format!("the whole is in run {}", run.id))));
    }
    data
}

fn message_data(delivery: &Delivery, subject: &str, text: &str) -> Value {
    json!({ "tenant_id": delivery.tenant_id, "run_id": delivery.run_id, "subject": subject, "text": text })
}

/// `text` within `limit` characters, its end given up for a note where it is longer.
pub fn cut(text: &str, limit: usize, whole: Option<&str>) -> String {
    let length = text.chars().count();
    if length <= limit {
        return text.to_owned();
    }
    let whole = whole.map(|place| format!("; {place}")).unwrap_or_default();
    let note = format!("\n\n[cut: {length} characters, {limit} at most{whole}]");
    let room = limit.saturating_sub(note.chars().count());
    let head: String = text.chars().take(room).collect();
    // a whole line looks better, where that does not cost half of what there is room for
    let end = head.rfind('\n').filter(|end| *end > head.len() / 2).unwrap_or(head.len());
    let cut = format!("{}{note}", head[..end].trim_end());
    cut.chars().take(limit).collect()
}

fn one_line(text: &str) -> String {
    let line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    let line: String = line.chars().filter(|c| !c.is_control()).collect();
    match line.chars().count() {
        n if n > SUBJECT_LENGTH => line.chars().take(SUBJECT_LENGTH - 1).chain(['…']).collect(),
        _ => line,
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use uuid::Uuid;

    use super::*;
    use crate::notification::DeliveryState;
    use crate::run::Usage;
    use crate::run::outcome::RunFault;

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn run(state: RunState, output: Option<&str>, error: Option<RunFault>) -> Run {
        Run {
            id: Uuid::from_u128(0x42),
            task_id: Some(Uuid::from_u128(7)),
            tenant_id: "ann".into(),
            fire_key: "s:2026-12-24T07:00:00.000Z".into(),
            trigger_type: "schedule".into(),
            scheduled_for: at("2026-12-24T07:00:00Z"),
            state,
            reason: None,
            attempt: 1,
            crashes: 0,
            infra_retries: 0,
            missed: None,
            retry_of: None,
            blocked_by: None,
            event_ids: vec![],
            cause: None,
            input: None,
            created_at: at("2026-12-24T07:00:00Z"),
            started_at: Some(at("2026-12-24T07:00:00Z")),
            finished_at: Some(at("2026-12-24T07:00:09Z")),
            output: output.map(str::to_owned),
            error,
            usage: Usage::default(),
        }
    }

    fn delivery(kind: Kind) -> Delivery {
        Delivery {
            id: Uuid::from_u128(1),
            tenant_id: "ann".into(),
            recipient: "ann".into(),
            channel: "email".into(),
            fallback: vec![],
            dedupe_key: "k".into(),
            run_id: Some(Uuid::from_u128(0x42)),
            kind,
            urgency: kind.urgency(),
            subject: None,
            text: Some("Milk is out.\nBuy some.".into()),
            state: DeliveryState::Pending,
            attempts: 1,
            next_at: None,
            held: None,
            digest_id: None,
            last_error: None,
            provider_id: None,
            created_at: at("2026-12-24T07:00:09Z"),
            sent_at: None,
            delivered_at: None,
        }
    }

    fn words(kind: Kind, run: Option<&Run>, task_name: Option<&str>) -> Words {
        Words::of(&delivery(kind), References { run, task_name, ..References::default() }, Tz::Europe__Berlin, 1000)
            .unwrap()
    }

    #[test]
    fn a_result_is_the_answer_under_the_name_of_its_task() {
        let run = run(RunState::Succeeded, Some(" Two mails, none urgent.\n"), None);
        let words = words(Kind::Result, Some(&run), Some("Morning mail"));
        assert_eq!((words.subject.as_str(), words.text.as_str()), ("Morning mail", "Two mails, none urgent."));
        assert_eq!(words.event, "run.finished");
        let mut expected = serde_json::to_value(&run).unwrap();
        expected["task_name"] = json!("Morning mail");
        assert_eq!(words.data, expected);
    }

    #[test]
    fn a_failure_says_what_when_and_why_in_the_recipients_time() {
        let mut run = run(RunState::Failed, None, Some(RunFault::new("llm_auth", "the model refused the key")));
        run.attempt = 3;
        let words = words(Kind::Failure, Some(&run), Some("Morning mail"));
        assert_eq!(words.subject, "Morning mail failed");
        assert_eq!(
            words.text,
            "\"Morning mail\", due 2026-12-24 08:00 CET, failed: the model refused the key (llm_auth). It was tried 3 times.\n\n\
             Run 00000000-0000-0000-0000-000000000042"
        );
        assert_eq!(words.data["error"], json!({ "code": "llm_auth", "message": "the model refused the key" }));
    }

    #[test]
    fn an_expired_run_tells_its_reason() {
        let mut run = run(RunState::Expired, None, None);
        run.reason = Some("nobody answered in time".into());
        let words = words(Kind::Failure, Some(&run), None);
        assert_eq!(words.subject, "a task expired");
        assert!(
            words.text.starts_with("\"a task\", due 2026-12-24 08:00 CET, expired: nobody answered in time.\n"),
            "{}",
            words.text
        );
    }

    #[test]
    fn a_message_is_said_as_it_stands() {
        let told = words(Kind::Message, None, Some("Shopping"));
        assert_eq!(
            told,
            Words {
                subject: "Message from Shopping".into(),
                text: "Milk is out.\nBuy some.".into(),
                html: None,
                link: None,
                thread: None,
                event: "message",
                data: json!({
                    "tenant_id": "ann", "run_id": "00000000-0000-0000-0000-000000000042",
                    "subject": "Message from Shopping", "text": "Milk is out.\nBuy some.",
                }),
            }
        );
        assert_eq!(words(Kind::Notice, None, None).event, "notice");
    }

    #[test]
    fn an_empty_answer_is_said_to_be_empty() {
        let run = run(RunState::Succeeded, Some("  "), None);
        assert_eq!(words(Kind::Result, Some(&run), None).text, "Done, without an answer.");
    }

    #[test]
    fn a_result_whose_run_is_gone_can_t_be_told() {
        let gone = Words::of(&delivery(Kind::Result), References::default(), Tz::UTC, 1000);
        assert_eq!(gone, Err("the run that it tells of is no longer there".into()));
    }

    #[test]
    fn a_long_text_is_cut_at_a_line_with_a_note_and_stays_within_the_limit() {
        assert_eq!(cut("short", 5, None), "short");
        let text = "0123456789\n".repeat(30);
        let cut_text = cut(&text, 200, Some("the whole is in run 42"));
        assert!(cut_text.chars().count() <= 200, "{}", cut_text.chars().count());
        assert!(
            cut_text.ends_with("0123456789\n\n[cut: 330 characters, 200 at most; the whole is in run 42]"),
            "{cut_text}"
        );
        let wide = cut(&"é".repeat(500), 100, None);
        assert_eq!(wide.chars().count(), 100);
        assert!(wide.ends_with("[cut: 500 characters, 100 at most]"), "{wide}");
        assert_eq!(cut("0123456789", 4, None).chars().count(), 4);
    }

    #[test]
    fn a_subject_is_one_line_without_control_characters() {
        assert_eq!(one_line("a\r\nBcc: b@c\u{7}  d"), "a Bcc: b@c d");
        assert_eq!(one_line(&"x".repeat(300)).chars().count(), 200);
    }
}
