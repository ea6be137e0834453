//! `docs/performance.md` and its plots, of one run's report and nothing else.

use std::fmt::Write;
use std::path::Path;

use crate::bench::env::{AT_ONCE, CONNECTIONS};
use crate::bench::figure::number;
use crate::bench::figures::neighbours;
use crate::bench::plot::{Axis, Plot, PlotLine};
use crate::bench::{BenchFigure, BenchReport, Distribution, FigureLimit, FigurePart};
use crate::config::Config;
use crate::domain::quota::MOST;

/// The least lateness that is drawn, in milliseconds: below it the axis would be all noise.
const LEAST: f64 = 0.05;

/// Beginnings of the names of figures that are measured with the default configuration.
const BY_DEFAULT: [&str; 8] = [
    "agent",
    "pipeline_fire",
    "webhook_fire",
    "list_runs_1m",
    "stats_1m",
    "dashboard_1m",
    "live_tails_200",
    neighbours::NAME,
];

/// A file that belongs to the page.
pub struct Picture {
    /// Name of the file.
    pub file: &'static str,
    /// Title of the picture, for readers who do not see it.
    pub title: String,
    /// The picture, as SVG.
    pub svg: String,
}

impl BenchReport {
    /// The plots that this run has the figures for.
    pub fn plots(&self) -> Vec<Picture> {
        let bursts = [
            ("burst_100", "timer_burst_100"),
            ("burst_1000", "timer_burst_1000"),
            ("burst_10000", "timer_burst_10000"),
        ];
        let bursts = self.spread(
            &bursts,
            "How late tasks start that are due at once",
            "share of the starts that come within this time after the instant; dashed: sleeps of the bare timer",
            "lateness in ms",
        );
        let starts = self.spread(
            &[("start_local", "commit"), ("start_remote", "bare_notify")],
            "From “run now” to the start of the run",
            "share of the starts that come within this time; dashed: one bare commit, and a bare NOTIFY between processes",
            "time in ms",
        );
        let file = |file, plot: Plot| Picture { file, title: plot.title.clone(), svg: plot.svg() };
        [
            bursts.map(|plot| file("bench-lateness.svg", plot)),
            starts.map(|plot| file("bench-starts.svg", plot)),
            self.backlog().map(|plot| file("bench-backlog.svg", plot)),
        ]
        .into_iter()
        .flatten()
        .collect()
    }

    /// How figures and their limits are spread, each pair in one colour.
    fn spread(&self, pairs: &[(&str, &str)], title: &str, subtitle: &str, x: &str) -> Option<Plot> {
        let mut lines = Vec::new();
        for (colour, (figure, limit)) in pairs.iter().enumerate() {
            let Some(found) = self.figure(figure) else { continue };
            let Some(spread) = &found.distribution else { continue };
            lines.push(line(figure_title(found), colour, false, spread));
            if let Some(spread) = self.limit(limit).and_then(|limit| limit.distribution.as_ref()) {
                lines.push(line("limit".into(), colour, true, spread));
            }
        }
        let values = lines.iter().flat_map(|line| line.points.iter().map(|(x, _)| *x));
        let (least, most) = values.fold((f64::INFINITY, 0.0), |(least, most), x: f64| (x.min(least), x.max(most)));
        (!lines.is_empty()).then(|| Plot {
            title: title.into(),
            subtitle: subtitle.into(),
            x: Axis::logarithmic(format!("{x} (logarithmic)"), least.max(LEAST), most),
            y: Axis::even("share of the starts in %", 100.0),
            lines,
        })
    }

    /// Throughput over the length of the backlog.
    fn backlog(&self) -> Option<Plot> {
        let series = &self.figure("drain_100k")?.series;
        let (first, last) = (series.first()?, series.last()?);
        let of = |name: &str, colour, limit, points| PlotLine {
            name: name.into(),
            colour,
            limit,
            dots: true,
            points,
            mark: None,
        };
        let lines = vec![
            of("reveille", 0, false, series.iter().map(|point| (point.size as f64, point.value)).collect()),
            of("bare SQL", 1, true, series.iter().map(|point| (point.size as f64, point.limit)).collect()),
        ];
        let most = series.iter().map(|point| point.value.max(point.limit)).fold(0.0, f64::max);
        Some(Plot {
            title: "How fast a backlog is worked off".into(),
            subtitle: "queued runs, started, executed and finished by one instance; the tables were never analysed"
                .into(),
            x: Axis::logarithmic("queued runs (logarithmic)", first.size as f64, last.size as f64),
            y: Axis::even("runs per second", most),
            lines,
        })
    }

