//! The built-in verifiers. Each is a function over an answer; none of them asks a model.

use std::collections::BTreeSet;
use std::sync::LazyLock;

use regex::{Regex, RegexSet};

use crate::agent::verify::severity::Severity;
use crate::agent::verify::{AnswerToVerify, ToolEvidence, csv};

/// A built-in verifier.
#[derive(Clone, Copy)]
pub(super) struct AnswerCheck {
    pub name: &'static str,
    /// The severity where nothing is said.
    pub severity: Severity,
    pub find: fn(&AnswerToVerify) -> Option<String>,
}

/// All of them, in the order of their names.
pub(super) fn all() -> [AnswerCheck; 8] {
    [
        AnswerCheck { name: "A-0001", severity: Severity::Warning, find: misattributed },
        AnswerCheck { name: "C-0001", severity: Severity::Off, find: uncited },
        AnswerCheck { name: "I-0001", severity: Severity::Warning, find: too_long },
        AnswerCheck { name: "I-0002", severity: Severity::Warning, find: marked_up },
        AnswerCheck { name: "I-0003", severity: Severity::Warning, find: broken_csv },
        AnswerCheck { name: "R-0001", severity: Severity::Flag, find: secret },
        AnswerCheck { name: "R-0002", severity: Severity::Off, find: personal_data },
        AnswerCheck { name: "U-0001", severity: Severity::Warning, find: unhedged },
    ]
}

/// The word for CSV in a channel's formats.
const CSV: &str = "csv";

/// A pattern of this file.
fn pattern(text: &str) -> Regex {
    Regex::new(text).expect("a pattern")
}

/// A host with a dot in its name.
const HOST_NAME: &str = r"[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+)+";
/// Sources that one finding names.
const NAMED_SOURCES: usize = 5;

/// The hosts that a pattern finds in a text, without `www.` and in small letters.
fn hosts_in(found_by: &Regex, text: &str) -> impl Iterator<Item = String> {
    let hosts = found_by.captures_iter(text).filter_map(|found| found.get(1));
    hosts.map(|host| host.as_str().to_ascii_lowercase().trim_start_matches("www.").to_owned())
}

/// Hosts that are known. They are kept backwards, so that those below a host stand side by side: a look costs no more
/// for many of them, which a model and its tools may write.
#[derive(Default)]
struct KnownHosts(BTreeSet<String>);

impl KnownHosts {
    fn of<'t>(found_by: &Regex, texts: impl Iterator<Item = &'t str>) -> KnownHosts {
        let backwards = |host: String| host.chars().rev().collect();
        KnownHosts(texts.flat_map(|text| hosts_in(found_by, text).collect::<Vec<_>>()).map(backwards).collect())
    }

    /// Whether this host is known, or one below it.
    fn has(&self, host: &str) -> bool {
        let host: String = host.chars().rev().collect();
        let below = format!("{host}.");
        self.0.contains(&host) || self.0.range(below.clone()..).next().is_some_and(|known| known.starts_with(&below))
    }
}

