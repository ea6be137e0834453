//! `reveille mcp`: for hosts that start their MCP servers as programs. Each message goes to the service's `/mcp`, and
//! each answer comes back; nothing is decided here.

mod failure_line;
mod headers;
mod host_lines;
mod host_message;
mod session;

use tokio::io::BufReader;

use crate::cli::remote::mcp::session::StdioSession;
use crate::cli::{CliFailure, Client, ServicePlace};
use crate::config::Environment;

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A host starts it by itself. It reads messages of MCP from standard input, a line each, hands them
to the service with the token of the profile, and prints the answers. A service that is away is
told of in the answer; the next message is tried again.

Examples:
  reveille token create --tenant ann --name host --scope tasks:read --scope runs:read
  reveille login --profile ann                      keeps that token
  reveille mcp --profile ann                        as it stands in the configuration of the host")]
pub struct Args {
    #[command(flatten)]
    place: ServicePlace,
}

pub async fn run(args: Args, environment: &Environment) -> anyhow::Result<()> {
    let client = Client::at(&args.place, environment)?;
    if !client.has_token() {
        let failure = CliFailure::new("there is no token for the service");
        return Err(failure.hint("`reveille login` keeps one; or set REVEILLE_TOKEN").into());
    }
    let input = BufReader::new(tokio::io::stdin());
    StdioSession::new(&client, tokio::io::stdout()).serve(input).await
}
