//! Memory: the facts that agents know of a tenant, listed, noted, corrected and deleted.

mod export;

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Map, Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::refusal::shown_in_form;
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};

/// The address of the list.
const HREF: &str = "/ui/memory";
/// Filters of the list.
const FILTERS: [&str; 2] = ["collection", "q"];

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new()
        .route(HREF, get(show_facts))
        .route("/ui/memory/new", get(show_new).post(add))
        .route("/ui/memory/export", get(export::download))
        .route("/ui/memory/{id}", get(show_fact))
        .route("/ui/memory/{id}/correct", post(correct))
        .route("/ui/memory/{id}/delete", get(ask_to_delete).post(delete))
}

async fn show_facts(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &FILTERS);
    let facts = list.ask(&visit, &["v1", "facts"], HREF).await?;
    let page = json!({
        "list": facts, "may_write": visit.holds(Permission::FactsWrite),
        "export": list.href("/ui/memory/export", None),
        "can_export": !visit.sees_all() || list.get("tenant_id").is_some(),
    });
    visit.show("memory.html", "Memory", page).await
}

async fn show_new(visit: Visit) -> UiResult {
    show_new_as(&visit, StatusCode::OK, json!({}), Value::Null).await
}

async fn show_new_as(visit: &Visit, status: StatusCode, typed: Value, refused: Value) -> UiResult {
    let page = json!({ "typed": typed, "refused": refused, "may_write": visit.holds(Permission::FactsWrite) });
    visit.show_as(status, "fact_new.html", "Note a fact", page).await
}

async fn add(form: UiForm) -> UiResult {
    let mut fact = json!({ "text": form.text("text") });
    for field in ["collection", "tenant_id"] {
        if let Some(text) = form.get(field) {
            fact[field] = text.into();
        }
    }
    match form.visit.post(&["v1", "facts"], fact.clone(), form.key()).await {
        Ok(noted) => Ok(form.done(&href_of(&noted), "added")),
        Err(error) => {
            let (status, refused) = shown_in_form(error)?;
            show_new_as(&form.visit, status, fact, refused).await
        }
    }
}

async fn show_fact(Path(id): Path<String>, visit: Visit) -> UiResult {
    let fact = visit.get(&["v1", "facts", &id], &[]).await?;
    let typed = json!({ "text": fact["text"], "collection": fact["collection"] });
    show_fact_as(&visit, StatusCode::OK, (fact, typed), Value::Null).await
}

/// The page of a fact, with what was typed into its form.
async fn show_fact_as(visit: &Visit, status: StatusCode, (fact, typed): (Value, Value), refused: Value) -> UiResult {
    let page = json!({
        "fact": fact, "typed": typed, "refused": refused, "may_write": visit.holds(Permission::FactsWrite),
    });
    visit.show_as(status, "fact.html", "Fact", page).await
}

async fn correct(Path(id): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    let fact = visit.get(&["v1", "facts", &id], &[]).await?;
    let typed = json!({ "text": form.text("text"), "collection": form.text("collection") });
    let change = change_of(&fact, &typed);
    if change.is_empty() {
        let refused = json!({ "problem": "It says so already: nothing was changed." });
        return show_fact_as(visit, StatusCode::UNPROCESSABLE_ENTITY, (fact, typed), refused).await;
    }
    match visit.patch(&["v1", "facts", &id], change.into()).await {
        Ok(corrected) => Ok(form.done(&href_of(&corrected), "corrected")),
        Err(error) => {
            let (status, refused) = shown_in_form(error)?;
            show_fact_as(visit, status, (fact, typed), refused).await
        }
    }
}

async fn ask_to_delete(Path(id): Path<String>, visit: Visit) -> UiResult {
    let fact = visit.get(&["v1", "facts", &id], &[]).await?;
    let removal = Removal {
        title: "Delete this fact?",
        thing: fact["text"].as_str().unwrap_or_default(),
        consequences: &["All that it has said before goes with it. Transcripts of runs keep what they were told."],
        action: &address(&["ui", "memory", &id, "delete"], &[]),
        label: "Delete the fact",
        back: &href_of(&fact),
    };
    removal::ask(&visit, removal).await
}

async fn delete(Path(id): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "facts", &id], &[]).await?;
    Ok(form.done(HREF, "deleted"))
}

/// The fields that were changed: a fact whose text is given is a person's word from then on.
fn change_of(fact: &Value, typed: &Value) -> Map<String, Value> {
    let changed = ["text", "collection"].into_iter().filter(|field| fact[*field] != typed[*field]);
    changed.map(|field| (field.to_owned(), typed[field].clone())).collect()
}

fn href_of(fact: &Value) -> String {
    address(&["ui", "memory", fact["id"].as_str().unwrap_or_default()], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn correction_names_the_fields_that_were_changed_alone() {
        let fact = json!({ "id": "7", "text": "Likes tea.", "collection": "", "origin": "outside" });
        let change = |text: &str, collection: &str| {
            Value::Object(change_of(&fact, &json!({ "text": text, "collection": collection })))
        };
        assert_eq!(change("Likes tea.", ""), json!({}));
        assert_eq!(change("Likes tea.", "preferences"), json!({ "collection": "preferences" }));
        assert_eq!(change("Likes coffee.", ""), json!({ "text": "Likes coffee." }));
    }
}
