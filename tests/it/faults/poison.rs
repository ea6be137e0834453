//! One task that nobody can live with must not take the others along.

use std::time::{Duration, Instant};

use chrono::TimeDelta;
use reveille::base::clock::{machine_now, pause};
use serde_json::json;

use super::harness::{FaultHarness, PATIENCE};

#[tokio::test]
async fn run_that_kills_its_process_each_time_is_given_up_and_the_others_go_on() {
    let mut stage = FaultHarness::sqlite().await;
    // longer than a kill takes on a loaded machine
    stage.effects.takes(Duration::from_secs(2));
    stage.start(0).await;
    stage.busy().await;
    let at = (machine_now() + TimeDelta::seconds(2)).to_rfc3339();
    let poison = stage.task(json!({ "type": "schedule", "at": at, "overlap": "allow" })).await;
    let begun = Instant::now();
    let mut deaths = 0;
    // it dies whenever the poisonous one has begun
    while deaths < 3 {
        assert!(begun.elapsed() < PATIENCE, "only {deaths} deaths\n{}", stage.logs());
        let executed = stage.effects.journal().iter().filter(|effect| effect.task_id.to_string() == poison).count();
        if executed > deaths {
            stage.kill(0).await;
            deaths += 1;
            stage.start(0).await;
        }
        pause(Duration::from_millis(5)).await;
    }
    stage.effects.takes(Duration::from_millis(200));
    stage.ran(20).await;
    let verdict = stage.must_hold("a run that kills its process").await;
    assert!(verdict.fires > 10, "{verdict}");
    let records = stage.source.read().await;
    let run = records.runs.iter().find(|run| run.task_id.is_some_and(|id| id.to_string() == poison)).unwrap();
    let code = run.error.as_ref().map(|error| error.0["code"].clone());
    assert_eq!((run.state.as_str(), run.crashes, run.attempt), ("failed", 3, 3));
    assert_eq!(code, Some(json!("crashed")));
}

#[tokio::test]
async fn trigger_that_no_longer_parses_and_an_executor_that_is_gone_hold_up_no_other_task() {
    let mut stage = FaultHarness::sqlite().await;
    stage.start(0).await;
    stage.busy().await;
    let every_second = json!({ "type": "schedule", "interval": "1s", "overlap": "allow" });
    let (broken, gone) = (stage.task(every_second.clone()).await, stage.task(every_second).await);
    pause(Duration::from_secs(2)).await;
    stage.kill(0).await;
    // as a release leaves them that reads other triggers, and has other executors
    let interval = "json_set(spec, '$.trigger.interval', 'every full moon')";
    stage.source.damage(&format!("update tasks set spec = {interval} where id = x'{}'", hex_of(&broken))).await;
    let executor = "json_set(spec, '$.executor', 'retired')";
    stage.source.damage(&format!("update tasks set spec = {executor} where id = x'{}'", hex_of(&gone))).await;
    stage.start(0).await;
    let begun = Instant::now();
    while stage.get(&format!("/v1/tasks/{broken}")).await["status"] != "disabled" {
        assert!(begun.elapsed() < PATIENCE, "it is not disabled\n{}", stage.logs());
        pause(Duration::from_millis(50)).await;
    }
    let gone_of = |runs: &[crate::support::checker::RunRow]| {
        let code = |run: &crate::support::checker::RunRow| run.error.as_ref().map(|error| error.0["code"].clone());
        runs.iter().filter(|run| code(run) == Some(json!("executor_unknown"))).count()
    };
    while gone_of(&stage.source.read().await.runs) == 0 {
        assert!(begun.elapsed() < PATIENCE, "no run of the executor that is gone failed\n{}", stage.logs());
        pause(Duration::from_millis(50)).await;
    }
    pause(Duration::from_secs(2)).await;
    // the oracle can't say when it was due; of its runs the rest is judged
    stage.source.damage(&format!("delete from tasks where id = x'{}'", hex_of(&broken))).await;
    stage.tasks.retain(|task| *task != broken);
    let verdict = stage.must_hold("a trigger that does not parse, an executor that is gone").await;
    assert!(verdict.fires > 20, "{verdict}");
}

#[tokio::test]
async fn run_with_a_checkpoint_of_another_release_ends_with_a_reason_and_holds_up_no_other() {
    let stage = FaultHarness::sqlite().await;
    let scenario = stage.service(0).dir.path().join("scenario.toml");
    let steps = "[[steps]]\nturn = 1\ntext = \"Let me look.\"\n[[steps.calls]]\ntool = \"current_time\"\n\
                 [[steps]]\nturn = 2\ntext = \"It is late.\"\ndelay_seconds = 20.0\n";
    std::fs::write(&scenario, steps).unwrap();
    let mut stage = stage
        .with("REVEILLE_LLM__MODELS__MAIN__PROVIDER", "scripted")
        .with("REVEILLE_LLM__MODELS__MAIN__SCENARIO", &scenario.display().to_string());
    stage.start(0).await;
    stage.busy().await;
    let agent = json!({
        "tenant_id": "ann", "name": "agent", "trigger": { "type": "schedule", "cron": "@yearly" }, "output": null,
        "action": { "instruction": "Say what time it is.", "config": { "tools": ["current_time"] } },
    });
    let agent = stage.post("/v1/tasks", &agent).await["id"].as_str().unwrap().to_owned();
    stage.post(&format!("/v1/tasks/{agent}/run"), &json!({})).await;
    // once its first turn is a checkpoint
    let path = format!("/v1/runs?task_id={agent}");
    let begun = Instant::now();
    while stage.source.number("select count(*) from turns").await.unwrap() < 1 {
        assert!(begun.elapsed() < PATIENCE, "it has no first turn: {:#}", stage.get(&path).await);
        pause(Duration::from_millis(50)).await;
    }
    stage.kill(0).await;
    stage.source.damage("update turns set format = 99").await;
    stage.start(0).await;
    while stage.get(&path).await["items"][0]["state"] != "failed" {
        assert!(begun.elapsed() < PATIENCE, "it did not end: {:#}\n{}", stage.get(&path).await, stage.logs());
        pause(Duration::from_millis(50)).await;
    }
    // the others go on
    stage.ran(10).await;
    let run = stage.get(&path).await["items"][0].clone();
    assert_eq!(run["error"]["code"], "unknown_transcript_format", "{run:#}");
    stage.source.damage(&format!("delete from tasks where id = x'{}'", hex_of(&agent))).await;
    let verdict = stage.must_hold("a checkpoint of another release").await;
    assert!(verdict.fires > 5, "{verdict}");
}

fn hex_of(id: &str) -> String {
    id.replace('-', "")
}