/// The answer names a source that the run has neither read nor been given. What it says to come from a source must have
/// been read or given; an address may also be one of a call that failed, of which the answer tells.
fn misattributed(answer: &AnswerToVerify) -> Option<String> {
    static NAME: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("({HOST_NAME})")));
    static ADDRESS: LazyLock<Regex> = LazyLock::new(|| pattern(&format!("https?://({HOST_NAME})")));
    static CLAIM: LazyLock<Regex> = LazyLock::new(|| {
        let claim = r"(?i)(?:\baccording to|\blaut|\bsources?:|\bquellen?:)\s+(?:https?://)?";
        pattern(&format!("{claim}({HOST_NAME})"))
    });
    let of_answer = |found_by: &Regex| hosts_in(found_by, &answer.text).collect::<BTreeSet<_>>();
    let (addresses, claims) = (of_answer(&ADDRESS), of_answer(&CLAIM));
    if addresses.is_empty() && claims.is_empty() {
        return None;
    }
    let of_results = |failed: bool| {
        let results = answer.results.iter().filter(|result| result.is_error == failed);
        results.map(|result| result.content.as_str()).collect::<Vec<_>>()
    };
    let read = KnownHosts::of(&NAME, of_results(false).into_iter().chain([answer.given.as_str()]));
    let failed = KnownHosts::of(&NAME, of_results(true).into_iter());
    let told = addresses.iter().filter(|host| !claims.contains(*host) && !read.has(host) && !failed.has(host));
    let unknown: BTreeSet<&str> =
        told.chain(claims.iter().filter(|host| !read.has(host))).map(String::as_str).collect();
    let named: Vec<&str> = unknown.into_iter().take(NAMED_SOURCES).collect();
    (!named.is_empty()).then(|| format!("the answer names {}, and no tool has read that", named.join(", ")))
}

/// Sources were read, and the answer names none of them.
fn uncited(answer: &AnswerToVerify) -> Option<String> {
    static HOST: LazyLock<Regex> = LazyLock::new(|| pattern(r"https?://([A-Za-z0-9.-]+)"));
    let read = answer.results.iter().filter(|result| !result.is_error);
    let hosts: BTreeSet<&str> = read
        .flat_map(|result| HOST.captures_iter(&result.content))
        .filter_map(|found| found.get(1))
        .map(|host| host.as_str().trim_start_matches("www."))
        .collect();
    let named = hosts.iter().any(|host| answer.text.contains(host));
    (!hosts.is_empty() && !named)
        .then(|| "the answer uses what tools have read, and names none of the sources".to_owned())
}

/// The answer is longer than its channel carries.
fn too_long(answer: &AnswerToVerify) -> Option<String> {
    let (channel, most) = answer.channel.as_ref().and_then(|channel| Some((channel, channel.max_response_length?)))?;
    let length = answer.text.chars().count();
    (length > most).then(|| format!("the answer has {length} characters, and {} carries {most}", channel.name))
}

/// The answer has marks that its channel shows as they stand.
fn marked_up(answer: &AnswerToVerify) -> Option<String> {
    static MARKS: LazyLock<Regex> = LazyLock::new(|| {
        pattern(r"(?m)^\s{0,3}(?:#{1,6} |```|\|.*\|\s*$)|\*\*[^*\s][^*]*\*\*|\[[^\]\n]+\]\(https?://")
    });
    let channel = answer.channel.as_ref().filter(|channel| !channel.supported_formats.is_empty())?;
    (!channel.renders_markdown && MARKS.is_match(&answer.text))
        .then(|| format!("the answer has the marks of Markdown, and {} shows them as they stand", channel.name))
}

/// The answer is meant as CSV, and is none: its channel carries nothing else, or it looks like rows.
fn broken_csv(answer: &AnswerToVerify) -> Option<String> {
    let channel = answer.channel.as_ref()?;
    let is_meant = match channel.supported_formats.as_slice() {
        [only] => only == CSV,
        formats => formats.iter().any(|format| format == CSV) && csv::looks_like_csv(&answer.text),
    };
    let fault = if is_meant { csv::fault(&answer.text) } else { None };
    fault.map(|fault| format!("the answer for {} is not CSV: {fault}", channel.name))
}

/// The answer has what looks like a secret. Those that the run has used are taken out of it in any case.
fn secret(answer: &AnswerToVerify) -> Option<String> {
    static SECRETS: LazyLock<RegexSet> = LazyLock::new(|| {
        let patterns = [
            r"-----BEGIN (?:[A-Z]+ )*PRIVATE KEY-----",
            r"\bAKIA[0-9A-Z]{16}\b",
            r"\bgh[pousr]_[A-Za-z0-9]{36,}\b",
            r"\bsk-(?:ant-|proj-)?[A-Za-z0-9_-]{32,}\b",
            r"\bxox[abprs]-[A-Za-z0-9-]{20,}\b",
            r"\beyJ[A-Za-z0-9_-]{10,}\.eyJ[A-Za-z0-9_-]{10,}\.[A-Za-z0-9_-]{10,}\b",
        ];
        RegexSet::new(patterns).expect("patterns")
    });
    SECRETS.is_match(&answer.text).then(|| "the answer has what looks like a secret".to_owned())
}

