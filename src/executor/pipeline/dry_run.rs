//! A pipeline tried out: what each step would do with a sample, its side effects off. Saves nothing.
//!
//! Steps that compute are computed. Steps that read are executed only where that is asked for (`live`), through a host
//! that refuses everything. All else is shown with everything put in, and skipped; `mocks` say what it would have
//! given.

mod trial_host;

use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use chrono::{DateTime, Utc};
use serde_json::{Map, Value, json};
use uuid::Uuid;

use crate::agent::{ApprovalContext, StopSignal, TRIGGER, UncountedSlot};
use crate::base::clock::Clock;
use crate::base::compute::steps_to_read;
use crate::base::expr::MissingField;
use crate::base::id::Tenant;
use crate::base::invalid::ValidationErrors;
use crate::domain::run::RunFault;
use crate::executor::pipeline::attempt::{error_value, excess, too_large};
use crate::executor::pipeline::context::StepContext;
use crate::executor::pipeline::dry_run::trial_host::TrialHost;
use crate::executor::pipeline::kind::{Effect, StepAction, StepError, StepFault, StepKind};
use crate::executor::pipeline::ledger::VALUE_BYTES;
use crate::executor::pipeline::schema::OnError;
use crate::executor::pipeline::scope::{FireScope, StepScope};
use crate::executor::pipeline::spec::{ForEach, PipelineSpec, StepSpec, StepWork};
use crate::executor::pipeline::{Pipeline, StepParts, output};
use crate::ports::vault::credentials::UsedSecrets;

/// Items of a `for_each` that are shown.
const ITEMS_SHOWN: usize = 10;
/// How long everything may take.
const LIMIT: Duration = Duration::from_secs(25);

/// Sample input for a trial of a pipeline.
#[derive(Debug, Clone, Default)]
pub struct Sample {
    /// Variable `event`.
    pub event: Value,
    /// Variable `value`.
    pub value: Value,
    /// Variable `previous`.
    pub previous: Value,
    /// Variable `input`.
    pub input: Value,
    /// Variable `state`, by name.
    pub state: Map<String, Value>,
    /// Values of steps by name, instead of executing them.
    pub mocks: Map<String, Value>,
    /// Executes what only reads.
    pub live: bool,
}

/// Result of the trial.
#[derive(Debug, Clone, PartialEq, serde::Serialize, utoipa::ToSchema)]
pub struct DryRun {
    /// In order, as far as the run would come: `{name, kind}` and `value`, or `error`, or `skipped` with the `request`
    /// (of one beyond 256 KiB its length, `too_long_to_show`); `missing` names the field that an expression looked for
    /// and that the sample does not have.
    #[schema(value_type = Vec<Object>)]
    pub steps: Vec<Value>,
    /// `succeeded`, `filtered`, `stopped`, `failed`; `unknown` where a value is missing that only the effect gives.
    pub outcome: String,
    /// The answer of the run, where that is known.
    pub output: Option<Value>,
}

impl Pipeline {
    /// Tries the steps of `config`, which stand at `/config`.
    ///
    /// # Errors
    /// What is wrong with the steps.
    pub async fn dry_run(
        &self,
        tenant: &Tenant,
        config: &Map<String, Value>,
        sample: Sample,
        clock: &Clock,
    ) -> Result<DryRun, ValidationErrors> {
        let (parts, config) = (Arc::clone(&self.0), config.clone());
        let steps = steps_to_read(&Value::Object(config.clone()));
        let mocks: Vec<String> = sample.mocks.keys().cloned().collect();
        let read = move || read_for(&parts, &config, &mocks);
        let panicked = |_| ValidationErrors::one("/config", "can't be read");
        let spec = self.0.compute.run_if_costly(tenant.as_str(), steps, read).await.map_err(panicked)??;
        let world = StepContext {
            parts: self.0.clone(),
            tenant: tenant.clone(),
            run_id: Uuid::nil(),
            task_id: Uuid::nil(),
            was_interrupted: false,
            timezone: chrono_tz::Tz::UTC,
            locale: None,
            channel: None,
            approval_context: ApprovalContext { task_id: None, source: TRIGGER, rules: None },
            host: Arc::new(TrialHost),
            store: Arc::new(TrialHost),
            stop: StopSignal::new(),
            slot: Arc::new(UncountedSlot),
            sink: Arc::new(|_| {}),
            clock: clock.clone(),
            used_secrets: UsedSecrets::default(),
            steps: String::new(),
            // the trial itself shows what is missing
            missing_notified: AtomicBool::new(true),
        };
        Ok(TrialState { world, live: sample.live, until: tokio::time::Instant::now() + LIMIT }.run(&spec, sample).await)
    }
}

