//! Runs by the beginning of their id, of their fire key, or of the name of their task.
//!
//! Each of the three has an index, and few runs are looked up there. Where many may begin so, or a reader of all
//! tenants has many of them, a page reads the newest runs, as one by a state does, and leaves out all others.

use uuid::Uuid;

use crate::base::id::Scope;
use crate::store::db::text::text;
use crate::store::runs::pages::{BY_IDS, END_OF_IDS, RunFilter, SCANNED, push_keys, push_times, tenants};
use crate::store::sql::sql;
use crate::store::tasks::tenant_turns::{TENANTS, tenants_in_order};
use crate::store::tx::{StatementBuilder, Tx};
use crate::store::{Split, StoreError};

/// Runs that are looked up by their keys at most.
const KEYS: i64 = 100;
/// Tasks that are looked up by their names at most.
const TASKS: i64 = 50;
/// Tenants whose keys and names are looked up at most, for a reader of all tenants.
const SEARCHED_TENANTS: i64 = 50;
/// As many digits are those of an id: nothing else is looked for by them.
const ID_DIGITS: usize = 8;
/// Digits of a whole id.
const DIGITS: usize = 32;

/// A key in the order of its bytes, which is that of the index.
const KEY: Split = Split { postgres: "r.fire_key collate \"C\"", sqlite: "r.fire_key" };
/// The task of runs that were found otherwise: on SQLite no index is looked for.
const OF_TASK: Split = Split { postgres: " and r.task_id = ", sqlite: " and +r.task_id = " };
/// The tenants that have runs.
const OF_RUNS: &str = sql!(TENANTS; "{table}" = "runs"; "{index}" = ""; "{having}" = "true");

/// The beginning by which runs are looked for.
pub(super) struct RunPrefix {
    ids: Option<IdSpan>,
    key: Option<TextSpan>,
    name: Option<TextSpan>,
}

/// Ids that begin alike.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct IdSpan {
    first: Uuid,
    last: Uuid,
    digits: usize,
}

/// Texts that begin alike: from one on, and before another.
#[derive(Debug, Clone, PartialEq, Eq)]
struct TextSpan {
    from: String,
    to: String,
}

/// Runs that begin so, as an index has them.
enum PrefixList {
    Ids(IdSpan),
    Keys(String, TextSpan),
    Task(Uuid),
}

/// Runs that begin so, where they are few enough to be looked up.
pub(super) struct FewRuns {
    lists: Vec<PrefixList>,
    /// The id down to which the lists are read; `None`: to their ends.
    pub(super) oldest: Option<Uuid>,
}

impl RunPrefix {
    pub(super) fn of(beginning: &str) -> RunPrefix {
        let beginning = text(beginning);
        let ids = IdSpan::of(&beginning);
        let is_id = ids.is_some_and(|ids| ids.digits >= ID_DIGITS);
        let is_key = beginning.as_bytes().get(1) == Some(&b':');
        let span = TextSpan::of(&beginning);
        RunPrefix { ids, key: is_key.then(|| span.clone()), name: (!is_id).then_some(span) }
    }

    /// The runs that begin so; `None` where there may be many.
    pub(super) async fn few(
        &self,
        tx: &mut Tx<'_>,
        scope: &Scope,
        filter: &RunFilter,
    ) -> Result<Option<FewRuns>, StoreError> {
        let mut lists: Vec<PrefixList> = self.ids.map(PrefixList::Ids).into_iter().collect();
        if self.key.is_some() || self.name.is_some() {
            let Some(searched) = searched_tenants(tx, scope, filter).await? else { return Ok(None) };
            if let Some(span) = &self.key {
                let keys: Vec<PrefixList> =
                    searched.iter().map(|tenant| PrefixList::Keys(tenant.clone(), span.clone())).collect();
                if count_keys(tx, &keys, scope, filter).await? > KEYS {
                    return Ok(None);
                }
                lists.extend(keys);
            }
            if let Some(span) = &self.name {
                let tasks = tasks_named(tx, &searched, span).await?;
                if tasks.len() as i64 > TASKS {
                    return Ok(None);
                }
                let asked = tasks.into_iter().filter(|task| filter.task_id.is_none_or(|id| id == *task));
                lists.extend(asked.map(PrefixList::Task));
            }
        }
        let oldest = oldest_read(tx, &lists, scope, filter).await?;
        Ok(Some(FewRuns { lists, oldest }))
    }

    /// Adds that a run begins so. The name is asked of the run's own task, so Postgres finds that by its id.
    pub(super) fn push_condition(&self, query: &mut StatementBuilder<'_>) {
        query.push(" and (false");
        if let Some(ids) = &self.ids {
            query.push(" or (r.id >= ").push_bind(ids.first).push(" and r.id <= ").push_bind(ids.last).push(")");
        }
        if let Some(span) = &self.key {
            query.push(" or (true");
            span.push_key(query);
            query.push(")");
        }
        if let Some(span) = &self.name {
            query.push(" or (select true");
            span.push_name(query);
            query.push(" from tasks t where t.id = r.task_id and t.trigger_type <> 'chat')");
        }
        query.push(")");
    }
}

