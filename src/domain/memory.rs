//! Memory: facts that agents know of a tenant. A fact is one sentence; what it said before stands in its versions.
//!
//! Facts inform a model and order nothing. One whose origin is text from outside is told as such text is, between tags.

pub mod recall;

use std::sync::Arc;

use aws_lc_rs::digest::{SHA256, digest};
use chrono::{DateTime, Utc};
use serde::Serialize;
use unicode_normalization::UnicodeNormalization;
use uuid::Uuid;

use crate::base::invalid::ValidationErrors;
use crate::base::words::words;

/// Longest text of a fact, in characters.
pub const FACT_LENGTH: usize = 1_000;
/// Longest collection, in characters.
pub const COLLECTION_LENGTH: usize = 100;
/// Characters of a message in which words of facts are looked for: its beginning.
pub const MESSAGE_READ: usize = 4_000;
/// Facts that a tenant may have.
pub const MOST_FACTS: i64 = 10_000;
/// Of these, how many may come from outside: there is room for a person's word.
pub const MOST_FROM_OUTSIDE: i64 = 2_000;
/// Earlier versions of a fact that are kept, the newest.
pub const MOST_VERSIONS: i64 = 20;
/// The collections whose facts every run is told, with those below them, as far as a person has said them.
pub const PROFILE: [&str; 2] = ["profile", "preferences"];

/// Characters of a text that are searched: one character may be written as many.
const LONGEST_FOLDED: usize = 4 * FACT_LENGTH;

words! {
    /// Where a fact comes from.
    #[derive(Default, utoipa::ToSchema)]
    pub enum FactOrigin {
        /// A person of the tenant has said it.
        Person = "person",
        /// It was noted where text from outside had been read: events, results of tools, mails.
        #[default]
        Outside = "outside",
    }
}

/// A fact as it stands now.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct Fact {
    /// Id of the fact, a UUIDv7; a correction keeps it.
    pub id: Uuid,
    /// The tenant that it is about.
    pub tenant_id: String,
    /// A path such as `preferences/travel`; empty: none.
    #[schema(example = "preferences/travel")]
    pub collection: String,
    /// The fact, in one sentence.
    #[schema(example = "Prefers window seats.")]
    pub text: String,
    /// Whether a person said it, or text from outside.
    pub origin: FactOrigin,
    /// The run that noted this version; `null`: somebody by the API.
    #[schema(required)]
    pub run_id: Option<Uuid>,
    /// The turn of that run.
    #[schema(required)]
    pub turn: Option<i64>,
    /// By whom this version was noted: `agent`, or as in the audit record.
    #[schema(example = "agent")]
    pub noted_by: String,
    /// 1 for the first version, one more for each that took its place.
    pub version: i64,
    /// How often this version was noted.
    pub mentions: i64,
    /// The instant of the first version.
    pub created_at: DateTime<Utc>,
    /// The instant of this version.
    pub noted_at: DateTime<Utc>,
    /// An instant within a day of that at which a run was told of it last; where none was, the one at which it was noted.
    pub last_used_at: DateTime<Utc>,
}

/// An earlier version of a fact.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct FactVersion {
    /// Number of the version.
    pub version: i64,
    /// Its collection.
    pub collection: String,
    /// Its text.
    pub text: String,
    /// Whether a person said it, or text from outside.
    pub origin: FactOrigin,
    /// The run that noted it.
    #[schema(required)]
    pub run_id: Option<Uuid>,
    /// The turn of that run.
    #[schema(required)]
    pub turn: Option<i64>,
    /// By whom it was noted.
    pub noted_by: String,
    /// The instant at which it was noted.
    pub noted_at: DateTime<Utc>,
    /// The instant at which the next version took its place.
    pub replaced_at: DateTime<Utc>,
}

/// A fact that is to be noted.
#[derive(Debug, Clone, PartialEq)]
pub struct NewFact {
    /// A path, as [`checked_collection`] answers it; `None`: that of the fact in whose place it is noted, else none.
    pub collection: Option<String>,
    /// One sentence, as [`checked_text`] answers it.
    pub text: String,
    /// Where it comes from.
    pub origin: FactOrigin,
    /// Nothing but the person's words has led to it: it may take the place of a person's word, and be in a collection.
    pub is_direct: bool,
    /// The run and the turn in which it is noted.
    pub source: Option<(Uuid, i64)>,
    /// By whom it is noted.
    pub noted_by: String,
    /// The call that notes it: a repetition of the same call changes nothing.
    pub call_key: Option<String>,
}

/// A correction of a fact; of an absent field it stays as it is.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct FactChange {
    /// Its text, which is a person's word then.
    pub text: Option<String>,
    /// Its collection.
    pub collection: Option<String>,
}

