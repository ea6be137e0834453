//! Usage over HTTP: what runs have used of models and tools, as sums by day, task, model, tool or tenant.

use chrono::{NaiveDate, TimeDelta};
use serde::Serialize;

use crate::base::token::Permission;
use crate::domain::budget::day_of;
use crate::http::error::ApiError;
use crate::http::request::{Call, ForwardPage, Items, Json, NamePage, Query};
use crate::store::{RowPage, UsageFilter, UsageGroup, UsageOrder, UsageSum};

/// Days that are added up where no first day is named.
const USUAL_DAYS: i64 = 30;
/// Most days that are added up.
const MOST_DAYS: i64 = 92;

/// Usage that belongs to one key.
#[derive(Debug, Clone, PartialEq, Serialize, utoipa::ToSchema)]
pub struct UsageView {
    /// The day, task, model, tool or tenant. A task of all zeros stands for runs without one; `unknown` for a model
    /// that nobody named, and for tools that are not there.
    #[schema(example = "2026-12-24")]
    pub key: String,
    /// Turns of models.
    pub turns: i64,
    /// Time that models took, in milliseconds.
    pub model_ms: i64,
    /// Tokens that models read, those of a cache included.
    pub input_tokens: i64,
    /// Tokens that models wrote, thinking included.
    pub output_tokens: i64,
    /// The part of `input_tokens` that came from a provider's cache.
    pub cache_read_tokens: i64,
    /// The part of `input_tokens` that a provider's cache has kept.
    pub cache_write_tokens: i64,
    /// The part of `output_tokens` that is thinking.
    pub reasoning_tokens: i64,
    /// Cost of the models, in dollars.
    pub cost_usd: f64,
    /// Calls of tools.
    pub tool_calls: i64,
    /// Calls of tools that failed.
    pub tool_failures: i64,
    /// Time that tools took, in milliseconds.
    pub tool_ms: i64,
    /// Characters of the results of tools, before they were cut.
    pub result_chars: i64,
}

impl From<UsageSum> for UsageView {
    fn from(sum: UsageSum) -> UsageView {
        UsageView {
            key: sum.key,
            turns: sum.turns,
            model_ms: sum.model_ms,
            input_tokens: sum.input_tokens,
            output_tokens: sum.output_tokens,
            cache_read_tokens: sum.cache_read_tokens,
            cache_write_tokens: sum.cache_write_tokens,
            reasoning_tokens: sum.reasoning_tokens,
            cost_usd: sum.cost_micros as f64 / 1e6,
            tool_calls: sum.tool_calls,
            tool_failures: sum.tool_failures,
            tool_ms: sum.tool_ms,
            result_chars: sum.result_chars,
        }
    }
}

/// Read usage
///
/// Adds up what runs have used of models and tools, in the order of the keys or the largest first. A token of a tenant
/// sees its own; an admin token that names no tenant sees all. What a run uses is counted when its execution ends, or
/// waits; days are in UTC and kept for 400 days, longer than the runs.
#[utoipa::path(get, path = "/v1/stats/usage", tag = "operations", security(("bearer" = ["stats:read"])),
    params(
        ("by" = Option<UsageGroup>, Query, description = "What is added up apart; by day where nothing is said"),
        ("from" = Option<NaiveDate>, Query, description = "The first day; 30 days before `until` where it is absent"),
        ("until" = Option<NaiveDate>, Query, description = "The day behind the last, at most 92 days after `from`; tomorrow \
            where it is absent"),
        ("tenant_id" = Option<String>, Query, description = "This tenant's only"),
        ("task_id" = Option<Uuid>, Query, description = "This task's only"),
        ("order" = Option<UsageOrder>, Query, description = "Which come first; absent: by their keys"),
        ("limit" = Option<u32>, Query, minimum = 1, maximum = 200), ("cursor" = Option<String>, Query)),
    responses((status = 200, body = Items<UsageView>)))]
pub async fn get_usage(Call(state, caller): Call, mut query: Query) -> Result<Json<Items<UsageView>>, ApiError> {
    caller.may(Permission::StatsRead)?;
    let tenant = query.text("tenant_id");
    let (filter, page) = filter(query, day_of(state.clock.now()))?;
    let scope = caller.narrow_scope(tenant.as_deref())?;
    let rows = state.store.usage_sums(&scope, &filter).await?;
    Ok(Json(page.items(rows, filter.skip).map(UsageView::from)))
}

/// The page that is asked for, in the order of the sums.
enum UsagePage {
    ByKey(NamePage),
    Largest(ForwardPage),
}

