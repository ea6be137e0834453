//! The disk under Postgres is full: nothing is lost that was recorded, and all goes on once there is room. A small disk
//! of its own needs a private mount namespace; where that is refused, the output says that the fault was not run. The
//! same on SQLite takes a limit that only a build with the feature `failpoints` can set: see `failpoints.rs`.

use std::time::{Duration, Instant};

use reveille::base::clock::{machine_now, pause};

use super::harness::FaultHarness;
use crate::support::postgres_server::PostgresServer;

const WELL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn postgres_whose_disk_is_full_comes_back_with_everything_that_was_recorded() {
    let Some(server) = PostgresServer::start_on_disk(160).await else {
        println!("NOT RUN: a full disk under Postgres; this machine refuses a private mount namespace");
        return;
    };
    let mut stage = FaultHarness::postgres(2, &server.url(), &server.url()).await;
    stage.start_all().await;
    stage.busy().await;
    for _ in 0..2 {
        pause(WELL).await;
        let from = machine_now();
        server.fill_disk();
        // what is published wants new pages
        let begun = Instant::now();
        while begun.elapsed() < WELL {
            stage.publish().await;
        }
        server.free_disk();
        stage.may_lose_leases(from).await;
    }
    stage.must_say("No space left on device");
    pause(WELL).await;
    let verdict = stage.must_hold("postgres, its disk full twice").await;
    assert!(verdict.instants > 50, "{verdict}");
}
