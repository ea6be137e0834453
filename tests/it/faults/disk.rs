//! The disk is full: nothing is lost that was recorded, and all goes on once there is room. A small disk of its own needs
//! a private mount namespace; where that is refused, the output says that the fault was not run.

use std::process::{Command, Stdio};
use std::time::Duration;

use reveille::clock::{machine_now, pause};

use super::stage::Stage;
use crate::support::postgres_server::PostgresServer;

const WELL: Duration = Duration::from_secs(3);

#[tokio::test]
async fn a_postgres_whose_disk_is_full_comes_back_with_everything_that_was_recorded() {
    let Some(server) = PostgresServer::start_on_disk(160).await else {
        println!("NOT RUN: a full disk under Postgres; this machine refuses a private mount namespace");
        return;
    };
    let mut stage = Stage::postgres(2, &server.url(), &server.url()).await;
    stage.start_all().await;
    stage.busy().await;
    for _ in 0..2 {
        pause(WELL).await;
        let from = machine_now();
        server.fill_disk();
        pause(WELL).await;
        server.free_disk();
        stage.may_lose_leases(from).await;
    }
    pause(WELL).await;
    let verdict = stage.must_hold("postgres, its disk full twice").await;
    assert!(verdict.instants > 50, "{verdict}");
}

#[tokio::test]
async fn a_sqlite_file_whose_disk_is_full_keeps_what_it_has_and_goes_on_when_there_is_room() {
    let may = Command::new("unshare").args(["-m", "true"]).stderr(Stdio::null()).status();
    if !may.is_ok_and(|may| may.success()) {
        println!("NOT RUN: a full disk under SQLite; this machine refuses a private mount namespace");
        return;
    }
    let mount = "mkdir -p data && mount -t tmpfs -o size=12m,mode=700 tmpfs data && exec \"$0\" \"$@\"";
    let mut stage = Stage::sqlite().await.launched_by(&["unshare", "-m", "sh", "-c", mount]);
    stage.start(0).await;
    stage.busy().await;
    // its files are seen through its own root alone
    let data = format!("/proc/{}/root{}/data", stage.service(0).process_id(), stage.service(0).dir.path().display());
    stage.judge_at(format!("{data}/reveille.db").into());
    for _ in 0..2 {
        pause(WELL).await;
        let from = machine_now();
        let fill = format!("dd if=/dev/zero of={data}/filler bs=4k 2>/dev/null; true");
        assert!(Command::new("sh").args(["-c", &fill]).status().expect("sh runs").success());
        pause(WELL).await;
        std::fs::remove_file(format!("{data}/filler")).expect("the filler");
        stage.may_lose_leases(from).await;
    }
    stage.must_say("is full");
    pause(WELL).await;
    let verdict = stage.must_hold("sqlite, its disk full twice").await;
    assert!(verdict.instants > 50, "{verdict}");
}