    /// The page. `images` is where its plots are, as seen from it; `notes` are a person's words, put at its end.
    pub fn markdown(&self, images: &str, notes: &str) -> String {
        let mut page = String::new();
        // a String takes everything that is written to it
        let _ = self.write(&mut page, images, notes);
        page
    }

    fn write(&self, out: &mut String, images: &str, notes: &str) -> std::fmt::Result {
        let machine = &self.machine;
        let default = Config::default();
        writeln!(out, "# Performance\n")?;
        writeln!(
            out,
            "Measured by `reveille bench` (Reveille {}) on {}, in one run.",
            self.reveille,
            self.began_at.format("%Y-%m-%d")
        )?;
        writeln!(
            out,
            "This page is made of that run's JSON; `reveille bench --database-url … --markdown FILE --plots DIR` makes yours.\n"
        )?;
        writeln!(
            out,
            "Absolute times mean nothing on a machine that others use, too. So each figure stands beside a **limit**: the same"
        )?;
        writeln!(
            out,
            "work by a few lines of bare SQL, or by the bare timer, taken in the same run. The ratio is what travels to other"
        )?;
        writeln!(out, "machines: of a rate the more the better, of a time the less.\n")?;
        let sections = sections(notes);
        if !sections.is_empty() {
            writeln!(out, "Behind the figures stand {}.\n", sections.join(", "))?;
        }
        writeln!(
            out,
            "{} cores ({}), {} GiB of memory, {} {} with `fsync = {}` and `synchronous_commit = {}`, everything on one machine, load {} before the run.\n",
            machine.cores,
            machine.processor,
            (machine.memory_mib as f64 / 1024.0).round(),
            if machine.database == "postgres" { "PostgreSQL" } else { "SQLite" },
            machine.version,
            machine.fsync,
            machine.synchronous_commit,
            number(machine.load)
        )?;
        writeln!(
            out,
            "The service has `max_concurrent_runs = {AT_ONCE}`, `prefetch = {AT_ONCE}` and `max_connections = {}`. Without configuration it has {}, {} and {}: who expects",
            CONNECTIONS + 2,
            default.engine.max_concurrent_runs,
            default.engine.prefetch,
            default.database.max_connections,
        )?;
        writeln!(
            out,
            "hundreds of tasks at one instant that compute raises the first two, or some of them wait until others have ended. Runs\n\
             that wait for a model or a webhook leave their slot (`max_waiting_runs`, {}), so a thousand agents need no more.\n",
            default.engine.max_waiting_runs
        )?;
        writeln!(
            out,
            "All `[quotas]` of tenants are raised to {MOST}, so that none is met: a tenant of the measurement does in seconds what\n\
             its quotas would spread over hours. They are counted all the same.\n"
        )?;
        self.write_defaults(out)?;
        if self.quick || machine.build != "release" {
            writeln!(out, "> **Not to be judged by**: small sizes, or a build without optimisation.\n")?;
        }
        writeln!(out, "## Figures\n")?;
        writeln!(out, "Everything is durable and on the record before it counts.\n")?;
        writeln!(out, "| figure | what | value | limit | ratio | to be reached | reached |")?;
        writeln!(out, "|---|---|---:|---:|---:|---|---|")?;
        for figure in &self.figures {
            writeln!(
                out,
                "| `{}` | {} ({}) | {} {} | {} | {} | {} | {} |",
                figure.name,
                cell(&figure.what),
                number(figure.of as f64),
                number(figure.value),
                figure.unit,
                figure.limit.map_or_else(|| "–".into(), |limit| format!("{} {}", number(limit), figure.unit)),
                figure.ratio.map_or_else(|| "–".into(), number),
                cell(figure.reach.as_deref().unwrap_or("–")),
                match figure.met {
                    Some(true) => "yes",
                    Some(false) => "**no**",
                    None => "–",
                }
            )?;
        }
        writeln!(out)?;
        for figure in self.figures.iter().filter(|figure| !figure.parts.is_empty()) {
            let parts: Vec<String> = figure.parts.iter().map(part_text).collect();
            writeln!(out, "- `{}`: {}", figure.name, parts.join(", "))?;
        }
        for picture in self.plots() {
            writeln!(out, "\n![{}]({images}{})", picture.title, picture.file)?;
        }
        writeln!(
            out,
            "\n## Limits\n\nThe rates and times of this machine, its database and the runtime's timer by themselves.\n"
        )?;
        writeln!(out, "| limit | what | value |\n|---|---|---:|")?;
        for limit in &self.limits {
            writeln!(out, "| `{}` | {} | {} {} |", limit.name, cell(&limit.what), number(limit.value), limit.unit)?;
        }
        if !notes.trim().is_empty() {
            writeln!(out, "\n{}", notes.trim())?;
        }
        Ok(())
    }

