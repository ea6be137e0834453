//! Credentials: where each may go, how it is, and what uses it. No page shows a document or takes one.

mod connect;
mod one;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::domain::credential::CredentialStatus;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::{UiList, UiResult, Visit};

/// The address of the list.
const HREF: &str = "/ui/credentials";

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_credentials)).merge(connect::routes()).merge(one::routes())
}

async fn show_credentials(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &["service", "status"]);
    let mut shown = list.ask(&visit, &["v1", "credentials"], HREF).await?;
    let rows = shown["items"].as_array().into_iter().flatten().map(|credential| linked(&visit, credential));
    let rows: Vec<Value> = rows.collect();
    shown["items"] = rows.into();
    let page = json!({
        "list": shown, "statuses": CredentialStatus::WORDS, "may_write": visit.holds(Permission::CredentialsWrite),
    });
    visit.show("credentials.html", "Credentials", page).await
}

/// A credential with the address of its page, `href`.
pub(in crate::http::ui) fn linked(visit: &Visit, credential: &Value) -> Value {
    let text = |name: &str| credential[name].as_str().unwrap_or_default();
    let tenant = visit.sees_all().then(|| text("tenant_id"));
    let mut row = credential.clone();
    row["href"] = href_of(&[text("service"), text("account_name")], tenant).into();
    row
}

/// The address of a page below that of a credential: its service, its account, and what of it. Those who see all
/// tenants name one.
fn href_of(path: &[&str], tenant: Option<&str>) -> String {
    let path: Vec<&str> = ["ui", "credentials"].into_iter().chain(path.iter().copied()).collect();
    let tenant: Vec<(&str, String)> = tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
    address(&path, &tenant)
}

/// The tenant that the address names, as the API takes it.
fn named_tenant(visit: &Visit) -> Vec<(&'static str, String)> {
    visit.query("tenant_id").map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn address_of_a_credential_names_the_tenant_where_the_reader_sees_all() {
        assert_eq!(href_of(&["google", "ann@x"], None), "/ui/credentials/google/ann%40x");
        let named = href_of(&["shop", "primary", "delete"], Some("a&b"));
        assert_eq!(named, "/ui/credentials/shop/primary/delete?tenant_id=a%26b");
    }
}
