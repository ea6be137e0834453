//! `reveille bench`: what this machine does, beside what its own database and Redis could do at best.
//!
//! Absolute times say little on a shared machine. So each figure has a limit: the same work by a few lines of bare SQL
//! or bare Redis, taken in the same run. It works in a schema, and under a prefix, of its own, and leaves nothing there.

mod events;
mod limits;
mod place;

use serde::Serialize;

use crate::secret::SecretUrl;

pub use events::Size;

/// What can be measured: a name, and what it says.
pub const NAMES: [(&str, &str); 1] =
    [("events", "events through the bus, past 10,000 event tasks, to runs and their start")];

/// Where it is measured.
#[derive(Debug, Clone)]
pub struct Where {
    /// `None`: SQLite in a temporary directory.
    pub database_url: Option<SecretUrl>,
    /// `None`: the embedded bus, on the database.
    pub redis_url: Option<SecretUrl>,
}

/// One measurement.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    pub name: &'static str,
    /// `events/s`, `ms`.
    pub unit: &'static str,
    pub value: f64,
    /// What the bare work took or reached, in the same unit and the same run; absent where there is none to compare.
    pub limit: Option<f64>,
    /// `value / limit`.
    pub ratio: Option<f64>,
    /// What the limit is.
    pub against: &'static str,
}

impl Figure {
    fn new(name: &'static str, unit: &'static str, value: f64, limit: Option<f64>, against: &'static str) -> Figure {
        let ratio = limit.filter(|limit| *limit > 0.0).map(|limit| value / limit);
        Figure { name, unit, value, limit, ratio, against }
    }
}

/// Measures; `told` hears what is being done.
///
/// # Errors
/// The database or Redis can't be used, or what was measured was not done right.
pub async fn run(names: &[&str], at: &Where, size: Size, told: &dyn Fn(&str)) -> anyhow::Result<Vec<Figure>> {
    let mut figures = Vec::new();
    if names.is_empty() || names.contains(&"events") {
        figures.extend(events::measure(at, size, told).await?);
    }
    Ok(figures)
}
