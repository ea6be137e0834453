//! `reveille stats`: what runs have used of models and tools, added up.

use serde_json::Value;

use crate::cli::client::given_filters;
use crate::cli::screen::text_of;
use crate::cli::{Client, ListOptions, Screen, typed};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille stats                                        the last 30 days, day by day
  reveille stats --by model --from 2026-12-01           each model in this month
  reveille stats --by task --largest                    the tasks that cost most
  reveille stats --by tool --task 0193f7a2              the tools of one task
  reveille stats --by tenant                            every tenant; needs an admin token")]
pub struct Args {
    /// The key by which it is added up: day, task, model, tool or tenant
    #[arg(long, value_name = "KEY", default_value = "day")]
    by: String,
    /// The first day, in UTC; 30 days before the last where it is absent
    #[arg(long, value_name = "DAY")]
    from: Option<String>,
    /// The day behind the last; tomorrow where it is absent
    #[arg(long, value_name = "DAY")]
    until: Option<String>,
    /// The largest first, by cost [default: by key]
    #[arg(long)]
    largest: bool,
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this task's: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

pub async fn run(args: Args, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::USAGE);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let heading =
        [args.by.as_str(), "turns", "tokens read", "tokens written", "cost", "tool calls", "failed", "tool time"];
    let filters = given_filters([
        ("by", Some(args.by.clone())),
        ("from", args.from),
        ("until", args.until),
        ("tenant_id", args.tenant),
        ("task_id", task),
        ("order", args.largest.then(|| "largest".to_owned())),
    ]);
    args.page.print(&client, &["v1", "stats", "usage"], &filters, (heading, row), screen).await
}

fn row(sum: &Value) -> [String; 8] {
    let number = |name: &str| text_of(&sum[name]);
    [
        number("key"),
        number("turns"),
        number("input_tokens"),
        number("output_tokens"),
        format!("${:.4}", sum["cost_usd"].as_f64().unwrap_or_default()),
        number("tool_calls"),
        number("tool_failures"),
        format!("{:.1} s", sum["tool_ms"].as_f64().unwrap_or_default() / 1e3),
    ]
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn row_shows_money_and_time_in_whole_units() {
        let sum = json!({
            "key": "2026-12-24", "turns": 3, "input_tokens": 600, "output_tokens": 150, "cost_usd": 0.00075, "tool_calls": 2,
            "tool_failures": 1, "tool_ms": 1250,
        });
        assert_eq!(row(&sum), ["2026-12-24", "3", "600", "150", "$0.0008", "2", "1", "1.2 s"]);
    }
}
