//! Usage of models and tools: by tenant, day, task and name, read as sums of days, tasks, models, tools or tenants.
//!
//! Rows are bounded by what runs use in a day, and kept for a bounded time, longer than the runs themselves. They are
//! written by [`counting`], as executions end; a run that is under way is not in them yet.

pub(in crate::store) mod counting;
pub(in crate::store) mod run_account;

use chrono::NaiveDate;
use uuid::Uuid;

use crate::base::id::Scope;
use crate::base::words::words;
use crate::store::db::text::text;
use crate::store::tx::StatementBuilder;
use crate::store::{Split, Store, StoreError};

words! {
    /// By which column usage is added up.
    #[derive(utoipa::ToSchema)]
    pub enum UsageGroup {
        /// By day, in UTC.
        Day = "day",
        /// By task.
        Task = "task",
        /// By model.
        Model = "model",
        /// By tool.
        Tool = "tool",
        /// By tenant.
        Tenant = "tenant",
    }
}

words! {
    /// Which sums of usage come first.
    #[derive(Default, utoipa::ToSchema)]
    pub enum UsageOrder {
        /// By their keys.
        #[default]
        Key = "key",
        /// The largest: by cost, then by tokens that were read, then by calls of tools.
        Largest = "largest",
    }
}

/// Which usage to add up, and how.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageFilter {
    /// By which column.
    pub by: UsageGroup,
    /// The first day.
    pub from: NaiveDate,
    /// The day behind the last.
    pub until: NaiveDate,
    /// Only of this task.
    pub task_id: Option<Uuid>,
    /// Which come first.
    pub order: UsageOrder,
    /// In the order of the keys: only those behind this one, for the next page.
    pub after: Option<String>,
    /// So many sums are left out, the first in the order.
    pub skip: i64,
    /// Most rows of the page.
    pub limit: i64,
}

/// Usage that belongs to one key.
#[derive(Debug, Clone, Default, PartialEq, sqlx_macros::FromRow)]
pub struct UsageSum {
    /// The day, task, model, tool or tenant. A task of all zeros stands for runs without one.
    pub key: String,
    /// Turns of models.
    pub turns: i64,
    /// Time that models took, in milliseconds.
    pub model_ms: i64,
    /// Tokens that models read, those of a cache included.
    pub input_tokens: i64,
    /// Tokens that models wrote, thinking included.
    pub output_tokens: i64,
    /// Of the tokens that were read, those that came from a cache.
    pub cache_read_tokens: i64,
    /// Of the tokens that were read, those that a cache has kept.
    pub cache_write_tokens: i64,
    /// Of the tokens that were written, those of thinking.
    pub reasoning_tokens: i64,
    /// Cost in micro-dollars.
    pub cost_micros: i64,
    /// Calls of tools.
    pub tool_calls: i64,
    /// Calls of tools that failed.
    pub tool_failures: i64,
    /// Time that tools took, in milliseconds.
    pub tool_ms: i64,
    /// Characters of results of tools, before they were cut.
    pub result_chars: i64,
}

const SUMS: &str = " as key,
    cast(coalesce(sum(case when kind = 'model' then calls end), 0) as bigint) as turns,
    cast(coalesce(sum(case when kind = 'model' then duration_ms end), 0) as bigint) as model_ms,
    cast(sum(input_tokens) as bigint) as input_tokens, cast(sum(output_tokens) as bigint) as output_tokens,
    cast(sum(cache_read_tokens) as bigint) as cache_read_tokens,
    cast(sum(cache_write_tokens) as bigint) as cache_write_tokens,
    cast(sum(reasoning_tokens) as bigint) as reasoning_tokens, cast(sum(cost_micros) as bigint) as cost_micros,
    cast(coalesce(sum(case when kind = 'tool' then calls end), 0) as bigint) as tool_calls,
    cast(coalesce(sum(case when kind = 'tool' then failures end), 0) as bigint) as tool_failures,
    cast(coalesce(sum(case when kind = 'tool' then duration_ms end), 0) as bigint) as tool_ms,
    cast(sum(result_chars) as bigint) as result_chars
    from usage_days where day >= ";

