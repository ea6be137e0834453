//! Rows that are listed in a statement, as SQLite does best with them: a hundred at most, and few sizes.
//!
//! A statement's way to the thread of its connection and back costs more than what it does for a row, so one for each
//! row is no way. But of two hundred listed rows and more SQLite believes that it is quicker to read the whole table
//! that they are looked for in.

use sqlx::sqlite::SqliteRow;
use sqlx::{Encode, FromRow, QueryBuilder, Sqlite, SqlitePool, Type};

/// Rows of a statement: as many as go together often enough for it to be kept prepared.
pub(in crate::store) const ROWS: [usize; 2] = [100, 20];

/// Cuts a batch into the rows of its statements: few, and of few sizes.
pub(in crate::store) fn chunks<T>(mut rows: &[T]) -> impl Iterator<Item = &[T]> {
    std::iter::from_fn(move || {
        let size = ROWS.into_iter().find(|size| *size <= rows.len()).unwrap_or(rows.len());
        let (piece, rest) = rows.split_at(size);
        rows = rest;
        (size > 0).then_some(piece)
    })
}

/// Whether a statement over so many rows will come again and is worth being kept prepared.
pub(in crate::store) fn is_reusable(rows: usize) -> bool {
    rows == 1 || ROWS.contains(&rows)
}

/// `(…, …)`, for `in`.
pub(in crate::store) fn list<'t, K>(statement: &mut QueryBuilder<Sqlite>, keys: impl Iterator<Item = K>)
where
    K: Encode<'t, Sqlite> + Type<Sqlite>,
{
    statement.push("(");
    let mut listed = statement.separated(", ");
    keys.for_each(|key| {
        listed.push_bind(key);
    });
    statement.push(")");
}

/// Reads what `select`, which ends with `in`, finds of these keys, in any order.
pub(in crate::store) async fn read<'t, K, R>(
    readers: &SqlitePool,
    select: &str,
    keys: &[K],
) -> Result<Vec<R>, sqlx::Error>
where
    K: Encode<'t, Sqlite> + Type<Sqlite> + Copy,
    R: for<'r> FromRow<'r, SqliteRow> + Send + Unpin,
{
    let mut rows = Vec::with_capacity(keys.len());
    if keys.is_empty() {
        return Ok(rows);
    }
    let mut held = readers.acquire().await?;
    for keys in chunks(keys) {
        let mut statement = selecting(select, keys);
        rows.extend(statement.build_query_as().persistent(is_reusable(keys.len())).fetch_all(&mut *held).await?);
    }
    Ok(rows)
}

/// Those of these rows that can be read. One that can't is left out: whoever sets it aside says so.
pub(in crate::store) fn readable<R>(rows: &[SqliteRow]) -> Vec<R>
where
    R: for<'r> FromRow<'r, SqliteRow>,
{
    rows.iter().filter_map(|row| R::from_row(row).ok()).collect()
}

fn selecting<'t, K>(select: &str, keys: &[K]) -> QueryBuilder<Sqlite>
where
    K: Encode<'t, Sqlite> + Type<Sqlite> + Copy,
{
    let mut statement = QueryBuilder::new(select);
    list(&mut statement, keys.iter().copied());
    statement
}

#[cfg(test)]
mod tests {
    use uuid::Uuid;

    use super::*;
    use crate::store::db::sqlite_plan;
    use crate::store::deliveries::recipients;
    use crate::store::memory::revisions;
    use crate::store::{runs, tasks};

    #[test]
    fn batch_is_cut_into_pieces_of_few_sizes() {
        let sizes = |rows: usize| chunks(&vec![(); rows]).map(<[()]>::len).collect::<Vec<_>>();
        assert_eq!(sizes(0), [0; 0]);
        assert_eq!(sizes(19), [19]);
        assert_eq!(sizes(265), [100, 100, 20, 20, 20, 5]);
    }

    #[tokio::test]
    async fn reads_by_listed_keys_use_an_index() {
        let ids = [Uuid::nil(); ROWS[0]];
        let statements = [
            selecting(runs::LISTED, &ids),
            selecting(tasks::LISTED, &ids),
            selecting(recipients::LISTED, &["ann"; ROWS[0]]),
            selecting(revisions::LISTED, &["ann"; ROWS[0]]),
        ];
        for statement in statements {
            let plan = sqlite_plan(statement.sql().as_str()).await;
            assert!(plan.iter().any(|step| step.starts_with("SEARCH")), "{plan:?}");
            assert!(!plan.iter().any(|step| step.starts_with("SCAN")), "{plan:?}");
        }
    }
}
