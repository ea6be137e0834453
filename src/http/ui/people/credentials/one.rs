//! A credential: all of it but its document, the tasks that name it, and its uses.

use axum::Router;
use axum::extract::Path;
use axum::routing::get;
use serde_json::json;

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::ui::frame::removal::{self, Removal};
use crate::http::ui::frame::{UiForm, UiList, UiResult, Visit};
use crate::http::ui::people::credentials::{href_of, named_tenant};

/// The pages.
pub(super) fn routes() -> Router<HttpState> {
    Router::new()
        .route("/ui/credentials/{service}/{account}", get(show_credential))
        .route("/ui/credentials/{service}/{account}/delete", get(ask_to_delete).post(delete))
}

async fn show_credential(Path((service, account)): Path<(String, String)>, visit: Visit) -> UiResult {
    let (named, list, href) = (named_tenant(&visit), UiList::of(&visit, &[]), href_of(&[&service, &account], None));
    let path = ["v1", "credentials", service.as_str(), account.as_str(), "uses"];
    let (credential, uses) = tokio::join!(visit.get(&path[..4], &named), list.ask(&visit, &path, &href));
    let (credential, uses) = (credential?, uses?);
    let page = json!({
        "credential": credential, "uses": uses, "reference": reference(&service, &account),
        "may_write": visit.holds(Permission::CredentialsWrite),
        "connect": href_of(&["connect"], visit.query("tenant_id")),
        "delete": href_of(&[&service, &account, "delete"], visit.query("tenant_id")),
    });
    visit.show("credential.html", format!("Credential {}", reference(&service, &account)), page).await
}

async fn ask_to_delete(Path((service, account)): Path<(String, String)>, visit: Visit) -> UiResult {
    visit.get(&["v1", "credentials", &service, &account], &named_tenant(&visit)).await?;
    let tenant = visit.query("tenant_id");
    let removal = Removal {
        title: "Delete this credential?",
        thing: &reference(&service, &account),
        consequences: &[
            "It is deleted with its document, for good. The record of its uses stays.",
            "Tasks that name it are paused, and their owners told, when they next need it.",
        ],
        action: &href_of(&[&service, &account, "delete"], tenant),
        label: "Delete the credential",
        back: &href_of(&[&service, &account], tenant),
    };
    removal::ask(&visit, removal).await
}

async fn delete(Path((service, account)): Path<(String, String)>, form: UiForm) -> UiResult {
    let visit = &form.visit;
    visit.delete(&["v1", "credentials", &service, &account], &named_tenant(visit)).await?;
    Ok(form.done("/ui/credentials", "deleted"))
}

/// The name by which tasks and tools refer to a credential, with its account in any case.
fn reference(service: &str, account: &str) -> String {
    format!("{service}/{account}")
}
