//! A notice: words of the service that the model reads before the result of a call. Its kind says what it tells, so
//! that nothing is found again by the words.

use std::borrow::Cow;

use serde::{Deserialize, Deserializer, Serialize};

use crate::base::words::words;

/// The end of a paragraph.
const END: &str = "\n\n";
/// The beginnings of paragraphs in the texts of earlier formats. They stay as they are, whatever notices say by now.
const EARLIER_EDITED: &str = "The user changed the arguments before approving: ";
const EARLIER_ANSWERED: &str = "The user answered: ";
const EARLIER_DATA_FILE: &str = "[Data file ";
const EARLIER_REPETITION: &str = "[Repetition] ";

words! {
    /// Subject of a notice.
    #[derive(utoipa::ToSchema)]
    pub enum ResultNoticeKind {
        /// A person has changed the arguments of the call.
        Edited = "edited",
        /// A person has supplied fields that the call lacked.
        Answered = "answered",
        /// All of the result is in a data file.
        DataFile = "data_file",
        /// The model goes round in circles, and is told so.
        Repetition = "repetition",
        /// All else, such as the instructions of a skill.
        Other = "other",
    }
}

/// Words of the service that the model reads before a result.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct ResultNotice {
    /// The subject.
    pub kind: ResultNoticeKind,
    /// The words, with the empty line at their end.
    pub text: String,
}

/// The notices of an entry as they are stored.
#[derive(Deserialize)]
#[serde(untagged)]
enum StoredNotices {
    Listed(Vec<ResultNotice>),
    /// Format 3 and earlier.
    Text(Option<String>),
}

impl ResultNotice {
    /// A notice that nothing but the model goes by.
    pub fn other(text: impl Into<String>) -> ResultNotice {
        ResultNotice { kind: ResultNoticeKind::Other, text: text.into() }
    }

    /// The words of all of them, as the model reads them.
    pub fn joined(notices: &[ResultNotice]) -> Cow<'_, str> {
        match notices {
            [one] => Cow::Borrowed(one.text.as_str()),
            all => Cow::Owned(all.iter().map(|notice| notice.text.as_str()).collect()),
        }
    }
}

/// Reads the notices of an entry, of every format.
pub fn read_notices<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<ResultNotice>, D::Error> {
    Ok(match StoredNotices::deserialize(deserializer)? {
        StoredNotices::Listed(notices) => notices,
        StoredNotices::Text(text) => notices_of_earlier_text(&text.unwrap_or_default()),
    })
}

/// The notices in the one text that entries of format 3 and earlier have, by the beginnings of its paragraphs. A
/// repetition stood before all else.
fn notices_of_earlier_text(text: &str) -> Vec<ResultNotice> {
    let kind = |index: usize, paragraph: &str| match () {
        () if paragraph.starts_with(EARLIER_EDITED) => ResultNoticeKind::Edited,
        () if paragraph.starts_with(EARLIER_ANSWERED) => ResultNoticeKind::Answered,
        () if paragraph.starts_with(EARLIER_DATA_FILE) => ResultNoticeKind::DataFile,
        () if index == 0 && paragraph.starts_with(EARLIER_REPETITION) => ResultNoticeKind::Repetition,
        () => ResultNoticeKind::Other,
    };
    let paragraphs = text.split_inclusive(END).enumerate();
    paragraphs.map(|(index, text)| ResultNotice { kind: kind(index, text), text: text.to_owned() }).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_an_earlier_format_is_read_by_its_paragraphs_and_loses_no_byte() {
        let text = "[Repetition] Stop.\n\nThe user answered: {\"a\":1}\n\nThe user changed the arguments before approving: \
                    {\"b\":2}\n\nSteps:\n\n[Repetition] is no notice here.\n\n[Data file 7: all of it.]\n\n";
        let read = notices_of_earlier_text(text);
        let kinds: Vec<&str> = read.iter().map(|notice| notice.kind.as_str()).collect();
        assert_eq!(kinds, ["repetition", "answered", "edited", "other", "other", "data_file"]);
        assert_eq!(ResultNotice::joined(&read), text);
        assert_eq!(notices_of_earlier_text(""), []);
    }
}
