//! `reveille credential`: secrets of tenants. A document is read from standard input or a file, never from a flag,
//! which others on the machine could see; nothing here prints one.

mod connect;
mod document;
mod rotate;

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::base::secret::erase;
use crate::base::unicode_safety::on_one_line;
use crate::cli::client::given_filters;
use crate::cli::screen::{text_of, time_of};
use crate::cli::{CliFailure, Client, ListOptions, Screen, ServiceArgs, YesArgs, typed};
use crate::config::Environment;
use crate::domain::credential::Reference;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Set a credential; its document comes from standard input or a file
    Set(SetArgs),
    /// Print a link to connect an account of a service in [oauth.*]
    Connect(connect::ConnectArgs),
    /// List credentials, newest first
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show a credential without its document, and the tasks that name it
    #[command(alias = "get")]
    Show(OneArgs),
    /// Delete a credential; tasks that name it are paused when they next need it
    Delete(DeleteArgs),
    /// List who used a credential, newest first
    Uses(UsesArgs),
    /// Put every secret under the first of vault.master_keys, while the service runs
    RotateKey(rotate::RotateArgs),
}

#[derive(Debug, clap::Args)]
#[command(after_help = "\
A document is any JSON. Text that is no JSON object, list or quoted text is taken as it stands, without the line break
at its end. It is read from standard input unless --file or --keep-document is given.

Examples:
  pass show shop | reveille credential set shop --tenant ann --host api.shop.example --inject bearer
  reveille credential set mail/work --tenant ann --file login.json --host '*.mail.example' --inject basic --from /login
  reveille credential set shop --tenant ann --keep-document --host api.shop.example --inject header:X-Api-Key")]
pub struct SetArgs {
    /// `service`, which is its account `primary`, or `service/account`
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// Tenant of the credential; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Read the document from this file
    #[arg(long, value_name = "FILE", conflicts_with = "keep_document")]
    file: Option<PathBuf>,
    /// Keep the stored document, and set the rest: hosts it had, and no other place to renew it
    #[arg(long)]
    keep_document: bool,
    /// Where it may be sent, such as `api.example.org`, `*.example.org` or `api.example.org:8443`; may be given again
    #[arg(long, value_name = "HOST")]
    host: Vec<String>,
    /// How it is put into requests: bearer, basic, header:NAME, query:NAME or field:NAME
    #[arg(long, value_name = "FORM")]
    inject: Option<String>,
    /// The value within the document, as a JSON pointer such as `/access_token`
    #[arg(long, value_name = "POINTER", requires = "inject")]
    from: Option<String>,
    /// Text to put there, with `{/pointer}` for values of the document, such as `Token {/id}:{/key}`
    #[arg(long, value_name = "TEXT", requires = "inject", conflicts_with = "from")]
    template: Option<String>,
    /// Where its access token is renewed, as JSON: {"provider": …} or {"token_url": …, "client_id": …}
    #[arg(long, value_name = "FILE")]
    oauth_file: Option<PathBuf>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    /// Only this tenant's
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    /// Only of this service
    #[arg(long, value_name = "NAME")]
    service: Option<String>,
    /// Only those with this status: active or needs_consent
    #[arg(long)]
    status: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct OneArgs {
    /// `service`, which is its account `primary`, or `service/account`
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// Tenant of the credential; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    one: OneArgs,
    #[command(flatten)]
    yes: YesArgs,
}

#[derive(Debug, clap::Args)]
pub struct UsesArgs {
    /// `service`, which is its account `primary`, or `service/account`
    #[arg(value_name = "REFERENCE")]
    reference: String,
    /// Tenant of the credential; needed with an admin token
    #[arg(long, value_name = "ID")]
    tenant: Option<String>,
    #[command(flatten)]
    page: ListOptions,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => set(args, environment, screen).await,
        Command::Connect(args) => connect::run(args, environment, screen).await,
        Command::List(args) => list(args, environment, screen).await,
        Command::Show(args) => show(args, environment, screen).await,
        Command::Delete(args) => delete(args, environment, screen).await,
        Command::Uses(args) => uses(args, environment, screen).await,
        Command::RotateKey(args) => rotate::run(args, environment, screen).await,
    }
}

