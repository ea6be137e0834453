//! The content of a message, as data for the templates: names, sentences and instants, nothing of how they look.
//!
//! It is made from what a delivery refers to at the moment it is sent. It knows how to say less, so that a message
//! fits where there is little room.

use chrono_tz::Tz;
use serde::Serialize;
use serde::ser::SerializeStruct;
use serde_json::{Value, json};

use crate::base::secret::Secret;
use crate::base::unicode_safety::on_one_line;
use crate::domain::notification::digest::digest_data;
use crate::domain::notification::recipient::Reader;
use crate::domain::notification::rendered_message::{answer, failure, ownership_code, run_data};
use crate::domain::notification::text::{cut, cut_in, instant, one_line, shortened};
use crate::domain::notification::{
    CredentialContext, Delivery, DigestItem, Link, MessageKind, MessageLanguage, NoticeKind, QuestionContext,
    References, SubjectRef,
};

/// Room that a message of a digest has at least for its text, in characters, so that few are told in words rather than
/// many by name.
const WORTH_SAYING: usize = 80;
/// Room that what stands around it takes, in characters.
const AROUND: usize = 8;
/// Characters that a text keeps beside a link to the whole of it; where fewer have room, the link gives way.
const WORTH_READING: usize = 20;

/// The purpose of a message: the first part of the names of its templates.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum Purpose {
    /// A word of [`Purpose::WORDS`].
    Of(&'static str),
    /// A notice of a kind: `notice_credential`, else `notice`, else as a message.
    Notice(NoticeKind),
}

impl Purpose {
    /// The answer of a run; that it failed; what an agent or a pipeline says; something about a task; a question, a
    /// call that may still be stopped, the question once more; several messages in one.
    pub const WORDS: [&str; 9] =
        ["result", "failure", "message", "notice", "ask", "input", "undo_window", "reminder", "digest"];

    /// The kinds of notices: a credential can't be used; a task fails as before, was paused, works again; what a
    /// condition polls fails, answers again; a task fires at other instants because the rules of its time zone have
    /// changed; an expression of a task looks for a field that is not there; a tool that a task names is new or
    /// changed; of a budget of the day most is used, or all.
    pub const NOTICES: [&str; 11] = [
        "credential",
        "failing",
        "paused",
        "recovered",
        "poll_failing",
        "poll_recovered",
        "zone_rules",
        "missing_field",
        "tool_changed",
        "budget_warning",
        "budget_used_up",
    ];

    /// The names that its templates may have, the most exact first.
    pub fn names(&self) -> Vec<String> {
        match self {
            Purpose::Of("reminder") => vec!["reminder".to_owned(), "ask".to_owned()],
            Purpose::Of("notice") => vec!["notice".to_owned(), "message".to_owned()],
            Purpose::Of(word) => vec![(*word).to_owned()],
            Purpose::Notice(kind) => {
                vec![format!("notice_{}", kind.as_str()), "notice".to_owned(), "message".to_owned()]
            }
        }
    }
}

/// The data of one message.
#[derive(Debug, Clone, Serialize)]
pub struct MessageContext {
    /// The purpose, which names the templates.
    #[serde(skip)]
    pub purpose: Purpose,
    /// The tenant that owns the message.
    pub tenant: String,
    /// The recipient's, as it was set: `de-AT`.
    pub locale: String,
    /// The name of the task, on one line.
    pub task: String,
    /// When the message came to be, of a digest when it was due, in the recipient's zone.
    pub at: String,
    /// Given with a message or a notice, else what the `Subject:` line makes.
    pub subject: Option<String>,
    /// An answer, a message, or why something failed.
    pub text: String,
    /// The run that the message is about.
    pub run: Option<RunContext>,
    /// The question, for questions and reminders.
    pub question: Option<QuestionContext>,
    /// With a notice that a credential can't be used, where what it is about is still there.
    pub credential: Option<CredentialContext>,
    /// Empty unless it is a digest.
    pub digest: Vec<DigestItem>,
    /// Messages of a digest that are counted instead of named.
    pub more: usize,
    /// Where all of it can be read; only where something of it was cut or counted.
    pub whole: Option<WholeMessageLink>,
    /// The address of the whole message, whether it is needed or not.
    #[serde(skip)]
    pub page: Option<Secret>,
    /// The link of its button.
    #[serde(skip)]
    pub link: Option<Link>,
    /// Key that messages of one conversation share.
    #[serde(skip)]
    pub thread: Option<String>,
    /// Type of the event, for programs.
    #[serde(skip)]
    pub event: &'static str,
    /// The content for programs.
    #[serde(skip)]
    pub data: Value,
    /// The language of its sentences.
    #[serde(skip)]
    pub language: MessageLanguage,
    /// The text in the language of its reader, for the templates that are built in; `None` where that is this one.
    #[serde(skip)]
    pub translated: Option<Box<MessageContext>>,
}

