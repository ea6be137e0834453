//! A connection to either database, and the statements that go by it.
//!
//! What the store does in a transaction is written once, as functions over [`Tx`]. A statement takes the same values
//! and answers the same columns on both databases; where its text differs, it is a [`Split`]. What only one database
//! can do is in `batches`, or in a match.

use sqlx::error::BoxDynError;
use sqlx::postgres::{PgArguments, PgRow};
use sqlx::sqlite::{SqliteArguments, SqliteRow};
use sqlx::{
    Arguments, AssertSqlSafe, Decode, Encode, FromRow, PgConnection, Postgres, Row, SqlSafeStr, SqlStr, Sqlite,
    SqliteConnection, Type, query_with,
};
use uuid::Uuid;

use crate::store::Split;

/// A connection that is lent for a transaction, or for a statement that is one by itself.
pub(super) enum Tx<'c> {
    Postgres(&'c mut PgConnection),
    Sqlite(&'c mut SqliteConnection),
}

/// A value that both databases take.
pub(super) trait SqlValue<'v>:
    Encode<'v, Postgres> + Type<Postgres> + Encode<'v, Sqlite> + Type<Sqlite>
{
}

impl<'v, V: Encode<'v, Postgres> + Type<Postgres> + Encode<'v, Sqlite> + Type<Sqlite>> SqlValue<'v> for V {}

/// A value that is read from the first column of either database's row.
pub(super) trait Scalar:
    for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite>
{
}

impl<S> Scalar for S where S: for<'r> Decode<'r, Postgres> + Type<Postgres> + for<'r> Decode<'r, Sqlite> + Type<Sqlite> {}

/// A type that is read from a row of either database.
pub(super) trait SqlRecord: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow> {}

impl<T: for<'r> FromRow<'r, PgRow> + for<'r> FromRow<'r, SqliteRow>> SqlRecord for T {}

/// A statement with its values, kept prepared unless it says otherwise.
#[must_use = "a statement does nothing before it is executed"]
pub(super) struct TxQuery<'t> {
    text: SqlStr,
    target: Target<'t>,
    /// The first value that could not be written down.
    encode_error: Option<BoxDynError>,
    is_persistent: bool,
}

enum Target<'t> {
    Postgres(&'t mut PgConnection, PgArguments),
    Sqlite(&'t mut SqliteConnection, SqliteArguments),
}

/// A statement whose text is put together.
pub(super) struct StatementBuilder<'t> {
    text: String,
    query: TxQuery<'t>,
}

/// Places with commas between them.
pub(super) struct ValueList<'b, 't> {
    builder: &'b mut StatementBuilder<'t>,
    is_empty: bool,
}

/// Rows as a database has answered them.
pub(super) enum Rows {
    Postgres(Vec<PgRow>),
    Sqlite(Vec<SqliteRow>),
}

enum OneRow {
    Postgres(PgRow),
    Sqlite(SqliteRow),
}

impl<'c> Tx<'c> {
    pub(super) fn query(&mut self, sql: impl Into<Split>) -> TxQuery<'_> {
        self.reborrow().into_query(sql)
    }

    /// A statement whose text begins so.
    pub(super) fn build(&mut self, text: impl Into<Split>) -> StatementBuilder<'_> {
        self.reborrow().into_builder(text)
    }

    /// A statement for which the connection is given away.
    pub(super) fn into_query(self, sql: impl Into<Split>) -> TxQuery<'c> {
        let Split { postgres, sqlite } = sql.into();
        match self {
            Tx::Postgres(conn) => TxQuery::new(postgres, Target::Postgres(conn, PgArguments::default())),
            Tx::Sqlite(conn) => TxQuery::new(sqlite, Target::Sqlite(conn, SqliteArguments::default())),
        }
    }

    pub(super) fn into_builder(self, text: impl Into<Split>) -> StatementBuilder<'c> {
        let query = self.into_query(text);
        StatementBuilder { text: query.text.as_str().to_owned(), query }
    }

    fn reborrow(&mut self) -> Tx<'_> {
        match self {
            Tx::Postgres(conn) => Tx::Postgres(conn),
            Tx::Sqlite(conn) => Tx::Sqlite(conn),
        }
    }
}

