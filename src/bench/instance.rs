//! An instance of the service in this process: the real one, with the executor of the measurements besides its own.

use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};

use crate::app::{self, AppEnd, BuiltApp, Extras};
use crate::base::clock::{Clock, pause};
use crate::bench::env::on_bare;
use crate::bench::{BenchEnv, ExecutorProbe, Fixtures, Rate, Watch};
use crate::config::Config;
use crate::domain::task::TaskValidator;
use crate::engine::{Engine, RunningEngine};
use crate::executor::hub::Hub;
use crate::ports::bus::Bus;
use crate::store::Store;

/// The longest that a throughput may take.
pub const PATIENCE: Duration = Duration::from_secs(600);

/// Built, and not running.
pub struct Instance {
    pub store: Store,
    pub validator: TaskValidator,
    pub probe: ExecutorProbe,
    pub hub: Hub,
    pub bus: Arc<dyn Bus>,
    engine: Engine,
}

/// Its services are running.
pub struct StartedInstance {
    pub store: Store,
    pub validator: TaskValidator,
    pub probe: ExecutorProbe,
    pub hub: Hub,
    running: RunningEngine,
}

/// How much was done, by the record alone.
#[derive(Debug, Clone, PartialEq, sqlx_macros::FromRow)]
pub struct RunRecord {
    pub runs: i64,
    /// Of how many tasks.
    pub tasks: i64,
    /// Succeeded, at the first attempt.
    pub finished: i64,
    pub last: Option<DateTime<Utc>>,
}

impl Instance {
    /// One whose executor of the measurements does nothing, with room for all runs of a measurement.
    pub async fn build(place: &BenchEnv) -> anyhow::Result<Instance> {
        Instance::build_with(&place.config, None).await
    }

    /// One with this configuration. Its executor of the measurements hands runs to this executor of the service, or
    /// does nothing.
    pub async fn build_with(config: &Config, executor: Option<&str>) -> anyhow::Result<Instance> {
        let probe = ExecutorProbe::default();
        let extras = Extras { executors: vec![Arc::new(probe.clone())], ..Extras::default() };
        let BuiltApp { store, engine, http, bus, .. } =
            app::build(config, Clock::system(), extras, AppEnd::default(), |_| {}).await?;
        if let Some(executor) = executor {
            let target = http.executors.find(executor).context("the service has no such executor")?;
            probe.set_target(Arc::clone(target));
        }
        Ok(Instance { store, validator: http.validator.clone(), probe, hub: http.hub.clone(), bus, engine })
    }

    pub fn fixtures<'a>(&'a self, place: &'a BenchEnv) -> Fixtures<'a> {
        Fixtures { place, store: &self.store, validator: &self.validator }
    }

    pub async fn start(self) -> anyhow::Result<StartedInstance> {
        let Instance { store, validator, probe, hub, engine, .. } = self;
        Ok(StartedInstance { store, validator, probe, hub, running: engine.start().await? })
    }

    /// Ends it without a start, so that another process may have its database.
    pub async fn close(self) {
        self.store.close().await;
    }

    /// Starts it, waits until so many runs are finished on the record, and stops it; answers how fast that was.
    ///
    /// # Errors
    /// One was lost or doubled, or took more than one attempt.
    pub async fn run_all(self, place: &BenchEnv, runs: usize, tasks: usize) -> anyhow::Result<Rate> {
        let watch = Watch::start();
        let started = self.start().await?;
        started.probe.until_executed(runs as u64, PATIENCE).await?;
        until_recorded(place).await?;
        let rate = watch.rate(runs);
        let executed = started.probe.executed();
        started.stop().await;
        let record = record(place).await?;
        let (runs, tasks) = (runs as i64, tasks as i64);
        let right = (record.runs, record.tasks, record.finished, executed as i64) == (runs, tasks, runs, runs);
        anyhow::ensure!(right, "of {runs} runs of {tasks} tasks, {executed} executions came to {record:?}");
        Ok(rate)
    }
}

impl StartedInstance {
    pub fn fixtures<'a>(&'a self, place: &'a BenchEnv) -> Fixtures<'a> {
        Fixtures { place, store: &self.store, validator: &self.validator }
    }

    pub async fn stop(self) {
        self.running.stop().await;
        self.store.close().await;
    }
}

/// Returns once the end of every run is recorded: that is the statement that takes it from the queue.
pub async fn until_recorded(place: &BenchEnv) -> anyhow::Result<()> {
    while place.inside.count("select count(*) from (select 1 from queue limit 1) as left_over").await? > 0 {
        pause(Duration::from_millis(1)).await;
    }
    Ok(())
}

/// All runs, as the database has them.
pub async fn record(place: &BenchEnv) -> anyhow::Result<RunRecord> {
    let query = "select count(*) as runs, count(distinct task_id) as tasks,
                        count(case when state = 'succeeded' and attempt = 1 then 1 end) as finished,
                        max(finished_at) as last
                   from runs";
    Ok(on_bare!(&place.inside, |pool| sqlx::query_as(query).fetch_one(pool).await?))
}
