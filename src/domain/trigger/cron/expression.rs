//! The syntax of cron, checked character by character, so that a fault can name its place and what would be right.
//!
//! It only reads: the result is the same expression in a canonical form (numbers, six fields, `*` for `?`) that the
//! matcher understands without surprises, and the three facts about its fields that decide cron's special rules.

use crate::base::invalid::{bounded, did_you_mean};

/// Longest expression, in characters, and longest text that is looked at, in bytes.
const LENGTH: usize = 1000;
const TEXT_BYTES: usize = 4 * LENGTH;

const NICKNAMES: [(&str, &str); 7] = [
    ("@yearly", "0 0 1 1 *"),
    ("@annually", "0 0 1 1 *"),
    ("@monthly", "0 0 1 * *"),
    ("@weekly", "0 0 * * 0"),
    ("@daily", "0 0 * * *"),
    ("@midnight", "0 0 * * *"),
    ("@hourly", "0 * * * *"),
];

const MONTHS: &[&str] = &["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"];
const WEEKDAYS: &[&str] = &["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"];

/// One field: its name, its values, and the names that stand for them, the first for `min`.
struct CronField {
    name: &'static str,
    min: u32,
    max: u32,
    names: &'static [&'static str],
}

const SECOND: CronField = CronField { name: "second", min: 0, max: 59, names: &[] };
const FIELDS: [CronField; 5] = [
    CronField { name: "minute", min: 0, max: 59, names: &[] },
    CronField { name: "hour", min: 0, max: 23, names: &[] },
    CronField { name: "day-of-month", min: 1, max: 31, names: &[] },
    CronField { name: "month", min: 1, max: 12, names: MONTHS },
    CronField { name: "day-of-week", min: 0, max: 7, names: WEEKDAYS },
];

/// A cron expression that has been read.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CronExpression {
    /// Six fields of numbers, `*`, `,`, `-`, `/`, `L`, `W`, `#`.
    pub canonical: String,
    /// No seconds were given.
    pub five_fields: bool,
    /// The minute or the hour field starts with `*`: a job of elapsed time, not of a fixed time of day.
    pub follows_elapsed: bool,
    /// Day-of-month or day-of-week starts with `*`: a date must match both of them, not either.
    pub both_days: bool,
}

impl CronExpression {
    /// Reads an expression; an error is a sentence that names the character, counted from 1.
    pub fn read(text: &str) -> Result<CronExpression, String> {
        let trimmed = bounded(text, TEXT_BYTES)?.trim();
        if trimmed.is_empty() {
            return Err("is empty; write five fields such as `0 8 * * *`, or `@daily`".into());
        }
        if trimmed.chars().count() > LENGTH {
            return Err(format!("is longer than {LENGTH} characters"));
        }
        if trimmed.starts_with('@') {
            return CronExpression::read_fields(nickname(trimmed)?);
        }
        CronExpression::read_fields(text)
    }

    fn read_fields(text: &str) -> Result<CronExpression, String> {
        let parts = split(text);
        let five_fields = parts.len() == 5;
        let fields: Vec<&CronField> = match parts.len() {
            5 => FIELDS.iter().collect(),
            6 => std::iter::once(&SECOND).chain(&FIELDS).collect(),
            7 => return Err("has seven fields; a year can't be given: use `start_at` and `end_at`, or `at`".into()),
            n => {
                return Err(format!(
                    "has {n} field{}; write five (minute, hour, day-of-month, month, day-of-week), or six with seconds first",
                    if n == 1 { "" } else { "s" }
                ));
            }
        };
        let mut canonical = if five_fields { vec!["0".to_owned()] } else { Vec::new() };
        for (field, (position, part)) in fields.into_iter().zip(&parts) {
            canonical.push(field.read(part, *position)?);
        }
        let minute = parts.len() - 5;
        let star = |field: usize| parts[minute + field].1.starts_with(['*', '?']);
        Ok(CronExpression {
            five_fields,
            follows_elapsed: star(0) || star(1),
            both_days: star(2) || star(4),
            canonical: canonical.join(" "),
        })
    }
}

impl CronField {
    /// Reads this field, which begins at character `position`, into its canonical form.
    fn read(&self, text: &str, position: usize) -> Result<String, String> {
        if text == "?" && self.is_day() {
            return Ok("*".into());
        }
        let mut items = Vec::new();
        let mut at = position;
        let alone = !text.contains(',');
        for item in text.split(',') {
            items.push(self.read_item(item, alone).map_err(|why| self.fault(item, at, &why))?);
            at += item.chars().count() + 1;
        }
        Ok(items.join(","))
    }

