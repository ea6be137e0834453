//! Recipients: where tenants are reached, in which order, and when not. Secrets of addresses are never shown.

mod one;

use axum::Router;
use axum::routing::get;
use serde_json::{Value, json};

use crate::base::token::Permission;
use crate::http::HttpState;
use crate::http::address::address;
use crate::http::ui::frame::{UiList, UiResult, Visit};

/// The address of the list.
const HREF: &str = "/ui/recipients";

/// The pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    Router::new().route(HREF, get(show_recipients)).merge(one::routes())
}

async fn show_recipients(visit: Visit) -> UiResult {
    let list = UiList::of(&visit, &[]);
    let mut shown = list.ask(&visit, &["v1", "recipients"], HREF).await?;
    let rows: Vec<Value> = shown["items"].as_array().into_iter().flatten().map(row).collect();
    let missing = if rows.is_empty() { unwritten(&visit, &list) } else { None };
    shown["items"] = rows.into();
    visit.show("recipients.html", "Recipients", json!({ "list": shown, "missing": missing })).await
}

/// The tenant whose recipient the reader could write where the list has none: their own, or the one it is filtered by.
fn unwritten(visit: &Visit, list: &UiList) -> Option<Value> {
    let tenant = visit.caller.scope.tenant().or_else(|| list.get("tenant_id"))?;
    visit.holds(Permission::RecipientsWrite).then(|| json!({ "tenant_id": tenant, "href": href_of(tenant) }))
}

/// A recipient in short: the channels in their order, each with whether its address was proved.
fn row(recipient: &Value) -> Value {
    let tenant = recipient["tenant_id"].as_str().unwrap_or_default();
    json!({
        "tenant_id": tenant, "href": href_of(tenant), "timezone": recipient["timezone"],
        "locale": recipient["locale"], "channels": channels(recipient), "quiet_hours": recipient["quiet_hours"],
        "updated_at": recipient["updated_at"],
    })
}

/// The addresses of a recipient as the API shows them, `[{channel, address, verified_at}]`: those of its order first.
fn channels(recipient: &Value) -> Vec<Value> {
    let order: Vec<&str> = recipient["fallback"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
    let place = |channel: &str| order.iter().position(|name| *name == channel).unwrap_or(order.len());
    let mut addresses: Vec<(&String, &Value)> = recipient["addresses"].as_object().into_iter().flatten().collect();
    addresses.sort_by_key(|(channel, _)| place(channel));
    let verified = &recipient["verified"];
    addresses.into_iter().map(|(channel, address)| proved(channel, address, &verified[channel])).collect()
}

fn proved(channel: &str, address: &Value, at: &Value) -> Value {
    json!({ "channel": channel, "address": address, "verified_at": at })
}

fn href_of(tenant: &str) -> String {
    address(&["ui", "recipients", tenant], &[])
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn channels_stand_in_their_order_with_what_was_proved_of_them() {
        let recipient = json!({
            "tenant_id": "a/b", "addresses": { "email": "ann@example.org", "sms": "+491", "webhook": { "url": "https://x" } },
            "fallback": ["webhook", "email"], "verified": { "email": "2026-11-21T00:00:00Z" },
        });
        let shown = row(&recipient);
        assert_eq!(shown["href"], "/ui/recipients/a%2Fb");
        let expected = json!([
            { "channel": "webhook", "address": { "url": "https://x" }, "verified_at": null },
            { "channel": "email", "address": "ann@example.org", "verified_at": "2026-11-21T00:00:00Z" },
            { "channel": "sms", "address": "+491", "verified_at": null },
        ]);
        assert_eq!(shown["channels"], expected);
    }
}