    /// Which figures are measured with the default configuration, where there are any.
    fn write_defaults(&self, out: &mut String) -> std::fmt::Result {
        let has = |name: &str| self.figures.iter().any(|figure| figure.name.starts_with(name));
        let named: Vec<String> = BY_DEFAULT.into_iter().filter(|name| has(name)).map(|n| format!("`{n}`")).collect();
        if named.is_empty() {
            return Ok(());
        }
        let named = named.join(", ");
        writeln!(
            out,
            "The figures of {named} are measured with the default configuration instead, these quotas included."
        )?;
        if has(neighbours::NAME) {
            writeln!(
                out,
                "The limit of `neighbours` is twice what the quiet tenant takes alone in the same run; what takes less than {} ms is\n\
                 noise, and is not judged.",
                neighbours::FLOOR
            )?;
        }
        writeln!(out)
    }

    fn figure(&self, name: &str) -> Option<&BenchFigure> {
        self.figures.iter().find(|figure| figure.name == name)
    }

    fn limit(&self, name: &str) -> Option<&FigureLimit> {
        self.limits.iter().find(|limit| limit.name == name)
    }
}

/// Where the plots are, as seen from the page: below its folder, or wherever they are.
pub fn relative_to(page: &Path, plots: &Path) -> String {
    let folder = page.parent().unwrap_or(Path::new(""));
    let seen = plots.strip_prefix(folder).unwrap_or(plots).display().to_string();
    if seen.is_empty() { seen } else { format!("{seen}/") }
}

fn part_text(part: &FigurePart) -> String {
    let value = format!("{} {} {}", part.name, number(part.value), part.unit);
    let most = part.most.map(|most| format!(" (at most {})", number(most))).unwrap_or_default();
    format!("{}{most}", value.trim_end())
}

fn figure_title(figure: &BenchFigure) -> String {
    match figure.name.strip_prefix("burst_").and_then(|size| size.parse().ok()) {
        Some(size) => format!("{} at once", number(size)),
        None => figure.name.replace('_', " "),
    }
}

fn line(name: String, colour: usize, limit: bool, spread: &Distribution) -> PlotLine {
    let points: Vec<(f64, f64)> = spread.quantiles.iter().map(|(share, value)| (*value, share * 100.0)).collect();
    let p99 = spread.quantiles.iter().find(|(share, _)| (share - 0.99).abs() < 1e-9).filter(|_| !limit);
    let mark = p99.map(|(_, value)| (*value, 99.0, format!("p99 {} {}", number(*value), spread.unit)));
    PlotLine { name, colour, limit, dots: false, points, mark }
}

/// Links to the sections of the notes.
fn sections(notes: &str) -> Vec<String> {
    let titles = notes.lines().filter_map(|line| line.strip_prefix("## "));
    let anchor = |title: &str| {
        let kept = title.chars().filter(|c| c.is_alphanumeric() || matches!(c, ' ' | '-'));
        kept.collect::<String>().to_lowercase().replace(' ', "-")
    };
    titles.map(|title| format!("[{title}](#{})", anchor(title))).collect()
}

