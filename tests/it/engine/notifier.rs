//! How the notifier shares its places, what it makes of doubt and of long waits, and how urgent a message is that a
//! task, an agent or a pipeline sends. By real webhooks and a real mail server.

use std::time::{Duration, Instant};

use reveille::base::clock::pause;
use reveille::base::secret::Secret;
use reveille::domain::notification::{DeliveryState, HoldReason, MessageKind, NewDelivery};
use serde_json::{Value, json};

use crate::support::app::Instance;
use crate::support::computing::{HeldThreads, until_waiting};
use crate::support::sink::{Answer, Sink};
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    channel_that_hangs_leaves_places_for_one_that_is_well
    tenant_whose_receiver_hangs_leaves_places_for_the_others
    webhook_that_never_answers_is_unknown_in_the_end_and_the_next_channel_tells
    one_that_was_told_to_wait_for_a_day_is_not_given_up_for_its_age
    address_that_may_not_be_reached_says_nothing_about_its_host
    how_urgent_it_is_decides_what_quiet_hours_hold
    words_of_long_messages_wait_for_computing_threads_and_of_short_ones_for_none
}

async fn words_of_long_messages_wait_for_computing_threads_and_of_short_ones_for_none(mut world: World) {
    let (sink, _mails) = stage(&mut world).await;
    let instance = world.instance();
    put(&instance, "ann", webhook(&sink)).await;
    post(&instance, "ann", &["webhook"], &"long ".repeat(500)).await;
    post(&instance, "ann", &["webhook"], "short").await;
    let computing = instance.store.computing().clone();
    let threads = HeldThreads::all(&computing).await;
    let meanwhile = async {
        until_waiting(&computing, 1).await;
        while sink.taken().is_empty() {
            pause(Duration::from_millis(1)).await;
        }
        let taken = sink.taken();
        assert_eq!((taken.len(), &taken[0].data["text"]), (1, &json!("short")), "the other one has no words yet");
        drop(threads);
    };
    tokio::join!(instance.notify(), meanwhile);
    assert_eq!(sink.taken().len(), 2);
    instance.finish(&world).await;
}

const SECRET: &str = "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw";
/// How long a message may take that need not wait for the one that hangs.
const SOON: Duration = Duration::from_secs(15);

async fn put(instance: &Instance, tenant: &str, recipient: Value) {
    let path = format!("/v1/recipients/{tenant}");
    let (status, answer) = instance.ask("PUT", &path, ADMIN, Some(recipient)).await;
    assert_eq!(status, 200, "{answer}");
}

fn webhook(sink: &Sink) -> Value {
    json!({ "addresses": { "webhook": { "url": sink.url(), "secret": SECRET } } })
}

async fn post(instance: &Instance, tenant: &str, channels: &[&str], text: &str) {
    let about: String = text.chars().take(20).collect();
    let message = NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: channels[0].into(),
        fallback: channels[1..].iter().map(|name| (*name).to_owned()).collect(),
        dedupe_key: format!("message:{about}"),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some(format!("About {about}")),
        text: Some(text.into()),
    };
    instance.on(|store| async move { store.post_delivery(&message).await }).await.expect("posted");
}

/// Webhooks may go to this machine and hang there for long; mails as well go to this machine.
async fn stage(world: &mut World) -> (Sink, MailServer) {
    world.egress.allow = vec!["127.0.0.1:*".into()];
    world.channels.webhook.timeout_seconds = 50;
    let server = MailServer::start().await;
    world.channels.email.url = Some(Secret::new(format!("smtp://{}", server.address())));
    world.channels.email.from = Some("Reveille <reveille@example.org>".into());
    (Sink::start().await, server)
}

/// Ticks until it is so, and fails where that takes long.
async fn tick_until(instance: &Instance, is_so: impl Fn() -> bool) {
    let started = Instant::now();
    while !is_so() {
        assert!(started.elapsed() < SOON, "it waits for the one that hangs");
        instance.tick(&instance.engine().notifier).await.expect("a tick");
        pause(Duration::from_millis(10)).await;
    }
}

