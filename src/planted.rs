//! Bugs that are planted on purpose, so that the judge of the fault tests is seen to find them; and faults of the store.
//!
//! Nothing of it is compiled in without the cargo feature `planted`, which no release has: then [`planted!`] is `false`
//! and [`planted_text!`] is the text as it stands. With it, the environment says what is broken: `REVEILLE_PLANTED` names
//! one bug of [`BUGS`]; `REVEILLE_STORE_FAULTS` is the share of store calls that fail, half of them before and half after
//! they took effect, such as `0.01`.

/// Whether this bug is planted.
#[cfg(feature = "planted")]
macro_rules! planted {
    ($name:literal) => {
        $crate::planted::is($name)
    };
}
#[cfg(not(feature = "planted"))]
macro_rules! planted {
    ($name:literal) => {
        false
    };
}

/// A statement; where the bug is planted, with a part of it replaced.
#[cfg(feature = "planted")]
macro_rules! planted_text {
    ($name:literal, $text:expr, $part:literal => $instead:literal) => {
        $crate::planted::text($name, $text, $part, $instead)
    };
}
#[cfg(not(feature = "planted"))]
macro_rules! planted_text {
    ($name:literal, $text:expr, $part:literal => $instead:literal) => {
        $text
    };
}

#[cfg(feature = "planted")]
pub use with_the_feature::*;

#[cfg(feature = "planted")]
mod with_the_feature {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{LazyLock, Mutex};

    /// Every bug that can be planted, and what it leaves out.
    pub const BUGS: &[&str] = &[
        // the unique key of a fire
        "no_unique_key",
        // the lock and the comparison under which a due row moves on
        "no_compare_and_set",
        // the database's clock
        "local_clock",
        // the token by which one of two rescuers wins
        "rescue_without_token",
        // the token that an end needs
        "no_fence",
        // the lock that keeps two instances from one claim
        "no_skip_locked",
        // an event is acknowledged before its runs are recorded
        "acknowledge_before_commit",
        // the record of instants that do not run
        "silent_miss",
    ];

    static BUG: LazyLock<Option<String>> = LazyLock::new(|| {
        let bug = variable("REVEILLE_PLANTED")?;
        assert!(BUGS.contains(&bug.as_str()), "REVEILLE_PLANTED: there is no bug {bug:?}, only {BUGS:?}");
        Some(bug)
    });

    static FAULTS: LazyLock<f64> = LazyLock::new(|| {
        variable("REVEILLE_STORE_FAULTS").map_or(0.0, |share| share.parse().expect("REVEILLE_STORE_FAULTS: a share"))
    });

    #[allow(clippy::disallowed_methods)] // the owner
    fn variable(name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    pub fn is(name: &str) -> bool {
        debug_assert!(BUGS.contains(&name), "{name} is not among the bugs");
        BUG.as_deref() == Some(name)
    }

    /// Texts that were changed, so that each is made once.
    static TEXTS: LazyLock<Mutex<HashMap<(&'static str, &'static str), &'static str>>> = LazyLock::new(Mutex::default);

    /// # Panics
    /// If the part is not there: the bug would be none.
    pub fn text(name: &str, text: &'static str, part: &'static str, instead: &str) -> &'static str {
        if !is(name) {
            return text;
        }
        let mut texts = TEXTS.lock().expect("texts lock");
        texts.entry((text, part)).or_insert_with(|| {
            assert!(text.contains(part), "{name}: there is no {part:?} in {text}");
            Box::leak(text.replace(part, instead).into_boxed_str())
        })
    }

    /// Questions of [`store_fails`] that are answered with no, so that a service comes up.
    const SPARED: u64 = 100;
    static ASKED: AtomicU64 = AtomicU64::new(0);

    /// Whether a call of the store fails now: asked once before and once after it takes effect.
    pub fn store_fails() -> bool {
        *FAULTS > 0.0 && ASKED.fetch_add(1, Ordering::Relaxed) >= SPARED && fastrand::f64() < *FAULTS / 2.0
    }
}
