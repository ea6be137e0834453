//! The data of an event as text: whole where that is asked for, else its beginning.

use serde_json::Value;

use crate::base::compute::steps_to_write;
use crate::http::ui::frame::text::{beginning_of, readable};
use crate::http::ui::frame::{UiError, Visit};

/// Characters of data that a page shows at first.
const DATA_SHOWN: usize = 32_768;

/// The data as text, and whether there is more of it, which `whole` in the address shows.
///
/// # Errors
/// It can't be written.
pub async fn shown(visit: &Visit, data: Option<Value>) -> Result<(Option<String>, bool), UiError> {
    let Some(data) = data else { return Ok((None, false)) };
    let most = if visit.query("whole").is_some() { usize::MAX } else { DATA_SHOWN };
    let steps = steps_to_write(&data);
    let write = move || cut(readable(&data), most);
    let (text, is_cut) = visit.compute(steps, write).await?;
    Ok((Some(text), is_cut))
}

fn cut(mut text: String, most: usize) -> (String, bool) {
    let (shown, is_cut) = beginning_of(&text, most);
    let end = shown.len();
    text.truncate(end);
    (text, is_cut)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn data_is_shown_up_to_its_bound_and_cut_one_character_beyond_it() {
        assert_eq!(cut("é".repeat(DATA_SHOWN), DATA_SHOWN), ("é".repeat(DATA_SHOWN), false));
        assert_eq!(cut("é".repeat(DATA_SHOWN + 1), DATA_SHOWN), ("é".repeat(DATA_SHOWN), true));
        assert!(!cut("x".repeat(DATA_SHOWN + 1), usize::MAX).1);
    }
}
