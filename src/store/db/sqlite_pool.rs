//! Pools of connections to a file.

use sqlx::sqlite::SqlitePoolOptions;

/// Connections that are not asked whether they are still there: a file does not go away.
pub(in crate::store) fn sqlite_pool(most: u32) -> SqlitePoolOptions {
    SqlitePoolOptions::new().max_connections(most).test_before_acquire(false)
}
