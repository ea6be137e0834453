//! Reports of providers: who is let in, and what is answered.

use axum::body::Body;
use axum::http::Request;
use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use reveille::base::id::Scope;
use reveille::domain::notification::{DeliveryState, Mark, MessageKind, NewDelivery};
use reveille::http::server::Peer;
use reveille::ports::channel::report_url;
use reveille::store::DeliveryFilter;
use uuid::Uuid;

use super::service::{Api, Reply, SMS_TOKEN, on_both};
use crate::support::outbox::claim_due;

const DELIVERED: &str = "MessageSid=SM1&MessageStatus=delivered";

on_both! {
    signed_report_settles_the_delivery
    receipt_with_a_wrong_signature_changes_nothing
    address_that_is_none_is_not_there
    guessing_costs_the_guesser_and_nobody_else
    report_is_taken_at_its_longest_and_refused_one_byte_beyond_it
}

/// A text message that the provider has taken on; its id, and the ticket for reports on it.
async fn sent(api: &Api) -> (Uuid, String) {
    let posted = NewDelivery::of_run("ann", Uuid::from_u128(5), MessageKind::Result, vec!["sms".into()]).unwrap();
    api.store.post_delivery(&posted).await.unwrap();
    let claimed = claim_due(&api.store, api.clock.now(), 1).await.unwrap().remove(0);
    api.store.mark_delivery(&claimed, &Mark::Sent { provider_id: Some("SM1".into()) }).await.unwrap();
    (claimed.delivery.id, report_url::issue(&api.vault, "sms", claimed.delivery.id))
}

async fn state(api: &Api) -> DeliveryState {
    let filter = DeliveryFilter { limit: 1, ..DeliveryFilter::default() };
    api.store.list_deliveries(&Scope::Every, &filter).await.unwrap()[0].state
}

/// Twilio's signature: over the address and all fields, here given in their order.
fn signature(token: &str, place: &str, fields: &str) -> String {
    let signed = format!("http://127.0.0.1:7700{place}{}", fields.replace(['=', '&'], ""));
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, token.as_bytes());
    STANDARD.encode(aws_lc_rs::hmac::sign(&key, signed.as_bytes()))
}

async fn post(api: &Api, from: [u8; 4], place: &str, signature: Option<&str>, fields: &str) -> Reply {
    let mut request = Request::post(place).header("content-type", "application/x-www-form-urlencoded");
    if let Some(signature) = signature {
        request = request.header("x-twilio-signature", signature);
    }
    api.send(request.extension(Peer(from.into())).body(Body::from(fields.to_owned())).unwrap()).await
}

const TWILIO: [u8; 4] = [192, 0, 2, 1];

async fn signed_report_settles_the_delivery(api: Api) {
    let (_, ticket) = sent(&api).await;
    let place = format!("/v1/receipts/sms/{ticket}");
    for fields in ["MessageSid=SM1&MessageStatus=sending", DELIVERED, DELIVERED, "MessageSid=SM1&MessageStatus=sent"] {
        let signature = signature(SMS_TOKEN, &place, fields);
        assert_eq!(post(&api, TWILIO, &place, Some(&signature), fields).await.status, 204, "{fields}");
    }
    assert_eq!(state(&api).await, DeliveryState::Delivered);
    let nothing = "MessageSid=SM1";
    let unread = post(&api, TWILIO, &place, Some(&signature(SMS_TOKEN, &place, nothing)), nothing).await.expect(400);
    assert_eq!(unread["detail"], "the field MessageStatus is missing");
}

async fn report_is_taken_at_its_longest_and_refused_one_byte_beyond_it(api: Api) {
    let (_, ticket) = sent(&api).await;
    let place = format!("/v1/receipts/sms/{ticket}");
    for (bytes, status) in [(16_385, 413), (16_384, 204)] {
        let beginning = format!("{DELIVERED}&Padding=");
        let fields = format!("{beginning}{}", "x".repeat(bytes - beginning.len()));
        let signature = signature(SMS_TOKEN, &place, &fields);
        assert_eq!(post(&api, TWILIO, &place, Some(&signature), &fields).await.status, status, "{bytes} bytes");
    }
    assert_eq!(state(&api).await, DeliveryState::Delivered);
}

async fn receipt_with_a_wrong_signature_changes_nothing(api: Api) {
    let (_, ticket) = sent(&api).await;
    let place = format!("/v1/receipts/sms/{ticket}");
    let other = signature(SMS_TOKEN, &place, "MessageSid=SM1&MessageStatus=failed");
    let foreign = signature("another token", &place, DELIVERED);
    for signature in [None, Some(""), Some("x"), Some(other.as_str()), Some(foreign.as_str())] {
        let refused = post(&api, TWILIO, &place, signature, DELIVERED).await.expect(401);
        assert_eq!(refused["detail"], "the signature is missing or wrong");
    }
    assert_eq!(state(&api).await, DeliveryState::Sent);
}

async fn address_that_is_none_is_not_there(api: Api) {
    let (id, ticket) = sent(&api).await;
    let stranger = report_url::issue(&api.vault, "sms", Uuid::from_u128(9));
    let email = report_url::issue(&api.vault, "email", id);
    let guessed = format!("{}.{}", id.simple(), "0".repeat(64));
    for place in [
        format!("sms/{stranger}"),
        format!("email/{email}"),
        format!("email/{ticket}"),
        format!("sms/{guessed}"),
        format!("sms/{}", id.simple()),
        "sms/%FF".into(),
    ] {
        let place = format!("/v1/receipts/{place}");
        let signature = signature(SMS_TOKEN, &place, DELIVERED);
        let absent = post(&api, TWILIO, &place, Some(&signature), DELIVERED).await.expect(404);
        assert_eq!(absent["title"], "Nothing is here", "{place}");
    }
    assert_eq!(state(&api).await, DeliveryState::Sent);
}

async fn guessing_costs_the_guesser_and_nobody_else(api: Api) {
    let (id, ticket) = sent(&api).await;
    let place = format!("/v1/receipts/sms/{ticket}");
    let signature = signature(SMS_TOKEN, &place, DELIVERED);
    let guesser = [192, 0, 2, 7];
    for n in 0..20 {
        let guess = format!("/v1/receipts/sms/{}.{n:064}", id.simple());
        post(&api, guesser, &guess, None, DELIVERED).await.expect(404);
    }
    let late = post(&api, guesser, &place, Some(&signature), DELIVERED).await;
    assert_eq!(late.header("retry-after"), "60");
    assert_eq!(late.expect(429)["detail"], "too many wrong addresses or signatures came from here");
    assert_eq!(state(&api).await, DeliveryState::Sent);
    assert_eq!(post(&api, TWILIO, &place, Some(&signature), DELIVERED).await.status, 204);
    assert_eq!(post(&api, guesser, &place, Some(&signature), DELIVERED).await.status, 204, "it was right before");
}
