//! The most work that a rendering takes: how many instructions it may have, so that each of them may touch the longest
//! text.

use serde_json::Value;

use crate::base::template::guard::parts;
use crate::base::template::limits::FUEL;
use crate::base::template::meter::WORK_BYTES;

/// Steps of one rendering beside those that are counted while it goes on.
const MOST_STEPS: u64 = 50_000_000;
/// Every template has as many instructions at least.
const LEAST_FUEL: u64 = 64;
/// One instruction.
const INSTRUCTION: u64 = 200;
/// Instructions of one insertion or statement, about.
const OF_A_PART: u64 = 8;
/// Reading a template for one rendering, and the names for it.
const RENDERING: u64 = 10_000;
/// One byte that a template gives: it is written, kept and sent on.
const GIVEN: u64 = 10;
/// Bytes that are compared or copied in one step.
const COMPARED: u64 = 16;

/// Repeated work of a template, by the look of its text.
#[derive(Debug, Clone, Copy)]
pub struct TemplateWork {
    /// Insertions and statements.
    parts: u64,
    /// It has a `for`.
    loops: bool,
    /// Signs that compare, or put texts together, inside of expressions.
    compares: u64,
    /// Places that search in texts, or cut them.
    searches: u64,
}

/// How large values are.
#[derive(Debug, Clone, Copy, Default)]
pub struct ValueSize {
    /// Bytes of the longest text.
    longest: u64,
    /// Bytes of all of it, about.
    bytes: u64,
}

impl ValueSize {
    /// The size of a value.
    pub fn of(value: &Value) -> ValueSize {
        let many = |parts: &mut dyn Iterator<Item = ValueSize>| {
            parts.fold(ValueSize { longest: 0, bytes: 2 }, |sum, part| ValueSize {
                longest: sum.longest.max(part.longest),
                bytes: sum.bytes + part.bytes + 4,
            })
        };
        match value {
            Value::String(text) => ValueSize { longest: text.len() as u64, bytes: text.len() as u64 + 2 },
            Value::Array(items) => many(&mut items.iter().map(ValueSize::of)),
            Value::Object(fields) => many(&mut fields.iter().map(|(name, field)| {
                let field = ValueSize::of(field);
                let name = name.len() as u64;
                ValueSize { longest: field.longest.max(name), bytes: field.bytes + name }
            })),
            _ => ValueSize { longest: 0, bytes: 4 },
        }
    }

    /// The larger of two in each respect.
    pub fn max(self, other: ValueSize) -> ValueSize {
        ValueSize { longest: self.longest.max(other.longest), bytes: self.bytes.max(other.bytes) }
    }
}

/// The text behind each `in`.
fn searched(code: &str) -> impl Iterator<Item = &str> {
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    code.match_indices("in").map(|(at, word)| (&code[..at], &code[at + word.len()..])).filter_map(
        move |(before, rest)| {
            let is_alone = !before.ends_with(is_word) && !rest.starts_with(is_word);
            is_alone.then(|| rest.trim_start())
        },
    )
}

/// Whether it is a list of numbers and quoted texts: to look for a value among these never goes through a long text,
/// because texts of different lengths are not compared.
fn is_written_out(text: &str) -> bool {
    let Some(mut rest) = text.strip_prefix('[') else { return false };
    loop {
        rest = rest.trim_start_matches(|c: char| c.is_ascii_digit() || c.is_ascii_whitespace() || ".,-".contains(c));
        match rest.chars().next() {
            Some(']') => return true,
            Some(quote @ ('"' | '\'')) => match rest[1..].split_once([quote, '\\']) {
                // an escape may hide the end
                Some((within, behind)) if rest[1 + within.len()..].starts_with(quote) => rest = behind,
                _ => return false,
            },
            _ => return false,
        }
    }
}

impl TemplateWork {
    /// The work of the template with this text.
    pub fn of(text: &str) -> TemplateWork {
        let mut work = TemplateWork { parts: 0, loops: false, compares: 0, searches: 0 };
        for part in parts(text) {
            let is_for = part.statement == Some("for");
            work.parts += 1;
            work.loops |= is_for;
            work.compares += part.code.matches(['=', '<', '>', '~', '+', '!']).count() as u64;
            // the `in` of a `for` is none
            let searched = searched(part.code).skip(usize::from(is_for)).filter(|in_what| !is_written_out(in_what));
            work.searches += (searched.count() + part.code.matches(':').count()) as u64;
        }
        work
    }

