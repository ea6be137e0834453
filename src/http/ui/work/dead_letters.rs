//! Entries of the bus that could not be handled: why, and whether they are tried again or given up.

mod bulk;

use axum::Router;
use axum::extract::Path;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::text::beginning_of;
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};
use crate::http::ui::work::events::data::shown;
use crate::http::ui::work::events::line::line;

/// Address of the list.
const HREF: &str = "/ui/dead-letters";
/// Filters of the list, as the API has them.
const FILTERS: [&str; 3] = ["source", "type", "error"];
/// Characters of an error, and of an entry that is no event, that a list shows.
const CHARACTERS: usize = 300;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/dead-letters", get(show_letters))
        .route("/ui/dead-letters/replay", get(bulk::ask_replay).post(bulk::replay))
        .route("/ui/dead-letters/drop", get(bulk::ask_drop).post(bulk::drop_all))
        .route("/ui/dead-letters/{id}", get(show_letter))
        .route("/ui/dead-letters/{id}/replay", post(replay_letter))
        .route("/ui/dead-letters/{id}/drop", get(ask_drop).post(drop_letter))
}

async fn show_letters(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let mut view = list.ask(&visit, &["v1", "dead-letters"], HREF).await?;
    if let Value::Array(letters) = &mut view["items"] {
        letters.iter_mut().for_each(shorten);
    }
    let page = json!({
        "list": view,
        "may_write": visit.holds(Permission::DeadLettersWrite),
        "replay": list.href("/ui/dead-letters/replay", None),
        "drop": list.href("/ui/dead-letters/drop", None),
    });
    visit.show("dead_letters.html", "Dead letters", page).await
}

/// Leaves of a letter what its line shows.
fn shorten(letter: &mut Value) {
    if letter["event"].is_object() {
        letter["event"] = line(&letter["event"]);
    }
    for name in ["error", "text"] {
        if let Some(text) = letter[name].as_str() {
            letter[name] = Value::from(beginning_of(text, CHARACTERS).0);
        }
    }
}

async fn show_letter(visit: Visit, Path(id): Path<String>) -> UiResult {
    show(&visit, &id, false).await
}

async fn ask_drop(visit: Visit, Path(id): Path<String>) -> UiResult {
    show(&visit, &id, true).await
}

/// The page of a letter; `drops`: it asks whether it is to be dropped.
async fn show(visit: &Visit, id: &str, drops: bool) -> UiResult {
    let mut letter = visit.get(&["v1", "dead-letters", id], &[]).await?;
    let (event, text) = (letter["event"].take(), letter["text"].take());
    let of_event = event.is_object().then(|| line(&event));
    let entry = if event.is_object() { event } else { text };
    let (entry, is_cut) = shown(visit, Some(entry)).await?;
    let page = json!({
        "letter": letter,
        "event": of_event,
        "entry": entry,
        "whole": is_cut.then(|| address(&["ui", "dead-letters", id], &[("whole", "yes".to_owned())])),
        "drops": drops,
        "may_write": visit.holds(Permission::DeadLettersWrite),
    });
    let title = if drops { "Drop this dead letter?" } else { "Dead letter" };
    visit.show("dead_letter.html", title, page).await
}

async fn replay_letter(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.post(&["v1", "dead-letters", &id, "replay"], json!({}), form.key()).await?;
    Ok(form.done(HREF, "replayed"))
}

async fn drop_letter(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "dead-letters", &id], &[]).await?;
    Ok(form.done(HREF, "dropped"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn line_of_a_letter_has_the_beginnings_of_its_texts() {
        let event =
            json!({ "id": "1", "source": "shop", "type": "order", "tenantid": "ann", "data": "x".repeat(9_999) });
        let mut letter = json!({ "id": "a", "event": event, "text": null, "error": "é".repeat(CHARACTERS + 1) });
        shorten(&mut letter);
        assert_eq!(letter["error"], "é".repeat(CHARACTERS));
        assert_eq!(letter["event"]["href"], "/ui/events/1?source=shop&tenant_id=ann");
        assert!(letter.to_string().len() < 2_000, "{letter}");
    }
}