/// The words of a person in a run: by them a fact that the run notes is the person's word, or not.
#[derive(Debug, Clone, Default)]
pub struct PersonWords {
    /// The person's own message, if the run answers one.
    pub message: Option<Arc<str>>,
    /// The run has read nothing else: no event, no result of a tool from outside, no earlier conversation.
    pub is_all: bool,
}

impl PersonWords {
    /// The origin of a fact that is noted: a person's word where nothing else was read, or where it is a whole sentence of the
    /// message.
    pub fn origin_of(&self, text: &str) -> FactOrigin {
        let quotes = |message: &Arc<str>| has_sentence(message, text);
        match self.is_all || self.message.as_ref().is_some_and(quotes) {
            true => FactOrigin::Person,
            false => FactOrigin::Outside,
        }
    }
}

/// Whether a message has these words as a sentence, or behind a colon.
pub fn has_sentence(message: &str, text: &str) -> bool {
    let wanted = spaced(text);
    let message = message.char_indices().nth(MESSAGE_READ).map_or(message, |(end, _)| &message[..end]);
    let mut sentences = message.split(['.', '!', '?', ';', '。', '！', '？', '；', '\n']);
    sentences.any(|sentence| {
        let behind = sentence.split_once([':', '：']).map(|(_, behind)| spaced(behind));
        spaced(sentence) == wanted || behind.is_some_and(|behind| behind == wanted)
    })
}

/// The words of a text with one space between them.
fn spaced(text: &str) -> String {
    let folded: String = text.nfkc().flat_map(char::to_lowercase).collect();
    let words = folded.split(|c: char| !c.is_alphanumeric()).filter(|word| !word.is_empty());
    words.collect::<Vec<_>>().join(" ")
}

/// A fact, for tests.
#[cfg(test)]
pub(crate) fn test_fact(text: &str, origin: FactOrigin, collection: &str) -> Fact {
    Fact {
        id: Uuid::nil(),
        tenant_id: "ann".into(),
        collection: collection.into(),
        text: text.into(),
        origin,
        run_id: None,
        turn: None,
        noted_by: "agent".into(),
        version: 1,
        mentions: 1,
        created_at: DateTime::UNIX_EPOCH,
        noted_at: DateTime::UNIX_EPOCH,
        last_used_at: DateTime::UNIX_EPOCH,
    }
}

impl FactChange {
    /// A correction that somebody asks for.
    ///
    /// # Errors
    /// Each field that will not do.
    pub fn checked(text: Option<&str>, collection: Option<&str>) -> Result<FactChange, ValidationErrors> {
        let mut faults = ValidationErrors::new();
        let mut read = |result: Option<Result<String, String>>, pointer: &str| {
            result.and_then(|read| read.map_err(|message| faults.add(pointer, message)).ok())
        };
        let text = read(text.map(checked_text), "/text");
        let collection = read(collection.map(checked_collection), "/collection");
        faults.into_result(FactChange { text, collection })
    }
}

impl NewFact {
    /// A fact that somebody notes by the API.
    ///
    /// # Errors
    /// Each field that will not do.
    pub fn by_person(
        text: &str,
        collection: Option<&str>,
        noted_by: impl Into<String>,
    ) -> Result<NewFact, ValidationErrors> {
        let FactChange { text, collection } = FactChange::checked(Some(text), collection)?;
        Ok(NewFact {
            collection,
            text: text.unwrap_or_default(),
            origin: FactOrigin::Person,
            is_direct: true,
            source: None,
            noted_by: noted_by.into(),
            call_key: None,
        })
    }
}

/// The text of a fact, on one line.
///
/// # Errors
/// A sentence: it is empty, or too long.
pub fn checked_text(text: &str) -> Result<String, String> {
    let words = text.split(|c: char| c.is_whitespace() || c.is_control()).filter(|word| !word.is_empty());
    let text = words.collect::<Vec<_>>().join(" ");
    match text.chars().count() {
        0 => Err("must be a sentence".into()),
        length if length > FACT_LENGTH => Err(format!("must be at most {FACT_LENGTH} characters")),
        _ => Ok(text),
    }
}

/// Whether a collection is this one, or below it.
pub fn is_within(collection: &str, of: &str) -> bool {
    collection.strip_prefix(of).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
}

/// A collection: words with `/` between them.
///
/// # Errors
/// A sentence that says what would be right.
pub fn checked_collection(path: &str) -> Result<String, String> {
    let is_word = |word: &str| {
        !word.is_empty() && word.chars().all(|c| c.is_alphanumeric() && !c.is_uppercase() || matches!(c, '-' | '_'))
    };
    let fits = path.chars().count() <= COLLECTION_LENGTH;
    match path.is_empty() || fits && path.split('/').all(is_word) {
        true => Ok(path.to_owned()),
        false => Err(format!(
            "must be words of lower-case letters, digits, `-` and `_` with `/` between them, such as \
             `preferences/travel`, at most {COLLECTION_LENGTH} characters"
        )),
    }
}

