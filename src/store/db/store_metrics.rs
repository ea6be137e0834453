//! Counts that the store alone knows, because only it sees the end of each transaction: instants that were recorded as
//! skipped, writes that were refused because the lease was lost, and waits for a connection.
//!
//! Counted after the commit, so what was rolled back is not in it. Nothing survives a restart.

use std::sync::Arc;

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use sqlx::{Pool, Sqlite};

use crate::base::metrics::Metrics;
use crate::domain::budget::{BudgetRefusal, Spend};
use crate::domain::quota::Quota;
use crate::domain::run::TranscriptEntry;
use crate::domain::run::skip_tally::word_of;
use crate::store::Store;
use crate::store::db::Db;
use crate::store::db::connections::Connections;

/// Name of models that nobody named, and of tools that are not there.
const UNKNOWN: &str = "unknown";

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    write: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RefusedCount {
    quota: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct BudgetLabels {
    scope: &'static str,
    quantity: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ModelLabel {
    model: String,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct TokenLabels {
    model: String,
    kind: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ToolCallLabels {
    tool: String,
    result: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NamedPool {
    pool: &'static str,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RemovedFiles {
    reason: &'static str,
}

/// The counters of one store. Cheap to clone; all clones count together.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct StoreMetrics {
    skipped: Family<Reason, Counter>,
    fenced: Family<Write, Counter>,
    refused: Family<RefusedCount, Counter>,
    budget_refused: Family<BudgetLabels, Counter>,
    budget_tokens: Counter,
    budget_cost: Counter,
    model_turns: Family<ModelLabel, Counter>,
    model_tokens: Family<TokenLabels, Counter>,
    model_cost: Family<ModelLabel, Counter>,
    tool_calls: Family<ToolCallLabels, Counter>,
    data_files: Counter,
    data_file_bytes: Counter,
    data_files_removed: Family<RemovedFiles, Counter>,
    extractions_dropped: Counter,
}

impl StoreMetrics {
    /// Instants were recorded as skipped. They are counted by the word of the reason: what a fault says would be a
    /// series for each text that a tenant makes up.
    pub(in crate::store) fn skipped(&self, reason: &str, count: usize) {
        if count > 0 {
            self.skipped.get_or_create(&Reason { reason: word_of(reason).to_owned() }).inc_by(count as u64);
        }
    }

    /// Counts skipped instants, one for each reason.
    pub(in crate::store) fn each_skipped<R: AsRef<str>>(&self, reasons: &[R]) {
        reasons.iter().for_each(|reason| self.skipped(reason.as_ref(), 1));
    }

    /// Something was refused because its tenant has as much as it may have.
    pub(in crate::store) fn refused(&self, quota: Quota) {
        self.refused.get_or_create(&RefusedCount { quota: quota.as_str() }).inc();
    }

    /// A call of a model was not made, because a budget has not as much left.
    pub(in crate::store) fn budget_refused(&self, refusal: BudgetRefusal) {
        let BudgetRefusal { scope, quantity } = refusal;
        let labels = BudgetLabels { scope: scope.as_str(), quantity: quantity.as_str() };
        self.budget_refused.get_or_create(&labels).inc();
    }

    /// A call of a model came to so much, and a budget of a day has paid it.
    pub(in crate::store) fn budget_spent(&self, spent: Spend) {
        self.budget_tokens.inc_by(spent.tokens.max(0) as u64);
        self.budget_cost.inc_by(spent.cost_micros.max(0) as u64);
    }

    /// These entries were stored. Models are those of the settings, and a tool that is not there counts as `unknown`,
    /// so labels are bounded whatever models say. An append that is repeated because its answer was lost counts twice.
    pub(in crate::store) fn used<'e>(&self, entries: impl Iterator<Item = &'e TranscriptEntry>) {
        for entry in entries {
            if entry.usage.turns > 0 {
                self.used_model(entry);
            }
            if let Some(record) = &entry.tool_record {
                let tool = if record.is_known { record.name.clone() } else { UNKNOWN.into() };
                let result = if record.success { "ok" } else { "error" };
                self.tool_calls.get_or_create(&ToolCallLabels { tool, result }).inc();
            }
        }
    }

    fn used_model(&self, entry: &TranscriptEntry) {
        let (usage, call) = (entry.usage, entry.model_call.as_ref());
        let model = call.map_or(UNKNOWN, |call| &call.model).to_owned();
        let parts = call.map(|call| call.tokens).unwrap_or_default();
        for (kind, tokens) in [
            ("input", usage.input_tokens),
            ("output", usage.output_tokens),
            ("cache_read", parts.cache_read),
            ("cache_write", parts.cache_write),
            ("reasoning", parts.reasoning),
        ] {
            if tokens > 0 {
                self.model_tokens.get_or_create(&TokenLabels { model: model.clone(), kind }).inc_by(tokens as u64);
            }
        }
        let label = ModelLabel { model };
        self.model_turns.get_or_create(&label).inc_by(usage.turns as u64);
        self.model_cost.get_or_create(&label).inc_by(usage.cost_micros.max(0) as u64);
    }

    /// A data file of so many bytes was written.
    pub(in crate::store) fn data_file_written(&self, bytes: i64) {
        self.data_files.inc();
        self.data_file_bytes.inc_by(bytes.max(0) as u64);
    }

    /// Data files were given up: for their `age`, for the `size` of all, or for the `quota` of their tenant.
    pub(in crate::store) fn data_files_removed(&self, reason: &'static str, count: u64) {
        if count > 0 {
            self.data_files_removed.get_or_create(&RemovedFiles { reason }).inc_by(count);
        }
    }

    /// So many runs are not read for facts, because too many of their tenants wait for that; whether they are the
    /// first.
    pub(in crate::store) fn extractions_dropped(&self, count: usize) -> bool {
        self.extractions_dropped.inc_by(count as u64) == 0
    }

    /// Writes of this kind changed nothing, because somebody else had the lease by then.
    pub(in crate::store) fn fenced(&self, write: &'static str, count: usize) {
        if count > 0 {
            self.fenced.get_or_create(&Write { write }).inc_by(count as u64);
        }
    }
}

impl StoreMetrics {
    fn show_data_files(&self, metrics: &Metrics) {
        let help = "Data files of results that were written, those too that took the place of an earlier one";
        metrics.register("data_files_written", help, self.data_files.clone());
        metrics.register(
            "data_file_bytes_written",
            "Bytes of data files that were written",
            self.data_file_bytes.clone(),
        );
        metrics.register(
            "data_files_removed",
            "Data files that were given up: for their `age`, for the `size` of all, or for the `quota` of their tenant",
            self.data_files_removed.clone(),
        );
    }

    fn show_usage(&self, metrics: &Metrics) {
        metrics.register("model_turns", "Answers of models that are on the record, by model", self.model_turns.clone());
        metrics.register(
            "model_tokens",
            "Tokens of answers of models, by model and kind; those of caches are part of `input`, and `reasoning` of `output`",
            self.model_tokens.clone(),
        );
        metrics.register("model_cost_micros", "Micro-dollars of answers of models, by model", self.model_cost.clone());
        metrics.register(
            "tool_calls",
            "Calls of tools that have ended, by tool and result; `unknown` are those of tools that are not there",
            self.tool_calls.clone(),
        );
    }
}

/// How often somebody had to wait for a connection, by pool.
#[derive(Debug, Clone, Default)]
pub(in crate::store) struct Waits(Arc<Family<NamedPool, Counter>>);

impl Waits {
    /// To be called before a connection is taken: counts if none is free and no more may be opened.
    pub(in crate::store) fn record_acquire(&self, name: &'static str, pool: &impl MeasuredPool) {
        if pool.usage(name).is_exhausted() {
            self.0.get_or_create(&NamedPool { pool: name }).inc();
        }
    }
}

/// The connections of one pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PoolUse {
    /// `shared`, `engine` and `quick` on Postgres, `readers`, `tenant_readers` and `writer` on SQLite.
    pub pool: &'static str,
    /// Connections in use.
    pub in_use: u32,
    /// Connections that are open and free.
    pub idle: u32,
    /// Connections that may be open at most.
    pub most: u32,
}

impl PoolUse {
    fn of(pool: &'static str, open: u32, idle: u32, most: u32) -> PoolUse {
        PoolUse { pool, in_use: open.saturating_sub(idle), idle, most }
    }

    fn is_exhausted(&self) -> bool {
        self.in_use >= self.most
    }
}

/// A pool whose connections are counted.
pub(in crate::store) trait MeasuredPool {
    fn usage(&self, name: &'static str) -> PoolUse;
}

impl MeasuredPool for Connections {
    fn usage(&self, name: &'static str) -> PoolUse {
        let (open, idle, most) = self.counted();
        PoolUse::of(name, open, idle, most)
    }
}

impl MeasuredPool for Pool<Sqlite> {
    fn usage(&self, name: &'static str) -> PoolUse {
        PoolUse::of(name, self.size(), self.num_idle() as u32, self.options().get_max_connections())
    }
}

impl Store {
    /// Shows what is counted here from now on.
    pub fn show_counts(&self, metrics: &Metrics) {
        metrics.register(
            "skips",
            "Instants, matches and runs recorded as skipped, by their reason",
            self.counts.skipped.clone(),
        );
        metrics.register(
            "writes_fenced",
            "Writes that changed nothing because the lease was lost, by what was written",
            self.counts.fenced.clone(),
        );
        metrics.register(
            "quota_refusals",
            "Requests that were refused because their tenant has as much as it may have, by quota",
            self.counts.refused.clone(),
        );
        metrics.register(
            "budget_refusals",
            "Calls of models that were not made because a budget has not as much left, by whose and of what",
            self.counts.budget_refused.clone(),
        );
        metrics.register("budget_tokens", "Tokens that budgets of a day have paid", self.counts.budget_tokens.clone());
        metrics.register(
            "budget_cost_micros",
            "Micro-dollars that budgets of a day have paid",
            self.counts.budget_cost.clone(),
        );
        metrics.register(
            "extractions_dropped",
            "Ended runs that are not read for facts, because too many of their tenant waited for that",
            self.counts.extractions_dropped.clone(),
        );
        self.counts.show_usage(metrics);
        self.counts.show_data_files(metrics);
        self.unreadable.register(metrics);
        let waits = match &self.db {
            Db::Postgres { waits, .. } | Db::Sqlite { waits, .. } => Family::clone(&waits.0),
        };
        metrics.register("pool_waits", "Times that no connection of the pool was free when one was wanted", waits);
        self.show_queues(metrics);
    }

    /// How the connections are used now.
    pub fn pools(&self) -> Vec<PoolUse> {
        match &self.db {
            Db::Postgres { pool, engine, quick, .. } => {
                vec![pool.usage("shared"), engine.usage("engine"), quick.usage("quick")]
            }
            Db::Sqlite { readers, tenant_readers, writer, .. } => {
                vec![readers.usage("readers"), tenant_readers.pool().usage("tenant_readers"), writer.usage("writer")]
            }
        }
    }
}