impl IdSpan {
    /// The ids that begin with these digits, with or without the hyphens of an id.
    fn of(beginning: &str) -> Option<IdSpan> {
        let digits: String = beginning.chars().filter(|c| *c != '-').collect();
        if digits.is_empty() || digits.len() > DIGITS || !digits.bytes().all(|digit| digit.is_ascii_hexdigit()) {
            return None;
        }
        let filled = |with: char| {
            let rest = String::from(with).repeat(DIGITS - digits.len());
            u128::from_str_radix(&format!("{digits}{rest}"), 16).map(Uuid::from_u128)
        };
        let (first, last) = (filled('0').ok()?, filled('f').ok()?);
        let is_written_so = first.hyphenated().to_string().starts_with(&beginning.to_ascii_lowercase());
        (is_written_so || digits.len() == beginning.len()).then_some(IdSpan { first, last, digits: digits.len() })
    }

    /// The filter with these ids alone, but for the first of them.
    fn within(&self, filter: &RunFilter) -> RunFilter {
        let behind = self.last.as_u128().checked_add(1).map(Uuid::from_u128);
        let before = match (filter.before, behind) {
            (Some(before), Some(behind)) => Some(before.min(behind)),
            (before, behind) => before.or(behind),
        };
        RunFilter { before, ..filter.clone() }
    }
}

impl TextSpan {
    fn of(beginning: &str) -> TextSpan {
        TextSpan { from: beginning.to_owned(), to: format!("{beginning}{}", char::MAX) }
    }

    fn push_key(&self, query: &mut StatementBuilder<'_>) {
        query.push(" and ").push_split(KEY).push(" >= ").push_bind(self.from.clone());
        query.push(" and ").push_split(KEY).push(" < ").push_bind(self.to.clone());
    }

    fn push_name(&self, query: &mut StatementBuilder<'_>) {
        query.push(" and t.folded_name >= lower(").push_bind(self.from.clone());
        query.push(") and t.folded_name < lower(").push_bind(self.to.clone()).push(")");
    }
}

impl PrefixList {
    /// Adds a select of its ids, from one on; answers the order of its index but for the ids.
    fn push(
        &self,
        query: &mut StatementBuilder<'_>,
        scope: &Scope,
        filter: &RunFilter,
        oldest: Option<Uuid>,
    ) -> &'static str {
        query.push("select r.id from runs r where true");
        // the task was found in its tenant: its runs are asked for by it alone, or the index of all runs of the tenant
        // would be gone through for each task
        let of_task = Scope::Every;
        let (of_list, scope, first) = match self {
            PrefixList::Ids(ids) => (ids.within(filter), scope, Some(ids.first)),
            PrefixList::Task(task_id) => {
                (RunFilter { task_id: Some(*task_id), tenant: None, ..filter.clone() }, &of_task, None)
            }
            PrefixList::Keys(tenant, span) => {
                query.push_key("r.tenant_id", text(tenant).into_owned());
                span.push_key(query);
                query.push(" order by r.tenant_id, ").push_split(KEY).push(" limit ").push_bind(KEYS + 1);
                return "";
            }
        };
        let order = push_keys(query, scope, &of_list);
        push_times(query, scope, &of_list);
        if let Some(first) = first.max(oldest) {
            query.push(" and r.id >= ").push_bind(first);
        }
        order
    }
}

impl FewRuns {
    /// Adds these runs.
    pub(super) fn push(&self, query: &mut StatementBuilder<'_>, scope: &Scope, filter: &RunFilter) {
        query.push_split(BY_IDS);
        push_lists(query, &self.lists, scope, filter, self.oldest);
        query.push_split(END_OF_IDS);
        if let Some(task_id) = filter.task_id {
            query.push_split(OF_TASK).push_bind(task_id);
        }
        if let Some(oldest) = self.oldest {
            query.push(" and r.id >= ").push_bind(oldest);
        }
    }
}

/// Adds a select of the ids of all lists.
fn push_lists(
    query: &mut StatementBuilder<'_>,
    lists: &[PrefixList],
    scope: &Scope,
    filter: &RunFilter,
    oldest: Option<Uuid>,
) {
    if lists.is_empty() {
        query.push("select id from runs where false");
    }
    for (index, list) in lists.iter().enumerate() {
        query.push(if index == 0 { "" } else { " union all " }).push("select id from (");
        list.push(query, scope, filter, oldest);
        query.push(") l");
    }
}

/// The tenants whose keys and names are looked up; `None`: they are too many.
async fn searched_tenants(
    tx: &mut Tx<'_>,
    scope: &Scope,
    filter: &RunFilter,
) -> Result<Option<Vec<String>>, StoreError> {
    let mut named = tenants(scope, filter);
    if let Some(tenant) = named.next() {
        let is_one = named.all(|other| other == tenant);
        return Ok(Some(if is_one { vec![tenant.to_owned()] } else { Vec::new() }));
    }
    let walk = tx.query(OF_RUNS).bind("").bind(SEARCHED_TENANTS + 1);
    let found: Vec<(String, bool)> = tenants_in_order(walk).await?;
    Ok((found.len() as i64 <= SEARCHED_TENANTS).then(|| found.into_iter().map(|(tenant, _)| tenant).collect()))
}

