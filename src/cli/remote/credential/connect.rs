//! `reveille credential connect`: a link for the owner of an account, who logs in and agrees there.

use crate::cli::client::given_filters;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{Client, Screen, ServiceArgs, typed};
use crate::config::Environment;
use crate::domain::credential::Reference;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
The service has to be described in [oauth.*] of the configuration; `reveille check` looks at it. The link is good for ten
minutes, once. Give it to the owner of the account alone: whoever opens it and agrees connects their own.

Examples:
  reveille credential connect calendar --tenant ann          the account `primary`
  reveille credential connect calendar/work --tenant ann     another one")]
pub struct ConnectArgs {
    /// `service`, which is its account `primary`, or `service/account`
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// For whom; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(args: ConnectArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Reference { service, account } = super::reference(&args.reference)?;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CREDENTIAL);
    let path = ["v1", "credentials", &service, &account, "connect"];
    let link = client.get(&path, &given_filters([("tenant_id", args.tenant)])).await?;
    if args.service.json {
        return Ok(screen.json(&link)?);
    }
    screen.line("Open this in a browser, log in as the owner of the account, and agree:")?;
    screen.line(text_of(&link["url"]))?;
    Ok(screen.line(format!("It is good until {}.", time_of(&link["expires_at"])))?)
}