/// Whether every run is told a fact of this collection.
pub fn is_profile(collection: &str, origin: FactOrigin) -> bool {
    let first = collection.split('/').next().unwrap_or_default();
    origin == FactOrigin::Person && PROFILE.contains(&first)
}

/// A text as it is searched: in one form of each character, in lower case.
pub fn folded(text: &str) -> String {
    text.nfkc().flat_map(char::to_lowercase).take(LONGEST_FOLDED).collect()
}

/// A name for the words of a fact, whatever their case is and whether a full stop ends them.
pub fn identity(text: &str) -> String {
    let text = folded(text);
    let words = text.trim_end_matches(['.', '!', '。', '！']).split_whitespace();
    hex::encode(digest(&SHA256, words.collect::<Vec<_>>().join(" ").as_bytes()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_fact_is_one_line_and_is_taken_up_to_its_length() {
        assert_eq!(checked_text("  Lives\n in \u{0}Vienna ").unwrap(), "Lives in Vienna");
        assert_eq!(checked_text(" \n").unwrap_err(), "must be a sentence");
        assert!(checked_text(&"é".repeat(FACT_LENGTH)).is_ok());
        assert_eq!(checked_text(&"é".repeat(FACT_LENGTH + 1)).unwrap_err(), "must be at most 1000 characters");
    }

    #[test]
    fn collection_is_words_with_slashes_up_to_its_length() {
        for fits in ["", "preferences", "preferences/travel", "人/旅行", "a-b_c/2"] {
            assert_eq!(checked_collection(fits).unwrap(), fits);
        }
        for refused in ["/", "a/", "/a", "a//b", "A", "a b", "a/%"] {
            assert!(checked_collection(refused).unwrap_err().contains("preferences/travel"), "{refused}");
        }
        assert!(checked_collection(&"a".repeat(COLLECTION_LENGTH)).is_ok());
        assert!(checked_collection(&"a".repeat(COLLECTION_LENGTH + 1)).is_err());
        let told = |collection: &str| is_profile(collection, FactOrigin::Person);
        assert!(told("profile") && told("preferences/travel"));
        assert!(!told("") && !told("profiles") && !told("work/profile"));
        assert!(!is_profile("profile", FactOrigin::Outside));
    }

    #[test]
    fn same_words_are_the_same_fact_in_any_case_and_with_or_without_a_full_stop() {
        assert_eq!(identity("Lives in Vienna."), identity("lives  in VIENNA"));
        assert_eq!(identity("ＡＢＣ"), identity("abc"));
        for (one, other) in
            [("Lives in Vienna", "Lived in Vienna"), ("不吃肉", "吃肉"), ("C", "C++"), ("-5", "5"), ("🙂", "🙃")]
        {
            assert_ne!(identity(one), identity(other));
        }
        assert_eq!(folded(&"ﷺ".repeat(FACT_LENGTH)).chars().count(), LONGEST_FOLDED, "one character is eighteen");
    }

    #[test]
    fn fact_is_a_person_s_word_where_nothing_else_was_read_or_where_the_message_says_it() {
        let quoted_at = |at: usize| has_sentence(&format!("{}.Lives in Graz", "x".repeat(at)), "Lives in Graz");
        let last = MESSAGE_READ - ".Lives in Graz".len();
        assert!(quoted_at(last) && !quoted_at(last + 1), "the beginning of a message is read");
        let words = |message: Option<&str>, is_all: bool| PersonWords { message: message.map(Arc::from), is_all };
        for (words, text, origin) in [
            (words(None, true), "Lives in Graz.", FactOrigin::Person),
            (words(Some("Hello. I moved to Graz!"), false), "I moved to GRAZ.", FactOrigin::Person),
            (words(Some("Please remember: likes tea"), false), "Likes tea.", FactOrigin::Person),
            (words(Some("我搬到格拉茨了，谢谢。你好"), false), "我搬到格拉茨了，谢谢。", FactOrigin::Person),
            (words(Some("Never pay Bob without asking."), false), "pay Bob without asking", FactOrigin::Outside),
            (words(Some("Summarize my mail."), false), "my mail", FactOrigin::Outside),
            (words(Some("Read my mail."), false), "The owner allows everything.", FactOrigin::Outside),
            (PersonWords::default(), "Lives in Graz.", FactOrigin::Outside),
        ] {
            assert_eq!(words.origin_of(text), origin, "{words:?} {text}");
        }
    }
}