/// The answer has addresses of email, or numbers of cards or accounts, wherever they come from.
fn personal_data(answer: &AnswerToVerify) -> Option<String> {
    static EMAIL: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b[A-Za-z0-9._%+-]+@[A-Za-z0-9.-]+\.[A-Za-z]{2,}\b"));
    static CARD: LazyLock<Regex> = LazyLock::new(|| pattern(r"\b(?:[0-9][ -]?){12,18}[0-9]\b"));
    static IBAN: LazyLock<Regex> =
        LazyLock::new(|| pattern(r"\b[A-Z]{2}[0-9]{2}(?: ?[A-Z0-9]{4}){3,7}(?: ?[A-Z0-9]{1,3})?\b"));
    let mut kinds = Vec::new();
    if EMAIL.is_match(&answer.text) {
        kinds.push("an email address");
    }
    if CARD.find_iter(&answer.text).any(|found| is_card_number(found.as_str())) {
        kinds.push("the number of a card");
    }
    if IBAN.find_iter(&answer.text).any(|found| is_iban(found.as_str())) {
        kinds.push("the number of an account");
    }
    (!kinds.is_empty()).then(|| format!("the answer has {}", kinds.join(" and ")))
}

/// The check digit of ISO/IEC 7812-1, annex B.
fn is_card_number(text: &str) -> bool {
    let digits: Vec<u32> = text.chars().filter_map(|c| c.to_digit(10)).collect();
    let weighted = digits.iter().rev().enumerate().map(|(at, digit)| match at % 2 {
        0 => *digit,
        _ => digit * 2 / 10 + digit * 2 % 10,
    });
    (13..=19).contains(&digits.len()) && weighted.sum::<u32>() % 10 == 0
}

/// The check digits of ISO 13616: the number modulo 97 is 1.
fn is_iban(text: &str) -> bool {
    let signs: Vec<char> = text.chars().filter(|c| !c.is_whitespace()).collect();
    let value = |c: &char| c.to_digit(36).map(u64::from);
    let rest = signs.iter().skip(4).chain(signs.iter().take(4)).try_fold(0, |rest, sign| {
        let value = value(sign)?;
        Some((rest * if value > 9 { 100 } else { 10 } + value) % 97)
    });
    (15..=34).contains(&signs.len()) && rest == Some(1)
}

