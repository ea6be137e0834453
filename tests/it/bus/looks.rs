//! How far one look into the streams of a real Redis goes, how it goes on, and what it costs.

use std::time::Duration;

use reveille::base::id::{Scope, Tenant};
use reveille::ports::bus::{BusEntry, DeadLetterFilter, LogFilter, NewestFilter, Settings};
use serde_json::json;

use super::world::{
    BusHarness, acknowledge, beside_a, event, ids_of, log, log_filter, long_event, of, only, read, read_nothing,
};
use crate::support::redis::{Redis, RedisServer};

/// Adds so many dead letters with this error, of this tenant.
const ADD_LETTERS: &str = "
    for _ = 1, tonumber(ARGV[1]) do
        redis.call('XADD', KEYS[1], '*', 'entry', '0/1-1', 'event', '{}', 'error', ARGV[2], 'deliveries', '5',
            'tenant', ARGV[3])
    end";
/// Adds so many entries with this event.
const ADD_EVENTS: &str = "
    for _ = 1, tonumber(ARGV[1]) do
        redis.call('XADD', KEYS[1], '*', 'event', ARGV[2])
    end";

fn add_dead_letters(stage: &BusHarness, tenant: &str, error: &str, count: usize) {
    let dead = format!("{}:dead", stage.settings.stream_prefix);
    stage.redis_server().ask(&["EVAL", ADD_LETTERS, "1", &dead, &count.to_string(), error, tenant]);
}

/// How often a command was called since the counts were reset.
fn calls(redis: &Redis, command: &str) -> u32 {
    let counted = redis.ask(&["INFO", "commandstats"]);
    let beginning = format!("cmdstat_{command}:calls=");
    let line = counted.lines().find_map(|line| line.strip_prefix(beginning.as_str()));
    line.and_then(|line| line.split(',').next()).map_or(0, |calls| calls.parse().expect("a number"))
}

/// Numbers by which events were published, in their order.
fn numbers<'a>(entries: impl IntoIterator<Item = &'a BusEntry>) -> Vec<u32> {
    let events = entries.into_iter().map(|entry| entry.event.as_ref().expect("an event"));
    events.map(|event| event.id.parse().expect("a number")).collect()
}

#[tokio::test]
async fn list_of_dead_letters_goes_on_behind_what_one_look_has_seen() {
    // a look goes through `LETTERS`, 10,000
    let stage = BusHarness::redis().await;
    let page = async |scope: Scope, error: Option<&str>, before: Option<String>| {
        let filter = DeadLetterFilter { error: error.map(str::to_owned), before, limit: 5, ..Default::default() };
        let page = stage.bus.dead_letters(&scope, &filter).await.unwrap();
        (page.letters.into_iter().map(|letter| letter.error).collect::<Vec<_>>(), page.next)
    };
    add_dead_letters(&stage, "a", "quiet", 1);
    add_dead_letters(&stage, "b", "loud", 9_999);
    assert_eq!(page(only("a"), None, None).await, (vec!["quiet".to_owned()], None), "it is the last of them");

    add_dead_letters(&stage, "b", "loud", 1);
    for (scope, error) in [(only("a"), None), (Scope::Every, Some("QUIET"))] {
        let (none, next) = page(scope.clone(), error, None).await;
        assert!(none.is_empty() && next.is_some(), "{none:?}: there is more");
        assert_eq!(page(scope, error, next).await, (vec!["quiet".to_owned()], None));
    }
    add_dead_letters(&stage, "a", "new", 1);
    let (some, next) = page(only("a"), None, None).await;
    assert_eq!(some, ["new"], "fewer than are asked for");
    assert_eq!(page(only("a"), None, next).await, (vec!["quiet".to_owned()], None));
    stage.leave().await;
}

#[tokio::test]
async fn look_into_a_stream_ends_with_its_bytes() {
    // the bound is `LOOKED_AT_BYTES`: 84 have more than 16 MiB
    let stage = BusHarness::redis().await;
    for n in 0..84 {
        stage.publish(&[long_event(&beside_a(), &n.to_string())]).await;
    }
    let last = of(json!({"tenantid": "a", "id": "last", "source": "shop", "type": "order.paid"}));
    stage.publish(&[last]).await;
    let filter = LogFilter { source: Some("shop".into()), ..log_filter(5) };
    let (none, position, more) = log(&*stage.bus, &only("a"), &filter).await;
    assert_eq!((none, more), (Vec::new(), true));
    let (found, _, more) = log(&*stage.bus, &only("a"), &LogFilter { after: Some(position), ..filter }).await;
    assert_eq!((found, more), (vec!["last".to_owned()], false));
    stage.leave().await;
}

#[tokio::test]
async fn event_is_found_behind_long_ones_of_a_neighbour() {
    // more than the bytes of a part of the log, `LOOKED_AT_BYTES`
    let stage = BusHarness::redis().await;
    stage.publish(&[event("a", "first")]).await;
    for n in 0..84 {
        stage.publish(&[long_event(&beside_a(), &n.to_string())]).await;
    }
    let a = Tenant::new("a").unwrap();
    let found = stage.bus.find(&a, None, "first").await.unwrap();
    assert_eq!(found, Some(event("a", "first")));
    assert_eq!(stage.bus.ids(&a, Some("mail"), "fi").await.unwrap(), ["first"]);
    let filter = NewestFilter { among: 100, limit: 5, ..NewestFilter::default() };
    assert_eq!(stage.bus.newest(&a, &filter).await.unwrap(), [event("a", "first")]);
    stage.leave().await;
}