async fn set(args: SetArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let reference = reference(&args.reference)?;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CREDENTIAL);
    let mut body = Map::from_iter([("hosts".to_owned(), json!(args.host))]);
    if let Some(form) = &args.inject {
        body.insert("inject".into(), inject(form, args.from.as_deref(), args.template.as_deref())?);
    }
    if let Some(file) = &args.oauth_file {
        body.insert("oauth".into(), document::json_of(file)?);
    }
    if !args.keep_document {
        body.insert("document".into(), document::read(args.file.as_deref())?);
    }
    let mut body = Value::Object(body);
    let path = ["v1", "credentials", &reference.service, &reference.account];
    let set = client.put_with(&path, &given_filters([("tenant_id", args.tenant)]), &body).await;
    erase(&mut body);
    print(&set?, args.service.json, screen)
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let filters = given_filters([("tenant_id", args.tenant), ("service", args.service), ("status", args.status)]);
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::CREDENTIAL_LIST);
    let row = |credential: &Value| {
        [
            on_one_line(&text_of(&credential["tenant_id"])),
            shown(credential),
            text_of(&credential["status"]),
            hosts(credential),
            text_of(&credential["inject"]["as"]),
            time_of(&credential["last_used_at"]),
        ]
    };
    let heading = ["tenant", "credential", "status", "hosts", "put as", "last used"];
    args.page.print(&client, &["v1", "credentials"], &filters, (heading, row), screen).await
}

async fn show(args: OneArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Reference { service, account } = reference(&args.reference)?;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CREDENTIAL);
    let path = ["v1", "credentials", &service, &account];
    let credential = client.get(&path, &given_filters([("tenant_id", args.tenant)])).await?;
    print(&credential, args.service.json, screen)
}

async fn delete(
    DeleteArgs { one: args, yes }: DeleteArgs,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let reference = reference(&args.reference)?;
    let client = Client::new(&args.service, environment)?.with_flag_names(typed::CREDENTIAL);
    let path = ["v1", "credentials", &reference.service, &reference.account];
    let whose = args.tenant.as_deref().map(|tenant| format!(" of {tenant}")).unwrap_or_default();
    yes.confirm(&format!("delete the credential {reference}{whose}? It can't be read back"), screen)?;
    client.delete_with(&path, &given_filters([("tenant_id", args.tenant)])).await?;
    match args.service.json {
        true => Ok(screen.json(&json!({ "deleted": reference.to_string() }))?),
        false => Ok(screen.line(format!("deleted {reference}"))?),
    }
}

async fn uses(args: UsesArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let Reference { service, account } = reference(&args.reference)?;
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::CREDENTIAL);
    let path = ["v1", "credentials", &service, &account, "uses"];
    let row = |used: &Value| {
        [
            time_of(&used["at"]),
            on_one_line(&text_of(&used["used_by"])),
            on_one_line(&text_of(&used["host"])),
            text_of(&used["outcome"]),
            text_of(&used["run_id"]),
            text_of(&used["task_id"]),
        ]
    };
    args.page
        .print(
            &client,
            &path,
            &given_filters([("tenant_id", args.tenant)]),
            (["at", "by", "host", "outcome", "run", "task"], row),
            screen,
        )
        .await
}

fn reference(text: &str) -> anyhow::Result<Reference> {
    Reference::parse(text).map_err(|why| CliFailure::new(format!("`{text}` names no credential: {why}")).into())
}