/// How many runs lists of keys have, counted up to one more than [`KEYS`].
async fn count_keys(
    tx: &mut Tx<'_>,
    keys: &[PrefixList],
    scope: &Scope,
    filter: &RunFilter,
) -> Result<i64, StoreError> {
    let mut query = tx.build("select count(*) from (select id from (");
    push_lists(&mut query, keys, scope, filter, None);
    query.push(") found limit ").push_bind(KEYS + 1).push(") counted");
    Ok(query.finish().persistent(false).scalar().await?)
}

/// Tasks of these tenants with names in a span, one more than [`TASKS`] at most.
async fn tasks_named(tx: &mut Tx<'_>, searched: &[String], span: &TextSpan) -> Result<Vec<Uuid>, StoreError> {
    if searched.is_empty() {
        return Ok(Vec::new());
    }
    let mut query = tx.build("select id from (");
    for (index, tenant) in searched.iter().enumerate() {
        query.push(if index == 0 { "" } else { " union all " });
        query.push("select id from (select t.id from tasks t where t.trigger_type <> 'chat'");
        query.push_key("t.tenant_id", text(tenant).into_owned());
        span.push_name(&mut query);
        query.push(" order by t.tenant_id, t.folded_name limit ").push_bind(TASKS + 1).push(") l");
    }
    query.push(") found limit ").push_bind(TASKS + 1);
    Ok(query.finish().persistent(false).scalars().await?)
}

/// The id down to which these lists are read: each has its part of [`SCANNED`] runs from there on, and no fewer than a
/// page.
async fn oldest_read(
    tx: &mut Tx<'_>,
    lists: &[PrefixList],
    scope: &Scope,
    filter: &RunFilter,
) -> Result<Option<Uuid>, StoreError> {
    let long: Vec<&PrefixList> = lists.iter().filter(|list| !matches!(list, PrefixList::Keys(..))).collect();
    if long.is_empty() {
        return Ok(None);
    }
    let each = (SCANNED / long.len() as i64).max(filter.limit);
    let mut query = tx.build("select id from (");
    for (index, list) in long.into_iter().enumerate() {
        query.push(if index == 0 { "" } else { " union all " }).push("select id from (");
        let order = list.push(&mut query, scope, filter, None);
        query.push(" order by ").push(order).push("r.id desc limit 1 offset ").push_bind(each - 1).push(") l");
    }
    query.push(") ends");
    let ends: Vec<Uuid> = query.finish().persistent(false).scalars().await?;
    Ok(ends.into_iter().max())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn span(beginning: &str) -> Option<(String, String, usize)> {
        IdSpan::of(beginning).map(|ids| (ids.first.to_string(), ids.last.to_string(), ids.digits))
    }

    #[test]
    fn beginning_of_an_id_is_a_span_of_ids_with_or_without_hyphens() {
        let expected =
            ("019a1b2c-3000-0000-0000-000000000000".to_owned(), "019a1b2c-3fff-ffff-ffff-ffffffffffff".to_owned(), 9);
        for beginning in ["019a1b2c-3", "019a1b2c3", "019A1B2C-3"] {
            assert_eq!(span(beginning), Some(expected.clone()), "{beginning}");
        }
        for beginning in ["", "-", "019a1b-2c3", "x", "019a1b2c-3000-0000-0000-0000000000000", "s:2026"] {
            assert_eq!(span(beginning), None, "{beginning}");
        }
        let whole = IdSpan::of("ffffffff-ffff-ffff-ffff-ffffffffffff").expect("an id");
        assert_eq!(whole.within(&RunFilter::default()).before, None, "nothing comes behind the last id");
    }

    #[test]
    fn digits_of_an_id_are_no_name_and_a_key_begins_with_its_letter() {
        let looked = |beginning: &str| {
            let prefix = RunPrefix::of(beginning);
            (prefix.ids.is_some(), prefix.key.is_some(), prefix.name.is_some())
        };
        assert_eq!(looked("019a1b2"), (true, false, true));
        assert_eq!(looked("019a1b2c"), (true, false, false));
        assert_eq!(looked("s:2026-12-24"), (false, true, true));
        assert_eq!(looked("Morning"), (false, false, true));
        assert_eq!(TextSpan::of("a\u{fffd}"), RunPrefix::of("a\0").name.expect("a name"));
    }

    #[test]
    fn page_of_a_span_goes_on_before_its_cursor_or_ends_with_the_span() {
        let ids = IdSpan::of("019a1b2c").expect("an id");
        let before = |before: Option<Uuid>| ids.within(&RunFilter { before, ..RunFilter::default() }).before;
        let behind = Uuid::from_u128(ids.last.as_u128() + 1);
        assert_eq!(before(None), Some(behind));
        assert_eq!(before(Some(ids.first)), Some(ids.first));
        assert_eq!(before(Some(Uuid::max())), Some(behind));
    }
}
