//! 1,500 deliveries, or as many as `scripts/drills.sh` asks for, through a channel that misbehaves in every way, by
//! instances that die: each ends in one honest state, and none is taken twice, because the other side drops what it has
//! seen.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::pause;
use reveille::base::secret::Secret;
use reveille::domain::notification::{DeliveryState, MessageKind, NewDelivery};
use reveille::store::DeliveryFilter;
use serde_json::json;

use crate::support::app::Instance;
use crate::support::servers;
use crate::support::sink::{Answer, Sink};
use crate::support::smtp::MailServer;
use crate::support::world::{ADMIN, World, on_both};

on_both! {
    each_delivery_through_a_sick_channel_ends_in_one_honest_state
    mails_that_a_death_cut_off_are_unknown_and_come_at_most_once
}

/// Deliveries that go to a receiver that is never well.
const SICK: usize = 12;
/// Mails, which no server drops when they come again.
const MAILS: usize = 60;
/// How often an instance dies with attempts under way.
const CRASHES: usize = 5;
/// Attempts that an instance has under way at most.
const AT_WORK: usize = 96;
/// Due messages within so much time are sent together.
const AT_ONCE: TimeDelta = TimeDelta::seconds(20);
/// How long all of it may take on a loaded machine with two cores.
const PATIENCE: Duration = Duration::from_secs(300);

/// The sink's answer to an id, by a number that is made from it: most are well, some after a while, some are refused.
fn script(id: &str, number: usize) -> Answer {
    let fate = scripted_answer(id);
    match (fate, number) {
        // refused for good
        (0..=9, _) => Answer::Status(400),
        (10..=24, _) => Answer::Status(410),
        // well after a while
        (25..=49, 0) => Answer::Status(500),
        (50..=74, 0 | 1) => Answer::RetryAfter(429, 2),
        (75..=99, 0) => Answer::Drop,
        (100..=124, 0) => Answer::TakeAndDrop,
        (125, 0) => Answer::TakeAndHang,
        (130..=139, 0) => Answer::Status(503),
        (130..=139, 1) => Answer::TakeAndDrop,
        _ => Answer::Status(204),
    }
}

/// 0 to 999, evenly, the same for an id each time.
fn scripted_answer(id: &str) -> u32 {
    crc32fast::hash(id.as_bytes()) % 1000
}

fn expected(id: &str) -> DeliveryState {
    match scripted_answer(id) {
        0..=24 => DeliveryState::Failed,
        _ => DeliveryState::Delivered,
    }
}

