//! A bus of one test: embedded on either database, or on streams of its own in the Redis of the tests.

use std::time::Duration;

use reveille::base::id::{Scope, Tenant};
use reveille::base::secret::SecretUrl;
use reveille::domain::event::Event;
use reveille::ports::bus::{self, Bus, BusEntry, BusError, DeadLetterFilter, LogFilter, Settings};
use serde_json::{Value, json};
use std::sync::Arc;

use crate::conformance::world::StoreHarness;
use crate::support::redis::{self, Redis};
use crate::support::servers;

/// The first instant of the case's clock, its bus and its database.
pub struct BusHarness {
    pub bus: Arc<dyn Bus>,
    pub settings: Settings,
    pub world: StoreHarness,
    pub redis: Option<Redis>,
}

/// How long a reader waits for what must come.
const PATIENCE: Duration = Duration::from_secs(20);

impl BusHarness {
    pub async fn embedded(world: StoreHarness) -> BusHarness {
        let settings = Settings { stalled_after_seconds: 60.0, ..Settings::default() };
        BusHarness::over(world, settings, None)
    }

    /// Streams of its own in the Redis of the tests.
    pub async fn redis() -> BusHarness {
        BusHarness::redis_at(servers::redis_url(), Settings::default()).await
    }

    /// Streams on another Redis, or with other settings.
    pub async fn redis_at(url: String, settings: Settings) -> BusHarness {
        let settings = Settings {
            url: SecretUrl::new(url.clone()),
            stream_prefix: format!("t{:016x}", fastrand::u64(..)),
            stalled_after_seconds: redis::STALLED.as_secs_f64(),
            ..settings
        };
        let redis = Redis::at(&url);
        BusHarness::over(StoreHarness::sqlite().await, settings, Some(redis))
    }

    fn over(world: StoreHarness, settings: Settings, redis: Option<Redis>) -> BusHarness {
        let bus = bus::open(&settings, &world.store).expect("a bus");
        BusHarness { bus, settings, world, redis }
    }

    /// Another instance on the same bus.
    pub async fn another(&self) -> Arc<dyn Bus> {
        bus::open(&self.settings, &self.world.other_instance().await).expect("a bus")
    }

    /// The Redis behind it.
    pub fn redis_server(&self) -> &Redis {
        self.redis.as_ref().expect("a bus on Redis")
    }

    /// The stream of a tenant.
    pub fn stream(&self, tenant: &str) -> String {
        let partition = reveille::domain::event::partition(tenant, self.settings.partitions);
        format!("{}:{partition}", self.settings.stream_prefix)
    }

    /// Lets so much time pass that what is held counts as stalled.
    pub async fn stall(&self) {
        match self.redis {
            Some(_) => redis::stall(&self.settings).await,
            None => self.world.pass(60),
        }
    }

    pub async fn publish(&self, events: &[Event]) {
        self.bus.publish(events).await.expect("published");
    }

    pub async fn leave(self) {
        drop(self.bus);
        self.world.leave().await;
    }
}

/// Everything that a consumer gets within a moment, until there are `count`.
pub async fn read(bus: &dyn Bus, count: usize) -> Vec<BusEntry> {
    let mut entries = Vec::new();
    let begun = std::time::Instant::now();
    while entries.len() < count {
        assert!(begun.elapsed() < PATIENCE, "{count} entries should come, there are {entries:?}");
        entries.extend(bus.read(count - entries.len(), Duration::from_secs(1)).await.expect("read"));
    }
    entries
}

/// A read that waits can be ended, and the next one waits again.
pub async fn waits_end(bus: &Arc<dyn Bus>) {
    let reader = Arc::clone(bus);
    let reading = tokio::spawn(async move { reader.read(1, PATIENCE).await });
    let ended = async {
        while !reading.is_finished() {
            bus.interrupt_reads().await;
            reveille::base::clock::pause(Duration::from_millis(20)).await;
        }
        reading.await.unwrap().unwrap()
    };
    // the longest block of a read is five seconds
    let read = tokio::time::timeout(PATIENCE / 8, ended).await.expect("an end of the wait");
    assert_eq!(read, []);
    let begun = std::time::Instant::now();
    let wait = Duration::from_millis(300);
    assert_eq!(bus.read(1, wait).await.unwrap(), []);
    assert!(begun.elapsed() >= wait, "the next one does not wait");
}

/// That nothing comes.
pub async fn read_nothing(bus: &dyn Bus) {
    assert_eq!(bus.read(10, Duration::ZERO).await, Ok(Vec::new()));
}

pub fn ids_of(entries: &[BusEntry]) -> Vec<String> {
    entries.iter().map(|entry| entry.event.as_ref().expect("an event").id.clone()).collect()
}

pub fn names_of(entries: &[BusEntry]) -> Vec<String> {
    entries.iter().map(|entry| entry.id.clone()).collect()
}

pub async fn acknowledge(bus: &dyn Bus, entries: &[BusEntry]) {
    bus.acknowledge(&names_of(entries)).await.expect("acknowledged");
}

pub fn event(tenant: &str, id: &str) -> Event {
    of(json!({"tenantid": tenant, "id": id, "source": "mail", "type": "mail.new", "data": {"n": 1}}))
}

/// An event of 200,000 bytes and some.
pub fn long_event(tenant: &str, id: &str) -> Event {
    of(json!({"tenantid": tenant, "id": id, "source": "mail", "type": "mail.new", "data": "x".repeat(200_000)}))
}

/// A tenant whose events are on the stream of `a`.
pub fn beside_a() -> String {
    let partition = |tenant: &str| reveille::domain::event::partition(tenant, Settings::default().partitions);
    (0..)
        .map(|number| format!("quiet_{number}"))
        .find(|tenant| partition(tenant) == partition("a"))
        .expect("one of many")
}

pub fn of(mut fields: Value) -> Event {
    fields["specversion"] = "1.0".into();
    Event::try_from(fields).expect("an event")
}

pub fn only(tenant: &str) -> Scope {
    Scope::Only(Tenant::new(tenant).expect("a tenant"))
}

pub fn log_filter(limit: usize) -> LogFilter {
    LogFilter { limit, ..LogFilter::default() }
}

/// The ids in the log, and where it goes on.
pub async fn log(bus: &dyn Bus, scope: &Scope, filter: &LogFilter) -> (Vec<String>, String, bool) {
    let log = bus.log(scope, filter).await.expect("the log");
    (log.events.into_iter().map(|logged| logged.event.id).collect(), log.position, log.more)
}

pub async fn dead_letters(bus: &dyn Bus, scope: &Scope) -> Result<Vec<bus::BusDeadLetter>, BusError> {
    let filter = DeadLetterFilter { limit: 100, ..DeadLetterFilter::default() };
    Ok(bus.dead_letters(scope, &filter).await?.letters)
}
