//! One axis: its range, and the round numbers on it.

use crate::bench::figure::number;

/// Ticks of an even axis, about.
const TICKS: f64 = 6.0;

/// From one value to another, in even or in equal steps of size.
#[derive(Debug, Clone, PartialEq)]
pub struct Axis {
    /// The quantity that it shows, with the unit.
    pub name: String,
    from: f64,
    to: f64,
    logarithmic: bool,
}

impl Axis {
    /// From 0 to the round number that `greatest` fits below.
    pub fn even(name: impl Into<String>, greatest: f64) -> Axis {
        let step = step(greatest);
        Axis { name: name.into(), from: 0.0, to: (greatest / step - 1e-9).ceil().max(1.0) * step, logarithmic: false }
    }

    /// From the round number (1, 2, 5 and their tenfolds) below `least` to the one above `greatest`.
    pub fn logarithmic(name: impl Into<String>, least: f64, greatest: f64) -> Axis {
        let least = least.max(1e-9);
        let from = round(least).filter(|round| *round <= least * 1.0001).fold(least / 10.0, f64::max);
        let top = greatest.max(from * 2.0);
        let to = round(top).filter(|round| *round >= top * 0.9999).fold(top * 10.0, f64::min);
        Axis { name: name.into(), from, to, logarithmic: true }
    }

    /// How far along the axis a value lies, from 0 to 1; one outside is put at its end.
    pub fn share(&self, value: f64) -> f64 {
        let value = value.clamp(self.from, self.to);
        if self.logarithmic {
            (value / self.from).ln() / (self.to / self.from).ln()
        } else {
            (value - self.from) / (self.to - self.from)
        }
    }

    /// Values that are named.
    pub fn ticks(&self) -> Vec<f64> {
        if !self.logarithmic {
            let step = step(self.to);
            return (0..=(self.to / step).round() as u32).map(|n| f64::from(n) * step).collect();
        }
        let few = self.decades() <= 3.0;
        let named = |value: &f64| few || (value.log10() - value.log10().round()).abs() < 1e-6;
        self.round_within().into_iter().filter(named).collect()
    }

    /// Values with a line across; whether it is a fine one.
    pub fn grid(&self) -> Vec<(f64, bool)> {
        let ticks = self.ticks();
        if !self.logarithmic {
            return ticks.into_iter().map(|tick| (tick, false)).collect();
        }
        let is_tick = |value: f64| ticks.iter().any(|tick| (tick / value - 1.0).abs() < 1e-6);
        let mut grid: Vec<(f64, bool)> =
            self.round_within().into_iter().filter(|value| !is_tick(*value)).map(|value| (value, true)).collect();
        grid.extend(ticks.iter().map(|tick| (*tick, false)));
        grid
    }

    /// The text of a value at the axis.
    pub fn label(&self, value: f64) -> String {
        match value {
            // 0.10 would say more than is meant
            _ if value > 0.0 && value < 1.0 => format!("{}", (value * 1e6).round() / 1e6),
            _ if value < 10.0 && value != value.round() => format!("{value}"),
            _ => number(value),
        }
    }

    fn decades(&self) -> f64 {
        (self.to / self.from).log10()
    }

    fn round_within(&self) -> Vec<f64> {
        let within = |value: &f64| *value >= self.from * 0.9999 && *value <= self.to * 1.0001;
        let decades = self.from.log10().floor() as i32..=self.to.log10().ceil() as i32;
        decades.flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| rounded(digit, decade))).filter(within).collect()
    }
}

/// 1, 2 and 5 and their tenfolds, two decades around a value.
fn round(value: f64) -> impl Iterator<Item = f64> {
    let decade = value.log10().floor() as i32;
    (decade - 1..=decade + 1).flat_map(|decade| [1.0, 2.0, 5.0].map(|digit| rounded(digit, decade)))
}

fn rounded(digit: f64, decade: i32) -> f64 {
    // a division is exact where a power below one is not
    if decade < 0 { digit / 10_f64.powi(-decade) } else { digit * 10_f64.powi(decade) }
}

/// The round step (1, 2, 5 and their tenfolds) that parts this into about six.
fn step(greatest: f64) -> f64 {
    let raw = greatest.max(1e-9) / TICKS;
    round(raw).filter(|round| *round >= raw * 0.9999).fold(f64::INFINITY, f64::min)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn even_axis_goes_from_nought_to_a_round_number_in_round_steps() {
        for (greatest, ticks) in [
            (100.0, vec![0.0, 20.0, 40.0, 60.0, 80.0, 100.0]),
            (53_123.0, vec![0.0, 10_000.0, 20_000.0, 30_000.0, 40_000.0, 50_000.0, 60_000.0]),
            (0.9, vec![0.0, 0.2, 0.4, 0.6000000000000001, 0.8, 1.0]),
            (7.0, vec![0.0, 2.0, 4.0, 6.0, 8.0]),
        ] {
            assert_eq!(Axis::even("", greatest).ticks(), ticks, "{greatest}");
        }
    }

    #[test]
    fn logarithmic_axis_names_tenfolds_and_between_them_where_there_is_room() {
        let wide = Axis::logarithmic("", 0.13, 812.0);
        assert_eq!(wide.ticks(), [0.1, 1.0, 10.0, 100.0, 1000.0]);
        assert!(wide.grid().contains(&(0.2, true)) && wide.grid().contains(&(100.0, false)));
        let narrow = Axis::logarithmic("", 1000.0, 100_000.0);
        assert_eq!(narrow.ticks(), [1e3, 2e3, 5e3, 1e4, 2e4, 5e4, 1e5]);
        assert_eq!([1e3, 1e4, 1e5].map(|value| narrow.share(value)), [0.0, 0.5, 1.0]);
        assert_eq!((narrow.share(1.0), narrow.share(1e9)), (0.0, 1.0), "what is outside stays at the edge");
    }

    #[test]
    fn labels_are_short() {
        let axis = Axis::even("", 1.0);
        let labels = [0.0, 0.1, 0.6000000000000001, 1.0, 2.5, 20.0, 50_000.0].map(|value| axis.label(value));
        assert_eq!(labels, ["0", "0.1", "0.6", "1", "2.5", "20", "50,000"]);
    }
}
