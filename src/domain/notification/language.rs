//! The languages in which messages are built in.

/// A language of built-in messages. The default is the one that they are written in.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum MessageLanguage {
    /// English, also for languages without templates.
    #[default]
    English,
    /// German.
    German,
}

impl MessageLanguage {
    /// That of a locale such as `de-AT`; English where nothing is built in for it.
    pub fn of(locale: &str) -> MessageLanguage {
        match locale.split('-').next() {
            Some(tag) if tag.eq_ignore_ascii_case(MessageLanguage::German.tag()) => MessageLanguage::German,
            _ => MessageLanguage::English,
        }
    }

    /// Its tag.
    pub fn tag(self) -> &'static str {
        self.pick("en", "de")
    }

    /// The one of these that is in this language.
    pub fn pick<T>(self, english: T, german: T) -> T {
        match self {
            MessageLanguage::English => english,
            MessageLanguage::German => german,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn language_of_a_locale_is_its_first_part_and_english_where_none_is_built_in() {
        let of = |locale| MessageLanguage::of(locale).tag();
        assert_eq!(["de", "de-AT", "DE-ch", "en", "fr", "", "den"].map(of), ["de", "de", "de", "en", "en", "en", "en"]);
    }
}
