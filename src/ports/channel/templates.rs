//! The templates that make the words of messages: embedded, and the operator's own over them.
//!
//! A template is found by purpose, language, channel and format: `ask.de.sms.txt`, else `ask.de.txt`, `ask.sms.txt`,
//! `ask.txt`; all of the operator's before the embedded ones, which are English and German. A `.txt` begins with its
//! subject; the other formats are bodies and may name that subject. Texts from outside are escaped as the format needs
//! it, so they are never markup. What an operator wrote is tried at the start; if it fails all the same, the embedded
//! one is used: no message is lost for a template.

mod files;
mod markup;
mod name;
pub mod phrases;
mod set;
mod trial;

use std::path::Path;
use std::sync::Arc;

use crate::base::invalid::ValidationErrors;
use crate::domain::notification::recipient::Reader;
use crate::domain::notification::text::{cut, one_line};
use crate::domain::notification::{
    Delivery, DigestItem, Link, MessageContext, MessageLanguage, References, RenderedMessage,
};
use crate::ports::channel::Channel;
use crate::ports::channel::templates::phrases::{Catalogue, Phrases};
use crate::ports::channel::templates::set::{TemplateKind, TemplateSet};

/// The room for a message that is too long is found to such a share of the longest.
const EXACTNESS: usize = 128;
/// Length of the data for programs of a text that people alone are told, in characters.
const NO_DATA: usize = 0;

/// In which language a channel wants its text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum MessageFormat {
    Plain,
    Html,
    /// Slack's.
    Mrkdwn,
    /// The HTML that Telegram takes.
    Telegram,
}

impl MessageFormat {
    const ALL: [MessageFormat; 4] =
        [MessageFormat::Plain, MessageFormat::Html, MessageFormat::Mrkdwn, MessageFormat::Telegram];

    /// The ending of its templates' names.
    fn ending(self) -> &'static str {
        match self {
            MessageFormat::Plain => "txt",
            MessageFormat::Html => "html",
            MessageFormat::Mrkdwn => "mrkdwn",
            MessageFormat::Telegram => "telegram",
        }
    }

    /// By a word of a channel's `supported_formats`.
    fn of(word: &str) -> MessageFormat {
        match word {
            "html" => MessageFormat::Html,
            "mrkdwn" => MessageFormat::Mrkdwn,
            "telegram_html" => MessageFormat::Telegram,
            _ => MessageFormat::Plain,
        }
    }

    fn of_name(name: &str) -> MessageFormat {
        let ending = name.rsplit('.').next().unwrap_or_default();
        MessageFormat::ALL.into_iter().find(|format| format.ending() == ending).unwrap_or(MessageFormat::Plain)
    }
}

/// Whether an answer in Markdown is shown as such in a format: it is carried as it is, or the templates turn it into
/// the marks of the format.
pub(super) fn renders_markdown(format: &str) -> bool {
    format == "markdown" || MessageFormat::of(format) != MessageFormat::Plain
}

/// A message in full, for the page that shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Page {
    /// The tag of its language.
    pub lang: &'static str,
    /// One line.
    pub subject: String,
    /// The owner of the run and its instant, on one line.
    pub about: String,
    /// Markup; every text from outside is escaped in it.
    pub html: String,
}

/// All templates. Cheap to clone.
#[derive(Clone)]
pub struct MessageTemplates {
    embedded: Arc<TemplateSet>,
    /// The operator's over the embedded ones; `None` where there are no own ones.
    own: Option<Arc<TemplateSet>>,
    /// The words of the approval page.
    phrases: Arc<Catalogue>,
}

impl MessageTemplates {
    /// The embedded ones alone.
    pub fn embedded() -> MessageTemplates {
        let phrases = Arc::new(Catalogue::embedded());
        MessageTemplates { embedded: Arc::new(TemplateSet::embedded(&files::EMBEDDED)), own: None, phrases }
    }

    /// Those of the directory over the embedded ones; each is tried.
    ///
    /// # Errors
    /// The directory can't be read; a file's name is no template's, or it does not compile, or names what is not
    /// there. Each says which file, and which line.
    pub fn read(dir: Option<&Path>) -> Result<MessageTemplates, ValidationErrors> {
        let templates = MessageTemplates::embedded();
        let Some(dir) = dir else { return Ok(templates) };
        let mut own = (*templates.embedded).clone();
        let mut phrases = (*templates.phrases).clone();
        files::add_own(&mut own, &mut phrases, dir)?;
        trial::run(&own, dir)?;
        Ok(MessageTemplates { own: Some(Arc::new(own)), phrases: Arc::new(phrases), ..templates })
    }

    /// The words of the approval page for a reader of this language.
    pub fn phrases(&self, locale: &str) -> Phrases {
        self.phrases.of(locale)
    }

    /// The words of a delivery for a channel, in its format and within its length. An error says what is gone.
    pub fn words(
        &self,
        delivery: &Delivery,
        about: References,
        reader: Reader,
        channel: &dyn Channel,
    ) -> Result<RenderedMessage, String> {
        let capabilities = channel.capabilities();
        let limit = capabilities.max_response_length;
        let mut context = MessageContext::of(delivery, about, reader, limit)?;
        let subject =
            self.render(&context, channel.name(), MessageFormat::Plain, TemplateKind::Subject).unwrap_or_default();
        let subject = one_line(&subject);
        context = context.map(|context| context.subject = Some(subject.clone()));
        let format = MessageFormat::of(capabilities.supported_formats.first().copied().unwrap_or("plain"));
        let text = self.fitted(&context, channel, format);
        let whole = context.page.as_ref().filter(|page| text.contains(&markup::escaped(page.expose(), format)));
        if let Some(page) = whole {
            let url = page.expose().to_owned();
            context = context.map(|context| {
                let label = context.language.pick("Open", "Öffnen").into();
                context.link = Some(Link { label, url: url.clone() });
            });
        }
        let html = capabilities.supported_formats.contains(&"html").then(|| {
            let shorter = context.shortened_to(limit);
            self.render(&shorter, channel.name(), MessageFormat::Html, TemplateKind::Body)
        });
        Ok(RenderedMessage {
            subject,
            text,
            html: html.flatten(),
            link: context.main_message().link.clone(),
            thread: context.thread,
            event: context.event,
            asks: delivery.kind.asks(),
            data: context.data,
        })
    }

