//! State that the steps of one run share.

use std::sync::Arc;
use std::sync::atomic::AtomicBool;

use chrono_tz::Tz;
use uuid::Uuid;

use crate::agent::{AgentStore, ApprovalContext, ChannelLimits, RunSlot, StopSignal, StreamSink};
use crate::base::clock::Clock;
use crate::base::id::Tenant;
use crate::executor::pipeline::parts::StepParts;
use crate::ports::tool::ToolHost;
use crate::ports::vault::credentials::UsedSecrets;

/// State that the steps of one run share.
pub struct StepContext {
    pub parts: Arc<StepParts>,
    pub tenant: Tenant,
    pub run_id: Uuid,
    pub task_id: Uuid,
    /// An execution of the run ended with its process, or because a part of the infrastructure was away.
    pub was_interrupted: bool,
    pub timezone: Tz,
    pub locale: Option<Arc<str>>,
    pub channel: Option<ChannelLimits>,
    /// Whom agents may ask.
    pub approval_context: ApprovalContext,
    pub host: Arc<dyn ToolHost>,
    pub store: Arc<dyn AgentStore>,
    pub stop: StopSignal,
    pub slot: Arc<dyn RunSlot>,
    pub sink: StreamSink,
    pub clock: Clock,
    /// The secrets that the run has used so far.
    pub used_secrets: UsedSecrets,
    /// The digest of the steps.
    pub steps: String,
    /// A missing field was told in this run, or is not to be told.
    pub missing_notified: AtomicBool,
}
