//! How fast something went, and what the processors did meanwhile: where the time goes.

use std::path::Path;
use std::time::{Duration, Instant};

use crate::bench::BenchFigure;

/// `/proc/stat` counts in ticks of so many milliseconds.
const TICK: u64 = 10;

/// Runs while something is measured.
pub struct Watch {
    began: Instant,
    here: Duration,
    all: Option<Duration>,
}

/// How many a second, and what one of them took.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Rate {
    pub value: f64,
    /// Of the processors, in microseconds.
    took: Option<CpuSeconds>,
}

#[derive(Debug, Clone, Copy, PartialEq)]
struct CpuSeconds {
    here: f64,
    elsewhere: f64,
}

impl Watch {
    pub fn start() -> Watch {
        Watch { here: process_cpu(), all: system_cpu(), began: Instant::now() }
    }

    pub fn elapsed(&self) -> Duration {
        self.began.elapsed()
    }

    /// So many were done.
    pub fn rate(&self, count: usize) -> Rate {
        let value = count as f64 / self.elapsed().as_secs_f64().max(1e-9);
        let each = |spent: Duration| spent.as_secs_f64() * 1e6 / count.max(1) as f64;
        let took = self.all.zip(system_cpu()).map(|(before, now)| {
            let here = process_cpu().saturating_sub(self.here);
            CpuSeconds { here: each(here), elsewhere: each(now.saturating_sub(before).saturating_sub(here)) }
        });
        Rate { value, took }
    }
}

impl Rate {
    /// A rate of which nothing else is known.
    pub fn of(value: f64) -> Rate {
        Rate { value, took: None }
    }

    /// The one in the middle.
    pub fn median(mut rates: Vec<Rate>) -> Rate {
        rates.sort_by(|one, other| one.value.total_cmp(&other.value));
        let middle = rates.len().div_ceil(2).saturating_sub(1);
        rates.get(middle).copied().unwrap_or(Rate { value: f64::NAN, took: None })
    }

    /// Tells beside a figure where the time of each goes.
    pub fn profile(&self, figure: BenchFigure) -> BenchFigure {
        self.annotate(figure, "processor time of each in this process", "elsewhere (database, system)")
    }

    /// Tells beside the limit of a figure where the time of each goes.
    pub fn profile_limit(&self, figure: BenchFigure) -> BenchFigure {
        self.annotate(figure, "of each of the limit in this process", "and elsewhere")
    }

    fn annotate(&self, figure: BenchFigure, here: &str, elsewhere: &str) -> BenchFigure {
        match self.took {
            Some(took) => figure.with_part(here, "µs", took.here).with_part(elsewhere, "µs", took.elsewhere),
            None => figure,
        }
    }
}

/// CPU time of this process so far, on all processors.
fn process_cpu() -> Duration {
    let ran = rustix::time::clock_gettime(rustix::time::ClockId::ProcessCPUTime);
    Duration::new(ran.tv_sec as u64, ran.tv_nsec as u32)
}

/// CPU time of the whole system; `None` where the system does not tell it.
fn system_cpu() -> Option<Duration> {
    busy_time(&std::fs::read_to_string(Path::new("/proc/stat")).ok()?)
}

/// Neither idle nor waiting for a disk: the first line counts user, nice, system, idle, iowait, irq and softirq.
fn busy_time(stat: &str) -> Option<Duration> {
    let counts: Vec<u64> =
        stat.lines().next()?.split_whitespace().skip(1).map_while(|count| count.parse().ok()).collect();
    let [user, nice, system, _, _, irq, softirq, ..] = counts[..] else { return None };
    Some(Duration::from_millis(TICK * (user + nice + system + irq + softirq)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn idle_processors_do_not_count() {
        let stat = "cpu  100 20 30 9000 800 4 6 0 0 0\ncpu0 50 10 15 4500 400 2 3 0 0 0\n";
        assert_eq!(busy_time(stat), Some(Duration::from_millis(1600)));
        assert_eq!((busy_time(""), busy_time("cpu 1 2 3")), (None, None));
    }

    #[test]
    fn one_in_the_middle_counts_and_its_times_stand_beside_the_figure() {
        let rate = |value, here| Rate { value, took: Some(CpuSeconds { here, elsewhere: 2.0 }) };
        let middle = Rate::median(vec![rate(30.0, 1.0), rate(10.0, 3.0), rate(20.0, 5.0)]);
        assert_eq!(middle, rate(20.0, 5.0));
        let figure = middle.profile(BenchFigure::default());
        let told: Vec<(&str, f64)> = figure.parts.iter().map(|part| (part.unit.as_str(), part.value)).collect();
        assert_eq!(told, [("µs", 5.0), ("µs", 2.0)]);
        assert!(Rate { value: 1.0, took: None }.profile(BenchFigure::default()).parts.is_empty());
    }

    #[test]
    fn cpu_time_of_this_process_is_counted_as_its_own() {
        let watch = Watch::start();
        while process_cpu() - watch.here < Duration::from_millis(60) {}
        let took = watch.rate(1).took.expect("Linux says it");
        assert!(took.here >= 60_000.0, "{took:?}");
    }
}
