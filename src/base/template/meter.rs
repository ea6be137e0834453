//! Counts the bytes that filters go through during one rendering, and ends it where they are too many.
//!
//! A rendering stays on one thread from its beginning to its end, so the count is kept there.

use std::cell::Cell;

use minijinja::{Error, ErrorKind};

use crate::base::template::TemplateError;

/// Bytes of values that the filters and insertions of one rendering may go through.
pub const WORK_BYTES: u64 = 16 * 1024 * 1024;

thread_local! {
    /// `None` once it was too much.
    static LEFT: Cell<Option<u64>> = const { Cell::new(Some(0)) };
}

/// Does the work of one rendering, with all that may be spent on it.
pub fn within<T>(work: impl FnOnce() -> Result<T, TemplateError>) -> Result<T, TemplateError> {
    LEFT.set(Some(WORK_BYTES));
    let made = work();
    // what looks at data can't fail by itself
    match LEFT.replace(Some(0)) {
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
}