    fn fault(&self, item: &str, at: usize, why: &str) -> String {
        match item {
            "" => format!("{} field, character {at}: {why}", self.name),
            _ => format!("{} field, character {at}: `{item}`: {why}", self.name),
        }
    }

    fn read_item(&self, item: &str, alone: bool) -> Result<String, String> {
        if item.is_empty() {
            return Err("a value is missing at this comma".into());
        }
        if let Some(why) = foreign(item) {
            return Err(why.into());
        }
        if let Some((range, step)) = item.split_once('/') {
            return self.read_stepped(range, step, alone);
        }
        if item == "*" {
            return if alone {
                Ok("*".into())
            } else {
                Err("`*` can't stand in a list; it already means every value".into())
            };
        }
        if self.is_day()
            && let Some(special) = self.read_special(item)
        {
            return special;
        }
        match item.split_once('-') {
            Some((from, to)) => self.read_range(from, to).map(|(from, to)| format!("{from}-{to}")),
            None => Ok(self.value(item)?.to_string()),
        }
    }

    fn read_stepped(&self, range: &str, step: &str, alone: bool) -> Result<String, String> {
        let step = match number(step) {
            Some(step @ 1..) if step <= self.max => step,
            _ => return Err(format!("a step is a number from 1 to {}", self.max)),
        };
        match range {
            "*" if alone => Ok(format!("*/{step}")),
            "*" => Ok(format!("{}-{}/{step}", self.min, self.max)),
            "" => Err(format!("write `*/{step}`")),
            _ => match range.split_once('-') {
                Some((from, to)) => self.read_range(from, to).map(|(from, to)| format!("{from}-{to}/{step}")),
                None => {
                    let from = self.value(range)?; // and on to the last, as most crons have it
                    Ok(format!("{from}-{}/{step}", self.last().max(from)))
                }
            },
        }
    }

    /// A range in numbers. One that runs over the end is refused with the list that says the same.
    fn read_range(&self, from_text: &str, to_text: &str) -> Result<(u32, u32), String> {
        let from = self.value(from_text)?;
        let to = match self.value(to_text)? {
            // Sunday ends a week as well as it begins one
            0 if self.max == 7 && (from > 0 || number(to_text).is_none()) => 7,
            to => to,
        };
        if from <= to {
            return Ok((from, to));
        }
        let (min, last) = (self.min, self.last());
        let tail = if from == last { from.to_string() } else { format!("{from}-{last}") };
        let head = if to == min { to.to_string() } else { format!("{min}-{to}") };
        Err(format!("a range runs upwards; write `{tail},{head}`"))
    }

    /// The values with a letter or `#`, which depend on the month; `None`: it is none of them.
    fn read_special(&self, item: &str) -> Option<Result<String, String>> {
        let upper = item.to_ascii_uppercase();
        if self.max == 31 { self.read_special_date(&upper) } else { self.read_special_weekday(&upper) }
    }

    fn read_special_date(&self, upper: &str) -> Option<Result<String, String>> {
        match upper {
            "L" | "LW" => Some(Ok(upper.to_owned())),
            "WL" => Some(Err("the last weekday of the month is `LW`".into())),
            _ if upper.starts_with("L-") => {
                Some(Err("days before the last are not supported; `L` is the last day of the month".into()))
            }
            _ => {
                let day = upper.strip_suffix('W')?;
                let day = self.value(day).map_err(|_| "`W` follows one day, such as `15W`".into());
                Some(day.map(|day| format!("{day}W")))
            }
        }
    }

    fn read_special_weekday(&self, upper: &str) -> Option<Result<String, String>> {
        if upper == "L" {
            return Some(Err("say which weekday is the last of its month, such as `FRIL` or `5L`".into()));
        }
        let (days, which) = match upper.split_once('#') {
            Some(parts) => parts,
            None => (upper.strip_suffix('L')?, "L"),
        };
        let days = match days.split_once('-') {
            Some((from, to)) => self.read_range(from, to).map(|(from, to)| format!("{from}-{to}")),
            None => self.value(days).map(|day| day.to_string()),
        };
        Some(days.and_then(|days| match which {
            "1" | "2" | "3" | "4" | "5" | "L" => Ok(format!("{days}#{which}")),
            _ => Err("a number from 1 to 5, or `L`, follows `#`, such as `FRI#2` for the second Friday".into()),
        }))
    }

