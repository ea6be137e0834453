//! From a run to what the provider says of its message: sent with an address for reports, reported on, or never.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use chrono_tz::Tz;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, Delivery, DeliveryState};
use reveille::ports::channel::sms;
use serde_json::json;
use wiremock::{MockServer, ResponseTemplate};

use super::{answering, recipient};
use crate::support::app::Instance;
use crate::support::world::{World, on_both};

const TOKEN: &str = "auth-token";
const PUBLIC: &str = "https://wake.example.org";

on_both! {
    provider_report_decides_the_outcome
    failed_message_goes_on_to_the_next_channel
    silence_for_a_day_is_a_doubt_that_a_late_report_settles
}

/// A world with a text message on its way, and what the provider was sent.
async fn send_text_message(world: &mut World) -> (Instance, MockServer, Delivery) {
    let taken = json!({ "sid": "SM42", "status": "queued" });
    let twilio = answering(ResponseTemplate::new(201).set_body_json(taken)).await;
    world.public_url = Some(PUBLIC.into());
    world.channels.sms = sms::Settings {
        account: Some("AC1".into()),
        token: Some(Secret::new(TOKEN)),
        from: Some("+14155550100".into()),
        base_url: Some(twilio.uri()),
        ..sms::Settings::default()
    };
    let instance = world.instance();
    let addresses = Addresses { sms: Some("+4915112345678".into()), ..Addresses::default() };
    let ann = reveille::domain::notification::Recipient { timezone: Tz::UTC, ..recipient(addresses) };
    instance.on(|store| async move { store.put_recipient(&Scope::Every, "ann", &ann, None).await }).await.unwrap();
    instance.task(json!({ "output": { "channel": ["sms", "webhook"] }, "max_runs": 1 })).await;
    world.advance_to("08:01");
    instance.live(0).await;
    instance.notify().await;
    let sent = instance.deliveries().await.remove(0);
    assert_eq!((sent.state, sent.provider_id.as_deref()), (DeliveryState::Sent, Some("SM42")));
    (instance, twilio, sent)
}

/// Reports as Twilio does, at the address that it was told.
async fn report(instance: &Instance, twilio: &MockServer, fields: &[(&str, &str)]) -> u16 {
    let request = twilio.received_requests().await.unwrap().remove(0);
    let form: Vec<(String, String)> = url::form_urlencoded::parse(&request.body).into_owned().collect();
    let (_, address) = form.into_iter().find(|(name, _)| name == "StatusCallback").expect("an address for reports");
    let mut sorted = fields.to_vec();
    sorted.sort_unstable();
    let signed: String = sorted.iter().flat_map(|(name, value)| [*name, *value]).collect();
    let key = aws_lc_rs::hmac::Key::new(aws_lc_rs::hmac::HMAC_SHA1_FOR_LEGACY_USE_ONLY, TOKEN.as_bytes());
    let signature = STANDARD.encode(aws_lc_rs::hmac::sign(&key, format!("{address}{signed}").as_bytes()));
    let path = address.strip_prefix(PUBLIC).expect("an address of ours");
    instance.post_form(path, ("x-twilio-signature", &signature), fields).await
}

async fn provider_report_decides_the_outcome(mut world: World) {
    let (instance, twilio, sent) = send_text_message(&mut world).await;
    for (status, state) in [
        ("sending", DeliveryState::Sent),
        ("delivered", DeliveryState::Delivered),
        ("sent", DeliveryState::Delivered),
        ("undelivered", DeliveryState::Delivered),
    ] {
        let fields = [("MessageSid", "SM42"), ("MessageStatus", status), ("AccountSid", "AC1")];
        assert_eq!(report(&instance, &twilio, &fields).await, 204, "{status}");
        let now = instance.deliveries().await;
        assert_eq!((now.len(), now[0].id, now[0].state), (1, sent.id, state), "{status}");
    }
    world.advance(25.0 * 3600.0);
    instance.expire().await;
    assert_eq!(instance.deliveries().await[0].state, DeliveryState::Delivered);
    instance.finish(&world).await;
}

async fn failed_message_goes_on_to_the_next_channel(mut world: World) {
    let (instance, twilio, sent) = send_text_message(&mut world).await;
    let fields = [("MessageSid", "SM42"), ("MessageStatus", "undelivered"), ("ErrorCode", "30005")];
    for _ in 0..2 {
        assert_eq!(report(&instance, &twilio, &fields).await, 204);
    }
    let now = instance.deliveries().await;
    let told: Vec<_> = now.iter().map(|delivery| (delivery.channel.as_str(), delivery.state)).collect();
    assert_eq!(told, [("sms", DeliveryState::Failed), ("webhook", DeliveryState::Pending)]);
    assert_eq!(now[0].id, sent.id);
    let why = "the message did not arrive: the number is not known (error 30005)";
    assert_eq!(now[0].last_error.as_deref(), Some(why));
    instance.finish(&world).await;
}

async fn silence_for_a_day_is_a_doubt_that_a_late_report_settles(mut world: World) {
    let (instance, twilio, _) = send_text_message(&mut world).await;
    world.advance(24.0 * 3600.0 - 1.0);
    instance.expire().await;
    assert_eq!(instance.deliveries().await[0].state, DeliveryState::Sent);
    world.advance(1.0);
    instance.expire().await;
    let doubtful = instance.deliveries().await;
    assert_eq!((doubtful.len(), doubtful[0].state), (1, DeliveryState::Unknown));
    let fields = [("MessageSid", "SM42"), ("MessageStatus", "delivered")];
    assert_eq!(report(&instance, &twilio, &fields).await, 204);
    assert_eq!(instance.deliveries().await[0].state, DeliveryState::Delivered);
    instance.finish(&world).await;
}
