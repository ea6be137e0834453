//! The words of the approval page, by language: English and German are built in, an operator's file
//! `approval_page.LANGUAGE.toml` changes them or adds a language. What a file leaves out is said as the shorter
//! language tag has it, else in English.

use std::collections::BTreeMap;
use std::sync::{Arc, LazyLock};

use crate::base::invalid::did_you_mean;
use crate::domain::approval::{ArgumentFault, ArgumentPart, FieldFault, Proposal};
use crate::domain::notification::recipient::is_language;
use crate::ports::channel::templates::name::languages;
use crate::ports::channel::templates::set::LANGUAGE;

/// Built-in catalogues.
const EMBEDDED: [(&str, &str); 2] =
    [(LANGUAGE, include_str!("phrases/en.toml")), ("de", include_str!("phrases/de.toml"))];
/// Around the language in the name of an operator's file.
const FILE: (&str, &str) = ("approval_page.", ".toml");

/// English, for pages that nobody is known to read.
static ENGLISH: LazyLock<Phrases> = LazyLock::new(|| Catalogue::embedded().of(LANGUAGE));

type PhraseTable = BTreeMap<String, String>;

/// The words in every language there is.
#[derive(Debug, Clone)]
pub struct Catalogue {
    english: Arc<PhraseTable>,
    /// By the language tag in lower case, with the tag as it is written.
    others: BTreeMap<String, (String, PhraseTable)>,
}

/// The words in one language. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Phrases {
    lang: String,
    /// The most exact first.
    tables: Vec<Arc<PhraseTable>>,
}

impl Catalogue {
    /// The built-in catalogue, which is tested to be right.
    pub fn embedded() -> Catalogue {
        let read = |text| toml::from_str::<PhraseTable>(text).expect("embedded phrases are tested");
        let mut tables = EMBEDDED.into_iter().map(|(lang, text)| (lang.to_owned(), (lang.to_owned(), read(text))));
        let (_, (_, english)) = tables.next().expect("English comes first");
        let others = tables.collect();
        Catalogue { english: Arc::new(english), others }
    }

    /// The language of a file by its name; `None`: it holds no phrases.
    pub fn language_of(file: &str) -> Option<&str> {
        file.strip_prefix(FILE.0)?.strip_suffix(FILE.1)
    }

    /// Adds an operator's file over what is built in of that language.
    ///
    /// # Errors
    /// It is no TOML, or names a phrase that is not there, or puts in what that phrase does not have.
    pub fn add_own(&mut self, language: &str, text: &str) -> Result<(), String> {
        if !is_language(language) {
            return Err(format!("`{language}` is no language such as `de` or `de-AT`"));
        }
        let own: PhraseTable = toml::from_str(text).map_err(|error| error.message().to_owned())?;
        for (name, phrase) in &own {
            let Some(ours) = self.english.get(name) else {
                let hint = did_you_mean(name, self.english.keys().map(String::as_str));
                return Err(format!("there is no phrase `{name}`{hint}"));
            };
            if let Some(unknown) = inserted(phrase).into_iter().find(|part| !inserted(ours).contains(part)) {
                return Err(format!("`{name}` has no {{{unknown}}} to put in; in English it is: {ours}"));
            }
        }
        match language.eq_ignore_ascii_case(LANGUAGE) {
            true => Arc::make_mut(&mut self.english).extend(own),
            false => {
                let place = self.others.entry(language.to_lowercase());
                place.or_insert_with(|| (language.to_owned(), PhraseTable::new())).1.extend(own);
            }
        }
        Ok(())
    }

    /// The words for a reader of this language.
    pub fn of(&self, locale: &str) -> Phrases {
        let found = languages(locale).filter_map(|tag| self.others.get(&tag.to_lowercase()));
        let found: Vec<&(String, PhraseTable)> = found.collect();
        let lang = found.first().map_or(LANGUAGE, |(lang, _)| lang).to_owned();
        let tables = found.into_iter().map(|(_, table)| Arc::new(table.clone())).chain([Arc::clone(&self.english)]);
        Phrases { lang, tables: tables.collect() }
    }
}

