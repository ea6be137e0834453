//! Behaviour of a real Redis: foreign writers, dead consumers, restarts, trimming, and a Redis that is away.

use std::time::Duration;

use chrono::TimeDelta;
use reveille::base::clock::{Clock, pause};
use reveille::base::id::{Scope, Tenant};
use reveille::base::secret::SecretUrl;
use reveille::ports::bus::{BusError, DeadLetterFilter, LogFilter, Settings};

use super::world::{
    BusHarness, acknowledge, dead_letters, event, ids_of, log, log_filter, long_event, names_of, only, read,
    read_nothing, waits_end,
};
use crate::support::redis::{RedisServer, STALLED};

/// After every retention.
fn after_a_year() -> chrono::DateTime<chrono::Utc> {
    Clock::system().now() + TimeDelta::days(365)
}

#[tokio::test]
async fn foreign_service_publishes_by_a_plain_xadd() {
    let stage = BusHarness::redis().await;
    let json = r#"{"specversion":"1.0","id":"evt-1","source":"shop","type":"order.paid","tenantid":"user_123","data":{"total":120}}"#;
    stage.redis_server().ask(&["XADD", &stage.stream("user_123"), "*", "event", json]);
    let entries = read(&*stage.bus, 1).await;
    let event = entries[0].event.as_ref().unwrap().event();
    assert_eq!(event.to_value(), serde_json::from_str::<serde_json::Value>(json).unwrap());
    stage.leave().await;
}

