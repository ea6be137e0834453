//! What a rendering takes at most: how many instructions it may have, so that each of them may touch the longest text.

use serde_json::Value;

use crate::template::guard::{FUEL, parts};
use crate::template::meter::WORK_BYTES;

/// Steps of one rendering beside those that are counted while it goes on.
const MOST_STEPS: u64 = 50_000_000;
/// Every template has as many instructions at least.
const LEAST_FUEL: u64 = 64;
/// One instruction.
const INSTRUCTION: u64 = 200;
/// Bytes that are compared or copied in one step.
const COMPARED: u64 = 16;

/// What a template does again and again, by the look of its text.
#[derive(Debug, Clone, Copy)]
pub struct Work {
    /// Insertions and statements.
    parts: u64,
    /// It has a `for`.
    loops: bool,
    /// It compares, or puts texts together, inside of expressions.
    compares: bool,
    /// It searches in texts, or cuts them.
    searches: bool,
}

/// How large values are.
#[derive(Debug, Clone, Copy, Default)]
pub struct Size {
    /// Bytes of the longest text.
    longest: u64,
    /// Bytes of all of it, about.
    bytes: u64,
}

impl Size {
    pub fn of(value: &Value) -> Size {
        let many = |parts: &mut dyn Iterator<Item = Size>| {
            parts.fold(Size { longest: 0, bytes: 2 }, |sum, part| Size {
                longest: sum.longest.max(part.longest),
                bytes: sum.bytes + part.bytes + 4,
            })
        };
        match value {
            Value::String(text) => Size { longest: text.len() as u64, bytes: text.len() as u64 + 2 },
            Value::Array(items) => many(&mut items.iter().map(Size::of)),
            Value::Object(fields) => many(&mut fields.iter().map(|(name, field)| {
                let field = Size::of(field);
                let name = name.len() as u64;
                Size { longest: field.longest.max(name), bytes: field.bytes + name }
            })),
            _ => Size { longest: 0, bytes: 4 },
        }
    }

    pub fn max(self, other: Size) -> Size {
        Size { longest: self.longest.max(other.longest), bytes: self.bytes.max(other.bytes) }
    }
}

impl Work {
    pub fn of(text: &str) -> Work {
        let mut work = Work { parts: 0, loops: false, compares: false, searches: false };
        for part in parts(text) {
            let words = || part.code.split(|c: char| !c.is_ascii_alphanumeric() && c != '_');
            let is_for = part.statement == Some("for");
            work.parts += 1;
            work.loops |= is_for;
            work.compares |= part.code.contains(['=', '<', '>', '~', '+', '!']);
            // the `in` of a `for` is none
            work.searches |= words().filter(|word| *word == "in").count() > usize::from(is_for);
            work.searches |= part.code.contains(':');
        }
        work
    }

    /// Instructions that a rendering over values of this size may have.
    pub fn fuel(self, size: Size) -> u64 {
        let touched = match (self.searches, self.compares) {
            (true, _) => size.longest,
            (false, true) => size.longest / COMPARED,
            (false, false) => 0,
        };
        match self.loops {
            true => (MOST_STEPS / touched.max(1)).clamp(LEAST_FUEL, FUEL),
            false => FUEL,
        }
    }

    pub fn steps(self, size: Size) -> u64 {
        match self.loops {
            true => self.fuel(size) * INSTRUCTION + WORK_BYTES,
            false => self.parts.saturating_mul(size.bytes.saturating_mul(4) + 8 * INSTRUCTION),
        }
    }
}