impl UsageGroup {
    fn column(self) -> &'static str {
        match self {
            UsageGroup::Day => "day",
            UsageGroup::Task => "task_id",
            UsageGroup::Model | UsageGroup::Tool => "name",
            UsageGroup::Tenant => "tenant_id",
        }
    }

    /// The key as text.
    fn key(self) -> Split {
        match self {
            UsageGroup::Day => Split { postgres: "cast(day as text)", sqlite: "day" },
            UsageGroup::Task => Split { postgres: "cast(task_id as text)", sqlite: "lower(hex(task_id))" },
            UsageGroup::Model | UsageGroup::Tool | UsageGroup::Tenant => Split::from(self.column()),
        }
    }

    /// Which rows have a key of this kind.
    fn condition(self) -> &'static str {
        match self {
            UsageGroup::Model => " and kind = 'model'",
            UsageGroup::Tool => " and kind = 'tool'",
            UsageGroup::Day | UsageGroup::Task | UsageGroup::Tenant => "",
        }
    }

    /// Whether this can be a key.
    pub fn takes(self, key: &str) -> bool {
        match self {
            UsageGroup::Day => key.parse::<NaiveDate>().is_ok(),
            UsageGroup::Task => Uuid::try_parse(key).is_ok(),
            UsageGroup::Model | UsageGroup::Tool | UsageGroup::Tenant => true,
        }
    }

    /// Adds the key behind which the page begins. One that can't be a key is behind none.
    fn push_after(self, query: &mut StatementBuilder<'_>, after: &str) {
        query.push(" and ").push(self.column()).push(" > ");
        match self {
            UsageGroup::Day => query.push_bind(after.parse::<NaiveDate>().unwrap_or_default()),
            UsageGroup::Task => query.push_bind(Uuid::try_parse(after).unwrap_or_default()),
            UsageGroup::Model | UsageGroup::Tool | UsageGroup::Tenant => query.push_bind(text(after).into_owned()),
        };
    }
}

impl Store {
    /// Sums of usage in the order that is asked for.
    pub async fn usage_sums(&self, scope: &Scope, filter: &UsageFilter) -> Result<Vec<UsageSum>, StoreError> {
        let UsageFilter { by, from, until, task_id, order, after, skip, limit } = filter;
        let mut read = self.db.read_in(scope).await?;
        let mut query = read.build("select ");
        query.push_split(by.key()).push(SUMS).push_bind(*from).push(" and day < ").push_bind(*until);
        if let Some(tenant) = scope.tenant() {
            query.push_key("tenant_id", text(tenant).into_owned());
        }
        if let Some(task_id) = task_id {
            query.push(" and task_id = ").push_bind(*task_id);
        }
        query.push(by.condition());
        if let Some(after) = after {
            by.push_after(&mut query, after);
        }
        query.push(" group by ").push(by.column()).push(" order by ").push(match order {
            UsageOrder::Key => "",
            // the columns of the sums by their numbers: their names are those of the rows, too
            UsageOrder::Largest => "9 desc, 4 desc, 10 desc, ",
        });
        query.push(by.column()).push(" limit ").push_bind(*limit).push(" offset ").push_bind(*skip);
        let mut sums: Vec<UsageSum> = query.finish().persistent(false).all().await?;
        read.end().await?;
        if *by == UsageGroup::Task {
            // SQLite has the bytes of an id alone
            sums.iter_mut().for_each(|sum| sum.key = Uuid::try_parse(&sum.key).unwrap_or_default().to_string());
        }
        Ok(sums)
    }

    /// Deletes up to `limit` rows of days before `before`; answers how many.
    pub async fn forget_usage_days(&self, before: NaiveDate, limit: i64) -> Result<u64, StoreError> {
        self.forget_by(
            "delete from usage_days where (day, tenant_id, task_id, kind, name) in (
                select day, tenant_id, task_id, kind, name from usage_days where day < $1 order by day limit $2)",
            before,
            limit,
        )
        .await
    }
}
