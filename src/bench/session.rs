//! A run of the measurements: where, how large, which, and the figures so far.

use crate::bench::size::BenchSize;
use crate::bench::{BenchEnv, BenchFigure, BenchSite, FigureLimit};

/// A run of the measurements.
pub struct Bench<'a> {
    /// Where it measures.
    pub at: &'a BenchSite,
    /// How large it measures.
    pub size: BenchSize,
    /// Names of the measurements; all where there is none.
    pub names: &'a [&'a str],
    /// Hears what is being done.
    pub told: &'a dyn Fn(&str),
    /// Limits so far.
    pub limits: Vec<FigureLimit>,
    /// Figures so far.
    pub figures: Vec<BenchFigure>,
}

impl Bench<'_> {
    /// Whether a measurement is asked for.
    pub fn includes(&self, name: &str) -> bool {
        self.names.is_empty() || self.names.contains(&name)
    }

    /// Whether one of these is asked for.
    pub fn includes_any(&self, names: &[&str]) -> bool {
        names.iter().any(|name| self.includes(name))
    }

    /// Measures once in each round, in a place of its own; answers both numbers of each.
    ///
    /// # Errors
    /// A place can't be made, or the measurement fails.
    pub async fn rounds<L, V>(
        &self,
        at: &BenchSite,
        doing: &str,
        measure: impl AsyncFn(&BenchEnv) -> anyhow::Result<(L, V)>,
    ) -> anyhow::Result<(Vec<L>, Vec<V>)> {
        let (mut limits, mut values) = (Vec::new(), Vec::new());
        for round in 1..=self.size.rounds {
            self.progress(&format!("{doing}, round {round}"));
            let (limit, value) = BenchEnv::with(at, &measure).await?;
            limits.push(limit);
            values.push(value);
        }
        Ok((limits, values))
    }

    /// Tells what is being done.
    pub fn progress(&self, doing: &str) {
        (self.told)(doing);
    }
}
