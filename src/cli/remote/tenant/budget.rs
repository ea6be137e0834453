//! `reveille budget`: what the runs of a tenant may spend on models and have spent today, and what is said for one tenant.

use serde_json::{Map, Value, json};

use crate::cli::screen::text_of;
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;

/// The budgets, each as scope and key.
const BUDGETS: [(&str, &str); 8] = [
    ("run", "turns"),
    ("run", "wall_time"),
    ("run", "tokens"),
    ("run", "cost_usd"),
    ("task", "tokens_per_day"),
    ("task", "cost_usd_per_day"),
    ("tenant", "tokens_per_day"),
    ("tenant", "cost_usd_per_day"),
];

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille budget show                                 your own budgets, and what is spent today
  reveille budget show ann                             those of ann
  reveille budget set ann tenant.cost_usd_per_day=5    ann's runs may cost 5 dollars a day, all together
  reveille budget set ann run.tokens=200000            and each of them takes 200,000 tokens at most
  reveille budget set ann run.tokens=default           as [budgets] has it
  reveille budget reset ann                            all of them as [budgets] has them")]
pub enum Command {
    /// Show what a tenant's runs may spend, and what they have spent today
    #[command(alias = "get")]
    Show(ShowArgs),
    /// Say what a tenant's runs may spend; needs an admin token
    Set(SetArgs),
    /// Let a tenant's runs spend what everybody's may; needs an admin token
    Reset(ResetArgs),
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The tenant; absent: the token's own
    #[arg(value_name = "TENANT")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ResetArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct SetArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// A budget with its number, such as `tenant.cost_usd_per_day=5`, or with `default`
    #[arg(value_name = "BUDGET=NUMBER", required = true, value_parser = assignment)]
    numbers: Vec<Assignment>,
    #[command(flatten)]
    service: ServiceArgs,
}

/// A budget with the number that it gets; `None`: as everybody has it.
#[derive(Debug, Clone, PartialEq)]
pub struct Assignment {
    scope: &'static str,
    key: &'static str,
    number: Option<f64>,
}

fn assignment(written: &str) -> Result<Assignment, String> {
    let names = || BUDGETS.map(|(scope, key)| format!("{scope}.{key}")).join(", ");
    let (name, number) = written.split_once('=').ok_or("it must be BUDGET=NUMBER, such as `run.tokens=200000`")?;
    let (scope, key) = BUDGETS
        .into_iter()
        .find(|(scope, key)| name.split_once('.') == Some((scope, key)))
        .ok_or_else(|| format!("there is no budget `{name}`; there are {}", names()))?;
    let number = match number {
        "default" => None,
        number => Some(number.parse().map_err(|_| format!("`{number}` is neither a number nor `default`"))?),
    };
    Ok(Assignment { scope, key, number })
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Show(args) => {
            let budgets = Client::new(&args.service, environment)?;
            show(&read(&budgets, args.tenant.as_deref()).await?, args.service.json, screen)
        }
        Command::Set(args) => set(args, environment, screen).await,
        Command::Reset(args) => {
            Client::new(&args.service, environment)?.delete(&["v1", "budgets", &args.tenant]).await?;
            match args.service.json {
                true => Ok(screen.json(&json!({ "tenant_id": args.tenant, "overrides": {} }))?),
                false => Ok(screen.line(format!("{} may spend what everybody may", args.tenant))?),
            }
        }
    }
}

async fn read(client: &Client, tenant: Option<&str>) -> anyhow::Result<Value> {
    let query: Vec<(&str, String)> = tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
    client.get(&["v1", "budgets"], &query).await
}

/// The API replaces what was said, so what is not named here is sent again.
async fn set(args: SetArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::BUDGET);
    let mut said = read(&client, Some(&args.tenant)).await?["overrides"].as_object().cloned().unwrap_or_default();
    for Assignment { scope, key, number } in args.numbers {
        let of_scope = said.entry(scope).or_insert_with(|| Value::Object(Map::new()));
        if let Some(budgets) = of_scope.as_object_mut() {
            budgets.insert(key.to_owned(), number.map_or(Value::Null, |number| written(key, number)));
        }
    }
    let path = ["v1", "budgets", args.tenant.as_str()];
    show(&client.put(&path, &Value::Object(said)).await?, args.service.json, screen)
}

/// Dollars have fractions; all else is sent as a whole number where it is one.
fn written(key: &str, number: f64) -> Value {
    match !key.starts_with("cost") && number.fract() == 0.0 && number >= 0.0 {
        true => json!(number as u64),
        false => json!(number),
    }
}

fn show(answer: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(answer)?);
    }
    let row = |(scope, key): (&str, &str)| {
        let used = match (scope, key) {
            ("tenant", "tokens_per_day") => text_of(&answer["today"]["tokens"]),
            ("tenant", _) => text_of(&answer["today"]["cost_usd"]),
            _ => String::new(),
        };
        let whose = if answer["overrides"][scope][key].is_null() { "everybody's" } else { "its own" };
        vec![format!("{scope}.{key}"), text_of(&answer["limits"][scope][key]), used, whose.to_owned()]
    };
    Ok(screen.table(&["budget", "limit", "used today", "limit is"], BUDGETS.into_iter().map(row).collect())?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_is_named_with_its_scope_and_its_number() {
        let of = |number| Ok(Assignment { scope: "tenant", key: "cost_usd_per_day", number });
        assert_eq!(assignment("tenant.cost_usd_per_day=2.5"), of(Some(2.5)));
        assert_eq!(assignment("tenant.cost_usd_per_day=default"), of(None));
        assert!(
            assignment("tenant.turns=5")
                .unwrap_err()
                .starts_with("there is no budget `tenant.turns`; there are run.turns")
        );
        assert!(assignment("run.turns").is_err() && assignment("run.turns=many").is_err());
        assert_eq!(
            [written("tokens", 5.0), written("cost_usd", 5.0), written("tokens", 1.5)],
            [json!(5), json!(5.0), json!(1.5)]
        );
    }
}
