//! `reveille recipient`: where a tenant is reached.

use anyhow::Context;
use serde_json::{Map, Value, json};

use super::delivery::print_delivery;
use crate::base::unicode_safety::on_one_line;
use crate::cli::flags::{FlagArgs, OfAddresses, ids, standard_input};
use crate::cli::screen::{text_of, time_of};
use crate::cli::{CliFailure, Client, FieldFlags, ListOptions, Screen, ServiceArgs, YesArgs, typed};
use crate::config::Environment;

#[derive(Debug, clap::Subcommand)]
pub enum Command {
    /// Set where a tenant is reached; replaces what was set before
    Set(Box<SetArgs>),
    /// List recipients by their tenants
    #[command(alias = "ls")]
    List(ListArgs),
    /// Show where a tenant is reached
    #[command(alias = "get")]
    Show(ShowArgs),
    /// Prove an address: without --code one is sent to it
    Verify(VerifyArgs),
    /// Delete all that is kept of where a tenant is reached; nobody is told then
    Delete(DeleteArgs),
}

#[derive(Debug, clap::Args)]
#[command(group(clap::ArgGroup::new("addresses").required(true).multiple(true).arg("file").args(ids::<OfAddresses>())))]
pub struct SetArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// The whole recipient as JSON, `-` for standard input
    #[arg(long, value_name = "FILE", conflicts_with_all = ids::<OfAddresses>().chain([
        "timezone", "locale", "fallback", "quiet_hours", "digest_at", "interruptions_per_day",
    ]))]
    file: Option<std::path::PathBuf>,
    #[command(flatten)]
    addresses: FlagArgs<OfAddresses>,
    /// Hold what is not urgent between these times, such as 22:00-07:00; may be repeated
    #[arg(long, value_name = "FROM-TO", value_parser = quiet_hours)]
    quiet_hours: Vec<Value>,
    /// When held messages are told, such as 08:00; may be repeated
    #[arg(long, value_name = "TIME")]
    digest_at: Vec<String>,
    /// Interruptions on a day; what goes over them waits for the digest
    #[arg(long, value_name = "N")]
    interruptions_per_day: Option<u32>,
    /// IANA time zone
    #[arg(long, value_name = "ZONE")]
    timezone: Option<String>,
    /// Language, such as `de-AT`: picks among templates of yours; the built-in ones are English
    #[arg(long, value_name = "TAG")]
    locale: Option<String>,
    /// Channel to use first; again for the next one if that fails
    #[arg(long, value_name = "CHANNEL")]
    fallback: Vec<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ShowArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    #[command(flatten)]
    service: ServiceArgs,
}

#[derive(Debug, clap::Args)]
pub struct ListArgs {
    #[command(flatten)]
    page: ListOptions,
}

#[derive(Debug, clap::Args)]
pub struct DeleteArgs {
    #[command(flatten)]
    one: ShowArgs,
    #[command(flatten)]
    yes: YesArgs,
}

#[derive(Debug, clap::Args)]
pub struct VerifyArgs {
    /// The tenant
    #[arg(value_name = "TENANT")]
    tenant: String,
    /// The channel of the address
    #[arg(long, value_name = "NAME")]
    channel: String,
    /// The code that was received
    #[arg(long, value_name = "DIGITS")]
    code: Option<String>,
    #[command(flatten)]
    service: ServiceArgs,
}

pub async fn run(command: Command, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    match command {
        Command::Set(args) => {
            let recipient = typed(&args)?;
            let typed: FieldFlags = if args.file.is_some() { typed::RECIPIENT_IN_FILE } else { &typed::RECIPIENT };
            let client = Client::new(&args.service, environment)?.with_flag_names(typed);
            let set = client.put(&["v1", "recipients", &args.tenant], &recipient).await?;
            print(&set, args.service.json, screen)
        }
        Command::List(args) => list(args, environment, screen).await,
        Command::Delete(args) => delete(args, environment, screen).await,
        Command::Show(args) => {
            let client = Client::new(&args.service, environment)?;
            let recipient = client.get(&["v1", "recipients", &args.tenant], &[]).await?;
            print(&recipient, args.service.json, screen)
        }
        Command::Verify(args) => {
            let client = Client::new(&args.service, environment)?.with_flag_names(typed::VERIFY);
            let mut body = json!({ "channel": args.channel });
            if let Some(code) = &args.code {
                body["code"] = json!(code);
            }
            let answer = client.post(&["v1", "recipients", &args.tenant, "verify"], &body).await?;
            match args.code {
                Some(_) => print(&answer, args.service.json, screen),
                None => print_delivery(&answer, args.service.json, screen),
            }
        }
    }
}

async fn list(args: ListArgs, environment: &Environment, screen: &mut Screen) -> anyhow::Result<()> {
    let client = Client::new(&args.page.service, environment)?.with_flag_names(typed::RECIPIENT_LIST);
    let row = |recipient: &Value| {
        let channels = recipient["addresses"].as_object().into_iter().flat_map(Map::keys);
        let channels = channels.map(String::as_str).collect::<Vec<_>>().join(", ");
        let [tenant, zone, locale] = ["tenant_id", "timezone", "locale"].map(|name| text_of(&recipient[name]));
        [on_one_line(&tenant), zone, locale, channels, time_of(&recipient["updated_at"])]
    };
    let heading = ["tenant", "time zone", "locale", "channels", "updated"];
    args.page.print(&client, &["v1", "recipients"], &[], (heading, row), screen).await
}