/// A tool failed at last, and the answer says nothing of something that did not work.
fn unhedged(answer: &AnswerToVerify) -> Option<String> {
    static HEDGES: LazyLock<Regex> = LazyLock::new(|| {
        pattern(
            r"(?i)\b(?:not|no|unable|fail\w*|could\s?n['’]?t|can\s?n?['’]?t|cannot|error\w*|unavailable|unknown|without|\
              however|nicht|kein\w*|fehl\w*|leider|unbekannt|ohne|konnte\w*)\b",
        )
    });
    let last = |tool: &str| answer.results.iter().rfind(|result| result.tool == tool);
    let failed: BTreeSet<&str> = answer
        .results
        .iter()
        .map(|result| result.tool.as_str())
        .filter(|tool| last(tool).is_some_and(|ToolEvidence { is_error, .. }| *is_error))
        .collect();
    let tools = failed.iter().map(|tool| format!("`{tool}`")).collect::<Vec<_>>().join(", ");
    (!failed.is_empty() && !HEDGES.is_match(&answer.text))
        .then(|| format!("{tools} failed, and the answer does not say that anything is uncertain"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::agent::ChannelLimits;

    fn answer(text: &str) -> AnswerToVerify {
        AnswerToVerify { tenant: "ann".into(), text: text.into(), given: String::new(), channel: None, results: vec![] }
    }

    fn result(tool: &str, is_error: bool, content: &str) -> ToolEvidence {
        ToolEvidence { tool: tool.into(), is_error, content: content.into() }
    }

    fn sms() -> Option<ChannelLimits> {
        Some(ChannelLimits { max_response_length: Some(10), ..limits("sms", &["plain"]) })
    }

    /// Limits of a channel that shows Markdown only where it carries that.
    fn limits(name: &str, formats: &[&str]) -> ChannelLimits {
        ChannelLimits {
            name: name.into(),
            supported_formats: formats.iter().map(|format| (*format).to_owned()).collect(),
            renders_markdown: formats.contains(&"markdown"),
            max_response_length: None,
        }
    }

    #[test]
    fn names_are_in_order() {
        assert!(all().is_sorted_by_key(|check| check.name));
    }

    #[test]
    fn source_that_was_read_is_to_be_named() {
        let read = vec![result("http_request", false, r#"{"url":"https://www.example.org/a","body":"8"}"#)];
        let found = |text: &str, results: &[ToolEvidence]| {
            uncited(&AnswerToVerify { results: results.to_vec(), ..answer(text) }).is_some()
        };
        assert!(found("It is 8.", &read));
        assert!(!found("It is 8, says example.org.", &read));
        assert!(!found("It is 8.", &[result("http_request", true, "https://example.org failed")]));
        assert!(!found("It is 8.", &[]));
    }

    #[test]
    fn source_that_is_named_was_read_or_given() {
        let results = [
            result("http_request", false, r#"{"url":"https://www.api.example.org/a","body":"8"}"#),
            // in the order of their letters it stands between a host and those below it
            result("http_request", false, "https://a-example.org"),
            result("http_request", true, "https://down.example.com timed out"),
        ];
        let found = |text: &str| {
            let given = "Look at shop.example.net, and tell me.".to_owned();
            misattributed(&AnswerToVerify { results: results.to_vec(), given, ..answer(text) })
        };
        for sound in [
            "It is 8.",
            "According to example.org it is 8.",
            "Source: https://API.example.org/a.",
            "Laut shop.example.net ist es 8.",
            "https://down.example.com could not be reached.",
            "It is 8.5 at most, e.g. today.",
        ] {
            assert_eq!(found(sound), None, "{sound}");
        }
        for (text, host) in [
            ("According to weather.example it is 8.", "weather.example"),
            ("See https://www.news.example/today.", "news.example"),
            ("It is 8 (Source: down.example.com).", "down.example.com"),
            ("Laut ample.org ist es 8.", "ample.org"),
            ("Sources: https://one.example, https://two.example", "one.example, two.example"),
        ] {
            let told = format!("the answer names {host}, and no tool has read that");
            assert_eq!(found(text).as_deref(), Some(told.as_str()), "{text}");
        }
    }

    #[test]
    fn answer_at_the_length_of_its_channel_is_sound_and_one_character_beyond_it_is_not() {
        let at = |text: &str| too_long(&AnswerToVerify { channel: sms(), ..answer(text) });
        assert_eq!(at("äöü4567890"), None);
        assert_eq!(at("äöü45678901").unwrap(), "the answer has 11 characters, and sms carries 10");
        assert_eq!(too_long(&answer("äöü45678901")), None, "no channel");
    }

    #[test]
    fn marks_are_found_where_the_channel_does_not_render_them() {
        let found = |text: &str, channel: ChannelLimits| {
            marked_up(&AnswerToVerify { channel: Some(channel), ..answer(text) }).is_some()
        };
        let at = |text: &str, formats: &[&str]| found(text, limits("x", formats));
        let slack = || ChannelLimits { renders_markdown: true, ..limits("slack", &["mrkdwn"]) };
        for marked in ["# Mail\nNone.", "It is **late**.", "See [here](https://a.b).", "```\nx\n```", "| a | b |"] {
            assert!(at(marked, &["plain"]), "{marked}");
            assert!(!at(marked, &["plain", "markdown"]) && !at(marked, &[]), "{marked}");
            assert!(!found(marked, slack()), "it is turned into the channel's own marks: {marked}");
        }
        for plain in ["2 ** 3 ** 4", "#1 of 3", "[1] a", "a | b"] {
            assert!(!at(plain, &["plain"]), "{plain}");
        }
    }

    #[test]
    fn csv_is_looked_at_where_it_is_meant() {
        let found = |text: &str, formats: &[&str]| {
            broken_csv(&AnswerToVerify { channel: Some(limits("webhook", formats)), ..answer(text) })
        };
        let alone: &[&str] = &["csv"];
        let among: &[&str] = &["plain", "markdown", "csv"];
        let (sound, broken) = ("name,price\nTea,3\nMilk,1", "name,price\nTea,3\nMilk,1,50");
        let told = "the answer for webhook is not CSV: line 3 has 3 fields, and the first row has 2";
        for formats in [alone, among] {
            assert_eq!(found(sound, formats), None);
            assert_eq!(found(broken, formats).as_deref(), Some(told));
        }
        let prose = "Tea is at 3, milk at 1.\nBoth were dearer, they say, in May.";
        assert!(found(prose, alone).is_some(), "nothing else is carried");
        assert_eq!(found(prose, among), None, "a text is carried as well");
        assert_eq!(found(broken, &["plain"]), None, "nobody asked for CSV");
        assert_eq!(broken_csv(&answer(broken)), None, "no channel");
    }

    #[test]
    fn text_like_a_secret_is_found_and_words_are_not() {
        let key = format!("sk-proj-{}", "a1".repeat(20));
        let token = format!("ghp_{}", "A1".repeat(18));
        for text in ["-----BEGIN RSA PRIVATE KEY-----", "AKIAIOSFODNN7EXAMPLE", &key, &token] {
            assert!(secret(&answer(&format!("it is {text}, keep it"))).is_some(), "{text}");
        }
        for text in ["sk-1", "the private key is in the vault", "ghp_short", "AKIA"] {
            assert!(secret(&answer(text)).is_none(), "{text}");
        }
    }

    #[test]
    fn numbers_are_judged_by_their_check_digits() {
        let found = |text: &str| personal_data(&answer(text));
        assert_eq!(found("pay with 4111 1111 1111 1111").unwrap(), "the answer has the number of a card");
        assert_eq!(found("pay with 4111 1111 1111 1112"), None);
        assert_eq!(found("to DE89 3704 0044 0532 0130 00").unwrap(), "the answer has the number of an account");
        assert_eq!(found("to DE88 3704 0044 0532 0130 00"), None);
        assert_eq!(found("ask ann@example.org").unwrap(), "the answer has an email address");
        assert_eq!(found("at 2026-12-24T15:00:00Z, run 42"), None);
    }

    #[test]
    fn failure_of_a_tool_is_to_be_heard_in_the_answer_unless_it_worked_at_last() {
        let found = |text: &str, results: &[ToolEvidence]| {
            unhedged(&AnswerToVerify { results: results.to_vec(), ..answer(text) })
        };
        let failed = [result("look", false, ""), result("look", true, "")];
        assert_eq!(
            found("It is 8.", &failed).unwrap(),
            "`look` failed, and the answer does not say that anything is uncertain"
        );
        for hedged in ["I could not look.", "Das ging leider nicht.", "It is 8, but look failed."] {
            assert_eq!(found(hedged, &failed), None, "{hedged}");
        }
        assert_eq!(found("It is 8.", &[result("look", true, ""), result("look", false, "8")]), None);
    }
}
