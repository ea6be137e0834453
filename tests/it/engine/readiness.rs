//! `/readyz` says what is missing, and is true again when it is there again.

use std::time::{Duration, Instant};

use reveille::base::clock::{Clock, Measurement, pause};
use serde_json::Value;

use crate::support::app::Instance;
use crate::support::world::World;

/// How long what comes by itself may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// Asks until it is answered with this status.
async fn until(instance: &Instance, status: u16, is_so: impl Fn(&Value) -> bool) -> Value {
    let began = Instant::now();
    loop {
        let (answered, body) = instance.ask("GET", "/readyz", "", None).await;
        if answered == status && is_so(&body) {
            return body;
        }
        assert!(began.elapsed() < PATIENCE, "{answered} {body}");
        pause(Duration::from_millis(50)).await;
    }
}

#[tokio::test]
async fn database_that_is_away_is_said_and_forgotten_when_it_is_back() {
    let world = World::postgres().await;
    let instance = world.instance();
    let ready = until(&instance, 200, |_| true).await;
    assert_eq!((&ready["ready"], &ready["database"], &ready["clock"]), (&true.into(), &true.into(), &true.into()));
    world.take_away().await;
    let away = until(&instance, 503, |_| true).await;
    assert_eq!((&away["ready"], &away["database"]), (&false.into(), &false.into()));
    world.give_back().await;
    until(&instance, 200, |_| true).await;
    instance.finish(&world).await;
}

#[tokio::test]
async fn service_whose_tick_hangs_is_named_and_is_well_again_after_its_next_tick() {
    let world = World::postgres().await;
    let mut instance = world.instance();
    let running = instance.start().await;
    until(&instance, 200, |_| true).await;
    // the scheduler's next look at what is due waits behind this
    let mut blocking = world.begin("lock table due in access exclusive mode").await;
    world.advance(1.1);
    pause(Duration::from_millis(300)).await;
    world.advance(30.0);
    let late = until(&instance, 503, |body| body["late_services"].to_string().contains("scheduler")).await;
    assert_eq!(late["database"], true);
    sqlx::query("rollback").execute(&mut blocking).await.expect("given back");
    let began = Instant::now();
    while instance.ask("GET", "/readyz", "", None).await.0 != 200 {
        assert!(began.elapsed() < PATIENCE, "{:?}", instance.ask("GET", "/readyz", "", None).await);
        world.advance(0.5);
        pause(Duration::from_millis(50)).await;
    }
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}

#[tokio::test]
async fn clock_that_was_not_measured_lately_is_said_until_it_is_measured() {
    let mut world = World::postgres().await;
    world.clock = Clock::system();
    let mut instance = world.instance();
    until(&instance, 200, |_| true).await;
    // as after an hour in which no measurement came through
    let at = world.clock.elapsed().saturating_sub(Duration::from_secs(3600));
    world.clock.apply_measurement(Measurement { database_now: world.clock.now(), at, uncertainty: Duration::ZERO });
    let unknown = until(&instance, 503, |_| true).await;
    assert_eq!((&unknown["clock"], &unknown["database"]), (&false.into(), &true.into()));
    let running = instance.start().await;
    until(&instance, 200, |body| body["clock"] == true).await;
    instance.on(|_| async move { running.stop().await }).await;
    instance.finish(&world).await;
}
