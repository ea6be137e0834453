//! Wake-ups: a commit may concern a service that waits, here or on another instance. A wake-up shortens a wait;
//! services rely on polling, so a lost one costs a few seconds, while idle up to eight, and nothing else.
//!
//! Between instances wake-ups go by LISTEN and NOTIFY. A transaction that notifies takes a lock of the whole database
//! when it commits, and holds it until the disk has the commit. So ours do not: topics are gathered for a moment and
//! sent in a statement of its own, and only for work that this instance can't do itself: its services forward it. The
//! commit of that statement doesn't wait for the disk: a crash may lose a wake-up. Where no services run in this
//! process, as while it is being stopped, a run that somebody asks for is told of by its own commit, one at a time
//! ([`CommitNotification`]).

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU16, Ordering};
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::store::Store;
use crate::store::db::connections::Connections;
use crate::store::db::listener::Listener;
use crate::store::db::with_timeout;

/// Topics on which a service may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A task's next instant may be earlier than known.
    Due,
    /// A run may be ready.
    Queue,
    /// The end of a running run was asked for, or a tenant's work is halted.
    Cancels,
    /// A delivery may be ready.
    Outbox,
    /// A window may close earlier than known.
    Windows,
    /// An event may be on the embedded bus.
    Events,
    /// A message for an open session was laid out or taken.
    Live,
    /// A task may be resumed whose credential was saved.
    Resumptions,
    /// A run has ended from which facts are to be noted.
    Extractions,
}

const TOPICS: usize = 9;
/// Topics that one instance can't serve alone: any instance may have the run to be cancelled, or the session.
const BROADCAST_TOPICS: [Topic; 3] = [Topic::Cancels, Topic::Events, Topic::Live];
/// Its commit waits for nothing; the setting ends with it.
const NOTIFY: &str =
    "select set_config('synchronous_commit', 'off', true), pg_notify('reveille_' || current_schema(), $1)";
/// Time within which later calls count as one with the first.
const GATHER_FOR: Duration = Duration::from_millis(5);
/// How long is waited before a database that is away is asked again.
const RECONNECT_AFTER: Duration = Duration::from_secs(1);
/// Time without a message after which a listener asks whether anything would come through: a wire can go silent without
/// an end.
const PING_AFTER: Duration = Duration::from_secs(10);

/// One wake-up per topic; many at once are one. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Wakeups(Arc<Shared>);

struct Shared {
    topics: [watch::Sender<()>; TOPICS],
    /// Whether services of this process serve what is notified here.
    serving: AtomicBool,
    /// Topics that were notified in this process alone, a bit each.
    local_topics: AtomicU16,
    /// Topics to be sent to other instances, a bit each.
    remote_topics: AtomicU16,
    pending: Notify,
    /// Names this instance in its notifications, which it does not listen to.
    origin: String,
    /// Whether a commit is under way that notifies.
    committing: AtomicBool,
    /// Whether events may be waited for.
    reading: watch::Sender<bool>,
}

impl Wakeups {
    pub(in crate::store) fn new() -> Wakeups {
        Wakeups(Arc::new(Shared {
            topics: std::array::from_fn(|_| watch::channel(()).0),
            serving: AtomicBool::new(false),
            local_topics: AtomicU16::new(0),
            remote_topics: AtomicU16::new(0),
            pending: Notify::new(),
            // tests have databases of their own, and a database may have several schemas with a service each
            origin: format!("{:016x}", fastrand::u64(..)),
            committing: AtomicBool::new(false),
            reading: watch::channel(true).0,
        }))
    }

    /// Wake-ups for one topic, from now on.
    pub(in crate::store) fn subscribe(&self, topic: Topic) -> watch::Receiver<()> {
        self.0.topics[topic as usize].subscribe()
    }

    fn queue_notification(&self, topics: u16) {
        if topics != 0 {
            self.0.remote_topics.fetch_or(topics, Ordering::AcqRel);
            self.0.pending.notify_one();
        }
    }

