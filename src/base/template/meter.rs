//! Counts the bytes that filters go through during one rendering, and ends it where they are too many.
//!
//! A rendering stays on one thread from its beginning to its end, so the count is kept there. Several renderings of one
//! piece of work, such as the texts of a request's body, share a second count: many cheap ones together are dear.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

use crate::base::template::TemplateError;

/// Bytes of values that the filters and insertions of one rendering may go through.
pub const WORK_BYTES: u64 = 16 * 1024 * 1024;
/// Steps of all renderings of one piece of work together, of about a nanosecond each.
pub const SHARED_STEPS: u64 = 50_000_000;

thread_local! {
    /// `None` once it was too much.
    static LEFT: Cell<Option<u64>> = const { Cell::new(Some(0)) };
    /// Steps that are left to the piece of work; `None` outside of one.
    static SHARED: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Puts the count back that was there before, also where the work panics.
struct SharedCount(Option<u64>);

impl Drop for SharedCount {
    fn drop(&mut self) {
        SHARED.set(self.0);
    }
}

/// Does a piece of work whose renderings share a bound of steps.
pub fn sharing_steps<T>(work: impl FnOnce() -> T) -> T {
    let _before = SharedCount(SHARED.replace(Some(SHARED_STEPS)));
    work()
}

/// Takes so many steps off what is left to the piece of work; nothing outside of one.
pub fn charge(steps: u64) -> Result<(), TemplateError> {
    let Some(left) = SHARED.get() else { return Ok(()) };
    let rest = left.checked_sub(steps);
    SHARED.set(Some(rest.unwrap_or(0)));
    let why = "the templates together take too much work, or give too much";
    rest.map(drop).ok_or_else(|| TemplateError::Failed(why.into()))
}

/// Does the work of one rendering, with all that may be spent on it.
pub fn within<T>(work: impl FnOnce() -> Result<T, TemplateError>) -> Result<T, TemplateError> {
    LEFT.set(Some(WORK_BYTES));
    let made = work();
    let left = LEFT.replace(Some(0));
    charge(WORK_BYTES - left.unwrap_or(0))?;
    // what looks at data can't fail by itself
    match left {
        Some(_) => made,
        None => Err(TemplateError::Failed("the template takes too much work".into())),
    }
}

/// Takes so many bytes off what is left.
pub fn spend(bytes: usize) -> Result<(), Error> {
    let left = LEFT.get().and_then(|left| left.checked_sub(bytes as u64));
    LEFT.set(left);
    left.map(drop).ok_or_else(|| Error::from(ErrorKind::OutOfFuel))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn work_is_done_up_to_its_bound_and_not_a_byte_beyond_it() {
        let spent = |bytes: u64| {
            within(|| {
                let _ = spend(1).and_then(|()| spend(bytes as usize - 1));
                Ok(())
            })
        };
        assert_eq!(spent(WORK_BYTES), Ok(()));
        assert_eq!(spent(WORK_BYTES + 1), Err(TemplateError::Failed("the template takes too much work".into())));
    }

    #[test]
    fn renderings_share_their_steps_up_to_the_bound_and_not_one_beyond_it() {
        let shared = || sharing_steps(|| [charge(SHARED_STEPS - 1), charge(1), charge(1)].map(|taken| taken.is_ok()));
        assert_eq!((shared(), shared()), ([true, true, false], [true, true, false]), "each piece has its own");
        let spent = |bytes: u64| {
            within(|| {
                let _ = spend(bytes as usize);
                Ok(())
            })
        };
        let whole = (SHARED_STEPS / WORK_BYTES) as usize;
        let rendered = sharing_steps(|| (0..=whole).filter(|_| spent(WORK_BYTES).is_ok()).count());
        assert_eq!(rendered, whole, "what filters go through counts");
        let broken = std::panic::catch_unwind(|| {
            sharing_steps::<()>(|| {
                let _ = charge(SHARED_STEPS);
                panic!("broken");
            });
        });
        assert!(broken.is_err());
        assert_eq!(charge(SHARED_STEPS + 1), Ok(()), "outside of a piece of work nothing is shared");
    }
}