/// The steps, and whether each mock is of one of them.
fn read_for(
    parts: &StepParts,
    config: &Map<String, Value>,
    mocks: &[String],
) -> Result<PipelineSpec, ValidationErrors> {
    let mut faults = ValidationErrors::new();
    let spec = PipelineSpec::read(config, "/config", parts, &mut faults);
    for name in mocks {
        if spec.as_ref().is_some_and(|spec| spec.steps.iter().all(|step| step.name != *name)) {
            faults.add(format!("/mocks/{name}"), format!("there is no step `{name}`"));
        }
    }
    spec.filter(|_| faults.is_empty()).ok_or(faults)
}

/// Stand-ins for `run` and `task` in a trial.
fn placeholder(tenant: &Tenant, now: DateTime<Utc>) -> (Value, Value) {
    let run = json!({
        "id": Uuid::nil(), "task_id": Uuid::nil(), "tenant_id": tenant.as_str(), "fire_key": "dry-run",
        "trigger_type": "dry_run", "scheduled_for": now, "missed": null, "event_ids": [],
    });
    let task = json!({
        "id": Uuid::nil(), "name": "dry run", "tenant_id": tenant.as_str(), "metadata": {}, "instruction": "",
    });
    (run, task)
}

struct TrialState {
    world: StepContext,
    live: bool,
    until: tokio::time::Instant,
}

/// Result of one step.
enum StepTrial {
    Value(Value),
    Failed(RunFault),
    /// It was not executed; this is what it would have done.
    Skipped(Value),
}

impl TrialState {
    async fn run(&self, spec: &PipelineSpec, sample: Sample) -> DryRun {
        let Sample { event, value, previous, input, state, mocks, .. } = sample;
        let events = if event.is_null() { vec![] } else { vec![event.clone()] };
        let (run, task) = placeholder(&self.world.tenant, self.world.clock.now());
        let fire = FireScope { event, events, value, previous, input };
        let mut scope = StepScope::new(&self.world, fire, run, task, state).await;
        let (mut steps, mut outcome, mut last) = (Vec::new(), "succeeded", Some(Value::Null));
        for (step, position) in spec.steps.iter().zip(1..) {
            let mut shown = json!({ "name": step.name, "kind": step.kind });
            let tried = match mocks.get(&step.name) {
                Some(mock) => {
                    shown["mocked"] = json!(true);
                    StepTrial::Value(mock.clone())
                }
                None => self.step(step, position, &scope).await,
            };
            if let Some(missing) = self.missing(step, &tried, &scope).await {
                shown["missing"] = json!(missing);
            }
            match tried {
                StepTrial::Value(value) => {
                    shown["value"] = value.clone();
                    steps.push(shown);
                    if let StepWork::One(kind) = &step.what
                        && kind.ends_run(&value)
                    {
                        return DryRun { steps, outcome: "filtered".into(), output: None };
                    }
                    scope = self.world.after_step(scope, step, true, value.clone()).await;
                    last = Some(value);
                }
                StepTrial::Skipped(request) => {
                    shown["skipped"] = json!(true);
                    shown["request"] = request;
                    steps.push(shown);
                    if step.kind == "store"
                        && let Some(shown) = steps.last()
                    {
                        // what would have been stored is there for later steps
                        let value = shown["request"].get("value").cloned().unwrap_or_default();
                        scope = self.world.after_step(scope, step, true, value).await;
                    }
                    last = None;
                }
                StepTrial::Failed(fault) => {
                    // what a skipped step would have given is not known here, and that is no failure of this one
                    let unknown = fault.code == "missing" && steps.iter().any(|step| step["skipped"] == json!(true));
                    shown["error"] = error_value(&fault)["error"].clone();
                    if unknown {
                        shown["hint"] = json!("a step before was skipped: give its value in `mocks`, or set `live`");
                    }
                    steps.push(shown);
                    match step.on_error {
                        _ if unknown => outcome = "unknown",
                        OnError::Continue => {
                            scope = self.world.after_step(scope, step, false, error_value(&fault)).await;
                        }
                        OnError::Stop => return DryRun { steps, outcome: "stopped".into(), output: None },
                        OnError::Fail => return DryRun { steps, outcome: "failed".into(), output: None },
                    }
                    last = (!unknown).then(|| error_value(&fault));
                }
            }
        }
        let output = match (&spec.output, last) {
            (None, last) => last,
            (template, last) => output(template.as_ref(), &self.world, &scope, last.unwrap_or_default()).await.ok(),
        };
        let outcome = if output.is_none() && outcome == "succeeded" { "unknown" } else { outcome };
        DryRun { steps, outcome: outcome.into(), output }
    }

