//! Why the store could not be opened, with a hint where there is one.

use std::path::PathBuf;

use crate::base::invalid::hinted::HintedError;

/// Why the store could not be opened.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// The URL can't be used; the sentence says why.
    #[error("database.url is not valid: {0}")]
    Url(String),
    /// Another process uses the SQLite file.
    #[error(transparent)]
    InUse(HintedError),
    /// The server, its settings or the library does not fit.
    #[error(transparent)]
    Unfit(HintedError),
    /// The server refuses the connection; the sentence says why.
    #[error("the database refuses us: {0}")]
    Refused(String),
    /// Nobody answers there now.
    #[error("the database is away: {0}")]
    Away(String),
    /// A migration has failed; the sentence says why.
    #[error("the tables could not be brought up to date: {0}")]
    Migration(String),
    /// A file can't be made or read.
    #[error("{}: {source}", .path.display())]
    File {
        /// Path of the file.
        path: PathBuf,
        /// The error of the system.
        source: std::io::Error,
    },
}

impl OpenError {
    /// The failure with its hint apart, where it has one.
    pub fn hinted(&self) -> Option<&HintedError> {
        match self {
            OpenError::InUse(failure) | OpenError::Unfit(failure) => Some(failure),
            _ => None,
        }
    }
}
