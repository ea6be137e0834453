//! Measurements, in numbers that a person and a program can read: figures, their limits, and how they are spread.

use serde::{Deserialize, Serialize};

/// How much two looks at the database's clock may differ, in milliseconds.
const EARLY: f64 = 1.0;

/// The rate or time of the machine, the database or the runtime by itself.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigureLimit {
    /// Name of the limit.
    pub name: String,
    /// The work that is measured, in words.
    pub what: String,
    /// `rows/s`, `ms`.
    pub unit: String,
    /// The value, in its unit.
    pub value: f64,
    /// Spread of the single values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
}

/// One figure beside its limit.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct BenchFigure {
    /// Name of the figure.
    pub name: String,
    /// The work that was measured, in words.
    pub what: String,
    /// `runs/s`, `ms`, `s`.
    pub unit: String,
    /// How many were measured.
    pub of: u64,
    /// The value, in its unit.
    pub value: f64,
    /// The time or rate of the bare work, in the same unit and the same run; absent where there is none to compare.
    pub limit: Option<f64>,
    /// `value / limit`.
    pub ratio: Option<f64>,
    /// The name of the limit.
    pub against: String,
    /// The target, in words; absent where there is none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reach: Option<String>,
    /// Whether it was, in each of its parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub met: Option<bool>,
    /// Further values: percentiles, memory, counts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<FigurePart>,
    /// Spread of the single values.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub distribution: Option<Distribution>,
    /// The figure over a size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub series: Vec<Point>,
}

/// A number beside the figure.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FigurePart {
    /// Name of the value.
    pub name: String,
    /// Unit of the value.
    pub unit: String,
    /// The value.
    pub value: f64,
    /// The most that it may be.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub most: Option<f64>,
}

/// A figure and its limit at one size.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// The size at which it was measured.
    pub size: u64,
    /// The figure at this size.
    pub value: f64,
    /// The limit at this size.
    pub limit: f64,
}

/// How samples are spread: `[share, value]`, by growing share from 0 to 1.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Distribution {
    /// Unit of the values.
    pub unit: String,
    /// Number of samples.
    pub samples: u64,
    /// Quantiles between 0 and 1, each with its value.
    pub quantiles: Vec<(f64, f64)>,
}

impl FigureLimit {
    /// A limit without a spread.
    pub fn new(name: impl Into<String>, what: impl Into<String>, unit: &str, value: f64) -> FigureLimit {
        FigureLimit { name: name.into(), what: what.into(), unit: unit.into(), value, distribution: None }
    }

    /// The limit with the spread of its values.
    pub fn spread(self, distribution: Distribution) -> FigureLimit {
        FigureLimit { distribution: Some(distribution), ..self }
    }
}

impl BenchFigure {
    /// A figure of `of` measured things.
    pub fn new(name: impl Into<String>, what: impl Into<String>, unit: &str, of: usize, value: f64) -> BenchFigure {
        let (name, what, unit) = (name.into(), what.into(), unit.into());
        BenchFigure { name, what, unit, of: of as u64, value, ..BenchFigure::default() }
    }

    /// Puts the limit beside it.
    pub fn with_limit(self, what: impl Into<String>, limit: f64) -> BenchFigure {
        let ratio = (limit > 0.0).then(|| self.value / limit);
        BenchFigure { limit: Some(limit), ratio, against: what.into(), ..self }
    }

    /// Asks for this share of the limit.
    pub fn at_least(self, share: f64) -> BenchFigure {
        let met = self.ratio.is_some_and(|ratio| ratio >= share);
        self.require(format!("≥ {:.0} % of the limit", share * 100.0), met)
    }

    /// Allows so many times the limit.
    pub fn at_most(self, times: f64) -> BenchFigure {
        let met = self.ratio.is_some_and(|ratio| ratio <= times);
        let words = if times == 1.0 { "≤ the limit".into() } else { format!("≤ {times} × the limit") };
        self.require(words, met)
    }