    /// One message of a digest, its text without markup: the digest's template makes that.
    pub fn item(&self, member: &Delivery, about: References, reader: Reader) -> DigestItem {
        let words = MessageContext::of(member, about, reader, NO_DATA).map(|context| {
            let subject =
                self.render(&context, &member.channel, MessageFormat::Plain, TemplateKind::Subject).unwrap_or_default();
            (one_line(&subject), context.main_message().text.clone())
        });
        let nameless = || MessageLanguage::of(reader.locale).pick("A message", "Eine Nachricht").to_owned();
        let gone = |why| (member.subject.clone().unwrap_or_else(nameless), format!("({why})"));
        let (subject, text) = words.unwrap_or_else(gone);
        DigestItem::new(&subject, &text, member.created_at, reader.timezone)
    }

    /// All of what a delivery tells, however long, as markup for a page; an error says what is gone. The operator's
    /// templates have no part in it: their styles would be none on a page of ours.
    pub fn page(&self, delivery: &Delivery, about: References, reader: Reader) -> Result<Page, String> {
        let context = MessageContext::of(delivery, about, reader, NO_DATA)?;
        let subject =
            self.render(&context, &delivery.channel, MessageFormat::Plain, TemplateKind::Subject).unwrap_or_default();
        let context = context.main_message();
        let page = context.language.pick("page.html", "page.de.html");
        let html = self.embedded.render_named(page, context)?;
        let due = context.language.pick("due", "fällig");
        let at = context.run.as_ref().map_or_else(|| context.at.clone(), |run| format!("{due} {}", run.due));
        let about = match about.task_name {
            Some(_) => format!("{} · {at}", context.task),
            None => at,
        };
        Ok(Page { lang: context.language.tag(), subject: one_line(&subject), about, html })
    }

    /// The text, made shorter until it fits; of a question the link always stays.
    fn fitted(&self, context: &MessageContext, channel: &dyn Channel, format: MessageFormat) -> String {
        let limit = channel.capabilities().max_response_length;
        let shorter = |room| {
            let less = context.shortened_to(room);
            let text =
                with_full_text_link(self.render(&less, channel.name(), format, TemplateKind::Body)?, &less, format);
            (less.is_worth_sending(context) && !text.is_empty() && channel.fits(&text)).then_some(text)
        };
        if let Some(text) = longest_fitting(limit, shorter) {
            return text;
        }
        match (&context.link, &context.page) {
            (Some(link), _) => link.url.clone(),
            // the link to the whole has no room
            (None, Some(_)) => self.fitted(&context.clone().map(|context| context.page = None), channel, format),
            // a digest says at least how many there are
            (None, None) if !context.digest.is_empty() => {
                cut(&markup::escaped(context.subject.as_deref().unwrap_or_default(), format), limit, None)
            }
            // markup that is cut anywhere may not be markup any more
            (None, None) => {
                cut(&markup::escaped(&context.main_message().shortened_to(limit / 8).text, format), limit, None)
            }
        }
    }

    /// One template, the most exact of them; `None` where there is none of this format.
    fn render(
        &self,
        context: &MessageContext,
        channel: &str,
        format: MessageFormat,
        part: TemplateKind,
    ) -> Option<String> {
        if let Some(own) = &self.own {
            match own.render(context, channel, format, part) {
                Some(Err((name, error))) => {
                    tracing::warn!(template = name, error, "a template failed; the embedded one is used");
                }
                Some(Ok(text)) => return Some(text),
                None => {}
            }
        }
        match self.embedded.render(context, channel, format, part)? {
            Ok(text) => Some(text),
            Err((name, error)) => {
                tracing::error!(template = name, error, "an embedded template failed");
                None
            }
        }
    }
}

/// The text with most room, up to `limit`, of which `render` makes something. The room is found by halving, because
/// markup and alphabets add to each text what no count foretells.
fn longest_fitting(limit: usize, render: impl Fn(usize) -> Option<String>) -> Option<String> {
    if let Some(whole) = render(limit) {
        return Some(whole);
    }
    let (mut best, mut enough, mut too_much) = (None, 0, limit);
    while too_much - enough > 1 + limit / EXACTNESS {
        let room = enough.midpoint(too_much);
        match render(room) {
            Some(text) => (best, enough) = (Some(text), room),
            None => too_much = room,
        }
    }
    best
}