async fn channel_that_hangs_leaves_places_for_one_that_is_well(mut world: World) {
    let (hangs, server) = stage(&mut world).await;
    hangs.answer(|_, _| Answer::TakeAndHang);
    let instance = world.instance();
    for tenant in ["a", "b", "c", "d", "e", "f"] {
        put(&instance, tenant, webhook(&hangs)).await;
        for n in 0..60 {
            post(&instance, tenant, &["webhook"], &n.to_string()).await;
        }
    }
    put(&instance, "zoe", json!({ "addresses": { "email": "zoe@example.org" } })).await;
    // as many as ever can be under way
    for _ in 0..5 {
        instance.tick(&instance.engine().notifier).await.expect("a tick");
    }
    tick_until(&instance, || hangs.requests().len() == 72).await;
    // they stand behind nearly three hundred that are due for longer
    world.advance(1.0);
    for n in 0..3 {
        post(&instance, "zoe", &["email"], &n.to_string()).await;
    }
    tick_until(&instance, || server.messages().len() == 3).await;
    assert_eq!(hangs.requests().len(), 72, "three quarters of the places");
    instance.crash();
}

async fn tenant_whose_receiver_hangs_leaves_places_for_the_others(mut world: World) {
    let (hangs, _server) = stage(&mut world).await;
    hangs.answer(|_, _| Answer::TakeAndHang);
    let well = Sink::start().await;
    let instance = world.instance();
    put(&instance, "mallory", webhook(&hangs)).await;
    put(&instance, "zoe", webhook(&well)).await;
    for n in 0..300 {
        post(&instance, "mallory", &["webhook"], &n.to_string()).await;
    }
    world.advance(1.0);
    for n in 0..3 {
        post(&instance, "zoe", &["webhook"], &n.to_string()).await;
    }
    tick_until(&instance, || well.taken().len() == 3).await;
    tick_until(&instance, || hangs.requests().len() == 32).await;
    instance.crash();
}

/// Lets a delivery be tried at each of its times; its answers to all that are made.
async fn to_the_end(world: &World, instance: &Instance) {
    for _ in 0..40 {
        instance.notify().await;
        let next = instance.on(|store| async move { store.next_delivery().await }).await.expect("asked");
        let Some(next) = next else { return };
        if next > world.clock.now() {
            world.clock.advance(next - world.clock.now());
        }
    }
    panic!("there is no end of it");
}

async fn webhook_that_never_answers_is_unknown_in_the_end_and_the_next_channel_tells(mut world: World) {
    let (sink, server) = stage(&mut world).await;
    // of one it may have taken the first, and refuses to say so later; of the other each answer is lost
    sink.answer(|_, _| Answer::Drop);
    let instance = world.instance();
    let mut ann = webhook(&sink);
    ann["addresses"]["email"] = json!("ann@example.org");
    put(&instance, "ann", ann).await;
    post(&instance, "ann", &["webhook", "email"], "lost").await;
    to_the_end(&world, &instance).await;
    assert_eq!(sink.requests().values().sum::<usize>(), 7);
    let all = instance.deliveries().await;
    let stand: Vec<_> = all.iter().map(|d| (d.channel.as_str(), d.state, d.attempts)).collect();
    assert_eq!(stand, [("webhook", DeliveryState::Unknown, 7), ("email", DeliveryState::Delivered, 1)]);
    let error = all[0].last_error.as_deref().unwrap();
    assert!(error.starts_with("given up after 7 attempts: the webhook was sent the message"), "{error}");
    assert!(error.ends_with("; it may have got through at one of the attempts"), "{error}");
    assert_eq!(server.messages().len(), 1);

    sink.answer(|_, number| if number == 0 { Answer::Drop } else { Answer::Status(503) });
    post(&instance, "ann", &["webhook"], "perhaps").await;
    to_the_end(&world, &instance).await;
    let perhaps = instance.deliveries().await.pop().unwrap();
    assert_eq!((perhaps.state, perhaps.attempts), (DeliveryState::Unknown, 7));
    sink.answer(|_, _| Answer::Status(503));
    post(&instance, "ann", &["webhook"], "never").await;
    to_the_end(&world, &instance).await;
    let never = instance.deliveries().await.pop().unwrap();
    assert_eq!((never.state, never.attempts), (DeliveryState::Failed, 7), "each time it said that it took nothing");
    instance.finish(&world).await;
}

