//! The data of an event as text: whole where that is asked for, else its beginning.

use serde_json::Value;

use crate::base::compute::steps_to_write;
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
    let write = move || cut(pretty(data), most);
    let written = visit.state.compute.run_if_costly(visit.caller.computes_for(), steps, write).await;
    let (text, is_cut) = written.map_err(|panicked| UiError::internal(&panicked.to_string()))?;
    Ok((Some(text), is_cut))
}

/// Data for a person: a text as it is, JSON over several lines.
fn pretty(data: Value) -> String {
    match data {
        Value::String(text) => text,
        data => serde_json::to_string_pretty(&data).unwrap_or_default(),
    }
}

fn cut(mut text: String, most: usize) -> (String, bool) {
    let end = text.char_indices().nth(most).map(|(end, _)| end);
    if let Some(end) = end {
        text.truncate(end);
    }
    (text, end.is_some())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn data_is_shown_up_to_its_bound_and_cut_one_character_beyond_it() {
        assert_eq!(cut("é".repeat(DATA_SHOWN), DATA_SHOWN), ("é".repeat(DATA_SHOWN), false));
        assert_eq!(cut("é".repeat(DATA_SHOWN + 1), DATA_SHOWN), ("é".repeat(DATA_SHOWN), true));
        assert_eq!(cut("x".repeat(DATA_SHOWN + 1), usize::MAX).1, false);
    }

    #[test]
    fn text_is_shown_as_it_is_and_other_data_as_json() {
        assert_eq!(pretty(json!("a\nb")), "a\nb");
        assert_eq!(pretty(json!({ "a": 1 })), "{\n  \"a\": 1\n}");
    }
}