/// `header:X-Key` and the like, as the API has it. What is wrong with a name, the service says.
fn inject(form: &str, from: Option<&str>, template: Option<&str>) -> anyhow::Result<Value> {
    let (form, name) = match form.split_once(':') {
        Some((form, name)) => (form, Some(name)),
        None => (form, None),
    };
    let named = ["header", "query", "field"].contains(&form);
    if !(named && name.is_some() || ["bearer", "basic"].contains(&form) && name.is_none()) {
        return Err(CliFailure::new("this is no way to put a credential into a request")
            .hint("--inject bearer, basic, header:NAME, query:NAME or field:NAME")
            .into());
    }
    let mut inject = Map::from_iter([("as".to_owned(), json!(form))]);
    let parts = [("name", name), ("from", from), ("template", template)];
    inject.extend(parts.into_iter().filter_map(|(key, value)| Some((key.to_owned(), json!(value?)))));
    Ok(Value::Object(inject))
}

fn print(credential: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(credential)?);
    }
    let status = match credential["status_reason"].as_str() {
        Some(reason) => format!("{}: {}", text_of(&credential["status"]), on_one_line(reason)),
        None => text_of(&credential["status"]),
    };
    let mut facts = vec![
        ("tenant", on_one_line(&text_of(&credential["tenant_id"]))),
        ("credential", shown(credential)),
        ("status", status),
        ("hosts", hosts(credential)),
        ("put as", injection_text(&credential["inject"])),
    ];
    if let Some(oauth) = credential["oauth"].as_object() {
        let by = oauth.get("provider").or(oauth.get("token_url")).map(text_of).unwrap_or_default();
        facts.push(("renewed by", on_one_line(&by)));
        facts.push(("expires", time_of(&credential["expires_at"])));
    }
    facts.push(("updated", time_of(&credential["updated_at"])));
    facts.push(("last used", time_of(&credential["last_used_at"])));
    for task in credential["tasks"].as_array().into_iter().flatten() {
        facts.push(("task", dependent(task)));
    }
    for task in credential["resumed"].as_array().into_iter().flatten() {
        facts.push(("goes on", on_one_line(&text_of(&task["name"]))));
    }
    if let Some(more) = credential["resuming"].as_u64() {
        facts.push(("goes on", format!("{more} more within moments")));
    }
    Ok(screen.facts(&facts)?)
}

/// A task that names a credential; one that does not fire says why.
fn dependent(task: &Value) -> String {
    let (id, name) = (text_of(&task["id"]), on_one_line(&text_of(&task["name"])));
    match (task["status"].as_str(), task["status_reason"].as_str()) {
        (None | Some("active"), _) => format!("{id} {name}"),
        (Some(status), None) => format!("{id} {name}: {status}"),
        (Some(status), Some(reason)) => format!("{id} {name}: {status}, {}", on_one_line(reason)),
    }
}

fn shown(credential: &Value) -> String {
    let text = |key: &str| text_of(&credential[key]);
    Reference { service: text("service"), account: text("account_name") }.to_string()
}

fn hosts(credential: &Value) -> String {
    match credential["hosts"].as_array().map(Vec::as_slice).unwrap_or_default() {
        [] => "none, so it is not used".into(),
        hosts => hosts.iter().map(text_of).collect::<Vec<_>>().join(", "),
    }
}

fn injection_text(inject: &Value) -> String {
    let Some(form) = inject["as"].as_str() else { return "nothing, so it is not used".into() };
    let name = inject["name"].as_str().map(|name| format!(" {}", on_one_line(name))).unwrap_or_default();
    let from = inject["from"].as_str().map(|from| format!(" from {}", on_one_line(from))).unwrap_or_default();
    let template = inject["template"].as_str().map(|text| format!(" `{}`", on_one_line(text))).unwrap_or_default();
    format!("{form}{name}{from}{template}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn form_is_typed_with_its_name_where_it_has_one() {
        let read = |form: &str| inject(form, None, None).ok();
        assert_eq!(read("bearer"), Some(json!({ "as": "bearer" })));
        assert_eq!(read("header:X-Key"), Some(json!({ "as": "header", "name": "X-Key" })));
        assert_eq!(
            inject("query:k", Some("/key"), None).unwrap(),
            json!({ "as": "query", "name": "k", "from": "/key" })
        );
        for odd in ["header", "bearer:x", "cookie", ""] {
            assert_eq!(read(odd), None, "{odd}");
        }
    }
}
