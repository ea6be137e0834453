//! From a run to the message: which channels there are, and that each is told in its own markup.

use chrono_tz::Tz;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, DeliveryState, Recipient, SlackAddress};
use reveille::ports::channel::{ChannelRegistry, Settings, slack, sms, telegram};
use reveille::ports::egress::{self, Egress};
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::webhook::vault;
use super::{answering, only_request, recipient};
use crate::support::world::World;

#[test]
fn channel_is_there_where_it_has_what_it_needs() {
    let egress = Egress::new(&egress::Settings::default()).unwrap();
    let names = |settings: &Settings| ChannelRegistry::new(settings, None, &egress, &vault(), None).unwrap().names();
    let none = names(&Settings::default());
    assert!(none.contains(&"slack"), "incoming webhooks need nothing: {none:?}");
    assert!(!none.contains(&"sms") && !none.contains(&"telegram"), "{none:?}");
    let all = names(&Settings {
        sms: sms::Settings {
            account: Some("AC1".into()),
            token: Some(Secret::new("token")),
            from: Some("+14155550100".into()),
            ..sms::Settings::default()
        },
        telegram: telegram::Settings {
            token: Some(Secret::new("123456:ABCDEFGHIJKL")),
            ..telegram::Settings::default()
        },
        ..Settings::default()
    });
    assert!(all.contains(&"sms") && all.contains(&"telegram"), "{all:?}");
}

#[tokio::test]
async fn result_is_told_in_the_markup_of_its_channel() {
    let telegram = json!({ "ok": true, "result": { "message_id": 1 } });
    let telegram = answering(ResponseTemplate::new(200).set_body_json(telegram)).await;
    let slack = answering(ResponseTemplate::new(200).set_body_json(json!({ "ok": true, "ts": "1.2" }))).await;
    let mut world = World::sqlite();
    world.channels.telegram = telegram::Settings {
        token: Some(Secret::new("123456:ABCDEFGHIJKL")),
        base_url: telegram.uri(),
        ..telegram::Settings::default()
    };
    world.channels.slack =
        slack::Settings { token: Some(Secret::new("xoxb-1")), base_url: slack.uri(), ..slack::Settings::default() };
    let instance = world.instance();
    let addresses = Addresses {
        telegram: Some("4711".into()),
        slack: Some(SlackAddress::Channel { channel: "C1".into() }),
        ..Addresses::default()
    };
    let ann = Recipient { timezone: Tz::UTC, ..recipient(addresses) };
    instance.on(|store| async move { store.put_recipient(&Scope::Every, "ann", &ann, None).await }).await.unwrap();
    for channel in ["telegram", "slack"] {
        let output = json!({ "channel": channel });
        instance.task(json!({ "name": "Tea & <toast>", "output": output, "max_runs": 1 })).await;
    }
    world.advance_to("08:01");
    instance.live(0).await;
    instance.notify().await;
    let states: Vec<_> = instance.deliveries().await.iter().map(|delivery| delivery.state).collect();
    assert_eq!(states, [DeliveryState::Delivered; 2]);
    let body = async |server| serde_json::from_slice::<Value>(&only_request(server).await.body).unwrap();
    let (html, blocks) = (body(&telegram).await["text"].clone(), body(&slack).await["blocks"].clone());
    assert!(html.as_str().unwrap().starts_with("<b>Tea &amp; &lt;toast&gt;</b>\n"), "{html}");
    let section = blocks[0]["text"]["text"].as_str().unwrap();
    assert!(section.starts_with("*Tea &amp; &lt;toast&gt;*\n"), "{section}");
    instance.finish(&world).await;
}
