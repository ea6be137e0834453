//! The link of a question: in the message that arrives, good from its first moment, and nowhere else.

use reveille::base::id::Scope;
use reveille::base::token::TokenHash;
use reveille::domain::approval::{ApprovalAnswer, ApprovalChoice, Via};
use reveille::domain::notification::DeliveryState;
use reveille::domain::run::RunState;
use reveille::store::ApprovalFilter;
use tracing::Level;

use super::expiry::asking;
use crate::support::log::Log;
use crate::support::smtp::MailServer;
use crate::support::world::{PUBLIC, World, at, on_both};

on_both! {
    link_of_a_received_mail_opens_its_batch_and_is_kept_nowhere
    question_that_is_settled_by_then_is_not_sent
}

async fn link_of_a_received_mail_opens_its_batch_and_is_kept_nowhere(mut world: World) {
    let log = Log::of_process(Level::DEBUG);
    let server = MailServer::start().await;
    world.mail_by(&server);
    let instance = world.instance();
    instance.recipient().await;
    let (_, run) = asking(&instance).await;
    instance.notify().await;

    let [mail] = server.messages().try_into().expect("one message");
    assert_eq!(mail.header("subject"), "Pay asks for your approval of 2 things");
    assert!(mail.text.contains("1. Pay the invoice one\n2. Pay the invoice two\n"), "{}", mail.text);
    assert!(mail.text.contains("until 2027-03-01 08:30 UTC"), "{}", mail.text);
    let link = mail.text.lines().last().expect("a last line");
    let token = link.strip_prefix(&format!("{PUBLIC}/approvals/")).expect("the link").to_owned();
    assert_eq!(token.len(), 64, "256 bits");

    let (hash, now) = (*TokenHash::of(&token).as_bytes(), world.clock.now());
    let opened = instance.on(move |store| async move { store.approvals_by_link(&hash, now).await }).await;
    let (remembered, batch) = opened.expect("the link opens");
    assert_eq!((remembered.recipient.as_str(), remembered.tenant_id.as_str()), ("ann", "ann"));
    assert_eq!(remembered.expires_at, at("31 08:30"), "what came of it can be seen for thirty days more");
    assert_eq!(batch.iter().map(|asked| asked.approval.run_id).collect::<Vec<_>>(), [run, run]);

    let deliveries = instance.deliveries().await;
    assert_eq!(deliveries.iter().map(|sent| sent.state).collect::<Vec<_>>(), [DeliveryState::Delivered]);
    assert!(!format!("{deliveries:?}").contains(&token));
    assert_eq!(world.number("select count(*) from deliveries where subject is null and body is null").await, 1);
    if !world.is_postgres() {
        for file in std::fs::read_dir(world.dir()).expect("the data directory") {
            let path = file.expect("a file").path();
            let bytes = std::fs::read(&path).unwrap_or_default();
            let held = bytes.windows(token.len()).any(|part| part == token.as_bytes());
            assert!(!held, "{} holds the token", path.display());
        }
    }
    let logged = log.text();
    assert!(logged.contains("sqlx") || logged.contains("reveille"), "something was logged:\n{logged}");
    assert!(!logged.contains(&token), "a log line holds the token:\n{logged}");
    instance.crash();
}

async fn question_that_is_settled_by_then_is_not_sent(mut world: World) {
    let log = Log::of_process(Level::DEBUG);
    let server = MailServer::start().await;
    world.mail_by(&server);
    let instance = world.instance();
    instance.recipient().await;
    let (_, run) = asking(&instance).await;
    let filter = ApprovalFilter { run_id: Some(run), limit: 10, ..ApprovalFilter::default() };
    let listed = instance.on(|store| async move { store.list_approvals(&Scope::Every, &filter).await }).await;
    for asked in listed.expect("approvals") {
        let (choice, digest) = (ApprovalChoice::Cancel, asked.digest.clone());
        let answer =
            ApprovalAnswer { choice, digest, edited: None, comment: None, by: "token:t".into(), via: Via::Api };
        let decided = instance
            .on(move |store| async move { store.decide_approval(&Scope::Every, asked.id, &answer).await })
            .await;
        decided.expect("decided");
    }
    instance.notify().await;
    assert_eq!(server.messages(), []);
    let logged = log.text();
    let facts: Vec<&str> = logged.lines().filter(|line| line.contains("was answered before it was sent")).collect();
    assert!(matches!(facts[..], [line] if line.contains("DEBUG") && line.contains("delivery_id")), "{facts:#?}");
    assert!(!logged.contains("did not get through"), "nothing is wrong");
    let [delivery] = instance.deliveries().await.try_into().expect("one delivery");
    assert_eq!(
        (delivery.state, delivery.last_error.as_deref()),
        (DeliveryState::Failed, Some("not sent: nothing of what it asks is open any more"))
    );
    instance.settle(0).await;
    assert_eq!(instance.run(run).await.state, RunState::Succeeded, "the loop goes on and is told");
    instance.finish(&world).await;
}