/// Of the run that a result or a failure is about.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RunContext {
    /// Id of the run.
    pub id: String,
    /// In the recipient's zone: `2026-12-24 08:00 CET`.
    pub due: String,
    /// `failed`, `expired`, `was cancelled`, `was skipped`; of a result `succeeded`. In German for German templates
    /// that are built in.
    pub what: &'static str,
    /// Attempts that the run has used.
    pub attempts: i32,
}

/// Of a message that was cut, where all of it can be read.
#[derive(Debug, Clone)]
pub struct WholeMessageLink {
    /// How much it is: `The whole, 57 messages`.
    pub note: String,
    /// Label of a button to it: `Open`.
    pub label: String,
    /// Address of the page.
    pub link: Secret,
}

/// For the templates alone, which have to show the link: a [`Secret`] serialises as redacted.
impl Serialize for WholeMessageLink {
    fn serialize<S: serde::Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        let mut fields = to.serialize_struct("whole", 3)?;
        fields.serialize_field("note", &self.note)?;
        fields.serialize_field("label", &self.label)?;
        fields.serialize_field("link", self.link.expose())?;
        fields.end()
    }
}

impl MessageContext {
    /// The content of a delivery, in English and in the language of its reader; an error says what is gone. `limit`
    /// bounds the texts for programs, in characters.
    pub fn of(delivery: &Delivery, about: References, reader: Reader, limit: usize) -> Result<MessageContext, String> {
        let build_in = |language| MessageContext::build(delivery, about, (reader, language), limit);
        let mut context = build_in(MessageLanguage::English)?;
        context.translated = match MessageLanguage::of(reader.locale) {
            MessageLanguage::English => None,
            language => Some(Box::new(build_in(language)?)),
        };
        Ok(context)
    }

    /// As its reader is told.
    pub fn main_message(&self) -> &MessageContext {
        self.translated.as_deref().unwrap_or(self)
    }

    /// It and its translation, changed.
    pub fn map(mut self, change: impl Fn(&mut MessageContext)) -> MessageContext {
        change(&mut self);
        if let Some(translated) = self.translated.as_deref_mut() {
            change(translated);
        }
        self
    }

    fn build(
        delivery: &Delivery,
        about: References,
        (reader, language): (Reader, MessageLanguage),
        limit: usize,
    ) -> Result<MessageContext, String> {
        let timezone = reader.timezone;
        let name = on_one_line(about.task_name.unwrap_or(language.pick("a task", "eine Aufgabe")));
        let at = if delivery.kind == MessageKind::Digest { delivery.due_since() } else { delivery.created_at };
        let mut context = MessageContext {
            purpose: Purpose::Of("message"),
            tenant: delivery.tenant_id.clone(),
            locale: reader.locale.to_owned(),
            task: name,
            at: instant(at, timezone),
            subject: delivery.subject.clone(),
            text: delivery.text.clone().unwrap_or_default(),
            run: None,
            question: None,
            credential: about.credential.cloned(),
            digest: about.digest.to_vec(),
            more: about.more,
            whole: None,
            page: about.whole.map(|page| Secret::new(page.expose())),
            link: None,
            thread: about.run.and_then(|run| run.task_id).map(|task| task.to_string()),
            event: "message",
            data: Value::Null,
            language,
            translated: None,
        };
        match (delivery.kind, about.run, about.question) {
            _ if !about.digest.is_empty() => {
                context.purpose = Purpose::Of("digest");
                context.thread = None;
                context.event = "digest";
                context.data = digest_data(&delivery.tenant_id, about.digest, about.more);
                return Ok(context);
            }
            // of what an agent came to while it ran
            (MessageKind::Message, ..) if context.credential.is_some() => {
                context.purpose = Purpose::Notice(NoticeKind::Credential);
            }
            (MessageKind::Message, ..) => {}
            (MessageKind::Digest, ..) => return Err("nothing of what was held is left to be told".into()),
            (MessageKind::Test, ..) => context.event = "test",
            (MessageKind::Code, ..) => {
                let code = about.code.ok_or("its code can't be made again")?;
                (context.subject, context.text) = ownership_code(language, code);
                context.event = "code";
            }
            (MessageKind::Notice, ..) => {
                let kind = delivery.subject_ref.as_ref().and_then(SubjectRef::notice_kind);
                context.purpose = kind.map_or(Purpose::Of("notice"), Purpose::Notice);
                context.event = "notice";
            }
            (MessageKind::Result, Some(run), _) => {
                context.purpose = Purpose::Of("result");
                context.text = answer(language, run);
                context.run = Some(RunContext::of(run, language.pick("succeeded", "ist gelungen"), timezone));
                context.event = "run.finished";
            }
            (MessageKind::Failure, Some(run), _) => {
                let (what, why) = failure(language, run);
                context.purpose = Purpose::Of("failure");
                context.text = why;
                context.run = Some(RunContext::of(run, what, timezone));
                context.event = "run.finished";
            }
            (MessageKind::Ask | MessageKind::Reminder, _, Some(question)) => {
                context.purpose = Purpose::Of(question.purpose(delivery.kind));
                context.question = Some(question.template_data(timezone, language));
                context.link = Some(question.link(language));
                context.thread = Some(question.items.first().map(|item| item.batch_id.to_string()).unwrap_or_default());
                context.event = question.event(delivery.kind);
                context.data = question.data(&delivery.tenant_id, about.task_name);
                return Ok(context);
            }
            (MessageKind::Ask | MessageKind::Reminder, ..) => return Err("what it asks is no longer there".into()),
            (MessageKind::Result | MessageKind::Failure, None, _) => {
                return Err("the run that it tells of is no longer there".into());
            }
        }
        context.data = match (about.run, context.run.is_some()) {
            (Some(run), true) => run_data(run, about.task_name, limit),
            _ => message_data(delivery, &context, limit),
        };
        Ok(context)
    }