impl<'t> TxQuery<'t> {
    fn new(text: &'static str, target: Target<'t>) -> TxQuery<'t> {
        TxQuery { text: text.into_sql_str(), target, encode_error: None, is_persistent: true }
    }

    /// Gives the next place its value.
    pub(super) fn bind<'v>(mut self, value: impl SqlValue<'v>) -> TxQuery<'t> {
        self.add(value);
        self
    }

    /// Whether it will come again and is worth being kept prepared.
    pub(super) fn persistent(mut self, is_persistent: bool) -> TxQuery<'t> {
        self.is_persistent = is_persistent;
        self
    }

    fn add<'v>(&mut self, value: impl SqlValue<'v>) {
        let added = match &mut self.target {
            Target::Postgres(_, values) => values.add(value),
            Target::Sqlite(_, values) => values.add(value),
        };
        self.encode_error = self.encode_error.take().or(added.err());
    }

    /// Answers how many rows were written.
    pub(super) async fn execute(self) -> Result<u64, sqlx::Error> {
        let (text, target, is_persistent) = self.checked()?;
        Ok(match target {
            Target::Postgres(conn, values) => {
                query_with(text, values).persistent(is_persistent).execute(conn).await?.rows_affected()
            }
            Target::Sqlite(conn, values) => {
                query_with(text, values).persistent(is_persistent).execute(conn).await?.rows_affected()
            }
        })
    }

    /// The rows, to be read one by one.
    pub(super) async fn rows(self) -> Result<Rows, sqlx::Error> {
        let (text, target, is_persistent) = self.checked()?;
        Ok(match target {
            Target::Postgres(conn, values) => {
                Rows::Postgres(query_with(text, values).persistent(is_persistent).fetch_all(conn).await?)
            }
            Target::Sqlite(conn, values) => {
                Rows::Sqlite(query_with(text, values).persistent(is_persistent).fetch_all(conn).await?)
            }
        })
    }

    async fn row(self) -> Result<Option<OneRow>, sqlx::Error> {
        let (text, target, is_persistent) = self.checked()?;
        Ok(match target {
            Target::Postgres(conn, values) => {
                query_with(text, values).persistent(is_persistent).fetch_optional(conn).await?.map(OneRow::Postgres)
            }
            Target::Sqlite(conn, values) => {
                query_with(text, values).persistent(is_persistent).fetch_optional(conn).await?.map(OneRow::Sqlite)
            }
        })
    }

    pub(super) async fn all<T: SqlRecord>(self) -> Result<Vec<T>, sqlx::Error> {
        self.rows().await?.read()
    }

    /// The first row, if there is one.
    pub(super) async fn optional<T: SqlRecord>(self) -> Result<Option<T>, sqlx::Error> {
        match self.row().await? {
            Some(OneRow::Postgres(row)) => T::from_row(&row).map(Some),
            Some(OneRow::Sqlite(row)) => T::from_row(&row).map(Some),
            None => Ok(None),
        }
    }

    /// The first row; [`sqlx::Error::RowNotFound`] without one.
    pub(super) async fn one<T: SqlRecord>(self) -> Result<T, sqlx::Error> {
        self.optional().await?.ok_or(sqlx::Error::RowNotFound)
    }

    /// The first column of each row.
    pub(super) async fn scalars<S: Scalar>(self) -> Result<Vec<S>, sqlx::Error> {
        match self.rows().await? {
            Rows::Postgres(rows) => rows.iter().map(|row| row.try_get(0)).collect(),
            Rows::Sqlite(rows) => rows.iter().map(|row| row.try_get(0)).collect(),
        }
    }

    /// The first column of the first row, if there is one.
    pub(super) async fn optional_scalar<S: Scalar>(self) -> Result<Option<S>, sqlx::Error> {
        match self.row().await? {
            Some(OneRow::Postgres(row)) => row.try_get(0).map(Some),
            Some(OneRow::Sqlite(row)) => row.try_get(0).map(Some),
            None => Ok(None),
        }
    }

    /// The first column of the first row; [`sqlx::Error::RowNotFound`] without one.
    pub(super) async fn scalar<S: Scalar>(self) -> Result<S, sqlx::Error> {
        self.optional_scalar().await?.ok_or(sqlx::Error::RowNotFound)
    }

    fn checked(self) -> Result<(SqlStr, Target<'t>, bool), sqlx::Error> {
        match self.encode_error {
            Some(error) => Err(sqlx::Error::Encode(error)),
            None => Ok((self.text, self.target, self.is_persistent)),
        }
    }
}

