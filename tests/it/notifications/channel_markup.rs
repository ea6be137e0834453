//! From a run to the message: which channels there are, and that each is told in its own markup.

use chrono_tz::Tz;
use reveille::agent::ChannelLimits;
use reveille::agent::verify::settings::VerifierSettings;
use reveille::agent::verify::{AnswerToVerify, Verifiers};
use reveille::base::clock::Clock;
use reveille::base::compute::Compute;
use reveille::base::id::Scope;
use reveille::base::secret::Secret;
use reveille::domain::notification::{Addresses, DeliveryState, Recipient, SlackAddress};
use reveille::ports::channel::{ChannelRegistry, Settings, email, slack, sms, telegram};
use reveille::ports::egress::{self, Egress};
use serde_json::{Value, json};
use wiremock::ResponseTemplate;

use super::webhook::vault;
use super::{answering, only_request, recipient};
use crate::support::world::{ADMIN, World};

#[test]
fn channel_is_there_where_it_has_what_it_needs() {
    let egress = Egress::new(&egress::Settings::default()).unwrap();
    let names = |settings: &Settings| ChannelRegistry::new(settings, None, &egress, &vault(), None).unwrap().names();
    let none = names(&Settings::default());
    assert!(none.contains(&"slack"), "incoming webhooks need nothing: {none:?}");
    assert!(!none.contains(&"sms") && !none.contains(&"telegram"), "{none:?}");
    let all = names(&all_accounts());
    assert!(all.contains(&"sms") && all.contains(&"telegram"), "{all:?}");
}

/// Settings with which there is every channel.
fn all_accounts() -> Settings {
    Settings {
        email: email::Settings {
            url: Some(Secret::new("smtp://mail.example.org")),
            from: Some("Reveille <reveille@example.org>".into()),
            ..email::Settings::default()
        },
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
    }
}

/// The channel of open sessions, which needs a store, has its test beside the others of it.
#[tokio::test]
async fn marks_of_markdown_are_found_where_the_channel_shows_them_as_they_stand() {
    let egress = Egress::new(&egress::Settings::default()).unwrap();
    let channels = ChannelRegistry::new(&all_accounts(), None, &egress, &vault(), None).unwrap();
    let verifiers = Verifiers::new(&VerifierSettings::default(), vec![]);
    let mut shown_as_it_stands = Vec::new();
    for name in channels.names() {
        let channel = channels.get(name).unwrap();
        let formats = channel.capabilities().supported_formats;
        let limits = ChannelLimits {
            name: name.to_owned(),
            supported_formats: formats.iter().map(|format| (*format).to_owned()).collect(),
            renders_markdown: channel.renders_markdown(),
            max_response_length: None,
        };
        let answer = AnswerToVerify {
            tenant: "ann".into(),
            text: "It is **late**.".into(),
            given: String::new(),
            channel: Some(limits),
            results: vec![],
        };
        if !verifiers.verify(answer, &Compute::new(1), &Clock::system()).await.warnings.is_empty() {
            shown_as_it_stands.push(name);
        }
    }
    let mut names = channels.names();
    names.sort_unstable();
    assert_eq!(names, ["email", "push", "slack", "sms", "telegram", "webhook"]);
    assert_eq!(shown_as_it_stands, ["push", "sms"]);
}

#[tokio::test]
async fn markdown_of_an_agent_is_no_finding_where_the_channel_turns_it_into_its_own_marks() {
    let mut world = World::sqlite();
    world.channels = all_accounts();
    world.follows(&json!({ "steps": [{ "text": "It is **late**." }] }));
    let instance = world.instance();
    for (channel, findings) in [("telegram", 0), ("slack", 0), ("email", 0), ("sms", 1)] {
        let action = json!({ "instruction": "How late is it?" });
        let task = json!({ "executor": "orchestrator", "action": action, "output": { "channel": channel } });
        let run = instance.run_now(&instance.task(task).await).await;
        instance.settle(0).await;
        let (_, run) = instance.ask("GET", &format!("/v1/runs/{run}"), ADMIN, None).await;
        assert_eq!(run["state"], "succeeded", "{channel}: {run}");
        let found = run["result"]["tool_warnings"].as_array().expect("findings");
        assert_eq!(found.len(), findings, "{channel}: {found:?}");
        assert!(found.iter().all(|finding| finding["tool"] == "I-0002"), "{found:?}");
    }
    instance.finish(&world).await;
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