/// The text with the link to the whole at its end, unless its template has put it elsewhere. In HTML that is for the
/// layout to do.
fn with_full_text_link(text: String, context: &MessageContext, format: MessageFormat) -> String {
    let Some(whole) = context.main_message().whole.as_ref().filter(|_| format != MessageFormat::Html) else {
        return text;
    };
    let link = markup::escaped(whole.link.expose(), format);
    match text.contains(&link) {
        true => text,
        false => format!("{}\n\n{}:\n{link}", text.trim_end(), markup::escaped(&whole.note, format)),
    }
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};
    use chrono_tz::Tz;
    use futures::future::BoxFuture;
    use serde_json::json;
    use uuid::Uuid;

    use super::*;

    use crate::base::secret::Secret;
    use crate::domain::approval::{ApprovalStatus, QuestionKind, test_question};
    use crate::domain::credential::{CredentialIssueKind, Reference};
    use crate::domain::notification::credential_notice::{credential_ended, idle_issue_notice, issue_notice};
    use crate::domain::notification::{
        ApprovalQuestion, CredentialContext, Link, MessageKind, MessageLanguage, NoticeKind, Purpose, SubjectRef,
    };
    use crate::domain::run::{Run, RunFault, RunFinish, RunState};
    use crate::ports::channel::{Capabilities, ChannelError, OutgoingMessage, Receipt};

    /// A channel of this name, with these formats and this room.
    struct To(&'static str, &'static [&'static str], usize);

    impl Channel for To {
        fn name(&self) -> &'static str {
            self.0
        }

        fn capabilities(&self) -> Capabilities {
            Capabilities { supported_formats: self.1, max_response_length: self.2, deduplicates: false }
        }

        fn deliver<'a>(&'a self, _: &'a OutgoingMessage<'a>) -> BoxFuture<'a, Result<Receipt, ChannelError>> {
            Box::pin(async { Err(ChannelError::Rejected { why: "nobody is there".into() }) })
        }
    }

    const LINK: &str = "https://wake.example.org/approvals/0123456789abcdef";

    fn read_in(timezone: Tz) -> Reader<'static> {
        Reader { timezone, ..Reader::NOBODY }
    }

    fn on_that_day(text: &str) -> DateTime<Utc> {
        format!("2027-03-01T{text}:00Z").parse().unwrap()
    }

    fn asking(summaries: &[&str]) -> ApprovalQuestion {
        let item = |summary: &&str| test_question(summary, on_that_day("08:00"), on_that_day("08:30"));
        ApprovalQuestion { items: summaries.iter().map(item).collect(), link: Secret::new(LINK) }
    }

    fn asked(
        question: &ApprovalQuestion,
        kind: MessageKind,
        name: &str,
        timezone: Tz,
        limit: usize,
    ) -> RenderedMessage {
        let about = References { task_name: Some(name), question: Some(question), ..References::default() };
        MessageTemplates::embedded()
            .words(&delivery(kind), about, read_in(timezone), &To("email", &["plain"], limit))
            .unwrap()
    }

    fn at(text: &str) -> DateTime<Utc> {
        text.parse().unwrap()
    }

    fn run(state: RunState, output: Option<&str>, error: Option<RunFault>) -> Run {
        let (task_id, id, due) = (Uuid::from_u128(7), Uuid::from_u128(0x42), at("2026-12-24T07:00:00Z"));
        Run {
            state,
            attempt: 1,
            started_at: Some(due),
            finished_at: Some(at("2026-12-24T07:00:09Z")),
            output: output.map(str::to_owned),
            error,
            ..Run::queued(task_id, id, "ann", "s:2026-12-24T07:00:00.000Z", "schedule", due, due)
        }
    }

    fn delivery(kind: MessageKind) -> Delivery {
        Delivery {
            run_id: Some(Uuid::from_u128(0x42)),
            text: Some("Milk is out.\nBuy some.".into()),
            created_at: at("2026-12-24T07:00:09Z"),
            ..Delivery::sample(kind)
        }
    }

    fn words(kind: MessageKind, run: Option<&Run>, task_name: Option<&str>) -> RenderedMessage {
        let about = References { run, task_name, ..References::default() };
        MessageTemplates::embedded()
            .words(&delivery(kind), about, read_in(Tz::Europe__Berlin), &To("email", &["plain"], 1000))
            .unwrap()
    }

    #[test]
    fn result_is_the_answer_under_the_name_of_its_task() {
        let run = run(RunState::Succeeded, Some(" Two mails, none urgent.\n"), None);
        let words = words(MessageKind::Result, Some(&run), Some("Morning mail"));
        assert_eq!((words.subject.as_str(), words.text.as_str()), ("Morning mail", "Two mails, none urgent."));
        assert_eq!(words.event, "run.finished");
        let mut expected = serde_json::to_value(&run).unwrap();
        expected["task_name"] = json!("Morning mail");
        assert_eq!(words.data, expected);
    }

    #[test]
    fn failure_says_what_when_and_why_in_the_recipients_time() {
        let mut run = run(RunState::Failed, None, Some(RunFault::new("llm_auth", "the model refused the key")));
        run.attempt = 3;
        let words = words(MessageKind::Failure, Some(&run), Some("Morning mail"));
        assert_eq!(words.subject, "Morning mail failed");
        assert_eq!(
            words.text,
            "\"Morning mail\", due 2026-12-24 08:00 CET, failed: the model refused the key (llm_auth). It was tried 3 times.\n\n\
             Run 00000000-0000-0000-0000-000000000042"
        );
        assert_eq!(words.data["error"], json!({ "code": "llm_auth", "message": "the model refused the key" }));
    }

    #[test]
    fn expired_run_tells_its_reason() {
        let mut run = run(RunState::Expired, None, None);
        run.reason = Some("nobody answered in time".into());
        let words = words(MessageKind::Failure, Some(&run), None);
        assert_eq!(words.subject, "a task expired");
        assert!(
            words.text.starts_with("\"a task\", due 2026-12-24 08:00 CET, expired: nobody answered in time.\n"),
            "{}",
            words.text
        );
    }

    #[test]
    fn message_is_said_as_it_stands() {
        let rendered_text = words(MessageKind::Message, None, Some("Shopping"));
        assert_eq!(
            rendered_text,
            RenderedMessage {
                subject: "Message from Shopping".into(),
                text: "Milk is out.\nBuy some.".into(),
                html: None,
                link: None,
                thread: None,
                event: "message",
                asks: false,
                data: json!({
                    "tenant_id": "ann", "run_id": "00000000-0000-0000-0000-000000000042",
                    "subject": "Message from Shopping", "text": "Milk is out.\nBuy some.",
                }),
            }
        );
        assert_eq!(words(MessageKind::Notice, None, None).event, "notice");
    }

    #[test]
    fn message_says_that_somebody_is_asked_whatever_they_are_asked_for() {
        let mut question = asking(&["Which city?"]);
        for (kind, event) in [(MessageKind::Ask, "approval.requested"), (MessageKind::Reminder, "approval.reminder")] {
            let words = asked(&question, kind, "Mail", Tz::UTC, 1000);
            assert_eq!((words.event, words.asks), (event, true));
        }
        question.items[0].proposal.kind = QuestionKind::Input;
        for (kind, event) in [(MessageKind::Ask, "input.requested"), (MessageKind::Reminder, "input.reminder")] {
            let words = asked(&question, kind, "Mail", Tz::UTC, 1000);
            assert_eq!((words.event, words.asks), (event, true));
        }
        let run = run(RunState::Succeeded, Some("done"), None);
        assert!(!words(MessageKind::Result, Some(&run), None).asks);
    }

    #[test]
    fn empty_answer_is_said_to_be_empty() {
        let run = run(RunState::Succeeded, Some("  "), None);
        assert_eq!(words(MessageKind::Result, Some(&run), None).text, "Done, without an answer.");
    }

    #[test]
    fn result_whose_run_is_gone_can_t_be_told() {
        let to = To("email", &["plain"], 1000);
        let gone = MessageTemplates::embedded().words(
            &delivery(MessageKind::Result),
            References::default(),
            read_in(Tz::UTC),
            &to,
        );
        assert_eq!(gone, Err("the run that it tells of is no longer there".into()));
    }

    #[test]
    fn question_names_the_task_what_waits_until_when_and_the_link() {
        let two = asking(&["Send email to team@company.com", "Pay 5 to bob"]);
        assert_eq!(
            asked(&two, MessageKind::Ask, "Morning mail", Tz::UTC, 10_000).subject,
            "Morning mail asks for your approval of 2 things"
        );
        assert_eq!(
            asked(&two, MessageKind::Reminder, "M", Tz::UTC, 10_000).subject,
            "Reminder: M waits for your approval of 2 things"
        );
        assert_eq!(
            asked(&two, MessageKind::Ask, "Morning mail", Tz::Europe__Berlin, 10_000).text,
            "\"Morning mail\" wants to do 2 things and asks you first:\n\n\
             1. Send email to team@company.com\n2. Pay 5 to bob\n\n\
             There is time to answer until 2027-03-01 09:30 CET. Without an answer nothing of it is done.\n\n\
             Look at it and decide:\nhttps://wake.example.org/approvals/0123456789abcdef"
        );
    }

    #[test]
    fn held_call_is_told_with_the_instant_until_which_it_can_be_stopped() {
        let mut one = asking(&["Pay 5 to bob"]);
        one.items[0].status = ApprovalStatus::Approved;
        one.items[0].hold_until = Some(on_that_day("08:05"));
        assert_eq!(
            asked(&one, MessageKind::Ask, "Pay", Tz::UTC, 10_000).subject,
            "Pay is about to act: 1 thing may still be stopped"
        );
        let text = asked(&one, MessageKind::Ask, "Pay", Tz::UTC, 10_000).text;
        assert!(text.contains("It is done at 2027-03-01 08:05 UTC unless you stop it."), "{text}");
        assert_eq!(asked(&one, MessageKind::Ask, "Pay", Tz::UTC, 10_000).event, "approval.undo_window");
    }

    #[test]
    fn hidden_characters_are_shown_and_a_long_sentence_is_cut_with_a_note() {
        let text = asked(
            &asking(&["pay\u{202e}gnp.exe\u{7}\nnow", &"x".repeat(400)]),
            MessageKind::Ask,
            "a\u{202e}b",
            Tz::UTC,
            10_000,
        )
        .text;
        assert!(text.starts_with("\"a⟦U+202E⟧b\" wants"), "{text}");
        assert!(text.contains("1. pay⟦U+202E⟧gnp.exe␇ now\n"), "{text}");
        assert!(text.contains(&format!("2. {}… (the page shows all of it)\n", "x".repeat(300))), "{text}");
    }

    #[test]
    fn question_with_many_items_counts_them_and_keeps_its_link() {
        let many = asking(&["Pay 5 to bob"; 25]);
        assert!(
            asked(&many, MessageKind::Ask, "Pay", Tz::UTC, 10_000)
                .text
                .contains("20. Pay 5 to bob\n… and 5 more, which the page shows")
        );
        for limit in [60, 160, 200, 300, 500] {
            let text = asked(&many, MessageKind::Ask, "Pay", Tz::UTC, limit).text;
            assert!(text.ends_with(LINK) && text.chars().count() <= limit, "{limit}: {text}");
        }
    }

    /// Every embedded purpose in every format, as people get it.
    #[test]
    fn each_purpose_in_each_format() {
        let templates = MessageTemplates::embedded();
        let purposes = Purpose::WORDS.map(Purpose::Of).into_iter().chain([Purpose::Notice(NoticeKind::Credential)]);
        let mut all = String::new();
        for purpose in purposes {
            let mut context = trial::sample(purpose);
            context.text = "Two **mails** <b>& a half</b>.\n\n- one\n- two".into();
            for (format, part) in MessageFormat::ALL
                .map(|format| (format, TemplateKind::Body))
                .into_iter()
                .chain([(MessageFormat::Plain, TemplateKind::Subject)])
            {
                let text = templates.render(&context, "email", format, part).expect("each has one");
                let what = if part == TemplateKind::Subject { "subject" } else { format.ending() };
                all.push_str(&format!("=== {} {what}\n{text}\n", context.purpose.names()[0]));
            }
        }
        insta::assert_snapshot!(all);
    }

    /// Every purpose in every format, as a German reader gets it.
    #[test]
    fn each_purpose_in_each_format_in_german() {
        let templates = MessageTemplates::embedded();
        let mut all = String::new();
        for kind in [
            MessageKind::Result,
            MessageKind::Failure,
            MessageKind::Message,
            MessageKind::Ask,
            MessageKind::Reminder,
            MessageKind::Digest,
            MessageKind::Code,
        ] {
            for (name, formats) in FORMATS {
                let words = told_in(&templates, "de-AT", kind, &To(name, formats, 10_000));
                all.push_str(&format!("=== {} {name}\n{}\n{}\n", kind.as_str(), words.subject, words.text));
                if let Some(link) = &words.link {
                    all.push_str(&format!("[{}]\n", link.label));
                }
                if let Some(html) = words.html {
                    assert_eq!(
                        html.lines().nth(1),
                        Some(if kind == MessageKind::Result { EN_HTML } else { DE_HTML }),
                        "{kind:?}"
                    );
                    all.push_str(&html[html.find("<h1").unwrap()..]);
                    all.push('\n');
                }
            }
        }
        let mut undo = trial::sample(Purpose::Of("undo_window"));
        undo.locale = "de".into();
        undo.question.as_mut().unwrap().things = "2 Sachen".into();
        for format in MessageFormat::ALL {
            all.push_str(&templates.render(&undo, "email", format, TemplateKind::Body).expect("each has one"));
            all.push('\n');
        }
        for issue in [CredentialIssueKind::Missing, CredentialIssueKind::NeedsConsent, CredentialIssueKind::Refused] {
            let mut context = trial::sample(Purpose::Notice(NoticeKind::Credential));
            context.locale = "de".into();
            context.credential.as_mut().unwrap().issue = issue;
            for (format, part) in MessageFormat::ALL
                .map(|format| (format, TemplateKind::Body))
                .into_iter()
                .chain([(MessageFormat::Plain, TemplateKind::Subject)])
            {
                all.push_str(&templates.render(&context, "email", format, part).expect("each has one"));
                all.push('\n');
            }
        }
        for word in [" the ", "The ", " and ", " of ", "Run ", "due ", "Decide", "Open", "until", "more", "Please"] {
            let found = all.lines().find(|line| line.contains(word));
            assert_eq!(found, None, "{word}");
        }
        insta::assert_snapshot!(all);
    }

    const FORMATS: [(&str, &[&str]); 3] =
        [("email", &["plain", "html"]), ("slack", &["mrkdwn"]), ("telegram", &["telegram_html"])];
    const EN_HTML: &str = "<html lang=\"en\">";
    const DE_HTML: &str = "<html lang=\"de\">";

    #[test]
    fn message_that_is_cut_says_where_the_whole_is_in_the_language_of_its_reader() {
        let page = Secret::new(WHOLE);
        let run = run(RunState::Succeeded, Some(&"Hallo Welt. ".repeat(900)), None);
        let about =
            References { run: Some(&run), task_name: Some("Post"), whole: Some(&page), ..References::default() };
        let rendered_text = |templates: &MessageTemplates, locale| {
            let reader = Reader { locale, ..Reader::NOBODY };
            templates
                .words(&delivery(MessageKind::Result), about, reader, &To("email", &["plain", "html"], 400))
                .unwrap()
        };
        let words = rendered_text(&MessageTemplates::embedded(), "de");
        assert!(words.text.contains("Das Ganze, 10799 Zeichen:\n"), "{}", words.text);
        assert!(words.html.unwrap().contains(">Öffnen</a>"));
        assert_eq!(words.link.unwrap().label, "Öffnen");
        assert!(rendered_text(&MessageTemplates::embedded(), "fr").text.contains("The whole, 10799 characters:\n"));
        let shown = MessageTemplates::embedded().page(
            &delivery(MessageKind::Result),
            about,
            Reader { locale: "de", ..Reader::NOBODY },
        );
        assert_eq!(shown.unwrap().about, "Post · fällig 2026-12-24 07:00 UTC");
        // what an operator has written sees what it has always seen
        let dir = TemplatesDir::with(&[(
            "failure.txt",
            "Subject: own\n{{ run.what }} {% if whole %}{{ whole.note }}{% endif %}",
        )]);
        let failed = super::tests::run(RunState::Failed, None, None);
        let about = References { run: Some(&failed), task_name: Some("Post"), ..References::default() };
        let reader = Reader { locale: "de", ..Reader::NOBODY };
        let own = MessageTemplates::read(Some(&dir.0)).unwrap();
        let words = own.words(&delivery(MessageKind::Failure), about, reader, &To("sms", &["plain"], 400)).unwrap();
        assert_eq!(words.text, "failed");
    }

    #[test]
    fn channel_gets_its_own_language_and_nothing_longer_than_it_takes() {
        let hostile = "<script>&\"*_`".repeat(10_000);
        let run = run(RunState::Succeeded, Some(&hostile), None);
        for (format, limit) in
            [("plain", 400), ("mrkdwn", 3000), ("telegram_html", 4096), ("plain", 20), ("telegram_html", 40)]
        {
            let formats: &'static [&'static str] = match format {
                "mrkdwn" => &["mrkdwn"],
                "telegram_html" => &["telegram_html"],
                _ => &["plain"],
            };
            let about = References { run: Some(&run), task_name: Some("T<i>"), ..References::default() };
            let words = MessageTemplates::embedded()
                .words(&delivery(MessageKind::Result), about, read_in(Tz::UTC), &To("x", formats, limit))
                .unwrap();
            let length = words.text.chars().count();
            assert!(length <= limit && length * 3 > limit, "{format} {limit}: {length}");
            if format != "plain" {
                assert!(!words.text.contains("<script") && !words.text.contains("T<i>"), "{}", words.text);
            }
            if limit > 100 {
                assert!(words.text.contains("[cut: 130000 characters"), "{}", words.text);
            }
        }
    }

    const WHOLE: &str = "https://wake.example.org/messages/0123456789abcdef0123456789abcdef0123456789abcdef";

    #[test]
    fn cut_text_ends_with_the_link_to_the_whole_in_every_format() {
        let (run, page) =
            (run(RunState::Succeeded, Some(&"Two **mails** & more. ".repeat(1000)), None), Secret::new(WHOLE));
        let failed = Run { state: RunState::Failed, reason: run.output.clone(), output: None, ..run.clone() };
        let long = |kind| Delivery { text: run.output.clone(), subject: Some("S".into()), ..delivery(kind) };
        for formats in [&["plain", "html"][..], &["mrkdwn"], &["telegram_html"]] {
            for kind in [MessageKind::Result, MessageKind::Failure, MessageKind::Message, MessageKind::Notice] {
                let told_run = if kind == MessageKind::Failure { &failed } else { &run };
                let about = References {
                    run: Some(told_run),
                    task_name: Some("Mail"),
                    whole: Some(&page),
                    ..References::default()
                };
                let to = To("x", formats, 1000);
                let words = MessageTemplates::embedded().words(&long(kind), about, read_in(Tz::UTC), &to).unwrap();
                let end = format!(
                    "\n\nThe whole, {} characters:\n{WHOLE}",
                    told_run.output.as_deref().map_or(22_000, |text| {
                        if kind == MessageKind::Result { text.trim().chars().count() } else { text.chars().count() }
                    })
                );
                assert!(words.text.ends_with(&end), "{kind:?} {formats:?}: {}", words.text);
                let length = words.text.chars().count();
                assert!(length <= 1000 && length > 900, "{kind:?} {formats:?}: {length}");
                assert_eq!(words.link, Some(Link { label: "Open".into(), url: WHOLE.into() }));
                if let Some(html) = words.html {
                    assert!(html.contains(&format!("href=\"{WHOLE}\"")), "{html}");
                }
            }
        }
    }

    #[test]
    fn answer_at_the_limit_of_turns_begins_with_that() {
        let run = |finish| Run { finish, ..run(RunState::Succeeded, Some("Two mails so far."), None) };
        let text = |run: &Run, locale| {
            let about = References { run: Some(run), ..References::default() };
            let reader = Reader { locale, ..read_in(Tz::UTC) };
            let to = To("email", &["plain"], 1000);
            MessageTemplates::embedded().words(&delivery(MessageKind::Result), about, reader, &to).unwrap().text
        };
        let stopped = run(Some(RunFinish::MaxTurns));
        assert_eq!(
            text(&stopped, "en"),
            "The agent was stopped at its limit of turns. This is as far as it came:\n\nTwo mails so far."
        );
        assert_eq!(
            text(&stopped, "de"),
            "Der Agent wurde an seiner Grenze von Durchgängen angehalten. So weit ist er gekommen:\n\nTwo mails so far."
        );
        for finish in [None, Some(RunFinish::Answer)] {
            assert_eq!(text(&run(finish), "en"), "Two mails so far.");
        }
    }

    #[test]
    fn text_that_fits_names_no_link_and_a_link_that_does_not_fit_leaves_the_text_alone() {
        let page = Secret::new(WHOLE);
        let rendered_text = |output: &str, limit| {
            let run = run(RunState::Succeeded, Some(output), None);
            let about = References { run: Some(&run), whole: Some(&page), ..References::default() };
            MessageTemplates::embedded()
                .words(&delivery(MessageKind::Result), about, read_in(Tz::UTC), &To("email", &["plain", "html"], limit))
                .unwrap()
        };
        let short = rendered_text("Two mails.", 1000);
        assert_eq!((short.text.as_str(), short.link), ("Two mails.", None));
        assert!(!short.html.unwrap().contains("/messages/"));
        let narrow = rendered_text(&"word ".repeat(100), 100);
        assert!(narrow.text.ends_with("[cut: 499 characters, 100 at most]"), "{}", narrow.text);
        assert_eq!(narrow.link, None);
    }

    #[test]
    fn digest_whose_messages_are_cut_or_counted_ends_with_the_link_to_all_of_them() {
        let item = |n: usize| DigestItem::new(&format!("Mail {n}"), &"x".repeat(200), on_that_day("08:00"), Tz::UTC);
        let (items, page) = ((0..5).map(item).collect::<Vec<_>>(), Secret::new(WHOLE));
        let rendered_text = |more, limit| {
            let about = References { digest: &items, more, whole: Some(&page), ..References::default() };
            MessageTemplates::embedded()
                .words(&delivery(MessageKind::Digest), about, read_in(Tz::UTC), &To("x", &["mrkdwn"], limit))
                .unwrap()
        };
        assert_eq!(rendered_text(0, 10_000).link, None);
        for (more, limit) in [(0, 500), (0, 1100), (2, 10_000)] {
            let text = rendered_text(more, limit).text;
            assert!(text.ends_with(&format!("\n\nThe whole, {} messages:\n{WHOLE}", 5 + more)), "{text}");
        }
    }

    #[test]
    fn page_shows_all_of_a_message_as_markup_and_nothing_of_it_as_a_tag() {
        let answer = format!("# Mail\n\n{}<script>alert(1)</script> **end**", "word ".repeat(10_000));
        let run = run(RunState::Succeeded, Some(&answer), None);
        let about = References { run: Some(&run), task_name: Some("Morning <mail>"), ..References::default() };
        let page = MessageTemplates::embedded()
            .page(&delivery(MessageKind::Result), about, read_in(Tz::Europe__Berlin))
            .unwrap();
        assert_eq!(page.about, "Morning <mail> · due 2026-12-24 08:00 CET");
        assert_eq!(page.html.matches("word ").count(), 10_000);
        assert!(page.html.contains("&lt;script&gt;") && page.html.contains("<strong>end</strong>"));
        assert!(
            !page.html.contains("<script") && !page.html.contains("style="),
            "the policy of the page allows neither"
        );
        let items = [DigestItem::new("one", "a", on_that_day("08:00"), Tz::UTC)];
        let about = References { digest: &items, more: 3, ..References::default() };
        let digest =
            MessageTemplates::embedded().page(&delivery(MessageKind::Digest), about, read_in(Tz::UTC)).unwrap();
        assert_eq!(
            (digest.subject.as_str(), digest.about.as_str()),
            ("4 messages that could wait", "2026-12-24 07:00 UTC")
        );
        assert!(digest.html.contains("<h2>one</h2>") && digest.html.contains("… and 3 more"), "{}", digest.html);
    }

    #[test]
    fn email_has_html_as_well_and_a_question_its_link_in_both() {
        let question = asking(&["Send <b>this</b> to ann"]);
        let about = References { task_name: Some("Mail & more"), question: Some(&question), ..References::default() };
        let words = MessageTemplates::embedded()
            .words(&delivery(MessageKind::Ask), about, read_in(Tz::UTC), &To("email", &["plain", "html"], 10_000))
            .unwrap();
        let html = words.html.unwrap();
        assert!(html.contains("Send &lt;b&gt;this&lt;/b&gt; to ann") && html.contains("Mail &amp; more"), "{html}");
        assert!(html.contains(&format!("href=\"{LINK}\"")) && words.text.contains(LINK), "{html}");
        assert_eq!(words.link, Some(Link { label: "Decide".into(), url: LINK.into() }));
        assert_eq!(words.thread, Some(question.items[0].batch_id.to_string()));
        assert!(!html.contains("src=") && !html.contains("<script"), "nothing is loaded from anywhere");
    }

    #[test]
    fn digest_tells_its_messages_in_their_order() {
        let items =
            ["one", "two"].map(|text| DigestItem::new(text, &"x".repeat(300), at("2027-03-01T08:00:00Z"), Tz::UTC));
        let about = References { digest: &items, ..References::default() };
        let rendered_text = |limit| {
            MessageTemplates::embedded().words(
                &delivery(MessageKind::Notice),
                about,
                read_in(Tz::UTC),
                &To("email", &["plain"], limit),
            )
        };
        let words = rendered_text(10_000).unwrap();
        assert_eq!((words.subject.as_str(), words.event), ("2 messages that could wait", "digest"));
        assert!(words.text.starts_with("2027-03-01 08:00 UTC · one\nxxx"), "{}", words.text);
        let short = rendered_text(300).unwrap().text;
        assert!(short.chars().count() <= 300 && short.contains("· two\n"), "{short}");
    }

    #[test]
    fn digest_that_is_too_long_names_what_fits_and_counts_the_rest() {
        let text = "Two **mails** & a `bill` <soon>, none of them urgent. ".repeat(20);
        let item = |n: usize| DigestItem::new(&format!("Mail {n} <b>"), &text, on_that_day("08:00"), Tz::UTC);
        let items: Vec<DigestItem> = (0..50).map(item).collect();
        let about = References { digest: &items, more: 7, ..References::default() };
        for formats in [&["plain"][..], &["html"], &["mrkdwn"], &["telegram_html"]] {
            let formats: &'static [&'static str] = formats;
            let mut most = 0;
            for limit in [459, 1000, 4096] {
                let rendered_text = MessageTemplates::embedded().words(
                    &delivery(MessageKind::Digest),
                    about,
                    read_in(Tz::UTC),
                    &To("x", formats, limit),
                );
                let RenderedMessage { subject, text, .. } = rendered_text.unwrap();
                assert_eq!(subject, "57 messages that could wait");
                let named = (0..50).filter(|n| text.contains(&format!("Mail {n} "))).count();
                let length = text.chars().count();
                assert!(length <= limit && !text.is_empty(), "{formats:?} {limit}: {length}\n{text}");
                if formats == ["html"] && named == 0 {
                    // its frame alone is longer
                    assert_eq!(text, subject);
                    continue;
                }
                assert!(named > most, "{formats:?} {limit}: {named}\n{text}");
                assert!(length * 3 > limit, "{formats:?} {limit}: {length}\n{text}");
                assert!(text.contains(&format!("… and {} more", 57 - named)), "{formats:?} {limit}: {text}");
                most = named;
            }
        }
        let rendered_text = MessageTemplates::embedded().words(
            &delivery(MessageKind::Digest),
            about,
            read_in(Tz::UTC),
            &To("x", &["plain"], 10),
        );
        assert_eq!(rendered_text.unwrap().text.chars().count(), 10, "what says how many there are comes first");
    }

    #[test]
    fn issue_with_a_credential_is_told_from_its_data_as_it_was_stored() {
        for (language, locale) in [(MessageLanguage::English, "en"), (MessageLanguage::German, "de-AT")] {
            issue_is_told_as_it_was_stored(language, Reader { locale, ..Reader::NOBODY });
        }
    }

    fn issue_is_told_as_it_was_stored(language: MessageLanguage, reader: Reader) {
        let work = Reference::parse("google/work").unwrap();
        let issue = |kind, task| (kind, issue_notice(language, &work, kind, task));
        let why = Some("it says invalid_grant");
        let idle = idle_issue_notice(language, &work, CredentialIssueKind::NeedsConsent, "Mail");
        let cases = [
            (issue(CredentialIssueKind::Missing, Some("Mail <b>")), Some("Mail <b>"), true, None),
            (issue(CredentialIssueKind::Missing, None), None, false, None),
            ((CredentialIssueKind::NeedsConsent, idle), Some("Mail"), false, None),
            (issue(CredentialIssueKind::Refused, Some("Mail")), Some("Mail"), true, None),
            ((CredentialIssueKind::NeedsConsent, credential_ended(language, &work, why)), None, false, why),
        ];
        for ((kind, (subject, text)), task, paused, reason) in cases {
            let notice = Delivery {
                subject_ref: Some(SubjectRef::credential_missing(&work, kind, Uuid::from_u128(7), 1).0),
                subject: Some(subject.clone()),
                text: Some(text.clone()),
                ..delivery(MessageKind::Notice)
            };
            let credential = CredentialContext {
                task: task.map(str::to_owned),
                paused,
                reason: reason.map(str::to_owned),
                ..CredentialContext::of(&notice).unwrap()
            };
            let rendered_text = |credential, formats| {
                let about = References { credential, ..References::default() };
                MessageTemplates::embedded().words(&notice, about, reader, &To("x", formats, 10_000)).unwrap()
            };
            let words = rendered_text(Some(&credential), &["plain"]);
            assert_eq!((&words.subject, &words.text), (&subject, &text));
            let gone = rendered_text(None, &["plain"]);
            assert_eq!((&gone.subject, &gone.text), (&subject, &text), "what was stored is told");
            for (formats, reference) in [
                (&["html"][..], "<code>google/work</code>"),
                (&["mrkdwn"], "`google/work`"),
                (&["telegram_html"], "<code>google/work</code>"),
            ] {
                let text = rendered_text(Some(&credential), formats).text;
                assert!(text.contains(reference) && text.contains(&subject) && !text.contains("Mail <b>"), "{text}");
            }
        }
    }

    /// A directory of templates that goes with the test.
    struct TemplatesDir(std::path::PathBuf);

    impl TemplatesDir {
        fn with(files: &[(&str, &str)]) -> TemplatesDir {
            let dir = std::env::temp_dir().join(format!("reveille-templates-{:016x}", fastrand::u64(..)));
            std::fs::create_dir(&dir).unwrap();
            for (name, text) in files {
                std::fs::write(dir.join(name), text).unwrap();
            }
            TemplatesDir(dir)
        }
    }

    impl Drop for TemplatesDir {
        fn drop(&mut self) {
            let _ = std::fs::remove_dir_all(&self.0);
        }
    }

    fn refused(name: &str, text: &str) -> String {
        let dir = TemplatesDir::with(&[(name, text)]);
        let faults = MessageTemplates::read(Some(&dir.0)).err().expect("a fault").0;
        assert_eq!((faults.len(), faults[0].pointer.as_str()), (1, "/channels/templates_dir"), "{faults:?}");
        faults[0].message.replace(&format!("{}/", dir.0.display()), "")
    }

    #[test]
    fn operators_own_come_first_for_their_channel() {
        let dir = TemplatesDir::with(&[
            ("result.txt", "Subject: Re: {{ task }}\n\nAnn, {{ text }}\n"),
            ("result.sms.txt", "Subject: x\n{{ text | upper }}"),
            ("notice_credential.txt", "Subject: Connect!\n{{ text }}"),
        ]);
        let templates = MessageTemplates::read(Some(&dir.0)).unwrap();
        let run = run(RunState::Succeeded, Some("done"), None);
        let about = References { run: Some(&run), task_name: Some("Mail"), ..References::default() };
        let rendered_text = |channel| {
            let words = templates
                .words(&delivery(MessageKind::Result), about, read_in(Tz::UTC), &To(channel, &["plain"], 100))
                .unwrap();
            (words.subject, words.text)
        };
        assert_eq!(rendered_text("email"), ("Re: Mail".into(), "Ann, done".into()));
        assert_eq!(rendered_text("sms"), ("x".into(), "DONE".into()));
        let (about, _) = SubjectRef::notice(NoticeKind::Credential, Uuid::from_u128(7), 1);
        let notice = Delivery { subject_ref: Some(about), ..delivery(MessageKind::Notice) };
        let words =
            templates.words(&notice, References::default(), read_in(Tz::UTC), &To("email", &["plain"], 100)).unwrap();
        assert_eq!((words.subject.as_str(), words.text.as_str()), ("Connect!", "Milk is out.\nBuy some."));
    }

    /// The message about a run, or a question, for a reader of this language.
    fn told_in(templates: &MessageTemplates, locale: &str, kind: MessageKind, to: &To) -> RenderedMessage {
        let run = run(RunState::Succeeded, Some("done"), None);
        let question = asking(&["Pay 5 to bob"]);
        let (code, at) = (Secret::new("123456"), on_that_day("08:00"));
        let items = [DigestItem::new("Mail", "zwei", at, Tz::UTC), DigestItem::new("Mail", "drei", at, Tz::UTC)];
        let about = References {
            run: Some(&run),
            task_name: Some("Mail"),
            question: kind.asks().then_some(&question),
            code: Some(&code),
            digest: if kind == MessageKind::Digest { &items } else { &[] },
            more: if kind == MessageKind::Digest { 3 } else { 0 },
            ..References::default()
        };
        templates.words(&delivery(kind), about, Reader { locale, ..Reader::NOBODY }, to).unwrap()
    }

    #[test]
    fn all_of_the_operators_own_come_before_any_embedded_one() {
        let dir = TemplatesDir::with(&[
            ("result.txt", "Subject: own\nown {{ text }}"),
            ("ask.txt", "Subject: own\nown {{ question.link }}"),
            ("layout.html", "own {% block body %}{% endblock %}"),
        ]);
        let templates = MessageTemplates::read(Some(&dir.0)).unwrap();
        let rendered_text = |kind, channel| told_in(&templates, "en", kind, &To(channel, &["plain", "html"], 1000));
        assert_eq!(rendered_text(MessageKind::Result, "sms").text, "own done", "there is an embedded result.sms.txt");
        let reminder = rendered_text(MessageKind::Reminder, "email");
        assert_eq!((reminder.subject.as_str(), reminder.text.as_str()), ("own", &*format!("own {LINK}")));
        assert_eq!(
            reminder.html.unwrap().lines().next(),
            Some("own <p>\"Mail\" wants to do 1 thing and asks you first:</p>")
        );
    }

    #[test]
    fn recipients_language_is_found_from_the_most_exact_and_said_in_the_layout() {
        let dir = TemplatesDir::with(&[
            ("result.txt", "Subject: any\nany"),
            ("result.sms.txt", "Subject: any\nany sms"),
            ("result.de.txt", "Subject: de\nde {{ locale }} {{ text }}"),
            ("result.de.sms.txt", "Subject: de\nde sms"),
            ("result.de-at.txt", "Subject: at\nde-AT"),
            ("result.de.html", "{% extends \"layout.html\" %}{% block body %}fertig{% endblock %}"),
            ("failure.html", "{% extends \"layout.html\" %}{% block body %}own{% endblock %}"),
        ]);
        let templates = MessageTemplates::read(Some(&dir.0)).unwrap();
        let rendered_text =
            |locale, channel| told_in(&templates, locale, MessageKind::Result, &To(channel, &["plain", "html"], 1000));
        for (locale, channel, text) in [
            ("de", "email", "de de done"),
            ("de-CH", "email", "de de-CH done"),
            ("de-AT", "email", "de-AT"),
            ("de-AT", "sms", "de-AT"),
            ("DE", "sms", "de sms"),
            ("en", "email", "any"),
            ("fr-CH", "sms", "any sms"),
        ] {
            assert_eq!(rendered_text(locale, channel).text, text, "{locale} {channel}");
        }
        let head = |words: RenderedMessage| words.html.unwrap().lines().nth(1).unwrap().to_owned();
        assert_eq!(head(rendered_text("de-CH", "email")), "<html lang=\"de\">");
        assert_eq!(head(rendered_text("fr", "email")), "<html lang=\"en\">", "the embedded one");
        let failed = told_in(&templates, "de", MessageKind::Failure, &To("email", &["plain", "html"], 1000));
        assert_eq!(head(failed), "<html>", "nobody has said what it is written in");
    }

    #[test]
    fn template_that_can_t_work_is_refused_with_its_file_and_line() {
        assert_eq!(refused("result.txt", "Hello"), "result.txt: line 1: must begin with `Subject: …`");
        assert_eq!(refused("result.txt", "Subject: {{ task }}\n\n{{ txt }}"), "result.txt: line 3: undefined value");
        assert_eq!(refused("result.html", "<p>\n{% if %}"), "result.html: line 2: unexpected end of block");
        assert_eq!(refused("ask.sms.txt", "Subject: {{ run.due }}\nx"), "ask.sms.txt: line 1: undefined value");
        assert!(
            refused("resullt.txt", "")
                .starts_with("resullt.txt: there is no purpose `resullt`; did you mean `result`?")
        );
        assert_eq!(refused("result.md", ""), "result.md: there is no format `md`");
        assert!(refused("README", "").contains("PURPOSE[.LANGUAGE][.CHANNEL].FORMAT"));
        assert_eq!(
            refused("result.emial.txt", "Subject: x"),
            "result.emial.txt: there is no channel `emial`; did you mean `email`?; there are email, push, telegram, slack, \
             sms, webhook, live, and it is no language such as `de` or `de-AT`"
        );
        assert_eq!(refused("result.de.txt", "Subject: x\n\n{{ txt }}"), "result.de.txt: line 3: undefined value");
        assert_eq!(
            refused("result.txt", "Subject: x\n{% if whole %}{{ whole.url }}{% endif %}"),
            "result.txt: line 2: undefined value"
        );
        let forever = "Subject: x\n{% for a in range(9999) %}{% for b in range(9999) %}x{% endfor %}{% endfor %}";
        assert_eq!(refused("result.txt", forever), "result.txt: line 2: engine ran out of fuel");
    }

    #[test]
    fn template_that_fails_after_all_loses_no_message() {
        let dir = TemplatesDir::with(&[(
            "result.txt",
            "Subject: {{ task }}\n{% if text == 'odd' %}{{ 1 / 0 }}{% endif %}own",
        )]);
        let templates = MessageTemplates::read(Some(&dir.0)).unwrap();
        let rendered_text = |output| {
            let run = run(RunState::Succeeded, Some(output), None);
            let about = References { run: Some(&run), task_name: Some("Mail"), ..References::default() };
            templates
                .words(&delivery(MessageKind::Result), about, read_in(Tz::UTC), &To("email", &["plain"], 100))
                .unwrap()
                .text
        };
        assert_eq!((rendered_text("even"), rendered_text("odd")), ("own".into(), "odd".into()));
    }
}