    /// A number or a name of this field.
    fn value(&self, text: &str) -> Result<u32, String> {
        if let Some(value) = number(text) {
            return match value {
                v if (self.min..=self.max).contains(&v) => Ok(v),
                _ => Err(format!("{value} is not between {} and {}", self.min, self.max)),
            };
        }
        let upper = text.to_ascii_uppercase();
        if let Some(index) = self.names.iter().position(|name| *name == upper) {
            return Ok(self.min + index as u32);
        }
        // `MONDAY` means `MON`: its beginning in the other case is no name, and near to one
        let begins: String = upper.chars().take(3).flat_map(char::to_lowercase).collect();
        let hint = did_you_mean(&begins, self.names.iter().copied());
        match self.names {
            [] => Err(format!("write a number from {} to {}", self.min, self.max)),
            [first, .., last] => {
                Err(format!("write a number from {} to {} or a name from {first} to {last}{hint}", self.min, self.max))
            }
            [_] => Err(format!("write a number from {} to {}", self.min, self.max)),
        }
    }

    /// The last value, as one would write it.
    fn last(&self) -> u32 {
        if self.max == 7 { 6 } else { self.max }
    }

    fn is_day(&self) -> bool {
        self.name.starts_with("day-")
    }
}

fn nickname(text: &str) -> Result<&'static str, String> {
    let lower = text.to_lowercase();
    if let Some((_, fields)) = NICKNAMES.iter().find(|(name, _)| *name == lower) {
        return Ok(fields);
    }
    if lower.starts_with("@every") {
        return Err("`@every` is not cron; use `interval`, such as \"interval\": \"5m\"".into());
    }
    if lower == "@reboot" {
        return Err("`@reboot` is not a time; the service fires by the clock, not by its own start".into());
    }
    let hint = did_you_mean(&lower, NICKNAMES.iter().map(|(name, _)| *name));
    Err(format!("unknown nickname `{text}`{hint}"))
}

/// Syntax of other programs, and what to write instead.
fn foreign(item: &str) -> Option<&'static str> {
    let first = |letters: &[char]| item.find(letters).and_then(|at| item[at..].chars().next());
    match first(&['?', 'H', 'h', 'R', 'r', '~', '+', '%', '!', '=', '^']) {
        Some('?') => Some("`?` can only stand alone, in day-of-month or day-of-week"),
        Some('H' | 'h') if item.len() == 1 || item.starts_with(['H', 'h']) && item[1..].starts_with(['/', '(']) => {
            Some("`H` is not supported; spread fires with `jitter`")
        }
        Some('R' | 'r') if item.len() == 1 => Some("`R` is not supported; spread fires with `jitter`"),
        Some('~') => Some("`~` is not supported; spread fires with `jitter`"),
        Some(c @ ('+' | '%' | '!' | '=' | '^')) => Some(match c {
            '+' => "`+` is not supported; write `*/1` in one of the day fields to have both match",
            _ => "this character is not part of cron",
        }),
        _ => None,
    }
}

fn number(text: &str) -> Option<u32> {
    (text.len() <= 4 && !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit()))
        .then(|| text.parse().ok())
        .flatten()
}

