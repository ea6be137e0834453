//! Columns of a row by their names, for types of the domain, which know no database.

use serde::de::DeserializeOwned;
use sqlx::postgres::PgRow;
use sqlx::sqlite::SqliteRow;
use sqlx::types::Json;
use sqlx::{Error, Row};

use crate::store::tx::Scalar;

/// A row of either database.
pub(super) trait Columns: Row {
    fn value<S: Scalar>(&self, name: &str) -> Result<S, Error>;

    fn document<D: DeserializeOwned + 'static>(&self, name: &str) -> Result<D, Error> {
        Ok(self.value::<Json<D>>(name)?.0)
    }

    fn optional_document<D: DeserializeOwned + 'static>(&self, name: &str) -> Result<Option<D>, Error> {
        Ok(self.value::<Option<Json<D>>>(name)?.map(|json| json.0))
    }

    /// A document that not every statement reads.
    fn document_if_read<D: DeserializeOwned + 'static>(&self, name: &str) -> Result<Option<D>, Error> {
        match self.optional_document(name) {
            Err(Error::ColumnNotFound(_)) => Ok(None),
            read => read,
        }
    }

    /// One of the words of an enum.
    fn word<W>(&self, name: &str, parse: fn(&str) -> Option<W>) -> Result<W, Error> {
        let word: String = self.value(name)?;
        parse(&word).ok_or_else(|| unknown_word(name, &word))
    }

    fn optional_word<W>(&self, name: &str, parse: fn(&str) -> Option<W>) -> Result<Option<W>, Error> {
        let word: Option<String> = self.value(name)?;
        word.map(|word| parse(&word).ok_or_else(|| unknown_word(name, &word))).transpose()
    }
}

impl Columns for PgRow {
    fn value<S: Scalar>(&self, name: &str) -> Result<S, Error> {
        self.try_get(name)
    }
}

impl Columns for SqliteRow {
    fn value<S: Scalar>(&self, name: &str) -> Result<S, Error> {
        self.try_get(name)
    }
}

fn unknown_word(name: &str, word: &str) -> Error {
    Error::ColumnDecode { index: name.to_owned(), source: format!("there is no {word:?}").into() }
}
