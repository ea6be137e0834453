//! A recipient: shown, edited as JSON, tested, and its addresses proved.

use axum::Router;
use axum::extract::Path;
use axum::http::StatusCode;
use axum::routing::{get, post};
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::refusal::{fault, shown_in_form};
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::{UiForm, UiResult, Visit};
use crate::http::ui::people::recipients::{channels, href_of};

/// The fields of a recipient that are edited, in their order.
const EDITED: [&str; 7] = ["timezone", "locale", "addresses", "fallback", "quiet_hours", "digest", "budget"];
/// The document of a recipient that is not written yet.
const BEGINNING: &str = "{\n  \"timezone\": \"UTC\",\n  \"locale\": \"en\",\n  \"addresses\": {\n    \
                         \"email\": \"\"\n  },\n  \"fallback\": [],\n  \"quiet_hours\": []\n}";

/// Forms of the page, as names of what the API has against them.
const EDIT: &str = "edit_refused";
const TEST: &str = "test_refused";
const VERIFY: &str = "verify_refused";

/// Parts of the page besides the recipient as it is stored.
#[derive(Default)]
struct PageForms {
    /// The document as it was typed.
    document: Option<String>,
    /// The form that was refused, and why.
    refused: Option<(&'static str, Value)>,
}

/// The pages.
pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/recipients/{tenant_id}", get(show_recipient))
        .route("/ui/recipients/{tenant_id}/edit", post(edit))
        .route("/ui/recipients/{tenant_id}/test", post(send_test))
        .route("/ui/recipients/{tenant_id}/verify", post(verify))
        .route("/ui/recipients/{tenant_id}/delete", get(ask_to_delete).post(delete))
}

async fn show_recipient(Path(tenant): Path<String>, visit: Visit) -> UiResult {
    show(&visit, &tenant, StatusCode::OK, PageForms::default()).await
}

async fn edit(Path(tenant): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    let typed = form.text("document");
    let refused = match form.json("document").await? {
        Some(Ok(document)) => match visit.put(&["v1", "recipients", &tenant], document).await {
            Ok(_) => return Ok(form.done(&href_of(&tenant), "saved")),
            Err(error) => shown_in_form(error)?,
        },
        Some(Err(why)) => fault("/", &format!("is no JSON: {why}")),
        None => fault("/", "is empty: a recipient is a JSON object"),
    };
    let (status, why) = refused;
    show(visit, &tenant, status, PageForms { document: Some(typed.to_owned()), refused: Some((EDIT, why)) }).await
}

/// Sends a test message, and leads to its delivery.
async fn send_test(Path(tenant): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    let body = form.filled(&["channel"]).into();
    match visit.post(&["v1", "recipients", &tenant, "test"], body, form.key()).await {
        Ok(delivery) => {
            let id = delivery["id"].as_str().filter(|_| visit.holds(Permission::DeliveriesRead));
            let href = id.map_or_else(|| href_of(&tenant), |id| address(&["ui", "deliveries", id], &[]));
            Ok(form.done(&href, "tested"))
        }
        Err(error) => {
            let (status, why) = shown_in_form(error)?;
            show(visit, &tenant, status, PageForms { document: None, refused: Some((TEST, why)) }).await
        }
    }
}

/// Without a code one is sent to the address; with it the address is proved.
async fn verify(Path(tenant): Path<String>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    let body = form.filled(&["channel", "code"]).into();
    let done = if form.get("code").is_some() { "saved" } else { "sent" };
    match visit.post(&["v1", "recipients", &tenant, "verify"], body, form.key()).await {
        Ok(_) => Ok(form.done(&href_of(&tenant), done)),
        Err(error) => {
            let (status, why) = shown_in_form(error)?;
            show(visit, &tenant, status, PageForms { document: None, refused: Some((VERIFY, why)) }).await
        }
    }
}

async fn ask_to_delete(Path(tenant): Path<String>, visit: Visit) -> UiResult {
    visit.get(&["v1", "recipients", &tenant], &[]).await?;
    let removal = Removal {
        title: "Delete this recipient?",
        thing: &tenant,
        consequences: &[
            "Its addresses, their secrets, and what was proved of them are deleted for good.",
            "Links to questions that were sent there lead nowhere from now on, and tasks that name it find nobody to tell.",
        ],
        action: &address(&["ui", "recipients", &tenant, "delete"], &[]),
        label: "Delete the recipient",
        back: &href_of(&tenant),
    };
    removal::ask(&visit, removal).await
}

async fn delete(Path(tenant): Path<String>, form: UiForm) -> UiResult {
    form.visit.delete(&["v1", "recipients", &tenant], &[]).await?;
    Ok(form.done("/ui/recipients", "deleted"))
}

/// The page of a recipient. Where there is none yet, those who may write it are shown the form for it.
async fn show(visit: &Visit, tenant: &str, status: StatusCode, forms: PageForms) -> UiResult {
    let may_write = visit.holds(Permission::RecipientsWrite);
    let stored = match visit.get(&["v1", "recipients", tenant], &[]).await {
        Ok(stored) => stored,
        Err(error) if error.status == 404 && may_write && is_theirs(visit, tenant) => Value::Null,
        Err(error) => return Err(error.into()),
    };
    let document = forms.document.unwrap_or_else(|| document_of(&stored));
    let mut page = json!({
        "tenant_id": tenant, "href": href_of(tenant), "recipient": stored, "channels": channels(&stored),
        "document": document, "may_write": may_write, "may_test": visit.holds(Permission::DeliveriesWrite),
    });
    if let Some((form, why)) = forms.refused {
        page[form] = why;
    }
    visit.show_as(status, "recipient.html", format!("Recipient {tenant}"), page).await
}

/// Whether a tenant that has no recipient is one that the reader may write it for.
fn is_theirs(visit: &Visit, tenant: &str) -> bool {
    visit.caller.scope.tenant().is_none_or(|own| own == tenant)
}

/// The document that is edited: all of a recipient that somebody sets, as it is shown.
fn document_of(stored: &Value) -> String {
    if stored.is_null() {
        return BEGINNING.to_owned();
    }
    let fields = EDITED.into_iter().filter(|name| !stored[*name].is_null());
    let lines = fields.map(|name| format!("  \"{name}\": {}", indented(&stored[name])));
    format!("{{\n{}\n}}", lines.collect::<Vec<_>>().join(",\n"))
}

fn indented(value: &Value) -> String {
    serde_json::to_string_pretty(value).unwrap_or_default().replace('\n', "\n  ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn document_has_the_fields_that_are_set_and_can_be_put_back() {
        let stored = json!({
            "tenant_id": "ann", "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org" },
            "fallback": [], "quiet_hours": [{ "from": "22:00", "to": "07:00" }], "digest": null, "budget": null,
            "verified": {}, "version": 3, "updated_at": "2026-11-21T00:00:00Z",
        });
        let document: Value = serde_json::from_str(&document_of(&stored)).unwrap();
        let expected = json!({
            "timezone": "UTC", "locale": "en", "addresses": { "email": "ann@example.org" }, "fallback": [],
            "quiet_hours": [{ "from": "22:00", "to": "07:00" }],
        });
        assert_eq!(document, expected);
        assert!(document_of(&stored).starts_with("{\n  \"timezone\""), "{}", document_of(&stored));
        assert!(serde_json::from_str::<Value>(&document_of(&Value::Null)).unwrap()["addresses"].is_object());
    }
}
