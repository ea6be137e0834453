//! The steps that texts are read in, which several texts may have together.

use std::borrow::Cow;

use crate::base::redact::{Redactor, shown};

/// Steps that a text is read with, for each of its bytes, and for the whole. An ordinary answer takes two or three for
/// each byte where fifty secrets are looked for. A mebibyte that is made to take long is read for no two seconds, even
/// by a build without optimization.
const STEPS: (usize, usize) = (5, 500_000);
/// Steps of all texts that are read where they are asked for: enough for four KiB of an ordinary answer, and too few to
/// keep anything else waiting.
const STEPS_IN_PLACE: usize = 15_000;
/// Among so many forms of secrets a step is twice as long as among few, for they lie further apart in memory: some five
/// hundred secrets have as many.
const NEEDLES_OF_A_STEP: usize = 4_096;
/// Steps inside of what was found, for each byte of the text, to find where secrets that overlap end.
const STEPS_INSIDE: usize = 5;

/// How many places may still be looked at, on all the ways of reading a text, or several texts, together.
pub struct RedactionSteps {
    pub left: usize,
    of_a_byte: usize,
    are_short: bool,
}

impl RedactionSteps {
    /// For one text.
    pub fn of(bytes: &[u8]) -> RedactionSteps {
        let (of_a_byte, left) = STEPS;
        let mut steps = RedactionSteps { left, of_a_byte, are_short: false };
        steps.grow(bytes);
        steps
    }

    /// For secrets that begin inside of others.
    pub fn inside(bytes: &[u8]) -> RedactionSteps {
        RedactionSteps { left: bytes.len().saturating_mul(STEPS_INSIDE), of_a_byte: 0, are_short: false }
    }

    /// With those that one more text brings.
    fn grow(&mut self, bytes: &[u8]) {
        self.left = self.left.saturating_add(bytes.len().saturating_mul(self.of_a_byte));
    }

    /// Whether there were so many left.
    pub fn take(&mut self, count: usize) -> bool {
        match self.left.checked_sub(count) {
            Some(left) => self.left = left,
            None => self.are_short = true,
        }
        !self.are_short
    }

    /// Whether the text could not be read to its end.
    pub fn is_exhausted(&self) -> bool {
        self.are_short
    }
}

impl Redactor {
    /// To read the texts of one answer.
    pub fn together(&self) -> JointRedaction<'_> {
        JointRedaction { redactor: self, steps: RedactionSteps::of(&[]) }
    }

    /// To read short texts on a thread that serves others. Where they take too many steps, they may be read again
    /// elsewhere.
    pub fn in_place(&self) -> JointRedaction<'_> {
        let left = STEPS_IN_PLACE / (1 + self.needles.len() / NEEDLES_OF_A_STEP);
        let steps = RedactionSteps { left, of_a_byte: 0, are_short: false };
        JointRedaction { redactor: self, steps }
    }
}

/// Takes secrets out of several texts, which have their steps together. Once those are used up, each of them may hold
/// one.
pub struct JointRedaction<'r> {
    redactor: &'r Redactor,
    steps: RedactionSteps,
}

impl JointRedaction<'_> {
    /// Whether one of the secrets is in there, or may be.
    pub fn contains_secret(&mut self, bytes: &[u8]) -> bool {
        self.steps.grow(bytes);
        self.redactor.contains_within(bytes, &mut self.steps)
    }

    /// The text without the secrets.
    pub fn text<'a>(&mut self, text: &'a str) -> Cow<'a, str> {
        shown(text, self.bytes(text.as_bytes()))
    }

    /// The bytes without the secrets.
    pub fn bytes<'a>(&mut self, bytes: &'a [u8]) -> Cow<'a, [u8]> {
        self.steps.grow(bytes);
        self.redactor.bytes_within(bytes, &mut self.steps)
    }

    /// Whether the steps were too few.
    pub fn is_exhausted(&self) -> bool {
        self.steps.is_exhausted()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::secret::REDACTED;

    #[test]
    fn texts_of_one_answer_have_their_steps_together() {
        // each place may be read in two ways, and no way comes to its end
        let leaves: Vec<String> = (0..200)
            .map(|n: usize| (0..60).map(|bit| if (n * 7919) >> (bit % 16) & 1 == 0 { '+' } else { ' ' }).collect())
            .map(|leaf: String| format!("+{leaf}x"))
            .collect();
        let redactor = Redactor::new(leaves.iter().map(String::as_str));
        let mean = "+".repeat(40);
        assert_eq!(redactor.text(&mean), mean, "it does not take long alone");
        let mut reading = redactor.together();
        let shown = (0..10).filter(|_| reading.text(&mean) == mean).count();
        assert!((1..10).contains(&shown), "{shown}");
        assert!(reading.is_exhausted() && reading.contains_secret(b"plain"));
        assert_eq!((reading.text("plain"), reading.text("")), (REDACTED.into(), "".into()));
        let mut in_place = redactor.in_place();
        assert!(!in_place.contains_secret("an ordinary answer, ".repeat(200).as_bytes()) && !in_place.is_exhausted());
        assert_eq!(in_place.text(&mean), REDACTED);
    }

    #[test]
    fn fewer_steps_are_taken_in_place_where_many_secrets_are_looked_for() {
        let in_place = |count: usize| {
            let secrets: Vec<String> = (0..count).map(|n| format!("secret-number-{n:04}")).collect();
            let redactor = Redactor::new(secrets.iter().map(String::as_str));
            (redactor.needles.len(), redactor.in_place().steps.left)
        };
        let ((few, all), (many, fewer)) = (in_place(200), in_place(1_000));
        assert!(few < NEEDLES_OF_A_STEP && many > NEEDLES_OF_A_STEP, "{few} and {many}");
        assert_eq!((all, fewer), (STEPS_IN_PLACE, STEPS_IN_PLACE / (1 + many / NEEDLES_OF_A_STEP)));
    }
}
