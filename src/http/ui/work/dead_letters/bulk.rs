//! Replay and drop of all letters that the filters show: a page that says how many they are, and the form that does it.

use serde_json::{Map, Value, json};

use crate::http::ui::frame::{UiError, UiForm, UiList, UiResult, Visit};
use crate::http::ui::work::dead_letters::{FILTERS, HREF};

/// Letters that one form deals with at most, as many as one request of the API.
const AT_ONCE: usize = 1_000;
/// Letters that are counted in one step, and the most steps.
const COUNTED: usize = 200;
const STEPS: usize = 10;
/// Filters of the API's body.
const CHOICE: [&str; 4] = ["source", "type", "error", "tenant_id"];

/// An action on letters.
#[derive(Clone, Copy)]
struct LetterAction {
    /// As the API calls it.
    name: &'static str,
    title: &'static str,
    /// Which word says that it is done.
    done: &'static str,
}

const REPLAY: LetterAction = LetterAction { name: "replay", title: "Replay dead letters?", done: "all_replayed" };
const DROP: LetterAction = LetterAction { name: "drop", title: "Drop dead letters?", done: "all_dropped" };

/// Asks whether these letters are to be replayed.
pub async fn ask_replay(visit: Visit) -> UiResult {
    ask(&visit, REPLAY).await
}

/// Asks whether these letters are to be dropped.
pub async fn ask_drop(visit: Visit) -> UiResult {
    ask(&visit, DROP).await
}

/// Replays the letters of the form.
pub async fn replay(form: UiForm) -> UiResult {
    act(&form, REPLAY).await
}

/// Drops the letters of the form.
pub async fn drop_all(form: UiForm) -> UiResult {
    act(&form, DROP).await
}

async fn ask(visit: &Visit, action: LetterAction) -> UiResult {
    let list = UiList::of(visit, &FILTERS);
    let (count, more) = count(visit, &list).await?;
    let given: Map<String, Value> =
        list.filters().into_iter().map(|(name, value)| (name.to_owned(), Value::from(value))).collect();
    let page = json!({
        "action": action.name,
        "count": count,
        "more": more,
        "given": given,
        "back": list.href(HREF, None),
    });
    visit.show("dead_letters_bulk.html", action.title, page).await
}

/// How many letters the filters show, up to [`AT_ONCE`], and whether there may be more.
async fn count(visit: &Visit, list: &UiList) -> Result<(usize, bool), UiError> {
    let (mut count, mut cursor) = (0, None);
    for _ in 0..STEPS {
        let step = [("limit", COUNTED.min(AT_ONCE - count).to_string())].into_iter();
        let query: Vec<(&str, String)> =
            list.filters().into_iter().chain(step).chain(cursor.take().map(|cursor| ("cursor", cursor))).collect();
        let page = visit.get(&["v1", "dead-letters"], &query).await?;
        count += page["items"].as_array().map_or(0, Vec::len);
        cursor = page["next_cursor"].as_str().map(str::to_owned);
        if cursor.is_none() || count >= AT_ONCE {
            break;
        }
    }
    Ok((count, cursor.is_some()))
}

async fn act(form: &UiForm, action: LetterAction) -> UiResult {
    let mut body = form.filled(&CHOICE);
    // as many as the page has said
    let count = form.get("count").and_then(|count| count.parse::<usize>().ok()).unwrap_or(AT_ONCE);
    body.insert("limit".to_owned(), count.clamp(1, AT_ONCE).into());
    form.visit.post(&["v1", "dead-letters", action.name], Value::Object(body), form.key()).await?;
    Ok(form.done(HREF, action.done))
}