    /// Payload of a notification: whose it is, and its topics.
    fn payload(&self, topics: u16) -> String {
        format!("{} {topics}", self.0.origin)
    }

    fn wake_all(&self) {
        for topic in &self.0.topics {
            topic.send_replace(());
        }
    }

    /// Sends notifications to other instances and listens to theirs, until the listener is closed. It listens once this
    /// returns, so a later poll misses nothing; where listening is refused, or takes long, it is tried again.
    pub(in crate::store) async fn connect_instances(&self, quick: &Connections, listener: &Listener) {
        let heard = listener.listen().await;
        listener.spawn(self.clone().send_notifications(quick.clone(), listener.clone()));
        listener.spawn(self.clone().listen(quick.clone(), listener.clone(), heard));
    }

    /// Sends until the listener is closed, and then what is left: other instances do what a stop hands back.
    async fn send_notifications(self, quick: Connections, listener: Listener) {
        while listener.while_open(self.0.pending.notified()).await.is_some() {
            self.send_pending(&quick).await;
            pause(GATHER_FOR).await;
        }
        self.send_pending(&quick).await;
    }

    async fn send_pending(&self, quick: &Connections) {
        let called = self.0.remote_topics.swap(0, Ordering::AcqRel);
        if called == 0 {
            return;
        }
        let told = with_timeout(async {
            sqlx::query(NOTIFY).bind(self.payload(called)).execute(&mut *quick.acquire().await?).await
        });
        if let Err(error) = told.await {
            tracing::debug!(%error, "other instances could not be notified, they poll by themselves");
        }
    }

    async fn listen(self, quick: Connections, listener: Listener, mut pg_listener: Result<PgListener, sqlx::Error>) {
        let hearing = async {
            loop {
                let error = match pg_listener {
                    Ok(pg_listener) => self.dispatch(pg_listener).await,
                    Err(error) => error,
                };
                quick.note_error(&error);
                tracing::debug!(%error, "can't listen to other instances, services poll by themselves");
                pause(RECONNECT_AFTER).await;
                pg_listener = listener.listen().await;
                if pg_listener.is_ok() {
                    // a notification may have been missed until now
                    self.wake_all();
                }
            }
        };
        let _: Option<()> = listener.while_open(hearing).await;
    }

    /// Wakes local waiters for notifications of other instances, until the connection fails.
    async fn dispatch(&self, mut pg_listener: PgListener) -> sqlx::Error {
        loop {
            let told = match timeout(PING_AFTER, pg_listener.try_recv()).await {
                Ok(Ok(Some(told))) => told,
                Ok(Ok(None)) => return sqlx::Error::Io(ErrorKind::ConnectionAborted.into()),
                Ok(Err(error)) => return error,
                // nobody has told anything, or nothing comes through
                Err(_) => match with_timeout(sqlx::query("select 1").execute(&mut pg_listener)).await {
                    Ok(_) => continue,
                    Err(error) => return error,
                },
            };
            let Some((by, called)) = told.payload().split_once(' ') else { continue };
            let called: u16 = called.parse().unwrap_or(u16::MAX);
            if by != self.0.origin {
                for (_, topic) in self.0.topics.iter().enumerate().filter(|(topic, _)| called & (1 << topic) != 0) {
                    topic.send_replace(());
                }
            }
        }
    }
}

/// A notification that goes out with a commit. The commit holds a lock of the whole database meanwhile, so each
/// instance makes one at a time: commits of many who ask at once do not wait for each other.
pub(in crate::store) struct CommitNotification<'a> {
    wakeups: &'a Wakeups,
    topic: Topic,
    /// For `pg_notify`.
    pub payload: String,
}

impl CommitNotification<'_> {
    /// Wakes those who wait in this process, which does not hear its own notifications.
    pub fn committed(self) {
        self.wakeups.0.topics[self.topic as usize].send_replace(());
    }
}

impl Drop for CommitNotification<'_> {
    fn drop(&mut self) {
        self.wakeups.0.committing.store(false, Ordering::Release);
    }
}

