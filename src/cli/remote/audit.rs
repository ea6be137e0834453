//! `reveille audit`: who did what, and whether the record is as it was written.

use std::path::Path;

use serde_json::{Value, json};

use crate::app::keys_without_setting;
use crate::base::clock::Clock;
use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::local::setup::ConfigArgs;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, typed};
use crate::config::Environment;
use crate::engine::maintenance::sealer::chain::{ChainCheck, verify};
use crate::ports::vault::{KEY_FILE, Vault, WithoutKeys};
use crate::store::{DatabaseFacts, SqliteFile, Store, examine};

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// List who did what, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Check the chain of the record against the database and the master key; exits with 1 if it is broken
    Verify(VerifyArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Examples:
  reveille audit list --action approval.approved      who approved what
  reveille audit list --subject 0193f7a2-…            all that was done with one approval or grant")]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only this act, such as `approval.approved`
    #[arg(long)]
    action: Option<String>,
    /// Only what was done with this approval, grant, …: its id, of the first two the beginning of it
    #[arg(long, value_name = "ID")]
    subject: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
Reads the database and the master key of the configuration; the service may go on. Each entry's hash covers the entry and the hash before it, so an entry that was changed, taken \
out, put in or moved is found, and so is an end that was cut off. Entries are sealed within seconds; those that are \
not sealed yet are counted and not covered.")]
pub struct VerifyArgs {
    #[command(flatten)]
    config: ConfigArgs,
    /// Print as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::List(args) => list(args, environment, screen).await,
        Command::Verify(args) => verify_chain(args, environment, screen).await,
    }
}

/// The approval, else the grant, whose id begins with the typed text.
async fn subject(client: &Client, typed: Option<String>) -> anyhow::Result<Option<String>> {
    let Some(typed) = typed else { return Ok(None) };
    match client.id_if_found("approvals", &typed).await? {
        Some(id) => Ok(Some(id)),
        None => Ok(Some(client.id("grants", &typed).await?)),
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::AUDIT_LIST);
    let subject = subject(&client, args.subject).await?;
    let filters = given_filters([("tenant_id", args.tenant), ("action", args.action), ("subject_id", subject)]);
    let row = |entry: &Value| {
        [
            time_of(&entry["at"]),
            text_of(&entry["tenant_id"]),
            on_one_line(&text_of(&entry["actor"])),
            text_of(&entry["via"]),
            text_of(&entry["action"]),
            text_of(&entry["subject_id"]),
            text_of(&entry["position"]),
        ]
    };
    let heading = ["at", "tenant", "who", "via", "what", "of", "sealed as"];
    args.page.print(&client, &["v1", "audit"], &filters, (heading, row), screen).await
}

async fn verify_chain(args: VerifyArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let config = args.config.load(environment)?.config;
    let data_dir = Path::new(&config.server.data_dir);
    // looking makes nothing: with another key, or in a new file, nothing could be said of the record
    if let DatabaseFacts::Sqlite { file, state: SqliteFile::Absent, .. } = examine(&config.database, data_dir).await? {
        return Err(CliFailure::new(format!("there is no database {}", file.display())).into());
    }
    let without = keys_without_setting(&config, data_dir);
    let key_file = data_dir.join(KEY_FILE);
    if config.vault.master_keys.is_empty() && matches!(without, WithoutKeys::KeyFile(_)) && !key_file.exists() {
        let missing = CliFailure::new(format!("there is no {}", key_file.display()));
        return Err(missing.hint("the record is checked with the key that sealed it").into());
    }
    let (vault, _) = Vault::open(&config.vault, without)?;
    let store = Store::open_read_only(&config.database, data_dir, Clock::system(), |why| eprintln!("{why}")).await?;
    let verified = verify(&store, &vault).await;
    store.close().await;
    let verified = verified?;
    match args.json {
        true => screen.json(&json!(verified))?,
        false => screen.line(verification_text(&verified))?,
    }
    match verified.broken {
        None => Ok(()),
        Some(broken) => {
            Err(CliFailure::new(format!("the chain is broken at position {}: {}", broken.position, broken.why))
                .hint("compare with a backup from before; is vault.master_keys complete?")
                .into())
        }
    }
}

fn verification_text(verified: &ChainCheck) -> String {
    let sealed = match verified.sealed {
        1 => "1 entry is as it was sealed".to_owned(),
        many => format!("{many} entries are as they were sealed"),
    };
    format!("{sealed}, {} not sealed yet", verified.unsealed)
}