impl Phrases {
    /// English, as it is built in.
    pub fn english() -> &'static Phrases {
        &ENGLISH
    }

    /// The language tag.
    pub fn lang(&self) -> &str {
        &self.lang
    }

    /// The phrase of this name.
    pub fn get(&self, name: &str) -> &str {
        let found = self.find(name);
        debug_assert!(found.is_some(), "there is no phrase `{name}`");
        found.unwrap_or_default()
    }

    /// The phrase of this name, where there is one.
    pub fn find(&self, name: &str) -> Option<&str> {
        self.tables.iter().find_map(|table| table.get(name)).map(String::as_str)
    }

    /// The phrase of this name with texts put in.
    pub fn with(&self, name: &str, parts: &[(&str, &str)]) -> String {
        let mut text = String::new();
        for piece in pieces(self.get(name)) {
            match piece {
                PhrasePiece::Words(words) => text.push_str(words),
                PhrasePiece::Insert(wanted) => {
                    text.push_str(parts.iter().find(|(part, _)| *part == wanted).map_or("", |(_, text)| text));
                }
            }
        }
        text
    }
}

impl Phrases {
    /// The words for a fault of an argument. One for which there is no phrase here is told as it was found.
    pub fn fault(&self, fault: &ArgumentFault) -> String {
        if self.find(&fault.phrase).is_none() {
            return fault.message.clone();
        }
        let text = |part: &ArgumentPart| match part {
            ArgumentPart::Text(text) => text.clone(),
            ArgumentPart::OneOf(names) => {
                let words: Vec<&str> = names.iter().map(|name| self.find(name).unwrap_or(name)).collect();
                words.join(self.get("or"))
            }
        };
        let parts: Vec<(&str, String)> = fault.parts.iter().map(|(name, part)| (&**name, text(part))).collect();
        let parts: Vec<(&str, &str)> = parts.iter().map(|(name, text)| (*name, text.as_str())).collect();
        self.with(&fault.phrase, &parts)
    }

    /// The question for the fields that a call lacks, and what is wrong with each, on a line of its own. `None`: it
    /// names none, and is told as it was put.
    pub fn lacks(&self, proposal: &Proposal) -> Option<(String, String)> {
        if proposal.lacks.is_empty() {
            return None;
        }
        let names: Vec<&str> = proposal.lacks.iter().map(|one| one.name.as_str()).collect();
        let question = self.with("needs_to_know", &[("agent", &proposal.tool), ("fields", &names.join(", "))]);
        let line = |one: &FieldFault| format!("{}: {}", one.name, self.fault(&one.fault));
        Some((question, proposal.lacks.iter().map(line).collect::<Vec<_>>().join("\n")))
    }
}

/// A piece of a phrase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PhrasePiece<'a> {
    /// Words that stand as they are.
    Words(&'a str),
    /// The name in braces.
    Insert(&'a str),
}

/// A phrase in pieces. A brace that is not closed is a word.
pub fn pieces(phrase: &str) -> Vec<PhrasePiece<'_>> {
    let (mut pieces, mut rest) = (Vec::new(), phrase);
    while let Some((before, (name, after))) =
        rest.split_once('{').and_then(|(before, inner)| Some((before, inner.split_once('}')?)))
    {
        pieces.extend([PhrasePiece::Words(before), PhrasePiece::Insert(name)]);
        rest = after;
    }
    pieces.push(PhrasePiece::Words(rest));
    pieces
}

fn inserted(phrase: &str) -> Vec<&str> {
    let insert = |piece| match piece {
        PhrasePiece::Insert(name) => Some(name),
        PhrasePiece::Words(_) => None,
    };
    pieces(phrase).into_iter().filter_map(insert).collect()
}

#[cfg(test)]
mod tests {
    use chrono::{DateTime, Utc};

    use super::*;
    use crate::domain::approval::test_question;