#[tokio::test]
async fn event_is_looked_for_among_a_number_of_entries() {
    // the bound is `LOOKED_AT`, 5,000
    let stage = BusHarness::redis().await;
    stage.publish(&[event("a", "first")]).await;
    let add = |count: &str| {
        let other = event(&beside_a(), "1").to_value().to_string();
        stage.redis_server().ask(&["EVAL", ADD_EVENTS, "1", &stage.stream("a"), count, &other])
    };
    let a = Tenant::new("a").unwrap();
    add("4999");
    assert!(stage.bus.find(&a, None, "first").await.unwrap().is_some());
    assert_eq!(stage.bus.ids(&a, None, "fi").await.unwrap(), ["first"]);
    add("1");
    assert_eq!(stage.bus.find(&a, None, "first").await.unwrap(), None);
    assert_eq!(stage.bus.ids(&a, None, "fi").await.unwrap(), [""; 0]);
    stage.leave().await;
}

#[tokio::test]
async fn look_for_stalled_entries_asks_each_stream_once_however_many_others_hold() {
    let server = RedisServer::start(&[]);
    let mut stage = BusHarness::redis_at(server.url(), Settings::default()).await;
    stage.publish(&(0..1_000).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    read(&*stage.bus, 1_000).await;
    // nothing stalls for this one as long as the test lasts
    stage.settings.stalled_after_seconds = 600.0;
    let other = stage.another().await;
    let redis = stage.redis_server();
    redis.ask(&["CONFIG", "RESETSTAT"]);
    read_nothing(&*other).await;
    let asked = ["xpending", "xautoclaim", "xclaim"].map(|command| calls(redis, command));
    assert_eq!(asked, [stage.settings.partitions, 0, 0]);
    stage.leave().await;
}

#[tokio::test]
async fn stalled_entries_of_several_streams_are_claimed_together() {
    // `AT_ONCE`, 32, by one round trip: the 40 need two, and of one of them two streams are asked
    let server = RedisServer::start(&[]);
    let stage = BusHarness::redis_at(server.url(), Settings::default()).await;
    let is_apart = |tenant: &String| stage.stream(tenant) != stage.stream("a");
    let apart = (0..).map(|n| format!("t{n}")).find(is_apart).unwrap();
    for tenant in ["a", apart.as_str()] {
        stage.publish(&(0..20).map(|n| event(tenant, &n.to_string())).collect::<Vec<_>>()).await;
    }
    let dead = stage.another().await;
    read(&*dead, 40).await;
    drop(dead);
    stage.stall().await;
    let redis = stage.redis_server();
    redis.ask(&["CONFIG", "RESETSTAT"]);
    let entries = stage.bus.read(40, Duration::ZERO).await.unwrap();
    let asked = ["xpending", "xautoclaim", "xclaim"].map(|command| calls(redis, command));
    assert_eq!(asked, [stage.settings.partitions, 0, 3]);
    assert!(entries.iter().all(|entry| entry.deliveries == 2), "{entries:?}");
    for tenant in ["a", apart.as_str()] {
        let of_tenant = entries.iter().filter(|entry| entry.event.as_ref().unwrap().tenant.as_str() == tenant);
        assert_eq!(numbers(of_tenant), (0..20).collect::<Vec<_>>(), "{tenant}");
    }
    stage.leave().await;
}

#[tokio::test]
async fn look_for_stalled_entries_ends_with_their_bytes_and_the_next_goes_on() {
    // with the first `AT_ONCE`, 32, there are more than `READ_BYTES`
    let stage = BusHarness::redis().await;
    for first in (0..60).step_by(10) {
        stage.publish(&(first..first + 10).map(|n: u32| long_event("a", &n.to_string())).collect::<Vec<_>>()).await;
    }
    let dead = stage.another().await;
    read(&*dead, 60).await;
    drop(dead);
    stage.stall().await;
    let first = stage.bus.read(500, Duration::ZERO).await.unwrap();
    assert_eq!(numbers(&first), (0..32).collect::<Vec<_>>());
    acknowledge(&*stage.bus, &first).await;
    let rest = read(&*stage.bus, 28).await;
    assert_eq!(numbers(&rest), (32..60).collect::<Vec<_>>());
    assert!(rest.iter().all(|entry| entry.deliveries == 2));
    stage.leave().await;
}

#[tokio::test]
async fn consumers_that_look_at_once_share_what_has_stalled() {
    let stage = BusHarness::redis().await;
    stage.publish(&(0..200).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    let (dead, other) = (stage.another().await, stage.another().await);
    read(&*dead, 200).await;
    drop(dead);
    stage.stall().await;
    let (one, another) = tokio::join!(stage.bus.read(200, Duration::ZERO), other.read(200, Duration::ZERO));
    let mut both = ids_of(&one.unwrap());
    both.extend(ids_of(&another.unwrap()));
    let mut both: Vec<u32> = both.iter().map(|id| id.parse().unwrap()).collect();
    both.sort_unstable();
    assert_eq!(both, (0..200).collect::<Vec<_>>(), "each comes to one of them");
    stage.leave().await;
}