/// Text in a cell of a table.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;

    use super::*;
    use crate::bench::{Machine, Point, Samples};

    fn report() -> BenchReport {
        let samples = |most: u32| Samples::new((1..=most).map(|n| f64::from(n) / 10.0).collect());
        let machine = Machine {
            cores: 2,
            processor: "A CPU".into(),
            memory_mib: 8192,
            load: 0.25,
            database: "postgres".into(),
            version: "15.1".into(),
            fsync: "on".into(),
            synchronous_commit: "on".into(),
            redis: false,
            build: "release".into(),
        };
        let limit = FigureLimit::new("timer_burst_1000", "sleeps | at once", "ms", 10.0);
        let burst = BenchFigure::new("burst_1000", "lateness", "ms", 1000, 40.0).with_limit("timer burst", 10.0);
        let drain =
            BenchFigure::new("drain_100k", "a backlog", "runs/s", 100_000, 9_000.0).with_limit("bare drain", 10_000.0);
        let series = vec![
            Point { size: 1_000, value: 8_000.0, limit: 9_500.0 },
            Point { size: 100_000, value: 9_000.0, limit: 10_000.0 },
        ];
        BenchReport {
            reveille: "1.2.3".into(),
            began_at: DateTime::UNIX_EPOCH,
            machine,
            quick: false,
            limits: vec![limit.spread(samples(100).distribution("ms"))],
            figures: vec![burst.at_most(5.0).spread(&samples(400)), BenchFigure { series, ..drain.at_least(0.95) }],
        }
    }

    #[test]
    fn page_has_each_figure_beside_its_limit_and_says_what_was_not_reached() {
        let page = report().markdown("images/", "## Where the time goes\n\nInto the disk.\n\n## The service's own\n");
        for line in [
            "Measured by `reveille bench` (Reveille 1.2.3) on 1970-01-01, in one run.",
            "Behind the figures stand [Where the time goes](#where-the-time-goes), [The service's own](#the-services-own).",
            "that wait for a model or a webhook leave their slot (`max_waiting_runs`, 4096), so a thousand agents need no more.",
            "| `burst_1000` | lateness (1,000) | 40 ms | 10 ms | 4 | ≤ 5 × the limit | yes |",
            "| `drain_100k` | a backlog (100,000) | 9,000 runs/s | 10,000 runs/s | 0.90 | ≥ 95 % of the limit | **no** |",
            "- `burst_1000`: p50 20 ms, p99 39.6 ms",
            "![How fast a backlog is worked off](images/bench-backlog.svg)",
            "| `timer_burst_1000` | sleeps \\| at once | 10 ms |",
            "Into the disk.",
        ] {
            assert!(page.lines().any(|found| found == line), "{line}\nis not in\n{page}");
        }
        assert!(!page.contains("Not to be judged by"));
        assert!(BenchReport { quick: true, ..report() }.markdown("", "").contains("Not to be judged by"));
    }

    #[test]
    fn there_is_a_plot_for_what_was_measured_and_none_for_what_was_not() {
        let files: Vec<&str> = report().plots().iter().map(|picture| picture.file).collect();
        assert_eq!(files, ["bench-lateness.svg", "bench-backlog.svg"]);
        let lateness = &report().plots()[0].svg;
        for part in ["1,000 at once", "p99 39.6 ms", ">100</text>", "lateness in ms"] {
            assert!(lateness.contains(part), "{part} is not in\n{lateness}");
        }
        assert!(BenchReport { figures: vec![], ..report() }.plots().is_empty());
    }

    #[test]
    fn report_is_read_again_as_it_was_written() {
        let written = serde_json::to_string(&report()).unwrap();
        assert_eq!(serde_json::from_str::<BenchReport>(&written).unwrap(), report());
    }

    #[test]
    fn page_of_this_project_is_its_run_s_and_nobody_s_hand_s() {
        let read = |name: &str| std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("docs").join(name));
        let report: BenchReport = serde_json::from_str(&read("performance.json").unwrap()).unwrap();
        let notes = read("performance.notes.md").unwrap();
        let page = report.markdown("images/", &notes);
        assert_eq!(
            page,
            read("performance.md").unwrap(),
            "make it again: reveille bench --from docs/performance.json \
            --markdown docs/performance.md --plots docs/images --notes docs/performance.notes.md"
        );
        for picture in report.plots() {
            assert_eq!(picture.svg, read(&format!("images/{}", picture.file)).unwrap(), "{}", picture.file);
        }
    }

    #[test]
    fn plots_are_linked_from_where_the_page_is() {
        let seen = |page: &str, plots: &str| relative_to(Path::new(page), Path::new(plots));
        assert_eq!(seen("docs/performance.md", "docs/images"), "images/");
        assert_eq!(seen("docs/performance.md", "docs"), "");
        assert_eq!(seen("performance.md", "plots"), "plots/");
        assert_eq!(seen("docs/p.md", "/tmp/plots"), "/tmp/plots/");
    }
}