    /// Allows this much over the limit.
    pub fn at_most_over(self, more: f64) -> BenchFigure {
        let met = self.limit.is_some_and(|limit| self.value <= limit + more);
        let words = format!("≤ the limit + {more} {}", self.unit);
        self.require(words, met)
    }

    /// Allows this much, whatever the limit is.
    pub fn at_most_value(self, most: f64) -> BenchFigure {
        let met = self.value <= most;
        let words = format!("≤ {} {}", number(most), self.unit);
        self.require(words, met)
    }

    /// Asks for one thing more.
    pub fn require(self, words: String, met: bool) -> BenchFigure {
        let reach = match &self.reach {
            Some(before) => format!("{before}, {words}"),
            None => words,
        };
        BenchFigure { reach: Some(reach), met: Some(self.met.unwrap_or(true) && met), ..self }
    }

    /// Tells a number beside it.
    pub fn with_part(mut self, name: impl Into<String>, unit: &str, value: f64) -> BenchFigure {
        self.parts.push(FigurePart { name: name.into(), unit: unit.into(), value, most: None });
        self
    }

    /// Tells a number beside it that may be `most`.
    pub fn with_part_at_most(mut self, name: &str, unit: &str, value: f64, most: f64) -> BenchFigure {
        self.parts.push(FigurePart { name: name.into(), unit: unit.into(), value, most: Some(most) });
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        self.require(format!("{name} ≤ {}{unit}", number(most)), value <= most)
    }

    /// Asks that none of these latenesses, in milliseconds, is less than nothing: what starts before its instant is no
    /// better than what is late.
    pub fn require_not_early(self, late: &Samples) -> BenchFigure {
        let earliest = late.percentile(0.0);
        let met = earliest >= -EARLY;
        self.with_part("earliest", "ms", earliest).require("none before its instant".into(), met)
    }

    /// Tells how the samples behind it are spread, and their 50th and 99th percentile.
    pub fn spread(self, samples: &Samples) -> BenchFigure {
        let unit = self.unit.clone();
        let told =
            self.with_part("p50", &unit, samples.percentile(0.5)).with_part("p99", &unit, samples.percentile(0.99));
        BenchFigure { distribution: Some(samples.distribution(&unit)), ..told }
    }
}

/// Measured values, in order.
#[derive(Debug, Clone, PartialEq)]
pub struct Samples(Vec<f64>);

impl Samples {
    /// Samples in any order.
    pub fn new(mut values: Vec<f64>) -> Samples {
        values.sort_by(f64::total_cmp);
        Samples(values)
    }

    /// Those of several rounds as one.
    pub fn all(rounds: Vec<Samples>) -> Samples {
        Samples::new(rounds.into_iter().flat_map(|round| round.0).collect())
    }

    /// The value below or at which this share of the samples lies: one of them. NaN of nothing.
    pub fn percentile(&self, share: f64) -> f64 {
        let index = ((self.0.len() as f64 * share).ceil() as usize).clamp(1, self.0.len().max(1)) - 1;
        self.0.get(index).copied().unwrap_or(f64::NAN)
    }

    /// Number of samples.
    pub fn count(&self) -> usize {
        self.0.len()
    }

    /// Each whole percent, and from 99 % on each tenth of one.
    pub fn distribution(&self, unit: &str) -> Distribution {
        let thousandths = (0..990).step_by(10).chain(990..=1000).map(f64::from);
        let rounded = |value: f64| (value * 1e4).round() / 1e4;
        let quantiles = thousandths.map(|share| (share / 1000.0, rounded(self.percentile(share / 1000.0)))).collect();
        Distribution { unit: unit.into(), samples: self.0.len() as u64, quantiles }
    }
}

/// The one in the middle, so that a disturbed round does not count.
pub fn median(values: Vec<f64>) -> f64 {
    Samples::new(values).percentile(0.5)
}

