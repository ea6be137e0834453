//! Costs of writing: the limits of commits and of rows, and `sqlite_enqueue`.

use serde_json::json;

use crate::base::id::Scope;
use crate::bench::env::random_id;
use crate::bench::fixtures::draft;
use crate::bench::limits::{commits, rows};
use crate::bench::{Bench, BenchEnv, BenchFigure, FigureLimit, Instance, Rate, Watch};

/// The body of a row of a limit: as long as a task's spec.
pub const BODY: &str = r#"{"trigger": {"type": "schedule", "cron": "0 8 * * 1-5", "timezone": "Europe/Berlin", "catch_up": "latest", "overlap": "skip"}, "executor": "orchestrator", "action": {"instruction": "Sum up what came in since yesterday and say what is urgent.", "config": {}}, "max_runs": null, "timeout_seconds": 600, "retry": {"max_attempts": 1, "backoff_seconds": 30}, "pause_after_failures": null, "metadata": {}}"#;

/// The limits that every figure may be read beside.
pub async fn limits(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    bench.progress("limits: commits, and 100 rows at once");
    let (length, count) = (bench.size.commit_time(), bench.size.rows());
    let (one, many, rows) = BenchEnv::with(bench.at, async |place| {
        let one = commits::rate(&place.bare, 1, length).await?.value;
        let many = commits::rate(&place.bare, 16, length).await?.value;
        Ok((one, many, rows::rates(&place.bare, count, BODY).await?))
    })
    .await?;
    let commits = |clients: &str| format!("one-row commits, {clients}");
    bench.limits.push(FigureLimit::new("commits_1", commits("1 client"), "commits/s", one));
    bench.limits.push(FigureLimit::new("commits_16", commits("16 clients"), "commits/s", many));
    let words = |done| format!("rows as wide as a task {done}, 100 in a statement and commit");
    bench.limits.push(FigureLimit::new("insert_100", words("inserted"), "rows/s", rows.inserted));
    bench.limits.push(FigureLimit::new("update_100", words("updated"), "rows/s", rows.updated));
    Ok(())
}

/// Run now, one after the other, beside one-row commits.
pub async fn sqlite_enqueue(bench: &mut Bench<'_>) -> anyhow::Result<()> {
    if !bench.includes("sqlite_enqueue") {
        return Ok(());
    }
    let at = bench.at.on_sqlite();
    let (starts, length) = (bench.size.starts * 4, bench.size.commit_time());
    let doing = format!("sqlite_enqueue: {starts} runs");
    let (bare, ours) = bench
        .rounds(&at, &doing, async |place| {
            let limit = commits::rate(&place.bare, 1, length).await?;
            let instance = Instance::build(place).await?;
            let trigger = json!({ "type": "schedule", "interval": "1d", "overlap": "allow" });
            let task = instance.fixtures(place).task("ann", &draft(trigger)).await?;
            let watch = Watch::start();
            for _ in 0..starts {
                let now = instance.store.clock().now();
                instance.store.run_now(&Scope::Every, task.id, random_id(), None, now, None).await?;
            }
            let value = watch.rate(starts);
            let queued = place.inside.count("select count(*) from queue").await?;
            anyhow::ensure!(queued == starts as i64, "{queued} of {starts} runs are queued");
            instance.store.close().await;
            Ok((limit, value))
        })
        .await?;
    let (limit, value) = (Rate::median(bare), Rate::median(ours));
    let words = "SQLite, synchronous = FULL: one-row commits";
    bench.limits.push(FigureLimit::new("sqlite_commits", words, "commits/s", limit.value));
    let what = "run now, one after the other, on SQLite with synchronous = FULL";
    let figure = BenchFigure::new("sqlite_enqueue", what, "runs/s", starts, value.value);
    let figure = figure.with_limit("SQLite's one-row commits", limit.value).at_least(0.7);
    bench.figures.push(limit.profile_limit(value.profile(figure)));
    Ok(())
}