impl<'t> StatementBuilder<'t> {
    pub(super) fn push(&mut self, text: &str) -> &mut StatementBuilder<'t> {
        self.text.push_str(text);
        self
    }

    /// Adds the text for the database.
    pub(super) fn push_split(&mut self, text: Split) -> &mut StatementBuilder<'t> {
        let text = match &self.query.target {
            Target::Postgres(..) => text.postgres,
            Target::Sqlite(..) => text.sqlite,
        };
        self.push(text)
    }

    /// Adds a place, and the value for it.
    pub(super) fn push_bind<'v>(&mut self, value: impl SqlValue<'v>) -> &mut StatementBuilder<'t> {
        self.query.add(value);
        let place = match &self.query.target {
            Target::Postgres(_, values) => values.len(),
            Target::Sqlite(_, values) => values.len(),
        };
        self.text.push_str(&format!("${place}"));
        self
    }

    /// Adds that a column has a value. An order by that column and what is next to it in an index is then found by no
    /// other index: Postgres leaves a column that is `=` a value out of an order, and may then go through the newest
    /// rows of the whole table until it has found enough with the value.
    pub(super) fn push_key<'v>(&mut self, column: &str, value: impl SqlValue<'v>) -> &mut StatementBuilder<'t> {
        const BEFORE: Split = Split { postgres: " = any (array[", sqlite: " = " };
        const BEHIND: Split = Split { postgres: "])", sqlite: "" };
        self.push(" and ").push(column).push_split(BEFORE).push_bind(value).push_split(BEHIND)
    }

    /// Adds that ids come before one, of rows that have this value in the column that their order begins with. Postgres
    /// is told so of both columns together: by the ids alone it may go through those of everybody, if it has made its
    /// plan when there were few.
    pub(super) fn push_before<'v>(
        &mut self,
        key: Option<(&str, impl SqlValue<'v>)>,
        column: &str,
        before: Uuid,
    ) -> &mut StatementBuilder<'t> {
        let is_postgres = matches!(self.query.target, Target::Postgres(..));
        match key {
            Some((key, value)) if is_postgres => {
                self.push(" and (").push(key).push(", ").push(column).push(") < (").push_bind(value);
                self.push(", ").push_bind(before).push(")")
            }
            _ => self.push(" and ").push(column).push(" < ").push_bind(before),
        }
    }

    /// Adds places, with commas between them, and the values for them.
    pub(super) fn list<'v>(&mut self, values: impl Iterator<Item = impl SqlValue<'v>>) -> &mut StatementBuilder<'t> {
        let mut list = ValueList { builder: self, is_empty: true };
        for value in values {
            list.push_bind(value);
        }
        self
    }

    /// Adds `values` and rows, each with the values that `fill` gives it.
    pub(super) fn push_values<T>(
        &mut self,
        rows: impl Iterator<Item = T>,
        mut fill: impl FnMut(&mut ValueList<'_, 't>, T),
    ) -> &mut StatementBuilder<'t> {
        self.push("values ");
        for (at, row) in rows.enumerate() {
            self.push(if at > 0 { ", (" } else { "(" });
            fill(&mut ValueList { builder: self, is_empty: true }, row);
            self.push(")");
        }
        self
    }

    /// The statement as it is by now.
    pub(super) fn finish(self) -> TxQuery<'t> {
        TxQuery { text: AssertSqlSafe(self.text).into_sql_str(), ..self.query }
    }
}

