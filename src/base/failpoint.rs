//! Bugs that are planted on purpose, so that the judge of the fault tests is seen to find them; and faults of the
//! store.
//!
//! Nothing of it is compiled in without the cargo feature `failpoints`, which no release has: then `failpoint!` is
//! `false` and `failpoint_text!` is the text as it stands. `scripts/test.sh` runs all tests on a build with the
//! feature, so that one build is enough. Nothing is broken in it either, until the environment says so:
//! `REVEILLE_FAILPOINT` names one bug of `FAILPOINTS`; `REVEILLE_STORE_FAULTS` is the share of store calls that fail,
//! half of them before and half after they took effect, such as `0.01`; and after a comma how many calls are spared
//! first. `REVEILLE_SQLITE_PAGES` is how large an SQLite file may grow.

/// Whether this bug is planted.
#[cfg(feature = "failpoints")]
macro_rules! failpoint {
    ($name:literal) => {
        $crate::base::failpoint::is_active($name)
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint {
    ($name:literal) => {
        false
    };
}

/// A statement; where the bug is planted, with a part of it replaced.
#[cfg(feature = "failpoints")]
macro_rules! failpoint_text {
    ($name:literal, $text:expr, $part:literal => $instead:literal) => {
        $crate::base::failpoint::replace_text($name, $text, $part, $instead)
    };
}
#[cfg(not(feature = "failpoints"))]
macro_rules! failpoint_text {
    ($name:literal, $text:expr, $part:literal => $instead:literal) => {
        $text
    };
}

/// The compiler refuses a build without the feature in which a bug is planted, or a text is changed.
#[cfg(not(feature = "failpoints"))]
const _: () = {
    assert!(!failpoint!("no_fence"));
    assert!(matches!(failpoint_text!("no_fence", "as it stands", "stands" => "falls").as_bytes(), b"as it stands"));
};

#[cfg(feature = "failpoints")]
pub use enabled::*;

#[cfg(feature = "failpoints")]
mod enabled {
    use std::collections::HashMap;
    use std::sync::atomic::{AtomicU64, Ordering};
    use std::sync::{LazyLock, Mutex};

    /// Every bug that can be planted, and what it leaves out.
    pub const FAILPOINTS: &[&str] = &[
        // the unique key of a fire
        "no_unique_key",
        // the lock and the comparison under which a due row moves on
        "no_compare_and_set",
        // the database's clock
        "local_clock",
        // the token by which one of two rescuers wins
        "rescue_without_token",
        // the token that an end needs, and the worker's own look at its lease
        "no_fence",
        // the lock that keeps two instances from one claim
        "no_skip_locked",
        // the slot that keeps a task to one run at a time
        "no_slot",
        // an event is acknowledged before its runs are recorded
        "acknowledge_before_commit",
        // the token that an append to a transcript needs, and the worker's own look at its lease
        "append_without_fence",
        // the intent of a pipeline's step, before its effect
        "intent_after_effect",
        // the intent of an agent's calls, before a call that must not be made twice
        "agent_intent_late",
        // the record of instants that do not run
        "silent_miss",
    ];

    static ACTIVE: LazyLock<Option<String>> = LazyLock::new(|| {
        let bug = variable("REVEILLE_FAILPOINT")?;
        assert!(
            FAILPOINTS.contains(&bug.as_str()),
            "REVEILLE_FAILPOINT: there is no failpoint {bug:?}, only {FAILPOINTS:?}"
        );
        Some(bug)
    });

    /// The share of calls that fail, and how many are spared before, so that a service comes up.
    static STORE_FAULTS: LazyLock<(f64, u64)> = LazyLock::new(|| {
        let Some(faults) = variable("REVEILLE_STORE_FAULTS") else { return (0.0, 0) };
        let (share, spared) = faults.split_once(',').unwrap_or((&faults, "0"));
        let wrong = "REVEILLE_STORE_FAULTS: a share, a comma, a number of calls";
        (share.parse().expect(wrong), spared.parse().expect(wrong))
    });

    /// How large an SQLite file may grow, in pages: `REVEILLE_SQLITE_PAGES`.
    pub fn max_sqlite_pages() -> Option<String> {
        variable("REVEILLE_SQLITE_PAGES")
    }

    tokio::task_local! {
        static EXEMPT: ();
    }

    /// Runs what is to be asked of a store that does not fail: what a test asks by itself.
    pub async fn without_faults<F: Future>(ask: F) -> F::Output {
        EXEMPT.scope((), ask).await
    }

    #[allow(clippy::disallowed_methods)] // the owner
    fn variable(name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    /// Whether the bug of this name is planted.
    pub fn is_active(name: &str) -> bool {
        debug_assert!(FAILPOINTS.contains(&name), "{name} is not among the bugs");
        ACTIVE.as_deref() == Some(name)
    }

    /// Texts that were changed, so that each is made once.
    static TEXTS: LazyLock<Mutex<HashMap<(&'static str, &'static str), &'static str>>> = LazyLock::new(Mutex::default);

    /// # Panics
    /// If the part is not there: the bug would be none.
    pub fn replace_text(name: &str, text: &'static str, part: &'static str, instead: &str) -> &'static str {
        if !is_active(name) {
            return text;
        }
        let mut texts = TEXTS.lock().expect("texts lock");
        texts.entry((text, part)).or_insert_with(|| {
            assert!(text.contains(part), "{name}: there is no {part:?} in {text}");
            Box::leak(text.replace(part, instead).into_boxed_str())
        })
    }

    static CALLS: AtomicU64 = AtomicU64::new(0);

    /// Whether a call of the store fails now: asked once before and once after it takes effect.
    pub fn store_fails() -> bool {
        let (share, spared) = *STORE_FAULTS;
        share > 0.0
            && EXEMPT.try_with(|()| ()).is_err()
            && CALLS.fetch_add(1, Ordering::Relaxed) >= spared
            && fastrand::f64() < share / 2.0
    }

    #[cfg(test)]
    mod tests {
        use super::*;

        /// The tests run with the feature, and judge what is released without it.
        #[test]
        fn feature_alone_breaks_nothing() {
            for bug in FAILPOINTS {
                let stands = "as it stands";
                assert!(!is_active(bug), "{bug}");
                assert!(std::ptr::eq(replace_text(bug, stands, "stands", "falls"), stands), "{bug}");
            }
            assert!((0..10_000).all(|_| !store_fails()));
            assert_eq!(max_sqlite_pages(), None);
        }
    }
}
