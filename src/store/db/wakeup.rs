//! Hints: what was committed may concern a service that waits, here or on another instance. A hint shortens a wait;
//! polling is the truth, so one that is lost costs a few seconds, at rest up to eight, and nothing else.
//!
//! Between instances they go by LISTEN and NOTIFY. A transaction that notifies takes a lock of the whole database when it
//! commits, so ours do not: what is called is gathered for a moment and told in a statement of its own, and only what this
//! instance can't do itself: its services pass it on. The commit of that statement doesn't wait for the disk: a crash may
//! lose a hint.

use std::io::ErrorKind;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU8, Ordering};
use std::time::Duration;

use sqlx::postgres::PgListener;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use crate::base::clock::pause;
use crate::store::Store;
use crate::store::db::answered;
use crate::store::db::connections::{Connections, notice};
use crate::store::db::listener::Listener;

/// Topics on which a service may wait.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Topic {
    /// A task's next instant may be earlier than known.
    Due,
    /// A run may be ready.
    Queue,
    /// The end of a running run was asked for.
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
}

const TOPICS: usize = 8;
/// Topics that one instance can't serve alone: a run to be cancelled, or a session, may be anybody's.
const EVERYBODYS: [Topic; 3] = [Topic::Cancels, Topic::Events, Topic::Live];
/// Its commit waits for nothing; the setting ends with it.
const TELL: &str =
    "select set_config('synchronous_commit', 'off', true), pg_notify('reveille_' || current_schema(), $1)";
/// Time within which later calls count as one with the first.
const GATHER: Duration = Duration::from_millis(5);
/// How long is waited before a database that is away is asked again.
const LOOK_AGAIN: Duration = Duration::from_secs(1);
/// Time without a message after which a listener asks whether anything would come through: a wire can go silent without
/// an end.
const QUIET: Duration = Duration::from_secs(10);

/// One hint per topic; many at once are one. Cheap to clone.
#[derive(Clone)]
pub(in crate::store) struct Wakeups(Arc<Shared>);

struct Shared {
    here: [watch::Sender<()>; TOPICS],
    /// Whether services of this process see to what is hinted at here.
    works: AtomicBool,
    /// Topics that were hinted at in this process alone, a bit each.
    kept: AtomicU8,
    /// Topics to be told to other instances, a bit each.
    called: AtomicU8,
    bell: Notify,
    /// Whether events may be waited for.
    reading: watch::Sender<bool>,
}

impl Wakeups {
    pub(in crate::store) fn new() -> Wakeups {
        Wakeups(Arc::new(Shared {
            here: std::array::from_fn(|_| watch::channel(()).0),
            works: AtomicBool::new(false),
            kept: AtomicU8::new(0),
            called: AtomicU8::new(0),
            bell: Notify::new(),
            reading: watch::channel(true).0,
        }))
    }

    fn tell_others(&self, topics: u8) {
        if topics != 0 {
            self.0.called.fetch_or(topics, Ordering::AcqRel);
            self.0.bell.notify_one();
        }
    }

    fn wake_all(&self) {
        for topic in &self.0.here {
            topic.send_replace(());
        }
    }

    /// Tells other instances what is called here, and hears them, until the ears are closed. They are heard once this
    /// returns, so who looks after it misses nothing; where that is refused, or takes long, it is tried again.
    pub(in crate::store) async fn join_others(&self, quick: &Connections, ears: &Listener) {
        // tests have databases of their own, and a database may have several schemas with a service each
        let origin = format!("{:016x}", fastrand::u64(..));
        let heard = ears.listen().await;
        ears.spawn(self.clone().tell(quick.clone(), ears.clone(), origin.clone()));
        ears.spawn(self.clone().hear(ears.clone(), heard, origin));
    }

    /// To the end, and then what is left: what is handed back at a stop is for others to do.
    async fn tell(self, quick: Connections, ears: Listener, origin: String) {
        while ears.while_open(self.0.bell.notified()).await.is_some() {
            self.tell_once(&quick, &origin).await;
            pause(GATHER).await;
        }
        self.tell_once(&quick, &origin).await;
    }

    async fn tell_once(&self, quick: &Connections, origin: &str) {
        let called = self.0.called.swap(0, Ordering::AcqRel);
        if called == 0 {
            return;
        }
        let told = answered(async {
            sqlx::query(TELL).bind(format!("{origin} {called}")).execute(&mut *quick.acquire().await?).await
        });
        if let Err(error) = told.await.inspect_err(notice) {
            tracing::debug!(%error, "other instances could not be told, they look by themselves");
        }
    }

