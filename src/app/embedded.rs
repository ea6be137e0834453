//! A service inside another program: started from code with additions of its own, and asked without HTTP.
//!
//! It is the whole service of `reveille serve`: a task that is created here is stored, fires and is seen over HTTP.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use serde_json::Value;

use crate::agent::gate::GateCheck;
use crate::agent::verify::Verifier;
use crate::agent::{ContextSource, PendingAgents};
use crate::app::{App, AppHandle, Extras};
use crate::base::clock::pause;
use crate::base::id::{Scope, Tenant, new_id};
use crate::config::Config;
use crate::domain::run::{Run, RunState};
use crate::domain::task::{Draft, Task};
use crate::executor::Executor;
use crate::executor::post_process::PostProcess;
use crate::ports::channel::Channel;
use crate::ports::llm::{Model, OwnEncoder, OwnModel, TokenEncoder};
use crate::ports::tool::Tool;

/// Between two looks at a run.
const LOOK: Duration = Duration::from_millis(10);

/// A service to be started.
#[derive(Default)]
pub struct AppBuilder {
    config: Config,
    extras: Extras,
    scratch: Option<PathBuf>,
}

impl AppBuilder {
    /// Takes this configuration instead of the defaults.
    pub fn config(mut self, config: Config) -> AppBuilder {
        self.config = config;
        self
    }

    /// Keeps everything in a new folder, which is removed when the service is stopped, and listens on a free port.
    pub fn with_temp_dir(mut self) -> AppBuilder {
        let dir = std::env::temp_dir().join(format!("reveille-{:016x}", fastrand::u64(..)));
        self.config.server.data_dir = dir.display().to_string();
        self.config.server.listen = "127.0.0.1:0".into();
        self.scratch = Some(dir);
        self
    }

    /// Adds an executor; tasks name it in `executor`.
    pub fn executor(mut self, executor: impl Executor + 'static) -> AppBuilder {
        self.extras.executors.push(Arc::new(executor));
        self
    }

    /// Adds a tool for agents, steps and conditions.
    pub fn tool(mut self, tool: impl Tool + 'static) -> AppBuilder {
        self.extras.tools.push(Arc::new(tool));
        self
    }

    /// Adds a model; `[llm]`, tasks and agents name it like one of `[llm.models]`, and without those it is the default
    /// if its name is `main`. It costs nothing.
    pub fn model(mut self, name: &str, model: impl Model + 'static) -> AppBuilder {
        self.extras.models.push(OwnModel { name: name.to_owned(), model: Arc::new(model) });
        self
    }

    /// Adds an encoder, which counts tokens exactly for the models of this name at their provider, or with a `*` behind
    /// it for those whose names begin so. It is used where conversations are fitted into the window of a model, and
    /// where budgets are reserved.
    pub fn encoder(mut self, models: &str, encoder: impl TokenEncoder + 'static) -> AppBuilder {
        self.extras.encoders.push(OwnEncoder { models: models.to_owned(), encoder: Arc::new(encoder) });
        self
    }

    /// Adds a channel; the `output` of a task names it.
    pub fn channel(mut self, channel: impl Channel + 'static) -> AppBuilder {
        self.extras.channels.push(Arc::new(channel));
        self
    }

    /// Adds a check of the gate, behind the built-in ones: it judges messages before a model is asked.
    pub fn gate_check(mut self, check: impl GateCheck + 'static) -> AppBuilder {
        self.extras.gate_checks.push(Arc::new(check));
        self
    }

    /// Adds a source of context to `prepare_context`: its text stands behind the instructions of each agent.
    pub fn context_source(mut self, source: impl ContextSource + 'static) -> AppBuilder {
        self.extras.context_sources.push(Arc::new(source));
        self
    }

    /// Adds agents to `check_pending_agents`: one that waits for a message answers it, hands its result to the model,
    /// or refuses it.
    pub fn pending_agents(mut self, agents: impl PendingAgents + 'static) -> AppBuilder {
        self.extras.pending_agents.push(Arc::new(agents));
        self
    }

    /// Adds a verifier: it judges answers before anybody is told of them.
    pub fn verifier(mut self, verifier: impl Verifier + 'static) -> AppBuilder {
        self.extras.verifiers.push(Arc::new(verifier));
        self
    }

    /// Adds a step behind an answer, once the end of its run is on the record: it delays and fails nothing.
    pub fn post_process(mut self, step: impl PostProcess + 'static) -> AppBuilder {
        self.extras.post_process.push(Arc::new(step));
        self
    }

    /// Supervises MCP servers that have a `command` by this reveille binary; without one they are unavailable.
    pub fn mcp_supervisor(mut self, program: impl Into<PathBuf>) -> AppBuilder {
        self.extras.mcp_supervisor = Some(program.into());
        self
    }

    /// Starts the service. Where the program has chosen no provider for TLS, it becomes that of this crate.
    ///
    /// # Errors
    /// As [`App::start`].
    pub async fn start(self) -> anyhow::Result<App> {
        let _ = rustls::crypto::aws_lc_rs::default_provider().install_default();
        let waiting = |why: &str| tracing::warn!("waiting for the database: {why}");
        let mut app = App::start(&self.config, self.extras, waiting).await?;
        app.scratch = self.scratch;
        Ok(app)
    }
}

impl App {
    /// A service with the built-in executors and tools and no configuration, for further additions.
    pub fn builder() -> AppBuilder {
        AppBuilder::default()
    }

    /// Calls of the service from this process, for as long as it runs.
    pub fn handle(&self) -> AppHandle {
        self.handle.clone()
    }

    /// Creates a task of a tenant from the JSON form of the API. It is active at once.
    ///
    /// # Errors
    /// Every fault of the task with its place, or why it can't be stored.
    pub async fn create_task(&self, tenant: &str, task: &Value) -> anyhow::Result<Task> {
        let tenant = Tenant::new(tenant).map_err(|why| anyhow::anyhow!("the tenant: {why}"))?;
        let now = self.store.clock().now();
        let draft = Draft::parse(Ok(tenant), task, &self.validator, now)?;
        let (task, next) = Task::new(new_id(now), draft, now).map_err(|fault| anyhow::anyhow!(fault.message))?;
        self.store.create_task(&task, next.map(|next| next.nominal), None).await?;
        Ok(task)
    }

    /// Runs a task now, whatever its trigger says, and waits until the run has ended, or waits for a person or another
    /// system.
    ///
    /// # Errors
    /// Why it can't be asked for. A run that fails is no error: its state says so.
    pub async fn run_task(&self, task: &Task, input: Option<Value>) -> anyhow::Result<Run> {
        let now = self.store.clock().now();
        let id = new_id(now);
        self.store.run_now(&Scope::Every, task.id, id, input, now, None).await?;
        loop {
            let run = self.store.get_run(&Scope::Every, id).await.context("the run that was asked for")?;
            if !matches!(run.state, RunState::Queued | RunState::Running) {
                return Ok(run);
            }
            pause(LOOK).await;
        }
    }
}