/// Short, with as many digits as matter.
pub fn number(value: f64) -> String {
    let size = value.abs();
    if !value.is_finite() {
        "-".into()
    } else if size >= 1000.0 {
        let whole = format!("{:.0}", value);
        let (sign, digits) = whole.strip_prefix('-').map_or(("", whole.as_str()), |digits| ("-", digits));
        let groups: Vec<&str> =
            digits.as_bytes().rchunks(3).rev().map(|group| str::from_utf8(group).unwrap_or_default()).collect();
        format!("{sign}{}", groups.join(","))
    } else if size >= 100.0 || value == value.round() {
        format!("{value:.0}")
    } else if size >= 10.0 {
        format!("{value:.1}")
    } else if size >= 0.1 {
        format!("{value:.2}")
    } else {
        format!("{value:.4}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentile_is_a_sample() {
        let samples = Samples::new((1..=200).rev().map(f64::from).collect());
        assert_eq!(
            (samples.percentile(0.0), samples.percentile(0.5), samples.percentile(0.99), samples.percentile(1.0)),
            (1.0, 100.0, 198.0, 200.0)
        );
        assert_eq!(Samples::new(vec![7.0]).percentile(0.99), 7.0);
        assert!(Samples::new(vec![]).percentile(0.5).is_nan());
        assert_eq!(median(vec![9.0, 1.0, 4.0]), 4.0);
    }

    #[test]
    fn distribution_goes_from_the_least_to_the_greatest_and_is_finest_at_its_end() {
        let spread = Samples::new((1..=1000).map(f64::from).collect()).distribution("ms");
        assert_eq!((spread.quantiles[0], spread.quantiles[50]), ((0.0, 1.0), (0.5, 500.0)));
        assert_eq!(spread.quantiles[spread.quantiles.len() - 2..], [(0.999, 999.0), (1.0, 1000.0)]);
        assert!(spread.quantiles.windows(2).all(|pair| pair[0].0 < pair[1].0 && pair[0].1 <= pair[1].1));
    }

    #[test]
    fn figure_is_met_only_where_every_target_is() {
        let figure = |value| BenchFigure::new("start", "run now to start", "ms", 10, value).with_limit("notify", 2.0);
        assert_eq!(figure(2.5).at_most(1.25).met, Some(true));
        assert_eq!(figure(2.51).at_most(1.25).met, Some(false));
        assert_eq!((figure(1.4).at_least(0.7).met, figure(1.3).at_least(0.7).met), (Some(true), Some(false)));
        assert_eq!((figure(5.0).at_most_over(3.0).met, figure(5.1).at_most_over(3.0).met), (Some(true), Some(false)));
        assert_eq!((figure(6.0).at_most_value(6.0).met, figure(6.1).at_most_value(6.0).met), (Some(true), Some(false)));
        assert_eq!(figure(1.0).met, None);
        let both = figure(2.5).at_most(1.25).with_part_at_most("p99", "ms", 9.0, 8.0);
        assert_eq!((both.met, both.reach.as_deref()), (Some(false), Some("≤ 1.25 × the limit, p99 ≤ 8 ms")));
        assert_eq!(both.ratio, Some(1.25));
    }

    #[test]
    fn early_start_reaches_no_target() {
        let figure = |least| {
            let late = Samples::new(vec![least, 1.0, 2.0]);
            BenchFigure::new("lone", "lateness", "ms", 3, late.percentile(0.99))
                .with_limit("timer", 1.0)
                .at_most(5.0)
                .require_not_early(&late)
        };
        assert_eq!((figure(-0.9).met, figure(-1.1).met), (Some(true), Some(false)));
        assert_eq!(figure(-170.0).parts[0].value, -170.0);
    }

    #[test]
    fn numbers_are_short() {
        let shown = [1234567.0, 53211.7, 128.4, 12.34, 1.234, 0.5, 0.01234, 20.0, -1500.0, f64::NAN].map(number);
        assert_eq!(shown, ["1,234,567", "53,212", "128", "12.3", "1.23", "0.50", "0.0123", "20", "-1,500", "-"]);
    }
}