async fn delete(
    DeleteArgs { one: ShowArgs { tenant, service }, yes }: DeleteArgs,
    environment: &Environment,
    screen: &mut Screen,
) -> anyhow::Result<()> {
    let client = Client::new(&service, environment)?;
    let shown = on_one_line(&tenant);
    yes.confirm(&format!("delete all addresses of {shown}? Nobody is told then, of questions neither"), screen)?;
    client.delete(&["v1", "recipients", &tenant]).await?;
    match service.json {
        true => Ok(screen.json(&json!({ "tenant_id": tenant, "deleted": true }))?),
        false => Ok(screen.line(format!("deleted {shown}"))?),
    }
}

fn typed(args: &SetArgs) -> anyhow::Result<Value> {
    if let Some(file) = &args.file {
        return from_file(file);
    }
    let mut recipient = Map::new();
    args.addresses.write_into(&mut recipient)?;
    let texts = [("timezone", &args.timezone), ("locale", &args.locale)];
    recipient.extend(texts.into_iter().filter_map(|(name, text)| Some((name.to_owned(), json!(text.as_ref()?)))));
    for (name, list) in [("fallback", json!(args.fallback)), ("quiet_hours", json!(args.quiet_hours))] {
        recipient.insert(name.into(), list);
    }
    if !args.digest_at.is_empty() {
        recipient.insert("digest".into(), json!({ "at": args.digest_at }));
    }
    if let Some(per_day) = args.interruptions_per_day {
        recipient.insert("budget".into(), json!({ "per_day": per_day }));
    }
    Ok(Value::Object(recipient))
}

/// `22:00-07:00`; whether these are times is for the service to say.
fn quiet_hours(text: &str) -> Result<Value, String> {
    match text.split_once('-') {
        Some((from, to)) => Ok(json!({ "from": from.trim(), "to": to.trim() })),
        None => Err("expected two times, such as 22:00-07:00".into()),
    }
}

fn from_file(file: &std::path::Path) -> anyhow::Result<Value> {
    let text = match file.to_str() {
        Some("-") => standard_input()?,
        _ => std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?,
    };
    let read = serde_json::from_str(&text);
    read.map_err(|error| CliFailure::new(format!("{} is not JSON: {error}", file.display())).into())
}

fn print(recipient: &Value, as_json: bool, screen: &mut Screen) -> anyhow::Result<()> {
    if as_json {
        return Ok(screen.json(recipient)?);
    }
    let mut facts = vec![
        ("tenant", text_of(&recipient["tenant_id"])),
        ("time zone", text_of(&recipient["timezone"])),
        ("locale", text_of(&recipient["locale"])),
    ];
    for (channel, address) in recipient["addresses"].as_object().into_iter().flatten() {
        facts.push((channel, shown(address)));
    }
    let order = recipient["fallback"].as_array().into_iter().flatten().map(text_of).collect::<Vec<_>>();
    facts.push(("order", order.join(", then ")));
    for hours in recipient["quiet_hours"].as_array().into_iter().flatten() {
        facts.push(("quiet", quiet_hours_text(hours)));
    }
    if let Some(times) = recipient["digest"]["at"].as_array() {
        facts.push(("digest at", listed(times)));
    }
    if let Some(per_day) = recipient["budget"]["per_day"].as_u64() {
        facts.push(("interruptions a day", per_day.to_string()));
    }
    let verified = recipient["verified"].as_object().into_iter().flatten();
    facts.extend(verified.map(|(channel, at)| ("verified", format!("{channel}, {}", time_of(at)))));
    facts.push(("updated", time_of(&recipient["updated_at"])));
    Ok(screen.facts(&facts)?)
}

/// `22:00-07:00 on sat, sun for sms`, and what breaks through where it is not the usual.
fn quiet_hours_text(hours: &Value) -> String {
    let mut told = format!("{}-{}", text_of(&hours["from"]), text_of(&hours["to"]));
    for (word, list) in [("on", &hours["days"]), ("for", &hours["channels"])] {
        if let Some(list) = list.as_array() {
            told += &format!(" {word} {}", listed(list));
        }
    }
    match hours["breaks_through"].as_str() {
        Some("never") => told + ", nothing breaks through",
        Some("urgent") => told + ", only what is urgent breaks through",
        _ => told,
    }
}

fn listed(values: &[Value]) -> String {
    values.iter().map(text_of).collect::<Vec<_>>().join(", ")
}

/// An address with parts shows what is no secret; whether a secret is set is told, the secret is not.
fn shown(address: &Value) -> String {
    let text = |name: &str| address[name].as_str();
    match address {
        Value::Array(several) => several.iter().map(shown).collect::<Vec<_>>().join(", "),
        Value::Bool(_) => "open sessions".into(),
        Value::Object(_) => match (text("url"), text("channel"), text("topic"), text("endpoint")) {
            (Some(url), ..) if address["secret_set"] == true => format!("{url} (signed)"),
            (_, Some(channel), ..) => channel.to_owned(),
            (_, _, Some(topic), _) => match text("server") {
                Some(server) => format!("{server}/{topic}"),
                None => topic.to_owned(),
            },
            (_, _, _, Some(endpoint)) => endpoint.to_owned(),
            (Some(url), ..) => url.to_owned(),
            _ => "an incoming webhook".into(),
        },
        _ => text_of(address),
    }
}
