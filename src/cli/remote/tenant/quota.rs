//! `reveille quota`: what a tenant may have and has, and what is said for one tenant.

use serde_json::{Map, Value, json};

use crate::cli::screen::text_of;
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;
use crate::domain::quota::Quota;

#[derive(Debug, clap::Subcommand)]
#[command(after_help = "\
Examples:
  reveille quota show ann                     what ann may have, and how much of it is used
  reveille quota set ann tasks=500 polls=20   says it for ann alone; other quotas stay as they are
  reveille quota set ann concurrent_runs=8    at most 8 runs of ann are under way at once
  reveille quota set ann polls=default        as [quotas] has it
  reveille quota reset ann                    all of them as [quotas] has them")]
pub enum Command {
    /// Show what a tenant may have, and how much of it is used
    #[command(alias = "get")]
    Show(TenantArgs),
    /// Say what a tenant may have; needs an admin token
    Set(SetArgs),
    /// Let a tenant have what everybody may; needs an admin token
    Reset(TenantArgs),
}

#[derive(Debug, clap::Args)]
pub struct TenantArgs {
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
    /// A quota with its number, such as `tasks=500`, or with `default`
    #[arg(value_name = "QUOTA=NUMBER", required = true, value_parser = assignment)]
    numbers: Vec<(Quota, Option<u64>)>,
    #[command(flatten)]
    service: ServiceArgs,
}

fn assignment(written: &str) -> Result<(Quota, Option<u64>), String> {
    let names = || Quota::WORDS.join(", ");
    let (name, number) = written.split_once('=').ok_or("it must be QUOTA=NUMBER, such as `tasks=500`")?;
    let quota = Quota::parse(name).ok_or_else(|| format!("there is no quota `{name}`; there are {}", names()))?;
    match number {
        "default" => Ok((quota, None)),
        number => {
            let number = number.parse().map_err(|_| format!("`{number}` is neither a number nor `default`"))?;
            Ok((quota, Some(number)))
        }
    }
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Show(args) => {
            let path = ["v1", "tenants", &args.tenant, "quotas"];
            let quotas = Client::new(&args.service, environment)?.get(&path, &[]).await?;
            show(&quotas, args.service.json, screen)
        }
        Command::Set(args) => set(args, environment, screen).await,
        Command::Reset(args) => {
            let path = ["v1", "tenants", &args.tenant, "quotas"];
            Client::new(&args.service, environment)?.delete(&path).await?;
            match args.service.json {
                true => Ok(screen.json(&json!({ "tenant_id": args.tenant, "overrides": {} }))?),
                false => Ok(screen.line(format!("{} may have what everybody may", args.tenant))?),
            }
        }
    }
}

/// The API replaces all of them, so those that are not named here are sent again.
async fn set(args: SetArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::QUOTA);
    let path = ["v1", "tenants", args.tenant.as_str(), "quotas"];
    let mut numbers: Map<String, Value> =
        client.get(&path, &[]).await?["overrides"].as_object().cloned().unwrap_or_default();
    numbers.extend(args.numbers.into_iter().map(|(quota, number)| (quota.as_str().to_owned(), json!(number))));
    show(&client.put(&path, &Value::Object(numbers)).await?, args.service.json, screen)
}

fn show(answer: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(answer)?);
    }
    let row = |quota: Quota| {
        let name = quota.as_str();
        let standing = &answer["quotas"][name];
        let whose = if answer["overrides"][name].is_null() { "everybody's" } else { "its own" };
        vec![name.to_owned(), text_of(&standing["limit"]), text_of(&standing["usage"]), whose.to_owned()]
    };
    Ok(screen.table(&["quota", "limit", "used", "limit is"], Quota::ALL.into_iter().map(row).collect())?)
}
