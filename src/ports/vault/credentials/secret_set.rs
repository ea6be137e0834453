//! The texts that one run looks for, bounded together, and the redactor that was built of them last.
//!
//! A redactor is built of a snapshot, so that nobody waits for the set meanwhile. One that was built of an earlier
//! state is not used for what is read later.

use std::sync::Arc;

use zeroize::Zeroizing;

use crate::base::redact::{Redactor, SHORTEST};
use crate::domain::credential::{RUN_SECRET_BYTES, RUN_SECRETS};

/// A text that is looked for. A set and its snapshots share it.
type SecretText = Arc<Zeroizing<String>>;

/// With these texts there would be more than a run may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManySecrets;

/// The texts that are looked for.
#[derive(Default)]
pub struct SecretSet {
    /// Sorted, each once.
    texts: Vec<SecretText>,
    /// Of all texts together.
    bytes: usize,
    /// There are more than these, so that no text is shown.
    hides_all: bool,
    /// Changed by each addition.
    version: u64,
    /// The version that a redactor was built of, and the redactor.
    built: Option<(u64, Arc<Redactor>)>,
}

/// The texts as they were at one instant.
pub struct SecretSnapshot {
    texts: Vec<SecretText>,
    bytes: usize,
    /// Version of the set.
    pub version: u64,
}

impl SecretSet {
    /// Whether nothing is looked for.
    pub fn is_empty(&self) -> bool {
        self.texts.is_empty() && !self.hides_all
    }

    /// Looks for these, too; those that are too short for it are left out.
    ///
    /// # Errors
    /// There would be more than a run may have, or more bytes of them. None of them is looked for.
    pub fn add<'a>(&mut self, secrets: impl IntoIterator<Item = &'a str>) -> Result<(), TooManySecrets> {
        if self.hides_all {
            return Ok(());
        }
        let mut new: Vec<&str> = secrets.into_iter().filter(|secret| self.lacks(secret)).collect();
        new.sort_unstable();
        new.dedup();
        let bytes = self.bytes + new.iter().map(|secret| secret.len()).sum::<usize>();
        if self.texts.len() + new.len() > RUN_SECRETS || bytes > RUN_SECRET_BYTES {
            return Err(TooManySecrets);
        }
        if !new.is_empty() {
            self.texts.extend(new.into_iter().map(|secret| Arc::new(Zeroizing::new(secret.to_owned()))));
            self.texts.sort_unstable_by(|one, other| one.as_str().cmp(other.as_str()));
            self.bytes = bytes;
            self.version += 1;
        }
        Ok(())
    }

    fn lacks(&self, secret: &str) -> bool {
        secret.trim().len() >= SHORTEST && self.texts.binary_search_by(|known| known.as_str().cmp(secret)).is_err()
    }

    /// Shows no text any more, and forgets which ones are looked for.
    pub fn hide_all(&mut self) {
        let version = self.version + 1;
        let built = Some((version, Arc::new(Redactor::hiding_all())));
        *self = SecretSet { hides_all: true, version, built, ..SecretSet::default() };
    }

    /// Looks for nothing any more.
    pub fn clear(&mut self) {
        *self = SecretSet { version: self.version + 1, ..SecretSet::default() };
    }

    /// The redactor of all texts; `None`: it is yet to be built.
    pub fn built(&self) -> Option<Arc<Redactor>> {
        let (version, redactor) = self.built.as_ref()?;
        (*version == self.version).then(|| Arc::clone(redactor))
    }

    /// The texts as they are now.
    pub fn snapshot(&self) -> SecretSnapshot {
        SecretSnapshot { texts: self.texts.clone(), bytes: self.bytes, version: self.version }
    }

    /// Keeps what was built of a version, and answers what is to be used: the redactor of all texts where there is one,
    /// else this one.
    pub fn keep(&mut self, version: u64, redactor: Redactor) -> Arc<Redactor> {
        let redactor = Arc::new(redactor);
        if self.built.as_ref().is_none_or(|(kept, _)| *kept < version) {
            self.built = Some((version, Arc::clone(&redactor)));
        }
        self.built().unwrap_or(redactor)
    }
}

impl SecretSnapshot {
    /// The steps that [`SecretSnapshot::build`] takes at most.
    pub fn steps(&self) -> u64 {
        Redactor::steps_to_build(self.texts.len(), self.bytes)
    }

    /// Finds these texts.
    pub fn build(&self) -> Redactor {
        Redactor::new(self.texts.iter().map(|text| text.as_str()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn texts(numbers: std::ops::Range<usize>) -> Vec<String> {
        numbers.map(|n| format!("secret-{n:04}")).collect()
    }

    fn add(set: &mut SecretSet, texts: &[String]) -> Result<(), TooManySecrets> {
        set.add(texts.iter().map(String::as_str))
    }

    #[test]
    fn texts_of_a_run_are_taken_up_to_their_most_and_refused_one_beyond_it() {
        let mut set = SecretSet::default();
        assert_eq!(add(&mut set, &texts(0..RUN_SECRETS)), Ok(()));
        assert_eq!(add(&mut set, &texts(0..RUN_SECRETS)), Ok(()), "each is known once");
        assert_eq!(set.add(["abc", " x  "]), Ok(()), "neither is looked for");
        assert_eq!(add(&mut set, &texts(RUN_SECRETS - 1..RUN_SECRETS + 1)), Err(TooManySecrets));
        assert_eq!(set.texts.len(), RUN_SECRETS);
        assert!(set.built().is_none() && !set.is_empty());

        let mut fresh = SecretSet::default();
        assert_eq!(add(&mut fresh, &texts(0..RUN_SECRETS + 1)), Err(TooManySecrets));
        assert!(fresh.is_empty(), "all of them are looked for, or none");
    }

    #[test]
    fn bytes_of_a_run_s_texts_are_taken_up_to_their_most_and_refused_one_beyond_it() {
        let mut set = SecretSet::default();
        assert_eq!(set.add([&*"x".repeat(RUN_SECRET_BYTES - 8)]), Ok(()));
        assert_eq!(set.add(["ninebytes"]), Err(TooManySecrets));
        assert_eq!((set.add(["8 bytes!"]), set.bytes), (Ok(()), RUN_SECRET_BYTES));
        assert_eq!(set.add(["more"]), Err(TooManySecrets));
    }

    #[test]
    fn redactor_of_an_earlier_state_is_kept_for_what_was_read_then_alone() {
        let mut set = SecretSet::default();
        set.add(["one-secret"]).unwrap();
        let snapshot = set.snapshot();
        set.add(["two-secret"]).unwrap();
        let of_then = set.keep(snapshot.version, snapshot.build());
        assert_eq!(of_then.text("one-secret"), "[redacted]");
        assert!(set.built().is_none(), "another text was added while it was built");
        let now = set.snapshot();
        set.keep(now.version, now.build());
        let of_now = set.keep(snapshot.version, snapshot.build());
        assert_eq!(of_now.text("one-secret, two-secret"), "[redacted], [redacted]", "an older one takes no place");
        set.clear();
        assert!(set.is_empty() && set.built().is_none());
        set.hide_all();
        assert_eq!(set.keep(now.version, now.build()).text("plain"), "[redacted]");
        assert_eq!((set.add(["three-secret"]), set.is_empty()), (Ok(()), false));
        assert_eq!(set.built().unwrap().text("plain"), "[redacted]");
    }
}