#[tokio::test]
async fn entry_that_does_not_parse_is_handed_over_as_what_it_is_and_becomes_a_dead_letter() {
    let stage = BusHarness::redis().await;
    let stream = stage.stream("a");
    let large = "x".repeat(reveille::domain::event::EVENT_BYTES + 1);
    for words in [["event", "not json"], ["evnt", "{}"], ["event", r#"{"specversion":"1.0","id":"1"}"#]] {
        stage.redis_server().ask(&["XADD", &stream, "*", words[0], words[1]]);
    }
    let entries = read(&*stage.bus, 3).await;
    let whys: Vec<String> = entries.iter().map(|entry| entry.event.clone().unwrap_err().why).collect();
    assert_eq!(whys[0], "it is not JSON: expected ident at line 1 column 2");
    assert_eq!(whys[1], "it has no field `event`");
    assert!(whys[2].contains("/tenantid") && whys[2].contains("/source"), "{}", whys[2]);
    assert!(reveille::ports::bus::read_entry(large.as_bytes()).unwrap_err().why.contains("at most 262144"));

    for entry in &entries {
        let why = entry.event.clone().unwrap_err().why;
        stage.bus.dead_letter_entry(entry, &why).await.unwrap();
    }
    let letters = dead_letters(&*stage.bus, &Scope::Every).await.unwrap();
    assert_eq!(
        letters.iter().map(|letter| letter.body.as_str()).collect::<Vec<_>>(),
        [r#"{"specversion":"1.0","id":"1"}"#, "evnt {}", "not json"]
    );
    assert_eq!(dead_letters(&*stage.bus, &only("a")).await.unwrap(), []);
    assert!(matches!(stage.bus.replay(&Scope::Every, &letters[0].id).await, Err(BusError::Invalid { .. })));
    stage.stall().await;
    read_nothing(&*stage.bus).await;
    stage.leave().await;
}

#[tokio::test]
async fn entry_deleted_while_a_dead_consumer_held_it_is_acknowledged() {
    let stage = BusHarness::redis().await;
    stage.publish(&[event("a", "1"), event("a", "2")]).await;
    let dead = stage.another().await;
    let held = read(&*dead, 2).await;
    drop(dead);
    let (_, id) = held[0].id.split_once('/').unwrap();
    // what is deleted can't be aged
    stage.stall().await;
    stage.redis_server().ask(&["XDEL", &stage.stream("a"), id]);
    let again = read(&*stage.bus, 1).await;
    assert_eq!((ids_of(&again), again[0].deliveries), (vec!["2".to_owned()], 2));
    assert_eq!(stage.bus.backlog().await.unwrap().pending, 1, "nothing but what is held now");
    stage.leave().await;
}

#[tokio::test]
async fn entries_that_were_left_are_read_in_order_as_soon_as_there_is_room_and_by_nobody_else() {
    let stage = BusHarness::redis().await;
    let full = [Tenant::new("a").unwrap()];
    stage.publish(&(0..60).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    assert_eq!(stage.bus.read_except(&full, 20, Duration::ZERO).await.unwrap(), []);
    // they are held for longer than a dead consumer's would be
    let other = stage.another().await;
    let begun = std::time::Instant::now();
    while begun.elapsed() < STALLED * 2 {
        assert_eq!(stage.bus.read_except(&full, 20, Duration::ZERO).await.unwrap(), []);
        read_nothing(&*other).await;
        pause(STALLED / 10).await;
    }
    stage.publish(&[event("a", "60")]).await;
    let mut found = Vec::new();
    // within a counted number of reads: nothing waits for a time to pass
    for _ in 0..8 {
        found.extend(stage.bus.read(20, Duration::ZERO).await.unwrap());
    }
    assert_eq!(ids_of(&found), (0..61).map(|n| n.to_string()).collect::<Vec<_>>());
    assert!(found.iter().all(|entry| entry.deliveries == 1), "none is counted");
    stage.leave().await;
}

#[tokio::test]
async fn event_behind_many_of_a_full_tenant_is_found_in_few_reads() {
    let redis = crate::support::servers::redis_url();
    let stage = BusHarness::redis_at(redis, Settings { partitions: 1, ..Settings::default() }).await;
    for batch in 0..5 {
        stage.publish(&(0..500).map(|n| event("loud", &(batch * 500 + n).to_string())).collect::<Vec<_>>()).await;
    }
    stage.publish(&[event("quiet", "1")]).await;
    let full = [Tenant::new("loud").unwrap()];
    let mut found = Vec::new();
    for _ in 0..2 {
        found.extend(stage.bus.read_except(&full, 10, Duration::ZERO).await.unwrap());
    }
    assert_eq!(ids_of(&found), ["1"], "2,500 others stand before it");
    stage.leave().await;
}

#[tokio::test]
async fn entries_that_a_dead_consumer_has_left_come_to_another() {
    let stage = BusHarness::redis().await;
    let dead = stage.another().await;
    stage.publish(&(0..3).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    assert_eq!(dead.read_except(&[Tenant::new("a").unwrap()], 20, Duration::ZERO).await.unwrap(), []);
    drop(dead);
    stage.stall().await;
    let entries = read(&*stage.bus, 3).await;
    assert_eq!(ids_of(&entries), ["0", "1", "2"]);
    assert!(entries.iter().all(|entry| entry.deliveries == 1), "nobody was given them: {entries:?}");
    stage.leave().await;
}

#[tokio::test]
async fn group_that_was_destroyed_is_made_anew_at_the_beginning() {
    let stage = BusHarness::redis().await;
    stage.publish(&[event("a", "1")]).await;
    acknowledge(&*stage.bus, &read(&*stage.bus, 1).await).await;
    stage.redis_server().ask(&["XGROUP", "DESTROY", &stage.stream("a"), "reveille"]);
    stage.publish(&[event("a", "2")]).await;
    assert_eq!(ids_of(&read(&*stage.bus, 2).await), ["1", "2"]);
    stage.redis_server().ask(&["DEL", &stage.stream("a")]);
    stage.publish(&[event("a", "3")]).await;
    assert_eq!(ids_of(&read(&*stage.bus, 1).await), ["3"]);
    stage.leave().await;
}

#[tokio::test]
async fn trimming_never_passes_what_is_pending_or_unread_of_any_group() {
    let stage = BusHarness::redis().await;
    let (redis, stream) = (stage.redis_server(), stage.stream("a"));
    let length = || redis.number(&["XLEN", &stream]);
    stage.publish(&(0..5).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    assert_eq!(stage.bus.trim(after_a_year()).await.unwrap(), 0, "without a group nothing is known to be handled");
    assert_eq!(length(), 5);

    let entries = read(&*stage.bus, 3).await;
    acknowledge(&*stage.bus, &[entries[0].clone(), entries[2].clone()]).await;
    assert_eq!(stage.bus.trim(after_a_year()).await.unwrap(), 1, "the second is pending");
    acknowledge(&*stage.bus, &entries[1..2]).await;
    redis.ask(&["XGROUP", "CREATE", &stream, "another", "0"]);
    assert_eq!(stage.bus.trim(after_a_year()).await.unwrap(), 0, "another group has read nothing");
    redis.ask(&["XGROUP", "SETID", &stream, "another", "$"]);
    assert_eq!(stage.bus.trim(after_a_year()).await.unwrap(), 2, "two were not read");
    acknowledge(&*stage.bus, &read(&*stage.bus, 2).await).await;
    assert_eq!(stage.bus.trim(Clock::system().now()).await.unwrap(), 0, "they are kept for the log");
    assert_eq!(stage.bus.trim(after_a_year()).await.unwrap(), 2);
    assert_eq!(length(), 0);
    stage.leave().await;
}

#[tokio::test]
async fn streams_of_a_larger_number_of_partitions_are_read_until_they_are_empty() {
    let mut stage =
        BusHarness::redis_at(crate::support::servers::redis_url(), Settings { partitions: 8, ..Settings::default() })
            .await;
    let tenants: Vec<String> = (0..30).map(|n| format!("tenant_{n}")).collect();
    read_nothing(&*stage.bus).await;
    stage.publish(&tenants.iter().map(|tenant| event(tenant, "old")).collect::<Vec<_>>()).await;
    stage.settings.partitions = 2;
    let most = format!("{}:partitions", stage.settings.stream_prefix);
    let fewer = stage.another().await;
    fewer.publish(&[event("tenant_0", "new")]).await.unwrap();
    let entries = read(&*fewer, 31).await;
    assert_eq!(ids_of(&entries).iter().filter(|id| *id == "old").count(), 30);
    fewer.trim(after_a_year()).await.unwrap();
    assert_eq!(stage.redis_server().ask(&["GET", &most]), "8", "they are not acknowledged yet");
    acknowledge(&*fewer, &entries).await;
    fewer.trim(after_a_year()).await.unwrap();
    assert_eq!(stage.redis_server().ask(&["GET", &most]), "2");
    stage.leave().await;
}

#[tokio::test]
async fn read_that_waits_can_be_ended() {
    let mut stage = BusHarness::redis().await;
    read_nothing(&*stage.bus).await;
    waits_end(&stage.bus).await;
    // by blocks that are longer than all this takes
    stage.settings.stalled_after_seconds = 60.0;
    waits_end(&stage.another().await).await;
    stage.leave().await;
}

#[tokio::test]
async fn consumer_that_has_just_asked_is_not_removed() {
    let stage = BusHarness::redis().await;
    stage.publish(&[event("a", "1")]).await;
    acknowledge(&*stage.bus, &read(&*stage.bus, 1).await).await;
    stage.bus.trim(after_a_year()).await.unwrap();
    let consumers = stage.redis_server().ask(&["XINFO", "CONSUMERS", &stage.stream("a"), "reveille"]);
    assert!(consumers.contains("idle"), "{consumers}");
    stage.leave().await;
}

#[tokio::test]
async fn log_over_many_streams_misses_nothing_between_its_pages() {
    let stage = BusHarness::redis().await;
    let events: Vec<_> = (0..900).map(|n| event(&format!("tenant_{}", n % 3), &n.to_string())).collect();
    stage.publish(&events).await;
    let (mut seen, mut filter) = (Vec::new(), log_filter(70));
    loop {
        let (ids, position, more) = log(&*stage.bus, &Scope::Every, &filter).await;
        seen.extend(ids);
        filter.after = Some(position);
        if !more {
            break;
        }
    }
    let mut numbers: Vec<u32> = seen.iter().map(|id| id.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (0..900).collect::<Vec<_>>());
    stage.leave().await;
}

#[tokio::test]
async fn part_of_the_log_ends_with_its_bytes_and_the_next_goes_on() {
    // the bound is `PAGE_BYTES`
    let stage = BusHarness::redis().await;
    stage.publish(&(0..12).map(|n| long_event("a", &n.to_string())).collect::<Vec<_>>()).await;
    for scope in [only("a"), Scope::Every] {
        let (first, position, more) = log(&*stage.bus, &scope, &log_filter(100)).await;
        // ten have less than 2 MiB, and with the eleventh they have more
        assert_eq!((first, more), ((0..11).map(|n| n.to_string()).collect::<Vec<_>>(), true));
        let rest = LogFilter { after: Some(position), ..log_filter(100) };
        let (second, _, more) = log(&*stage.bus, &scope, &rest).await;
        assert_eq!((second, more), (vec!["11".to_owned()], false));
    }
    stage.leave().await;
}

#[tokio::test]
async fn dead_letters_of_one_tenant_are_found_among_long_ones_of_another() {
    let stage = BusHarness::redis().await;
    for event in [event("a", "quiet")].into_iter().chain((0..40).map(|n| long_event("b", &n.to_string()))) {
        stage.publish(&[event]).await;
        let entries = read(&*stage.bus, 1).await;
        stage.bus.dead_letter_entry(&entries[0], "it broke").await.unwrap();
    }
    let letters = dead_letters(&*stage.bus, &only("a")).await.unwrap();
    assert!(letters.len() == 1 && letters[0].body.contains("quiet"), "{letters:?}");
    let some = DeadLetterFilter { source: Some("mail".into()), limit: 3, ..DeadLetterFilter::default() };
    assert_eq!(stage.bus.dead_letters(&Scope::Every, &some).await.unwrap().letters.len(), 3);
    assert_eq!(dead_letters(&*stage.bus, &Scope::Every).await.unwrap().len(), 41);
    stage.leave().await;
}

#[tokio::test]
async fn restarted_redis_with_its_append_only_file_has_kept_everything() {
    let mut server = RedisServer::start(&[]);
    let stage = BusHarness::redis_at(server.url(), Settings::default()).await;
    stage.publish(&(0..20).map(|n| event("a", &n.to_string())).collect::<Vec<_>>()).await;
    let held = read(&*stage.bus, 5).await;
    acknowledge(&*stage.bus, &held[..2]).await;
    server.kill();
    let away = stage.bus.publish(&[event("a", "lost")]).await;
    assert!(matches!(away, Err(BusError::Unavailable { .. })), "{away:?}");
    assert!(matches!(stage.bus.read(1, Duration::ZERO).await, Err(BusError::Unavailable { .. })));
    server.start_again();

    // it comes back by itself: a failure is remembered for a moment only
    reveille::base::clock::pause(Duration::from_millis(300)).await;
    stage.publish(&[event("a", "20")]).await;
    stage.stall().await;
    let mut numbers: Vec<u32> = ids_of(&read(&*stage.bus, 19).await).iter().map(|id| id.parse().unwrap()).collect();
    numbers.sort_unstable();
    assert_eq!(numbers, (2..=20).collect::<Vec<_>>());
    stage.leave().await;
}

#[tokio::test]
async fn redis_that_is_not_there_is_told_at_once() {
    let settings = Settings { url: SecretUrl::new("redis://127.0.0.1:1"), ..Settings::default() };
    let stage = BusHarness::redis_at(settings.url.expose().to_owned(), settings).await;
    let begun = std::time::Instant::now();
    for _ in 0..20 {
        assert!(matches!(stage.bus.publish(&[event("a", "1")]).await, Err(BusError::Unavailable { .. })));
    }
    assert!(matches!(stage.bus.log(&Scope::Every, &log_filter(1)).await, Err(BusError::Unavailable { .. })));
    assert!(matches!(stage.bus.trim(after_a_year()).await, Err(BusError::Unavailable { .. })));
    assert!(begun.elapsed() < Duration::from_secs(5), "{:?}", begun.elapsed());
    stage.leave().await;
}

#[tokio::test]
async fn redis_that_may_lose_what_it_accepted_is_told_of() {
    let sound = RedisServer::start(&[]);
    let stage = BusHarness::redis_at(sound.url(), Settings::default()).await;
    assert_eq!(stage.bus.concerns().await.unwrap(), [""; 0]);

    let replica_of = format!("127.0.0.1 {}", sound.port);
    let words: Vec<&str> = ["--appendonly", "no", "--maxmemory-policy", "allkeys-lru", "--replicaof"]
        .into_iter()
        .chain(replica_of.split(' '))
        .collect();
    let poor = RedisServer::start(&words);
    let other = BusHarness::redis_at(poor.url(), Settings::default()).await;
    assert_eq!(
        other.bus.concerns().await.unwrap(),
        [
            "Redis has no append-only file: a crash loses events that were accepted (set `appendonly yes`)",
            "Redis may evict streams when its memory is full: set `maxmemory-policy noeviction` (it is allkeys-lru)",
            "this Redis is a replica: give bus.url the address of its master, or of the sentinels",
        ]
    );
    stage.leave().await;
    other.leave().await;
}

#[tokio::test]
async fn read_that_was_dropped_takes_nothing_for_good() {
    let stage = BusHarness::redis().await;
    read_nothing(&*stage.bus).await;
    let dropped = tokio::time::timeout(Duration::from_millis(30), stage.bus.read(10, Duration::from_secs(5))).await;
    assert!(dropped.is_err(), "nothing was there");
    stage.publish(&[event("a", "1")]).await;
    let entries = read(&*stage.bus, 1).await;
    assert_eq!(ids_of(&entries), ["1"]);
    assert_eq!(names_of(&entries).len(), 1);
    stage.leave().await;
}
