//! Postgres crashes, is cut off, goes silent, and loses its answers to what it has committed; the services live on.

use std::time::Duration;

use reveille::base::clock::{machine_now, pause};

use super::harness::FaultHarness;
use crate::support::postgres::Database;
use crate::support::postgres_server::PostgresServer;
use crate::support::proxy::{Proxy, Wire};
use crate::support::servers;

/// How long an execution takes, so that faults meet some.
const EXECUTION: Duration = Duration::from_millis(100);
/// Long enough to lose leases; shorter than what makes a service give up.
const OUTAGE: Duration = Duration::from_secs(3);
/// After so long nobody waits for the end of a statement any more, and a service that still does counts as stalled.
const GIVEN_UP: Duration = Duration::from_secs(45);
/// While all is well between two faults.
const WELL: Duration = Duration::from_secs(3);

/// Two busy instances that reach their database through a proxy.
async fn behind_a_proxy() -> (Database, Proxy, FaultHarness) {
    let database = Database::empty().await;
    let proxy = Proxy::before(&database.url).await;
    let mut stage = FaultHarness::postgres(2, &database.url, &proxy.url(&database.url)).await;
    stage.effects.takes(EXECUTION);
    stage.start_all().await;
    stage.busy().await;
    (database, proxy, stage)
}

#[tokio::test]
async fn postgres_crashes_again_and_again_and_nothing_is_lost_or_doubled() {
    let server = PostgresServer::start().await;
    let mut stage = FaultHarness::postgres(2, &server.url(), &server.url()).await;
    stage.effects.takes(EXECUTION);
    stage.start_all().await;
    stage.busy().await;
    for _ in 0..4 {
        stage.once().await;
        pause(WELL).await;
        let from = machine_now();
        server.crash();
        pause(Duration::from_millis(fastrand::u64(0..2000))).await;
        server.start_again();
        stage.may_lose_leases(from).await;
    }
    let verdict = stage.must_hold("postgres crashed four times").await;
    assert!(verdict.instants > 50, "{verdict}");
}

#[tokio::test]
async fn wire_to_postgres_that_is_cut_or_silent_costs_time_and_nothing_else() {
    let (_database, proxy, mut stage) = behind_a_proxy().await;
    for wire in [Wire::Cut, Wire::BlackHole, Wire::Cut, Wire::BlackHole] {
        stage.once().await;
        pause(WELL).await;
        let from = machine_now();
        proxy.set(wire);
        pause(OUTAGE).await;
        proxy.set(Wire::Whole);
        stage.may_lose_leases(from).await;
    }
    let verdict = stage.must_hold("the wire to postgres cut twice, silent twice").await;
    assert!(verdict.instants > 50, "{verdict}");
}

#[tokio::test]
async fn connections_that_go_silent_for_ever_are_left_for_new_ones() {
    let (_database, proxy, mut stage) = behind_a_proxy().await;
    stage.once().await;
    pause(WELL).await;
    let from = machine_now();
    proxy.forsake();
    pause(GIVEN_UP).await;
    stage.may_lose_leases(from).await;
    let ended = stage.source.number("select count(*) from runs where state = 'succeeded'").await.expect("a count");
    stage.ran(ended + 50).await;
    let verdict = stage.must_hold("every connection to postgres silent for ever").await;
    assert!(verdict.instants > 50, "{verdict}");
}

#[tokio::test]
async fn answer_that_is_lost_neither_loses_nor_doubles_what_was_committed() {
    let (_database, proxy, mut stage) = behind_a_proxy().await;
    proxy.lose_commits(10);
    proxy.lose_statements(15);
    let from = machine_now();
    let answers = servers::chaos_cycles().min(60) as u64;
    while proxy.lost_commits().min(proxy.lost_statements()) < answers {
        stage.once().await;
        stage.publish().await;
        pause(Duration::from_millis(200)).await;
    }
    proxy.lose_commits(0);
    proxy.lose_statements(0);
    stage.may_lose_leases(from).await;
    let (commits, statements) = (proxy.lost_commits(), proxy.lost_statements());
    let verdict = stage.must_hold(&format!("{commits} answers to commits lost, {statements} to statements")).await;
    assert!(verdict.instants as u64 > answers, "{verdict}");
}
