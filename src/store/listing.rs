//! One page of a list, bounded in bytes: however wide the rows are that tenants wrote, the rows of a page have at most
//! [`PAGE_BYTES`] together, and one row more.
//!
//! The database measures the rows by the lengths of their wide columns and answers those that fit. What is beyond is never
//! read.

use sqlx::FromRow;

use crate::store::StoreError;

/// Bytes of wide columns after which a page ends.
pub const PAGE_BYTES: i64 = 2 * 1024 * 1024;
/// No bound: for readers that need all of few rows.
pub(super) const UNBOUNDED: i64 = i64::MAX;
/// Characters that a list shows of an output or a message. Statements have it in their text.
pub const SUMMARY_LENGTH: usize = 1_000;

/// The rows of a page.
#[derive(Debug, Clone, PartialEq)]
pub struct RowPage<T> {
    pub rows: Vec<T>,
    /// More rows were asked for than fit.
    pub is_cut: bool,
}

/// A row, and how many there were before the page was cut.
#[derive(FromRow)]
pub(super) struct Found<T> {
    #[sqlx(flatten)]
    row: T,
    found: i64,
}

/// Cuts what the statement has called `page (id, bytes)`, newest first. Behind it stands a select of the rows that
/// join `fit`, and [`BOUND`].
pub(super) const FIT: &str = "), fit as (
        select id, sum(bytes) over (order by id desc rows unbounded preceding) - bytes as before from page)
    select x.*, (select count(*) from page) as found from (";
/// Ends the select; the bound follows, and [`IN_ORDER`].
pub(super) const BOUND: &str = " where fit.before < ";
pub(super) const IN_ORDER: &str = ") x order by x.id desc";

impl<T> RowPage<T> {
    pub(super) fn of<R>(
        found: Vec<Found<R>>,
        read: impl Fn(R) -> Result<T, StoreError>,
    ) -> Result<RowPage<T>, StoreError> {
        let is_cut = found.first().is_some_and(|first| first.found > found.len() as i64);
        let rows = found.into_iter().map(|found| read(found.row)).collect::<Result<_, _>>()?;
        Ok(RowPage { rows, is_cut })
    }
}