impl UsagePage {
    /// The page out of what the store answered, of which the first has this number.
    fn items(&self, rows: Vec<UsageSum>, first: i64) -> Items<UsageSum> {
        match self {
            UsagePage::ByKey(page) => page.items(RowPage { rows, is_cut: false, behind: None }, |sum| &sum.key),
            UsagePage::Largest(page) => {
                let rows: Vec<(i64, UsageSum)> = (first..).zip(rows).collect();
                page.items(RowPage { rows, is_cut: false, behind: None }, |(number, _)| *number).map(|(_, sum)| sum)
            }
        }
    }
}

/// Reads everything but the tenant.
fn filter(mut query: Query, today: NaiveDate) -> Result<(UsageFilter, UsagePage), ApiError> {
    let by = query.word("by", &UsageGroup::ALL.map(|by| (by.as_str(), by))).unwrap_or(UsageGroup::Day);
    let until = day(&mut query, "until").unwrap_or_else(|| today + TimeDelta::days(1));
    let from = day(&mut query, "from").unwrap_or_else(|| earlier(until, USUAL_DAYS));
    if !(1..=MOST_DAYS).contains(&(until - from).num_days()) {
        query.fault("from", format!("must be from 1 to {MOST_DAYS} days before `until`, which is {until}"));
    }
    let task_id = query.id("task_id");
    let order = query.word("order", &UsageOrder::ALL.map(|order| (order.as_str(), order))).unwrap_or_default();
    let (page, after, skip, limit) = match order {
        UsageOrder::Key => {
            let page = NamePage::of(&mut query);
            let (after, limit) = (page.after.clone(), page.fetch());
            (UsagePage::ByKey(page), after, 0, limit)
        }
        UsageOrder::Largest => {
            let page = ForwardPage::of(&mut query);
            (UsagePage::Largest(page), None, page.from, page.fetch())
        }
    };
    if after.as_deref().is_some_and(|after| !by.takes(after)) {
        query.fault("cursor", "must be the next_cursor of an earlier answer to the same question");
    }
    query.done()?;
    Ok((UsageFilter { by, from, until, task_id, order, after, skip, limit }, page))
}

/// A day.
fn day(query: &mut Query, name: &'static str) -> Option<NaiveDate> {
    // years of four digits, which both databases know
    let read = |text: &str| text.parse().ok().filter(|_| text.len() == "2026-12-24".len());
    query.read(name, read, "a day such as 2026-12-24")
}

fn earlier(day: NaiveDate, days: i64) -> NaiveDate {
    day.checked_sub_signed(TimeDelta::days(days)).unwrap_or(NaiveDate::MIN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_bounded_and_usually_the_last_thirty() {
        let today = NaiveDate::from_ymd_opt(2026, 12, 24).unwrap();
        let days = |text: &str| {
            let (filter, _) = filter(Query::parse(text), today).ok()?;
            Some((filter.from.to_string(), filter.until.to_string()))
        };
        let of = |from: &str, until: &str| Some((from.to_owned(), until.to_owned()));
        assert_eq!(days(""), of("2026-11-25", "2026-12-25"));
        assert_eq!(days("until=2026-12-01"), of("2026-11-01", "2026-12-01"));
        assert_eq!(days("from=2026-09-24"), of("2026-09-24", "2026-12-25"), "92 days");
        for refused in ["from=2026-09-23", "from=2026-12-25", "from=26-1-1", "until=+12026-12-24", "by=hour"] {
            assert_eq!(days(refused), None, "{refused}");
        }
        assert!(filter(Query::parse("by=task&cursor=eA"), today).is_err(), "`x` is no id of a task");
        assert!(filter(Query::parse("by=tool&cursor=eA"), today).is_ok());
        assert!(filter(Query::parse("by=tool&order=largest&cursor=eA"), today).is_err(), "`x` is no number");
    }

    #[test]
    fn pages_of_the_largest_go_on_behind_as_many_as_were_shown() {
        let today = NaiveDate::from_ymd_opt(2026, 12, 24).unwrap();
        let sum = |key: &str| UsageSum { key: key.to_owned(), ..UsageSum::default() };
        let (first, page) = filter(Query::parse("by=task&order=largest&limit=2"), today).unwrap();
        assert_eq!((first.order, first.skip, first.limit), (UsageOrder::Largest, 0, 3));
        let items = page.items(["c", "a", "b"].map(sum).into(), first.skip);
        assert_eq!(items.items, ["c", "a"].map(sum));
        let next = format!("by=task&order=largest&limit=2&cursor={}", items.next_cursor.unwrap());
        let (second, page) = filter(Query::parse(&next), today).unwrap();
        assert_eq!(second.skip, 2);
        assert_eq!(page.items(vec![sum("b")], second.skip).next_cursor, None);
    }
}
