//! The names of templates: what stands in one, and in which order they are looked for.
//!
//! `PURPOSE[.LANGUAGE][.CHANNEL].FORMAT`: `result.txt`, `result.de.txt`, `result.sms.txt`, `result.de-AT.sms.txt`.

use crate::base::invalid::did_you_mean;
use crate::domain::notification::recipient::is_language;
use crate::domain::notification::{Addresses, Purpose};
use crate::ports::channel::templates::MessageFormat;

/// Templates that others extend.
const SHARED: [&str; 2] = ["layout", "question"];
/// Before the kind of a notice.
pub const NOTICE: &str = "notice_";

/// The parts of a template's name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TemplateName<'a> {
    pub purpose: &'a str,
    /// A language tag: `de`, `de-AT`.
    pub locale: Option<&'a str>,
    pub channel: Option<&'a str>,
}

impl TemplateName<'_> {
    /// # Errors
    /// What is wrong with it, and what may be meant.
    pub fn read(file: &str) -> Result<TemplateName<'_>, String> {
        let parts: Vec<&str> = file.split('.').collect();
        let (purpose, locale, channel, format) = match parts[..] {
            [purpose, format] => (purpose, None, None, format),
            [purpose, one, format] if is_channel(one) => (purpose, None, Some(one), format),
            [purpose, one, format] => (purpose, Some(one), None, format),
            [purpose, locale, channel, format] => (purpose, Some(locale), Some(channel), format),
            _ => return Err("its name is none of a template: PURPOSE[.LANGUAGE][.CHANNEL].FORMAT".into()),
        };
        check_format(format)?;
        check_purpose(purpose)?;
        match (locale, channel) {
            (Some(channel), Some(locale)) if is_channel(channel) && is_language(locale) => {
                return Err(format!("the language stands before the channel: {purpose}.{locale}.{channel}.{format}"));
            }
            (_, Some(channel)) if !is_channel(channel) => return Err(no_channel(channel)),
            (Some(locale), _) => check_locale(locale, channel.is_some())?,
            (None, _) => {}
        }
        Ok(TemplateName { purpose, locale, channel })
    }
}

/// The names under which a template may lie, the most exact first: the purpose counts more than the language, and that
/// more than the channel.
pub fn candidate_names(purpose: &Purpose, locale: &str, channel: &str, format: MessageFormat) -> Vec<String> {
    let ending = format.ending();
    let mut names = Vec::new();
    for purpose in purpose.names() {
        for stem in languages(locale).map(|locale| format!("{purpose}.{locale}")).chain([purpose.clone()]) {
            names.extend([format!("{stem}.{channel}.{ending}"), format!("{stem}.{ending}")]);
        }
    }
    names
}

/// `zh-Hans-CN`, `zh-Hans`, `zh`: RFC 4647, section 3.4.
pub(super) fn languages(locale: &str) -> impl Iterator<Item = &str> {
    let first = Some(locale).filter(|locale| !locale.is_empty());
    std::iter::successors(first, |locale| locale.rsplit_once('-').map(|(shorter, _)| shorter))
}

fn is_channel(word: &str) -> bool {
    Addresses::KINDS.contains(&word)
}

fn no_channel(word: &str) -> String {
    let hint = did_you_mean(word, Addresses::KINDS);
    format!("there is no channel `{word}`{hint}; there are {}", Addresses::KINDS.join(", "))
}

/// Refuses a word that may be a slip of a channel's name as a language, where either might stand.
fn check_locale(word: &str, beside_channel: bool) -> Result<(), String> {
    let is_slip = !beside_channel && !did_you_mean(word, Addresses::KINDS).is_empty();
    match is_language(word) && !is_slip {
        true => Ok(()),
        false if beside_channel => Err(format!("`{word}` is no language such as `en`, `de-AT`, `zh-Hans-CN`")),
        false => Err(format!("{}, and it is no language such as `de` or `de-AT`", no_channel(word))),
    }
}

fn check_format(word: &str) -> Result<(), String> {
    let endings = MessageFormat::ALL.map(MessageFormat::ending);
    match endings.contains(&word) {
        true => Ok(()),
        false => Err(format!("there is no format `{word}`{}", did_you_mean(word, endings))),
    }
}

fn check_purpose(word: &str) -> Result<(), String> {
    if let Some(kind) = word.strip_prefix(NOTICE) {
        return match Purpose::NOTICES.contains(&kind) {
            true => Ok(()),
            false => {
                let hint = did_you_mean(kind, Purpose::NOTICES);
                Err(format!("there is no notice `{kind}`{hint}; there are {}", Purpose::NOTICES.join(", ")))
            }
        };
    }
    let known = || Purpose::WORDS.into_iter().chain(SHARED);
    match known().any(|known| known == word) {
        true => Ok(()),
        false => {
            let hint = did_you_mean(word, known());
            Err(format!("there is no purpose `{word}`{hint}; there are {}", Purpose::WORDS.join(", ")))
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn name_says_for_what_in_which_language_and_through_which_channel() {
        let read = |file| TemplateName::read(file).map(|name| (name.purpose, name.locale, name.channel));
        assert_eq!(read("result.txt"), Ok(("result", None, None)));
        assert_eq!(read("result.sms.txt"), Ok(("result", None, Some("sms"))));
        assert_eq!(read("ask.de-AT.html"), Ok(("ask", Some("de-AT"), None)));
        assert_eq!(read("layout.de.html"), Ok(("layout", Some("de"), None)));
        assert_eq!(read("notice_credential.de.sms.txt"), Ok(("notice_credential", Some("de"), Some("sms"))));
    }

    #[test]
    fn name_that_is_never_looked_for_is_refused_with_what_may_be_meant() {
        let refused = |file: &str| TemplateName::read(file).expect_err(file);
        for (file, why) in [
            ("result.emial.txt", "there is no channel `emial`; did you mean `email`?"),
            ("result.sns.txt", "there is no channel `sns`; did you mean `sms`?"),
            ("result.de.emial.txt", "there is no channel `emial`; did you mean `email`?"),
            ("result.german.txt", "there is no channel `german`; there are email"),
            ("result.german.sms.txt", "`german` is no language"),
            ("result.sms.de.txt", "the language stands before the channel: result.de.sms.txt"),
            ("notice_credentail.txt", "there is no notice `credentail`; did you mean `credential`?"),
            ("notice_x.txt", "there is no notice `x`; there are credential, failing"),
            ("resullt.de.txt", "there is no purpose `resullt`; did you mean `result`?"),
            ("page.html", "there is no purpose `page`"),
            ("result.md", "there is no format `md`"),
            ("result.de.sms.x.txt", "its name is none of a template"),
        ] {
            assert!(refused(file).starts_with(why), "{file}: {}", refused(file));
        }
    }

    #[test]
    fn purpose_comes_before_language_and_language_before_channel() {
        let names = |purpose, locale| candidate_names(&Purpose::Of(purpose), locale, "sms", MessageFormat::Plain);
        assert_eq!(
            names("reminder", "de-AT").join(" "),
            "reminder.de-AT.sms.txt reminder.de-AT.txt reminder.de.sms.txt reminder.de.txt reminder.sms.txt reminder.txt \
             ask.de-AT.sms.txt ask.de-AT.txt ask.de.sms.txt ask.de.txt ask.sms.txt ask.txt"
        );
        assert_eq!(names("result", ""), ["result.sms.txt", "result.txt"]);
    }
}