/// The fields, each with the position of its first character, counted from 1.
fn split(text: &str) -> Vec<(usize, &str)> {
    let mut parts = Vec::new();
    let mut begin = None;
    for (count, (offset, c)) in text.char_indices().chain([(text.len(), ' ')]).enumerate() {
        match (begin, c.is_whitespace()) {
            (None, false) => begin = Some((count + 1, offset)),
            (Some((position, from)), true) => {
                parts.push((position, &text[from..offset]));
                begin = None;
            }
            _ => {}
        }
    }
    parts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_nicknames_and_question_marks_are_put_into_numbers() {
        for (text, canonical) in [
            ("0 8 * * MON-FRI", "0 0 8 * * 1-5"),
            ("  */5  * ? jan,DEC sun-tue ", "0 */5 * * 1,12 0-2"),
            ("0 0 L,15W * 5", "0 0 0 L,15W * 5"),
            ("1 2 3 4 5 6", "1 2 3 4 5 6"),
            ("0 0 * * FRI-SUN", "0 0 0 * * 5-7"),
            ("0 0 * * friL,mon#1", "0 0 0 * * 5#L,1#1"),
            ("*/20,7 * * * *", "0 0-59/20,7 * * * *"),
            ("5/15 8/4 * * tue/2", "0 5-59/15 8-23/4 * * 2-6/2"),
            ("0 0 * * fri#l,sun-mon#3", "0 0 0 * * 5#L,0-1#3"),
            ("0 0 * * sun-sun", "0 0 0 * * 0-7"),
            ("@Hourly", "0 0 * * * *"),
            ("05 08 01 02 00", "0 5 8 1 2 0"),
        ] {
            assert_eq!(CronExpression::read(text).map(|e| e.canonical), Ok(canonical.to_owned()), "{text}");
        }
    }

    #[test]
    fn star_at_the_head_of_a_field_is_remembered() {
        let facts = |text: &str| CronExpression::read(text).map(|e| (e.follows_elapsed, e.both_days)).unwrap();
        assert_eq!(facts("0 8 1 * 1"), (false, false));
        assert_eq!(facts("0-59 0-23 1 * 1"), (false, false));
        assert_eq!(facts("*/5 8 1 * 1"), (true, false));
        assert_eq!(facts("0 * 1 * 1"), (true, false));
        assert_eq!(facts("* 0 8 1 * 1"), (false, false));
        assert_eq!(facts("0 8 ? * 1"), (false, true));
        assert_eq!(facts("0 8 1 * */2"), (false, true));
    }

    #[test]
    fn fault_names_its_place_and_what_would_be_right() {
        for (text, why) in [
            ("", "is empty; write five fields such as `0 8 * * *`, or `@daily`"),
            ("0 25 * * *", "hour field, character 3: `25`: 25 is not between 0 and 23"),
            (
                "0 8 * * MONDAY",
                "day-of-week field, character 9: `MONDAY`: write a number from 0 to 7 or a name from SUN to SAT; did you mean `MON`?",
            ),
            (
                "0 8 * *",
                "has 4 fields; write five (minute, hour, day-of-month, month, day-of-week), or six with seconds first",
            ),
            ("0 0 8 * * * 2027", "has seven fields; a year can't be given: use `start_at` and `end_at`, or `at`"),
            ("/15 * * * *", "minute field, character 1: `/15`: write `*/15`"),
            ("*/0 * * * *", "minute field, character 1: `*/0`: a step is a number from 1 to 59"),
            ("0 1,,2 * * *", "hour field, character 5: a value is missing at this comma"),
            ("0 22-2 * * *", "hour field, character 3: `22-2`: a range runs upwards; write `22-23,0-2`"),
            ("0 0 * * FRI-MON", "day-of-week field, character 9: `FRI-MON`: a range runs upwards; write `5-6,0-1`"),
            (
                "0 0 L-3 * *",
                "day-of-month field, character 5: `L-3`: days before the last are not supported; `L` is the last day of the month",
            ),
            (
                "0 0 * * MON#6",
                "day-of-week field, character 9: `MON#6`: a number from 1 to 5, or `L`, follows `#`, such as `FRI#2` for the second Friday",
            ),
            (
                "0 0 * * L",
                "day-of-week field, character 9: `L`: say which weekday is the last of its month, such as `FRIL` or `5L`",
            ),
            ("H 8 * * *", "minute field, character 1: `H`: `H` is not supported; spread fires with `jitter`"),
            ("? 8 * * *", "minute field, character 1: `?`: `?` can only stand alone, in day-of-month or day-of-week"),
            ("*,5 8 * * *", "minute field, character 1: `*`: `*` can't stand in a list; it already means every value"),
            ("@every 5m", "`@every` is not cron; use `interval`, such as \"interval\": \"5m\""),
            ("@reboot", "`@reboot` is not a time; the service fires by the clock, not by its own start"),
            ("@dayly", "unknown nickname `@dayly`; did you mean `@daily`?"),
        ] {
            assert_eq!(CronExpression::read(text), Err(why.to_owned()), "{text}");
        }
    }

    #[test]
    fn odd_input_is_refused_without_a_panic() {
        for text in [
            "ü ü ü ü ü",
            "* * * * ٣",
            "- - - - -",
            "1- * * * *",
            "-1 * * * *",
            "1-2-3 * * * *",
            "1/2/3 * * * *",
            "# # # # #",
            "* * W * *",
            "* * 1-5W * *",
            "* * LL * *",
            "99999999999 * * * *",
            "* * * * 1#LL",
            "@",
            "@@daily",
            "*/65535 * * * *",
            "* * 32W * *",
            "* * * * 8L",
            "** * * * *",
            "*5 * * * *",
            "* * * * MONTUE",
        ] {
            assert!(CronExpression::read(text).is_err(), "{text}");
        }
    }

    #[test]
    fn expression_is_taken_at_its_longest_and_refused_one_beyond_it() {
        let read = |length: usize| CronExpression::read(&format!("0{}8 * * *", " ".repeat(length - "08 * * *".len())));
        assert!(read(LENGTH).is_ok());
        assert_eq!(read(LENGTH + 1).unwrap_err(), "is longer than 1000 characters");
    }
}