impl Store {
    /// A notification of this topic for a commit that is about to be made, where other instances are to know of it and
    /// no other commit is under way that notifies. Else [`Store::notify`] does it afterwards.
    pub(in crate::store) fn notification_for_commit(&self, topic: Topic) -> Option<CommitNotification<'_>> {
        let wakeups = &self.wakeups;
        if wakeups.0.serving.load(Ordering::SeqCst) || wakeups.0.committing.swap(true, Ordering::Acquire) {
            return None;
        }
        Some(CommitNotification { wakeups, topic, payload: wakeups.payload(1 << topic as u16) })
    }

    /// The wake-ups of a topic from now on. Listen before asking the database, or one may be missed.
    pub fn listen(&self, topic: Topic) -> watch::Receiver<()> {
        self.wakeups.subscribe(topic)
    }

    /// Wakes waiters after a commit: in this process, and on other instances if no service serves the topic here.
    pub(in crate::store) fn notify(&self, topic: Topic) {
        // before `serving` is read: either this sees that the work has ended, or `end_work` sees the topic
        self.wakeups.0.local_topics.fetch_or(1 << topic as u16, Ordering::SeqCst);
        match BROADCAST_TOPICS.contains(&topic) || !self.wakeups.0.serving.load(Ordering::SeqCst) {
            true => self.notify_all_instances(topic),
            false => self.wakeups.0.topics[topic as usize].send_replace(()),
        }
    }

    /// Wakes waiters of all instances for work that this one leaves to others though it could do some of it.
    pub(in crate::store) fn notify_all_instances(&self, topic: Topic) {
        self.wakeups.0.topics[topic as usize].send_replace(());
        let bit = 1 << topic as u16;
        self.wakeups.0.local_topics.fetch_and(!bit, Ordering::SeqCst);
        self.wakeups.queue_notification(bit);
    }

    /// From now on events may be waited for in this process, as they may from the beginning.
    pub fn begin_reads(&self) {
        self.wakeups.0.reading.send_replace(true);
    }

    /// From now on nobody waits for events in this process: who reads them is to stop.
    pub fn stop_event_reads(&self) {
        self.wakeups.0.reading.send_replace(false);
    }

    /// Returns once nobody is to wait for events any more.
    pub async fn event_reads_stopped(&self) {
        let mut reading = self.wakeups.0.reading.subscribe();
        let _ = reading.wait_for(|reading| !reading).await;
    }

    /// From now on the services of this process serve what is notified here, and forward what they can't do.
    pub fn begin_work(&self) {
        self.wakeups.0.serving.store(true, Ordering::SeqCst);
    }

    /// From now on other instances serve what is notified here, and what was not forwarded yet.
    pub fn end_work(&self) {
        self.wakeups.0.serving.store(false, Ordering::SeqCst);
        self.wakeups.queue_notification(self.wakeups.0.local_topics.swap(0, Ordering::SeqCst));
    }

    /// Forwards a topic that was notified in this process alone since it was forwarded last: this instance has no
    /// capacity for it. A wake-up from another instance is not forwarded, or two full instances would wake each other
    /// for ever.
    pub fn forward(&self, topic: Topic) {
        let bit = 1 << topic as u16;
        self.wakeups.queue_notification(self.wakeups.0.local_topics.fetch_and(!bit, Ordering::SeqCst) & bit);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::db::scratch::Scratch;

    #[tokio::test]
    async fn one_commit_notifies_at_a_time_and_none_where_the_services_are() {
        let scratch = Scratch::open().await;
        let store = &scratch.store;
        let first = store.notification_for_commit(Topic::Queue).expect("nobody else commits");
        assert!(first.payload.ends_with(&format!(" {}", 1 << Topic::Queue as u16)), "{}", first.payload);
        assert!(store.notification_for_commit(Topic::Queue).is_none(), "another commit is under way");
        drop(first);
        store.begin_work();
        assert!(store.notification_for_commit(Topic::Queue).is_none(), "this instance does it itself");
        store.end_work();
        assert!(store.notification_for_commit(Topic::Queue).is_some());
    }
}