    /// The content with at most about `room` characters in its texts: answers are cut, items are counted instead of
    /// named. Where that takes something away it says where the whole is, or if that is nowhere, how much there was.
    pub fn shortened_to(&self, room: usize) -> MessageContext {
        let mut less = self.clone();
        less.text = match &self.page {
            Some(_) => shortened(&self.text, room),
            None => cut_in(self.language, &self.text, room, None),
        };
        // whose sentences are not cut
        less.credential = self.credential.clone().filter(|_| less.text == self.text);
        less.question = self.question.as_ref().map(|question| question.within(room));
        less.name_within(room);
        let takes_away = less.more > 0 || less.text != self.text || less.digest != self.digest;
        let whole = |page: &Secret| WholeMessageLink {
            note: self.extent(),
            label: self.language.pick("Open", "Öffnen").into(),
            link: Secret::new(page.expose()),
        };
        less.whole = self.page.as_ref().filter(|_| takes_away).map(whole);
        less.translated = self.translated.as_ref().map(|translated| Box::new(translated.shortened_to(room)));
        less
    }

    /// Whether the rest of it after [`MessageContext::shortened_to`] is worth its room.
    pub fn is_worth_sending(&self, of: &MessageContext) -> bool {
        match of.digest.is_empty() {
            false => !self.digest.is_empty(),
            true => self.whole.is_none() || self.text.chars().count() >= WORTH_READING,
        }
    }

    fn extent(&self) -> String {
        let (whole, characters, messages) =
            self.language.pick(("The whole", "characters", "messages"), ("Das Ganze", "Zeichen", "Nachrichten"));
        match self.digest.len() {
            0 => format!("{whole}, {} {characters}", self.text.chars().count()),
            named => format!("{whole}, {} {messages}", named + self.more),
        }
    }

    /// Names as many messages of a digest as there is room for, the oldest, and counts the others.
    fn name_within(&mut self, room: usize) {
        let frame = |item: &DigestItem| item.subject.chars().count() + item.at.chars().count() + AROUND;
        let mut taken = 0;
        let named = self.digest.iter().take_while(|item| {
            taken += frame(item) + item.text.chars().count().min(WORTH_SAYING);
            taken <= room
        });
        let named = named.count();
        self.more += self.digest.len() - named;
        self.digest.truncate(named);
        let for_texts = room.saturating_sub(self.digest.iter().map(frame).sum());
        let each = for_texts.checked_div(named).unwrap_or(0);
        for item in &mut self.digest {
            item.text = shortened(&item.text, each);
        }
    }
}

impl RunContext {
    fn of(run: &crate::domain::run::Run, what: &'static str, timezone: Tz) -> RunContext {
        RunContext { id: run.id.to_string(), due: instant(run.scheduled_for, timezone), what, attempts: run.attempt }
    }
}

fn message_data(delivery: &Delivery, context: &MessageContext, limit: usize) -> Value {
    let subject = context.subject.clone().unwrap_or_else(|| format!("Message from {}", context.task));
    json!({
        "tenant_id": delivery.tenant_id, "run_id": delivery.run_id, "subject": one_line(&subject),
        "text": cut(&context.text, limit, None),
    })
}