impl ValueList<'_, '_> {
    pub(super) fn push_bind<'v>(&mut self, value: impl SqlValue<'v>) -> &mut Self {
        if !self.is_empty {
            self.builder.push(", ");
        }
        self.is_empty = false;
        self.builder.push_bind(value);
        self
    }
}

impl Rows {
    pub(super) fn len(&self) -> usize {
        match self {
            Rows::Postgres(rows) => rows.len(),
            Rows::Sqlite(rows) => rows.len(),
        }
    }

    pub(super) fn read<T: SqlRecord>(&self) -> Result<Vec<T>, sqlx::Error> {
        match self {
            Rows::Postgres(rows) => rows.iter().map(T::from_row).collect(),
            Rows::Sqlite(rows) => rows.iter().map(T::from_row).collect(),
        }
    }

    /// A column of the first row.
    pub(super) fn first_column<S: Scalar>(&self, column: &'static str) -> Result<Option<S>, sqlx::Error> {
        match self {
            Rows::Postgres(rows) => rows.first().map(|row| row.try_get(column)).transpose(),
            Rows::Sqlite(rows) => rows.first().map(|row| row.try_get(column)).transpose(),
        }
    }

    /// A column of the last row.
    pub(super) fn last_column<S: Scalar>(&self, column: &'static str) -> Result<Option<S>, sqlx::Error> {
        match self {
            Rows::Postgres(rows) => rows.last().map(|row| row.try_get(column)).transpose(),
            Rows::Sqlite(rows) => rows.last().map(|row| row.try_get(column)).transpose(),
        }
    }
}

impl From<&'static str> for Split {
    fn from(text: &'static str) -> Split {
        Split { postgres: text, sqlite: text }
    }
}

#[cfg(test)]
mod tests {
    use sqlx::Connection;

    use super::*;

    #[tokio::test]
    async fn statements_are_put_together_with_their_values() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.expect("a database in memory");
        let mut tx = Tx::Sqlite(&mut conn);
        tx.query("create table named (id integer, name text)").execute().await.expect("a table");
        let rows = [(1_i64, "ann"), (2, "bob"), (3, "eve")];
        let mut insert = tx.build("insert into named (id, name) ");
        insert.push_values(rows.into_iter(), |row, (id, name)| {
            row.push_bind(id).push_bind(name);
        });
        assert_eq!(insert.finish().execute().await.expect("rows"), 3);
        let mut select = tx.build("select name from named where id in (");
        select.list([1_i64, 3].iter()).push(") and id > ").push_bind(0_i64).push(" order by id");
        let names: Vec<String> = select.finish().persistent(false).scalars().await.expect("names");
        assert_eq!(names, ["ann", "eve"]);
        let rows = tx.query("select id, name from named order by id").rows().await.expect("rows");
        assert_eq!((rows.len(), rows.last_column("name").expect("a name")), (3, Some("eve".to_owned())));
    }

    #[tokio::test]
    async fn text_goes_by_the_database_and_a_missing_row_is_told() {
        let mut conn = SqliteConnection::connect("sqlite::memory:").await.expect("a database in memory");
        let mut tx = Tx::Sqlite(&mut conn);
        let split = Split { postgres: "no statement", sqlite: "select $1 where $1 > 1" };
        assert_eq!(tx.query(split).bind(2_i64).scalar::<i64>().await.expect("a number"), 2);
        assert_eq!(tx.query(split).bind(1_i64).optional_scalar::<i64>().await.expect("no row"), None);
        let missing = tx.query(split).bind(1_i64).one::<(i64,)>().await;
        assert!(matches!(missing, Err(sqlx::Error::RowNotFound)), "{missing:?}");
    }
}