    /// The field that a step of an expression looked for in vain, where that is what came of it.
    async fn missing(&self, step: &StepSpec, tried: &StepTrial, scope: &StepScope) -> Option<MissingField> {
        let StepWork::One(kind) = &step.what else { return None };
        let missed = match tried {
            StepTrial::Value(value) => kind.ends_run(value),
            StepTrial::Failed(fault) => fault.code == "missing",
            StepTrial::Skipped(_) => false,
        };
        if !missed {
            return None;
        }
        let (kind, steps) = (Arc::clone(kind), scope.steps_to_add(0));
        self.world.compute(scope, steps, move |scope| Ok::<_, StepFault>(kind.missing(scope))).await.ok().flatten()
    }

    async fn step(&self, step: &StepSpec, position: i64, scope: &StepScope) -> StepTrial {
        match &step.what {
            StepWork::One(kind) => self.one(step, kind, position, None, scope).await,
            StepWork::Each(each) => match self.each(each, position, scope).await {
                Ok(tried) => tried,
                Err(fault) => StepTrial::Failed(fault.fault),
            },
        }
    }

    async fn one(
        &self,
        step: &StepSpec,
        kind: &Arc<dyn StepKind>,
        position: i64,
        index: Option<u32>,
        scope: &StepScope,
    ) -> StepTrial {
        let executed = match kind.effect() {
            Effect::Nothing => true,
            Effect::Read => self.live,
            Effect::Repeatable | Effect::Once => false,
        };
        if !executed {
            let (kind, steps) = (Arc::clone(kind), kind.steps(scope));
            return match self.world.compute(scope, steps, move |scope| kind.shown(scope).map(shortened)).await {
                Ok(request) => StepTrial::Skipped(request),
                Err(fault) => StepTrial::Failed(fault.fault),
            };
        }
        let left = self.until.saturating_duration_since(tokio::time::Instant::now()).min(step.timeout);
        let (world, step_name, cut) = (&self.world, step.name.as_str(), Mutex::default());
        let act = StepAction {
            world,
            scope,
            step: step_name,
            index,
            position,
            begun_before: false,
            slot: &world.slot,
            time_limit: left,
            cut: &cut,
        };
        match tokio::time::timeout(left, kind.perform(&act)).await {
            Ok(Ok(done)) => excess(&done.value, scope).map_or(StepTrial::Value(done.value), StepTrial::Failed),
            Ok(Err(StepError::Fault(fault))) => StepTrial::Failed(fault.fault),
            Ok(Err(StepError::Run(error))) => StepTrial::Failed(RunFault::new("refused", format!("{error:?}"))),
            Ok(Err(StepError::Asks(_))) => StepTrial::Failed(RunFault::new("refused", "a dry run asks nobody")),
            Err(_) => StepTrial::Failed(RunFault::new("timeout", format!("no end within {} s", left.as_secs()))),
        }
    }

    async fn each(&self, each: &ForEach, position: i64, scope: &StepScope) -> Result<StepTrial, StepFault> {
        let items = each.list(&self.world, scope).await?;
        let pure = each.kind().effect() == Effect::Nothing;
        let (mut values, mut requests, mut bytes, mut shown) = (Vec::new(), Vec::new(), 0, 0);
        for (item, index) in items.iter().zip(0_u32..).take(if pure { items.len() } else { ITEMS_SHOWN }) {
            let scope = scope.with_item(index, item);
            match self.one(&each.step, each.kind(), position, Some(index), &scope).await {
                StepTrial::Value(value) => {
                    bytes += value.to_string().len();
                    values.push(value);
                }
                StepTrial::Skipped(request) if shown <= VALUE_BYTES => {
                    shown += request.to_string().len();
                    requests.push(request);
                }
                StepTrial::Skipped(_) => {}
                StepTrial::Failed(fault) if each.step.on_error == OnError::Continue => values.push(error_value(&fault)),
                StepTrial::Failed(fault) => return Ok(StepTrial::Failed(fault)),
            }
            if bytes > VALUE_BYTES {
                return Ok(StepTrial::Failed(too_large("the values of all items together")));
            }
        }
        Ok(match values.len() == items.len() {
            true => StepTrial::Value(Value::Array(values)),
            false => StepTrial::Skipped(json!({ "items": items.len(), "first": requests, "values": values })),
        })
    }
}

/// A request that a step would make, as it is shown: of a long one its length alone.
fn shortened(request: Value) -> Value {
    match request.to_string().len() {
        ..=VALUE_BYTES => request,
        bytes => json!({ "too_long_to_show": bytes }),
    }
}