    /// Instructions that a rendering over values of this size may have.
    pub fn fuel(self, size: ValueSize) -> u64 {
        let touched = match (self.searches, self.compares) {
            (1.., _) => size.longest,
            (0, 1..) => size.longest / COMPARED,
            (0, 0) => 0,
        };
        match self.loops {
            true => (MOST_STEPS / touched.max(1)).clamp(LEAST_FUEL, FUEL),
            false => FUEL,
        }
    }

    /// The steps that a rendering has taken besides what its filters went through. `consumed`: its instructions, where
    /// they were counted to the end.
    pub fn taken(self, size: ValueSize, consumed: Option<u64>, given: usize) -> u64 {
        let most = || if self.loops { self.fuel(size) } else { self.parts.saturating_mul(OF_A_PART) };
        let instructions = consumed.unwrap_or_else(most).saturating_mul(INSTRUCTION);
        RENDERING.saturating_add(instructions).saturating_add((given as u64).saturating_mul(GIVEN))
    }

    /// Whether its looks at texts are few enough: where nothing is repeated, each place looks once. What is repeated is
    /// bounded by [`TemplateWork::fuel`].
    pub fn is_affordable(self, size: ValueSize) -> bool {
        self.loops || self.touched_once(size) <= MOST_STEPS
    }

    fn touched_once(self, size: ValueSize) -> u64 {
        let searched = self.searches.saturating_mul(size.longest);
        searched.saturating_add(self.compares.saturating_mul(size.longest / COMPARED))
    }

    /// The most steps that it takes with values of this size.
    pub fn steps(self, size: ValueSize) -> u64 {
        match self.loops {
            true => self.fuel(size) * INSTRUCTION + WORK_BYTES,
            false => {
                let inserted = self.parts.saturating_mul(size.bytes.saturating_mul(4) + OF_A_PART * INSTRUCTION);
                inserted.saturating_add(self.touched_once(size))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn search_in_what_is_written_out_is_none_in_texts() {
        for (code, searches) in [
            ("{% if a in [0, -1.5, 'b', \"c d\"] %}", false),
            ("{% for a in event.list %}{% if a in [0, 1] %}", false),
            ("{{ 1 if a in [] else 2 }}", false),
            ("{{ index in [1] }}", false),
            ("{{ a in event.long }}", true),
            ("{{ a in [event.long] }}", true),
            ("{{ a in [0, ['b']] }}", true),
            ("{{ a in ['b\\'', event.long] }}", true),
            ("{{ a in [0] and a in event.long }}", true),
            ("{% for a in event.list if a in event.long %}", true),
            ("{{ a in 'bcd' }}", true),
            ("{{ a in [0", true),
        ] {
            assert_eq!(TemplateWork::of(code).searches > 0, searches, "{code}");
        }
    }
    #[test]
    fn looks_at_long_texts_that_are_written_out_one_after_the_other_are_bounded() {
        let size = ValueSize::of(&serde_json::json!({ "t": "x".repeat(250_000) }));
        let (most, compared) = (MOST_STEPS / 250_000, MOST_STEPS / (250_000 / COMPARED));
        for (code, most) in
            [("{{ event.t[-1:] }}", most), ("{{ 'zz' in event.t }}", most), ("{{ event.t < event.t }}", compared)]
        {
            assert!(TemplateWork::of(&code.repeat(most as usize)).is_affordable(size), "{code}");
            assert!(!TemplateWork::of(&code.repeat(most as usize + 1)).is_affordable(size), "{code}");
        }
        assert!(TemplateWork::of(&"{{ event.t }}".repeat(4_000)).is_affordable(size));
        assert!(
            TemplateWork::of(&"{{ event.t[:1] }}".repeat(3_000))
                .is_affordable(ValueSize::of(&serde_json::json!("short")))
        );
    }
}
