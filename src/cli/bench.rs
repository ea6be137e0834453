//! `reveille bench`: measures this machine against its own limits.

use serde_json::{Value, json};

use crate::bench::{self, Figure, NAMES, Size, Where};
use crate::cli::screen::Screen;
use crate::secret::SecretUrl;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
It works in a schema and under a Redis prefix of its own and removes them. Without addresses it measures SQLite in a
temporary file and the embedded bus. A build without optimisation says little: use the released binary.

Examples:
  reveille bench events --database-url postgres://… --redis-url redis://127.0.0.1:6379")]
pub struct Args {
    /// What to measure; everything when absent: events
    #[arg(value_name = "NAME", value_parser = clap::builder::PossibleValuesParser::new(NAMES.map(|(name, _)| name)))]
    names: Vec<String>,
    /// Database to measure
    #[arg(long, value_name = "URL")]
    database_url: Option<String>,
    /// Redis to measure
    #[arg(long, value_name = "URL")]
    redis_url: Option<String>,
    /// Event tasks that there are
    #[arg(long, default_value_t = Size::default().tasks, value_name = "N")]
    tasks: usize,
    /// Events of each throughput
    #[arg(long, default_value_t = Size::default().events, value_name = "N")]
    events: usize,
    /// Events that are timed one by one
    #[arg(long, default_value_t = Size::default().samples, value_name = "N")]
    samples: usize,
    /// Print JSON instead of a table
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args, screen: &mut Screen) -> anyhow::Result<()> {
    let at =
        Where { database_url: args.database_url.map(SecretUrl::new), redis_url: args.redis_url.map(SecretUrl::new) };
    let size = Size { tasks: args.tasks.max(1), events: args.events.max(1), samples: args.samples.max(1) };
    let names: Vec<&str> = args.names.iter().map(String::as_str).collect();
    let figures = bench::run(&names, &at, size, &|doing| eprintln!("{doing}")).await?;
    if args.json {
        let figures: Vec<Value> = figures.iter().map(Value::from).collect();
        return Ok(screen.json(&json!({ "figures": figures }))?);
    }
    let rows = figures.iter().map(row).collect();
    Ok(screen.table(&["figure", "value", "limit", "ratio", "the limit is"], rows)?)
}

fn row(figure: &Figure) -> Vec<String> {
    let number = |value: f64| if value >= 100.0 { format!("{value:.0}") } else { format!("{value:.2}") };
    vec![
        figure.name.to_owned(),
        format!("{} {}", number(figure.value), figure.unit),
        figure.limit.map_or_else(|| "-".into(), number),
        figure.ratio.map_or_else(|| "-".into(), |ratio| format!("{ratio:.2}")),
        figure.limit.map_or("", |_| figure.against).to_owned(),
    ]
}
