//! `reveille budget`: what the runs of a tenant may spend on models and have spent today, and what is said for one
//! tenant, or for one task.

use serde_json::{Map, Value, json};
use uuid::Uuid;

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
  reveille budget set ann --task news run.turns=100    runs of this one task have 100 turns
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
    /// Only what was said for this task: its id, the beginning of it, or its key
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
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
    /// For this task alone: its id, the beginning of it, or its key. It may be more than others have
    #[arg(long, value_name = "TASK")]
    task: Option<String>,
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
            let client = Client::new(&args.service, environment)?;
            let Some(task) = client.optional_id("tasks", args.task.as_deref()).await? else {
                client.delete(&["v1", "budgets", &args.tenant]).await?;
                return match args.service.json {
                    true => Ok(screen.json(&json!({ "tenant_id": args.tenant, "overrides": {} }))?),
                    false => Ok(screen.line(format!("{} may spend what everybody may", args.tenant))?),
                };
            };
            client.delete(&["v1", "budgets", &args.tenant, "tasks", &task]).await?;
            match args.service.json {
                true => Ok(screen.json(&json!({ "tenant_id": args.tenant, "task_id": task, "budget": {} }))?),
                false => Ok(screen.line(format!("the task {task} may spend what others of {} may", args.tenant))?),
            }
        }
    }
}

async fn read(client: &Client, tenant: Option<&str>) -> anyhow::Result<Value> {
    let query: Vec<(&str, String)> = tenant.map(|tenant| ("tenant_id", tenant.to_owned())).into_iter().collect();
    client.get(&["v1", "budgets"], &query).await
}

/// The API replaces all of them, so those that are not named here are sent again.
async fn set(args: SetArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::BUDGET);
    let task = client.optional_id("tasks", args.task.as_deref()).await?;
    let before = read(&client, Some(&args.tenant)).await?;
    if let Some(task) = task {
        let said = of_task(&before, &task, args.numbers)?;
        let path = ["v1", "budgets", args.tenant.as_str(), "tasks", task.as_str()];
        return show(&client.put(&path, &Value::Object(said)).await?, args.service.json, screen);
    }
    let mut said = before["overrides"].as_object().cloned().unwrap_or_default();
    for Assignment { scope, key, number } in args.numbers {
        let of_scope = said.entry(scope).or_insert_with(|| Value::Object(Map::new()));
        if let Some(budgets) = of_scope.as_object_mut() {
            budgets.insert(key.to_owned(), number.map_or(Value::Null, |number| written(key, number)));
        }
    }
    let path = ["v1", "budgets", args.tenant.as_str()];
    show(&client.put(&path, &Value::Object(said)).await?, args.service.json, screen)
}

/// The budget of one task with these numbers.
fn of_task(before: &Value, task: &str, numbers: Vec<Assignment>) -> anyhow::Result<Map<String, Value>> {
    // an id that was typed whole may be written in another way
    let id = Uuid::try_parse(task).map_or_else(|_| task.to_owned(), |id| id.to_string());
    let known = before["task_overrides"].as_array().into_iter().flatten().find(|known| known["task_id"] == id);
    let mut said = known.and_then(|known| known["budget"].as_object().cloned()).unwrap_or_default();
    for Assignment { scope, key, number } in numbers {
        anyhow::ensure!(scope != "tenant", "`tenant.{key}` is of all tasks together; leave --task out");
        said.insert(key.to_owned(), number.map_or(Value::Null, |number| written(key, number)));
    }
    Ok(said)
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
    let of_tasks = answer["task_overrides"].as_array().into_iter().flatten().flat_map(rows_of_task);
    let rows = BUDGETS.into_iter().map(row).chain(of_tasks).collect();
    Ok(screen.table(&["budget", "limit", "used today", "limit is"], rows)?)
}

/// The limits that were said for one task.
fn rows_of_task(said: &Value) -> Vec<Vec<String>> {
    let whose = format!("of the task {}", text_of(&said["task_id"]));
    let row = |(scope, key): (&str, &str)| {
        let limit = Some(&said["budget"][key]).filter(|limit| scope != "tenant" && !limit.is_null())?;
        Some(vec![format!("{scope}.{key}"), text_of(limit), String::new(), whose.clone()])
    };
    BUDGETS.into_iter().filter_map(row).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn budget_of_a_task_keeps_the_numbers_that_are_not_named() {
        let number = |written: &str| assignment(written).unwrap();
        let id = Uuid::from_u128(0xA);
        let known = json!({ "task_id": id, "budget": { "turns": 5, "tokens": null } });
        let before = json!({ "task_overrides": [{ "task_id": Uuid::nil(), "budget": { "turns": 9 } }, known] });
        for typed in [id.to_string(), id.to_string().to_uppercase(), id.simple().to_string()] {
            let said =
                of_task(&before, &typed, vec![number("run.tokens=50"), number("task.cost_usd_per_day=2")]).unwrap();
            assert_eq!(Value::Object(said), json!({ "turns": 5, "tokens": 50, "cost_usd_per_day": 2.0 }), "{typed}");
        }
        assert!(of_task(&before, &id.to_string(), vec![number("tenant.tokens_per_day=5")]).is_err());
        let rows = rows_of_task(&before["task_overrides"][1]);
        assert_eq!(rows, [["run.turns", "5", "", &format!("of the task {id}")]]);
    }

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
