//! Conversations: what people and agents have said to each other.

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::text::beginning_of;
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};

/// The address of the list.
const HREF: &str = "/ui/conversations";
/// Characters that are shown of a message, and of an answer.
const SHOWN_CHARS: usize = 400;

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route(HREF, get(show_conversations))
        .route("/ui/conversations/{id}", get(show_conversation))
        .route("/ui/conversations/{id}/delete", get(ask_to_delete).post(delete))
}

async fn show_conversations(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &[]).ask(&visit, &["v1", "conversations"], HREF).await?;
    visit.show("conversations.html", "Conversations", json!({ "list": list })).await
}

async fn show_conversation(Path(id): Path<String>, visit: Visit) -> UiResult {
    let href = address(&["ui", "conversations", &id], &[]);
    let list = UiList::of(&visit, &[]);
    let path = ["v1", "conversations", id.as_str(), "messages"];
    let (conversation, messages) = tokio::join!(visit.get(&path[..3], &[]), list.ask(&visit, &path, &href));
    let (conversation, mut messages) = (conversation?, messages?);
    let shown: Vec<Value> = messages["items"].as_array().into_iter().flatten().map(message).collect();
    messages["items"] = shown.into();
    let page = json!({
        "conversation": conversation, "list": messages, "may_write": visit.holds(Permission::RunsWrite),
    });
    visit.show("conversation.html", "Conversation", page).await
}

async fn ask_to_delete(Path(id): Path<String>, visit: Visit) -> UiResult {
    let conversation = visit.get(&["v1", "conversations", &id], &[]).await?;
    let removal = Removal {
        title: "Delete this conversation?",
        thing: conversation["title"].as_str().unwrap_or_default(),
        consequences: &[
            "Its runs go with it, with their transcripts and files. A run that is under way is ended.",
            "This can’t be undone.",
        ],
        action: &address(&["ui", "conversations", &id, "delete"], &[]),
        label: "Delete the conversation",
        back: &address(&["ui", "conversations", &id], &[]),
    };
    removal::ask(&visit, removal).await
}

async fn delete(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "conversations", &id], &[]).await?;
    Ok(form.done(HREF, "deleted"))
}

/// A message and its answer, each by its beginning: the run has all of it.
fn message(message: &Value) -> Value {
    json!({
        "run_id": message["run_id"], "state": message["state"], "error": message["error"],
        "said": shown(&message["message"]), "answered": shown(&message["response"]),
        "created_at": message["created_at"], "finished_at": message["finished_at"],
    })
}

/// The beginning of a text, `{text, is_cut}`; null where there is none.
fn shown(text: &Value) -> Value {
    let Some(text) = text.as_str() else { return Value::Null };
    let (text, is_cut) = beginning_of(text, SHOWN_CHARS);
    json!({ "text": text, "is_cut": is_cut })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_of_a_conversation_is_shown_at_its_longest_and_cut_one_character_beyond_it() {
        let (longest, longer) = ("é".repeat(SHOWN_CHARS), "é".repeat(SHOWN_CHARS + 1));
        assert_eq!(shown(&json!(longest)), json!({ "text": longest, "is_cut": false }));
        assert_eq!(shown(&json!(longer)), json!({ "text": longest, "is_cut": true }));
        assert_eq!(shown(&Value::Null), Value::Null);
    }
}