    async fn hear(self, ears: Listener, mut listener: Result<PgListener, sqlx::Error>, origin: String) {
        let hearing = async {
            loop {
                let error = match listener {
                    Ok(listener) => self.heed(listener, &origin).await,
                    Err(error) => error,
                };
                notice(&error);
                tracing::debug!(%error, "other instances can't be heard, services look by themselves");
                pause(LOOK_AGAIN).await;
                listener = ears.listen().await;
                if listener.is_ok() {
                    // something may have been missed until they were heard again
                    self.wake_all();
                }
            }
        };
        let _: Option<()> = ears.while_open(hearing).await;
    }

    /// Wakes those who wait for what others tell, until they are not heard any more.
    async fn heed(&self, mut listener: PgListener, origin: &str) -> sqlx::Error {
        loop {
            let told = match timeout(QUIET, listener.try_recv()).await {
                Ok(Ok(Some(told))) => told,
                Ok(Ok(None)) => return sqlx::Error::Io(ErrorKind::ConnectionAborted.into()),
                Ok(Err(error)) => return error,
                // nobody has told anything, or nothing comes through
                Err(_) => match answered(sqlx::query("select 1").execute(&mut listener)).await {
                    Ok(_) => continue,
                    Err(error) => return error,
                },
            };
            let Some((by, called)) = told.payload().split_once(' ') else { continue };
            let called: u8 = called.parse().unwrap_or(u8::MAX);
            if by != origin {
                for (_, topic) in self.0.here.iter().enumerate().filter(|(topic, _)| called & (1 << topic) != 0) {
                    topic.send_replace(());
                }
            }
        }
    }
}

impl Store {
    /// Hears the hints of a topic from now on. Listen before asking the database, or one may be missed.
    pub fn listen(&self, topic: Topic) -> watch::Receiver<()> {
        self.hints.0.here[topic as usize].subscribe()
    }

    /// Tells those who wait that something was committed: in this process, and elsewhere if nobody sees to it here.
    pub(in crate::store) fn hint(&self, topic: Topic) {
        // before it is asked who works: either this sees that the work has ended, or `end_work` sees the hint
        self.hints.0.kept.fetch_or(1 << topic as u8, Ordering::SeqCst);
        match EVERYBODYS.contains(&topic) || !self.hints.0.works.load(Ordering::SeqCst) {
            true => self.hint_everybody(topic),
            false => self.hints.0.here[topic as usize].send_replace(()),
        }
    }

    /// Hints at work that this instance leaves to others though it could do some of it.
    pub(in crate::store) fn hint_everybody(&self, topic: Topic) {
        self.hints.0.here[topic as usize].send_replace(());
        let bit = 1 << topic as u8;
        self.hints.0.kept.fetch_and(!bit, Ordering::SeqCst);
        self.hints.tell_others(bit);
    }

    /// From now on events may be waited for in this process, as they may from the beginning.
    pub fn begin_reads(&self) {
        self.hints.0.reading.send_replace(true);
    }

    /// From now on nobody waits for events in this process: who reads them is to stop.
    pub fn end_reads(&self) {
        self.hints.0.reading.send_replace(false);
    }

    /// Returns once nobody is to wait for events any more.
    pub async fn reads_ended(&self) {
        let mut reading = self.hints.0.reading.subscribe();
        let _ = reading.wait_for(|reading| !reading).await;
    }

    /// From now on the services of this process see to what is hinted at here, and pass on what they can't do.
    pub fn begin_work(&self) {
        self.hints.0.works.store(true, Ordering::SeqCst);
    }

    /// From now on others are to see to what is hinted at here, and to what was and is not passed on.
    pub fn end_work(&self) {
        self.hints.0.works.store(false, Ordering::SeqCst);
        self.hints.tell_others(self.hints.0.kept.swap(0, Ordering::SeqCst));
    }

    /// Tells other instances what was hinted at here alone since that was passed on last: this one has no room for it.
    /// A hint that came from another instance is not told on, or two that are full would wake each other for ever.
    pub fn pass_on(&self, topic: Topic) {
        let bit = 1 << topic as u8;
        self.hints.tell_others(self.hints.0.kept.fetch_and(!bit, Ordering::SeqCst) & bit);
    }
}
