//! A run of the measurements: where, how large, which, and the figures so far.

use crate::bench::figure::{BenchFigure, FigureLimit};
use crate::bench::site::Where;
use crate::bench::size::BenchSize;

/// A run of the measurements.
pub struct Bench<'a> {
    /// Where it measures.
    pub at: &'a Where,
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

    /// Tells what is being done.
    pub fn progress(&self, doing: &str) {
        (self.told)(doing);
    }
}
