//! One page of a list, bounded in bytes: however wide the rows are that tenants wrote, the rows of a page have at most
//! [`PAGE_BYTES`] together, and one row more.
//!
//! The database measures the rows by the lengths of their wide columns and answers those that fit. Rows beyond are
//! never read. A row that can't be read is left out and told of once: it hides none of the others, on its page or
//! behind it. Rows that are long are decoded on a computing thread, in the turn of their reader, once their connection
//! was given back.

use sqlx_macros::FromRow;
use uuid::Uuid;

use crate::base::compute::{ADMIN, steps_to_parse};
use crate::base::id::Scope;
use crate::store::ops::unreadable::UnreadableRow;
use crate::store::tx::{Rows, SqlRecord, StatementBuilder};
use crate::store::{Split, Store, StoreError};

/// Bytes of wide columns after which a page ends.
pub const PAGE_BYTES: i64 = 2 * 1024 * 1024;
/// No bound: for readers that need all of few rows.
pub(in crate::store) const UNBOUNDED: i64 = i64::MAX;
/// Characters that a list shows of an output or a message. Statements have it in their text.
pub const SUMMARY_LENGTH: usize = 1_000;

/// The rows of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct RowPage<T> {
    /// Rows of the page.
    pub rows: Vec<T>,
    /// More rows were asked for than fit.
    pub is_cut: bool,
    /// Where the list goes on, if rows were left out of this page and there may be more behind them.
    pub behind: Option<Uuid>,
}

/// A row, and how many there were before the page was cut.
#[derive(FromRow)]
pub(in crate::store) struct PagedRow<T> {
    #[sqlx(flatten)]
    row: T,
    found: i64,
}

/// Cuts what the statement has called `page (id, bytes)`, newest first. Behind it stands a select of the rows that
/// join `fit`, and [`BOUND`].
const FIT: &str = "), fit as (
        select id, sum(bytes) over (order by id desc rows unbounded preceding) - bytes as before from page)
    select x.*, (select count(*) from page) as found,
           cast((select coalesce(sum(bytes), 0) from page) as bigint) as wide from (";
/// Ends the select; the bound follows, and [`IN_ORDER`].
const BOUND: &str = " where fit.before < ";
const IN_ORDER: &str = ") x order by x.id desc";

/// Ends the statement of a page: by `order` and the newest ids in `column`, `limit` rows at most, of which `select` has
/// those that fit into so many bytes.
pub(in crate::store) fn push_page(
    query: &mut StatementBuilder<'_>,
    (order, column): (&str, &str),
    limit: i64,
    (select, bytes): (Split, i64),
) {
    query
        .push(" order by ")
        .push(order)
        .push(column)
        .push(" desc limit ")
        .push_bind(limit)
        .push(FIT)
        .push_split(select);
    query.push(BOUND).push_bind(bytes).push(IN_ORDER);
}

/// The select of the rows that join `fit`, of a select up to its `where`, and the column of the ids. Postgres may plan
/// a join of tables that are empty in any order, and keep that plan: it would go through everybody's rows. So it is
/// told the order.
macro_rules! fitting {
    ($select:expr, $id:literal) => {
        $crate::store::Split {
            postgres: $crate::store::sql::sql!(
                "select row.* from fit cross join lateral (",
                $select,
                "where ",
                $id,
                " = fit.id offset 0) row"
            ),
            sqlite: $crate::store::sql::sql!($select, "join fit on fit.id = ", $id),
        }
    };
}
pub(in crate::store) use fitting;

impl Store {
    /// The result of `read` on rows whose connection was given back. Where they are long, which the column `wide` says,
    /// they are read on a computing thread, in the turn of this tenant; `None`: of those who read for all tenants.
    pub(in crate::store) async fn decode_rows<T: Send + 'static>(
        &self,
        tenant: Option<&str>,
        rows: Rows,
        read: impl FnOnce(&Rows) -> T + Send + 'static,
    ) -> Result<T, StoreError> {
        let bytes: i64 = rows.first_column("wide")?.unwrap_or_default();
        let steps = steps_to_parse(usize::try_from(bytes).unwrap_or_default());
        let computed = self.computing.run_if_costly(tenant.unwrap_or(ADMIN), steps, move || read(&rows)).await;
        computed.map_err(|panicked| StoreError::Corrupt(panicked.to_string()))
    }

    /// The first of the rows, read as [`Store::decode_rows`] does in the turn of the scope's tenant; `None`: there is
    /// none.
    pub(in crate::store) async fn decode_first_row<T: SqlRecord + Send + 'static>(
        &self,
        scope: &Scope,
        rows: Rows,
    ) -> Result<Option<T>, StoreError> {
        let read = |rows: &Rows| -> Result<Vec<T>, StoreError> { Ok(rows.read()?) };
        Ok(self.decode_rows(scope.tenant(), rows, read).await??.into_iter().next())
    }
}

impl<T> RowPage<T> {
    pub(in crate::store) fn of<R>(
        found: Vec<PagedRow<R>>,
        read: impl Fn(R) -> Result<T, StoreError>,
    ) -> Result<RowPage<T>, StoreError> {
        let is_cut = found.first().is_some_and(|first| first.found > found.len() as i64);
        let rows = found.into_iter().map(|found| read(found.row)).collect::<Result<_, _>>()?;
        Ok(RowPage { rows, is_cut, behind: None })
    }

    /// The rows that can be read, of a page for which `limit` were asked for. The first column is the id.
    pub(in crate::store) fn from_rows<S: SqlRecord>(
        unreadable: &UnreadableRow,
        table: &'static str,
        rows: &Rows,
        limit: i64,
        read: impl Fn(S) -> Result<T, StoreError>,
    ) -> RowPage<T> {
        let found: i64 = rows.first_column("found").ok().flatten().unwrap_or_default();
        let is_cut = found > rows.len() as i64;
        let (readable, others) = unreadable.partition_readable::<_, _, Uuid>(table, rows, read);
        let goes_on = !others.is_empty() && (is_cut || rows.len() as i64 >= limit);
        let behind = if goes_on { rows.last_column("id").ok().flatten() } else { None };
        RowPage { rows: readable, is_cut, behind }
    }
}