async fn each_delivery_through_a_sick_channel_ends_in_one_honest_state(mut world: World) {
    let deliveries = servers::drill_deliveries();
    world.egress.allow = vec!["127.0.0.1:*".into()];
    world.channels.webhook.timeout_seconds = 1;
    let (sink, sick) = (Sink::start().await, Sink::start().await);
    sink.answer(script);
    sick.answer(|id, _| if scripted_answer(id) < 500 { Answer::Status(500) } else { Answer::RetryAfter(429, 7) });
    let mut instance = world.instance();
    for (tenant, sink, count) in [("ann", &sink, deliveries - SICK), ("bob", &sick, SICK)] {
        let webhook = json!({ "url": sink.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" });
        let recipient = json!({ "addresses": { "webhook": webhook } });
        let (status, answer) = instance.ask("PUT", &format!("/v1/recipients/{tenant}"), ADMIN, Some(recipient)).await;
        assert_eq!(status, 200, "{answer}");
        make(&instance, &world, tenant, "webhook", count).await;
    }

    let started = Instant::now();
    let mut crashes = 0;
    loop {
        assert!(started.elapsed() < PATIENCE, "there is no end of it");
        let next = instance.on(|store| async move { store.next_delivery().await }).await.expect("asked");
        let Some(next) = next else { break };
        if next > world.clock.now() {
            // and a little further, so that many are due at once
            world.clock.advance(next - world.clock.now() + AT_ONCE);
        }
        if crashes < CRASHES && sink.requests().len() > (crashes + 1) * deliveries / (CRASHES + 2) {
            crashes += 1;
            instance = kill_during_delivery(instance, &world, &sink).await;
        }
        instance.notify().await;
    }
    assert_eq!(crashes, CRASHES);

    // what was taken is sent again only where a death kept it from being recorded
    let in_vain = sink.sent_in_vain().len();
    assert!(in_vain <= CRASHES * AT_WORK, "{in_vain} were sent again after they had been taken");
    let taken: BTreeSet<String> = sink.taken().into_iter().map(|taken| taken.id).collect();
    assert_eq!(sink.changed(), [""; 0], "a repetition says the same");
    let (mut wrong, mut states) = (vec![], BTreeMap::new());
    let (mut requests, to_the_sick) = (sink.requests(), sick.requests());
    for EndedDelivery { id, tenant, state, attempts } in ended(&instance).await {
        *states.entry(state.as_str()).or_insert(0) += 1;
        let is_expected = match tenant == "bob" {
            // a death may cut off the last attempt, too
            true => matches!(state, DeliveryState::Failed | DeliveryState::Unknown),
            false => state == expected(&id),
        };
        let honest = is_expected && taken.contains(&id) == (state == DeliveryState::Delivered);
        // an attempt that was cut off by a death may have sent nothing; none is sent that was not begun
        let sent = requests.remove(&id).or_else(|| to_the_sick.get(&id).copied()).unwrap_or(0);
        if !honest || sent > attempts as usize {
            wrong.push((id, state, attempts));
        }
    }
    assert_eq!(wrong, [], "{states:?}");
    assert_eq!(states.values().sum::<usize>(), deliveries);
    assert!(states["failed"] > SICK && states["delivered"] > states["failed"], "{states:?}");
    assert_eq!((sick.taken(), requests), (vec![], BTreeMap::new()));
    instance.finish(&world).await;
}

async fn mails_that_a_death_cut_off_are_unknown_and_come_at_most_once(mut world: World) {
    let server = MailServer::start().await;
    world.channels.email.url = Some(Secret::new(format!("smtp://{}", server.address())));
    world.channels.email.from = Some("reveille@example.org".into());
    let mut instance = world.instance();
    let recipient = json!({ "addresses": { "email": "ann@example.org" } });
    let (status, answer) = instance.ask("PUT", "/v1/recipients/ann", ADMIN, Some(recipient)).await;
    assert_eq!(status, 200, "{answer}");
    make(&instance, &world, "ann", "email", MAILS).await;
    instance.tick(&instance.engine().notifier).await.expect("claimed");
    let started = Instant::now();
    while server.messages().is_empty() && started.elapsed() < PATIENCE {
        pause(Duration::from_millis(1)).await;
    }
    instance.crash();
    instance = world.instance();
    while let Some(next) = instance.on(|store| async move { store.next_delivery().await }).await.expect("asked") {
        assert!(started.elapsed() < PATIENCE, "there is no end of it");
        if next > world.clock.now() {
            world.clock.advance(next - world.clock.now());
        }
        instance.notify().await;
    }

    let ended = ended(&instance).await;
    let unknown = ended.iter().filter(|one| one.state == DeliveryState::Unknown).count();
    assert!((1..MAILS).contains(&unknown), "{unknown} of {MAILS}");
    assert!(ended.iter().all(|one| matches!(one.state, DeliveryState::Unknown | DeliveryState::Delivered)));
    let mut came: Vec<String> = server.messages().iter().map(|mail| mail.header("Message-ID").to_owned()).collect();
    came.sort_unstable();
    assert!(came.is_sorted_by(|one, next| one < next), "a mail came twice: {came:?}");
    for delivered in ended.iter().filter(|one| one.state == DeliveryState::Delivered) {
        assert!(came.contains(&format!("<{}@example.org>", delivered.id)), "{}", delivered.id);
    }
    instance.finish(&world).await;
}

/// One message by the store, the others as copies of it: the tests here are about how they are sent.
async fn make(instance: &Instance, world: &World, tenant: &str, channel: &str, count: usize) {
    let message = NewDelivery {
        tenant_id: tenant.into(),
        recipient: tenant.into(),
        channel: channel.into(),
        fallback: vec![],
        dedupe_key: "message:0".into(),
        run_id: None,
        subject_ref: None,
        kind: MessageKind::Message,
        urgency: MessageKind::Message.urgency(),
        subject: Some("A message".into()),
        text: Some("There are many of these".into()),
    };
    instance.on(|store| async move { store.post_delivery(&message).await }).await.expect("posted");
    let copies = |id: &str, numbers: &str| {
        format!(
            "insert into deliveries (id, tenant_id, recipient, channel, dedupe_key, kind, subject, body, fallback, state,
                                     next_at, created_at, urgency)
             select {id}, tenant_id, recipient, channel, 'message:' || n, kind, subject, body, fallback, state, next_at,
                    created_at, urgency
               from deliveries, {numbers} where dedupe_key = 'message:0' and tenant_id = '{tenant}'"
        )
    };
    let last = count - 1;
    let counted = format!(
        "(with recursive c (n) as (select 1 union all select n + 1 from c where n < {last}) select n from c) as numbers"
    );
    let sqlite = copies("randomblob(16)", &counted);
    let postgres = copies("gen_random_uuid()", &format!("generate_series(1, {last}) as numbers (n)"));
    world.execute(&sqlite, &postgres).await;
}

/// Claims some, begins to send them, and dies before all is recorded. Another instance takes over once the leases end.
async fn kill_during_delivery(instance: Instance, world: &World, sink: &Sink) -> Instance {
    let before = sink.requests().values().sum::<usize>();
    instance.tick(&instance.engine().notifier).await.expect("claimed");
    let started = Instant::now();
    while sink.requests().values().sum::<usize>() < before + 3 && started.elapsed() < Duration::from_secs(2) {
        pause(Duration::from_millis(1)).await;
    }
    instance.crash();
    world.instance()
}

struct EndedDelivery {
    id: String,
    tenant: String,
    state: DeliveryState,
    attempts: i32,
}

async fn ended(instance: &Instance) -> Vec<EndedDelivery> {
    let mut all = vec![];
    let mut before = None;
    loop {
        let filter = DeliveryFilter { before, limit: 1000, ..DeliveryFilter::default() };
        let page = instance
            .on(move |store| async move { store.list_deliveries(&reveille::base::id::Scope::Every, &filter).await })
            .await
            .expect("listed");
        let Some(last) = page.last() else { return all };
        before = Some(last.id);
        all.extend(page.into_iter().map(|delivery| EndedDelivery {
            id: delivery.id.to_string(),
            tenant: delivery.tenant_id,
            state: delivery.state,
            attempts: delivery.attempts,
        }));
    }
}
