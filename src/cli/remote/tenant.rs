//! `reveille tenant`, `stop` and `start`: tenants that an operator disables, and the stop switch.

pub(in crate::cli) mod budget;
pub(in crate::cli) mod fact;
pub(in crate::cli) mod quota;

use serde_json::{Map, Value, json};

use crate::cli::screen::{text_of, time_of};
use crate::cli::{Client, Screen, ServiceArgs, Tone};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Show whether a tenant is stopped or disabled, by whom and why
    #[command(alias = "get")]
    Show(OneTenantArgs),
    /// List what is stopped or disabled
    #[command(alias = "ls")]
    List(ServiceArgs),
    /// Skip the fires of a tenant, begin none of its runs, and let its tokens read alone; needs an admin token
    Disable(DisableTenantArgs),
    /// Let a tenant go on from now on; needs an admin token
    Enable(OneTenantArgs),
}

#[derive(Debug, clap::Args)]
pub struct OneTenantArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct DisableTenantArgs {
    /// Reason, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    one: OneTenantArgs,
}

/// The tenants that the switch concerns.
#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("whose").required(true).args(["all", "tenant"])))]
pub struct WhoseArgs {
    /// The work of every tenant
    #[arg(long)]
    all: bool,
    /// The work of one tenant
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

impl WhoseArgs {
    fn order(&self) -> Map<String, Value> {
        match &self.tenant {
            Some(tenant) => Map::from_iter([("tenant_id".to_owned(), json!(tenant))]),
            None => Map::from_iter([("all".to_owned(), json!(self.all))]),
        }
    }
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Within a second, on every instance: fires are skipped, no run, turn, call or poll begins, calls of
models are cut off, and runs under way are queued again. It holds over restarts, until
`reveille start`.")]
pub struct StopArgs {
    /// Reason, for the record
    #[arg(long, value_name = "TEXT")]
    reason: Option<String>,
    #[command(flatten)]
    whose: WhoseArgs,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Queued runs go on. Fires that were skipped meanwhile are not caught up. A tenant that was stopped
by its name stays so when all are started.")]
pub struct StartArgs {
    #[command(flatten)]
    whose: WhoseArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Show(OneTenantArgs { tenant, service }) => {
            let view = Client::new(&service, environment)?.get(&["v1", "tenants", &tenant], &[]).await?;
            print(&view, service.json, screen)
        }
        Command::List(service) => {
            let stats = Client::new(&service, environment)?.get(&["v1", "stats"], &[]).await?;
            print(
                &json!({ "tenant_id": null, "halts": stats["halts"], "more_halts": stats["more_halts"] }),
                service.json,
                screen,
            )
        }
        Command::Disable(DisableTenantArgs { one: OneTenantArgs { tenant, service }, reason }) => {
            let body = json!({ "reason": reason });
            let path = ["v1", "tenants", tenant.as_str(), "disable"];
            print(&Client::new(&service, environment)?.post(&path, &body).await?, service.json, screen)
        }
        Command::Enable(OneTenantArgs { tenant, service }) => {
            let path = ["v1", "tenants", tenant.as_str(), "enable"];
            print(&Client::new(&service, environment)?.post(&path, &json!({})).await?, service.json, screen)
        }
    }
}

pub async fn stop(args: StopArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let mut order = args.whose.order();
    order.insert("reason".into(), json!(args.reason));
    switch("stop", args.whose.service, order, environment, screen).await
}

pub async fn start(args: StartArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let order = args.whose.order();
    switch("start", args.whose.service, order, environment, screen).await
}

async fn switch(
    path: &str,
    service: ServiceArgs,
    order: Map<String, Value>,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let client = Client::new(&service, environment)?;
    print(&client.post(&["v1", path], &Value::Object(order)).await?, service.json, screen)
}

/// The halts that hold now.
fn print(view: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(view)?);
    }
    let halts = view["halts"].as_array().map(Vec::as_slice).unwrap_or_default();
    if halts.is_empty() {
        let whose = view["tenant_id"].as_str().unwrap_or("everybody");
        return Ok(screen.line(screen.tone(Tone::Good, format!("nothing of {whose} is stopped or disabled")))?);
    }
    let row = |halt: &Value| {
        let whose = halt["tenant_id"].as_str().unwrap_or("everybody").to_owned();
        vec![whose, text_of(&halt["kind"]), time_of(&halt["since"]), text_of(&halt["by"]), text_of(&halt["reason"])]
    };
    screen.table(&["tenant", "halt", "since", "by", "reason"], halts.iter().map(row).collect())?;
    if let Some(more @ 1..) = view["more_halts"].as_i64() {
        screen.line(format!("{more} more hold"))?;
    }
    Ok(())
}