async fn one_that_was_told_to_wait_for_a_day_is_not_given_up_for_its_age(mut world: World) {
    let (sink, _server) = stage(&mut world).await;
    sink.answer(|_, number| if number == 0 { Answer::RetryAfter(429, 86_400) } else { Answer::Status(503) });
    let instance = world.instance();
    put(&instance, "ann", webhook(&sink)).await;
    post(&instance, "ann", &["webhook"], "patient").await;
    instance.notify().await;
    // the receiver falls ill before the day is over
    world.advance(86_399.0);
    sink.answer(|_, _| Answer::Status(503));
    for n in 0..5 {
        post(&instance, "ann", &["webhook"], &n.to_string()).await;
    }
    instance.notify().await;
    world.advance(1.0);
    instance.notify().await;
    let patient = instance.deliveries().await.remove(0);
    assert_eq!((patient.state, patient.attempts), (DeliveryState::Pending, 1));
    let error = patient.last_error.unwrap_or_default();
    assert!(error.starts_with("not attempted: `webhook` to 127.0.0.1:"), "{error}");
    sink.answer(|_, _| Answer::Status(204));
    to_the_end(&world, &instance).await;
    assert_eq!(instance.deliveries().await.remove(0).state, DeliveryState::Delivered);
    instance.finish(&world).await;
}

async fn address_that_may_not_be_reached_says_nothing_about_its_host(mut world: World) {
    let (sink, _server) = stage(&mut world).await;
    world.egress.allow = vec![];
    let instance = world.instance();
    put(&instance, "ann", webhook(&sink)).await;
    for n in 0..6 {
        post(&instance, "ann", &["webhook"], &n.to_string()).await;
        instance.notify().await;
    }
    let all = instance.deliveries().await;
    assert!(all.iter().all(|d| (d.state, d.attempts) == (DeliveryState::Failed, 1)), "{all:#?}");
    assert!(all[5].last_error.as_deref().unwrap().contains("is loopback"), "no breaker has opened: {:?}", all[5]);
    assert_eq!(sink.requests().len(), 0);
    instance.finish(&world).await;
}

async fn how_urgent_it_is_decides_what_quiet_hours_hold(mut world: World) {
    let (sink, _server) = stage(&mut world).await;
    let call = |text: &str, urgency: &str| json!({ "tool": "send_notification", "args": { "text": text, "urgency": urgency } });
    world.follows(&json!({ "steps": [
        { "turn": 1, "calls": [call("tool high", "high"), call("tool low", "low"), call("tool urgent", "urgent")] },
        { "turn": 2, "text": "done" },
    ] }));
    let instance = world.instance();
    let mut ann = webhook(&sink);
    ann["quiet_hours"] = json!([{ "from": "22:00", "to": "07:00", "channels": ["webhook"], "breaks_through": "high" }]);
    put(&instance, "ann", ann).await;
    world.advance_to("23:00");
    let step = |name: &str, urgency: &str| json!({ "name": name, "notify": { "message": format!("step {urgency}"), "urgency": urgency } });
    let steps = json!([step("loud", "urgent"), step("soft", "low")]);
    let never = json!({ "type": "schedule", "at": "2027-03-09T08:00:00Z" });
    let output = |urgency: &str| json!({ "trigger": never, "output": { "channel": "webhook", "urgency": urgency } });
    for task in [
        output("urgent"),
        output("low"),
        json!({ "trigger": never, "executor": "pipeline", "action": { "config": { "steps": steps } }, "output": null }),
        json!({ "trigger": never, "executor": "orchestrator", "action": { "instruction": "Tell" }, "output": null }),
    ] {
        let task = instance.task(task).await;
        let run = instance.run_now(&task).await;
        instance.settle(0).await;
        instance.until(run, |run| run.state.is_final()).await;
    }
    instance.notify().await;
    let all = instance.deliveries().await.into_iter().filter(|d| d.kind != MessageKind::Digest);
    let told = |d: &reveille::domain::notification::Delivery| match d.kind {
        MessageKind::Message => d.text.clone().unwrap_or_default(),
        _ => format!("output {}", d.urgency.as_str()),
    };
    let mut stand: Vec<_> = all.map(|d| (told(&d), d.state.as_str(), d.hold_reason)).collect();
    stand.sort_by(|a, b| a.0.cmp(&b.0));
    let held = Some(HoldReason::QuietHours);
    let expected = [
        ("output low".to_owned(), "pending", held),
        ("output urgent".into(), "delivered", None),
        ("step low".into(), "pending", held),
        ("step urgent".into(), "delivered", None),
        ("tool high".into(), "delivered", None),
        ("tool low".into(), "pending", held),
    ];
    assert_eq!(stand, expected, "an agent may not ask for more than `high`");
    instance.finish(&world).await;
}