    #[test]
    fn every_built_in_language_says_every_phrase_and_puts_the_same_in() {
        let tables: Vec<PhraseTable> = EMBEDDED.iter().map(|(_, text)| toml::from_str(text).unwrap()).collect();
        for table in &tables[1..] {
            assert_eq!(table.keys().collect::<Vec<_>>(), tables[0].keys().collect::<Vec<_>>());
            for (name, phrase) in table {
                let sorted = |phrase| {
                    let mut parts = inserted(phrase);
                    parts.sort_unstable();
                    parts
                };
                assert_eq!(sorted(phrase), sorted(&tables[0][name]), "{name}");
            }
        }
    }

    #[test]
    fn own_file_changes_words_adds_a_language_and_leaves_the_rest() {
        let mut catalogue = Catalogue::embedded();
        catalogue.add_own("fr", "approve = \"Approuver\"").unwrap();
        catalogue.add_own("de-AT", "month_1 = \"Jänner\"").unwrap();
        catalogue.add_own("en", "reject = \"Decline\"").unwrap();
        let text = |locale, name| catalogue.of(locale).get(name).to_owned();
        assert_eq!([text("fr-CA", "approve"), text("fr-CA", "reject")], ["Approuver", "Decline"]);
        assert_eq!([text("de-at", "month_1"), text("de-at", "approve")], ["Jänner", "Freigeben"]);
        assert_eq!([text("de-CH", "month_1"), text("it", "approve")], ["Januar", "Approve"]);
        assert_eq!(
            ["fr-CA", "de-at", "it"].map(|locale| catalogue.of(locale).lang().to_owned()),
            ["fr", "de-AT", "en"]
        );
        assert_eq!(catalogue.of("de").with("minutes", &[("count", "5")]), "5 Minuten");
    }

    #[test]
    fn fields_that_a_call_lacks_are_told_in_the_language_of_the_reader() {
        let mut asked =
            test_question("BookTable needs to know: party, email", DateTime::UNIX_EPOCH, DateTime::<Utc>::MAX_UTC);
        let told = |locale: &str, proposal: &Proposal| Catalogue::embedded().of(locale).lacks(proposal);
        assert_eq!(told("de", &asked.proposal), None, "it was stored before fields were");
        asked.proposal.tool = "BookTable".into();
        let rule = [("rule", "value != 13".to_owned())];
        let newer =
            ArgumentFault { phrase: "fault_of_tomorrow".into(), ..ArgumentFault::untranslated("", "is of tomorrow") };
        asked.proposal.lacks = [
            ("party", ArgumentFault::with("", "must satisfy value != 13", "fault_rule", &rule)),
            ("email", ArgumentFault::with("", "is missing", "fault_required", &[])),
            ("room", newer),
        ]
        .map(|(name, fault)| FieldFault::new(name, fault))
        .into();
        let stored = serde_json::to_value(&asked.proposal).unwrap();
        assert_eq!(serde_json::from_value::<Proposal>(stored).unwrap(), asked.proposal);
        let lines = |[party, email, room]: [&str; 3]| format!("party: {party}\nemail: {email}\nroom: {room}");
        let (question, fields) = told("de-AT", &asked.proposal).unwrap();
        assert_eq!(question, "BookTable muss noch wissen: party, email, room");
        assert_eq!(fields, lines(["muss dies erfüllen: value != 13", "fehlt", "is of tomorrow"]));
        let (question, fields) = told("en", &asked.proposal).unwrap();
        assert_eq!(question, "BookTable needs to know: party, email, room");
        assert_eq!(fields, lines(["must satisfy value != 13", "is required", "is of tomorrow"]));
    }

    #[test]
    fn fault_of_an_own_file_is_said() {
        let refused = |language, text| Catalogue::embedded().add_own(language, text).unwrap_err();
        assert_eq!(refused("german", "x = \"y\""), "`german` is no language such as `de` or `de-AT`");
        assert_eq!(refused("fr", "aprove = \"y\""), "there is no phrase `aprove`; did you mean `approve`?");
        assert!(refused("fr", "left = \"{lefft}\"").starts_with("`left` has no {lefft} to put in"));
        assert!(!refused("fr", "left = 3").is_empty());
    }
}
