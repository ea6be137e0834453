//! Flags that follow from the descriptions of fields: one for each that a description names, in the order of its list.

use std::fmt::Debug;
use std::io::Read;
use std::time::Duration;

use anyhow::Context;
use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};
use serde_json::{Map, Value, json};

use crate::base::field::{Flag, FlagValue};
use crate::domain::notification::Addresses;
use crate::domain::task::Spec;

/// A list of described flags.
pub trait FlagDescription: Debug + Default {
    /// The flags, in the order of the help.
    fn flags() -> impl Iterator<Item = &'static Flag>;
}

/// The flags of all kinds of addresses.
#[derive(Debug, Default)]
pub struct OfAddresses;

impl FlagDescription for OfAddresses {
    fn flags() -> impl Iterator<Item = &'static Flag> {
        Addresses::FLAGS.iter().flat_map(|(_, flags)| flags.iter())
    }
}

/// The flags of the listed fields of a task.
#[derive(Debug, Default)]
pub struct OfTask;

impl FlagDescription for OfTask {
    fn flags() -> impl Iterator<Item = &'static Flag> {
        Spec::FLAGS.iter().flat_map(|flags| flags.iter())
    }
}

/// The flags of a list that were typed, each with its value; none, where a secret is read later.
#[derive(Debug, Default)]
pub struct FlagArgs<L>(Vec<(&'static Flag, Option<Value>)>, std::marker::PhantomData<L>);

/// Ids of the flags that stand by themselves.
pub fn ids<L: FlagDescription>() -> impl Iterator<Item = &'static str> {
    L::flags().filter(|flag| !matches!(flag.takes, FlagValue::StandardInput(_))).map(|flag| id(flag.name))
}

fn id(name: &'static str) -> &'static str {
    name.trim_start_matches('-')
}

impl<L: FlagDescription> Args for FlagArgs<L> {
    fn augment_args(command: Command) -> Command {
        L::flags().fold(command, |command, flag| {
            let arg = Arg::new(id(flag.name)).long(id(flag.name)).help(flag.help);
            command.arg(match flag.takes {
                FlagValue::Text(value) => arg.value_name(value),
                FlagValue::Hyphened(value) => arg.value_name(value).allow_hyphen_values(true),
                FlagValue::Number(value) => arg.value_name(value).value_parser(value_parser!(u64)),
                FlagValue::Seconds(value) => arg.value_name(value).value_parser(humantime::parse_duration),
                FlagValue::Nothing => arg.action(ArgAction::SetTrue),
                FlagValue::StandardInput(beside) => arg.action(ArgAction::SetTrue).requires(id(beside)),
            })
        })
    }

    fn augment_args_for_update(command: Command) -> Command {
        FlagArgs::<L>::augment_args(command)
    }
}

impl<L: FlagDescription> FromArgMatches for FlagArgs<L> {
    fn from_arg_matches(matches: &ArgMatches) -> Result<FlagArgs<L>, clap::Error> {
        let mut typed = FlagArgs::default();
        typed.update_from_arg_matches(matches)?;
        Ok(typed)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        let typed = |flag: &'static Flag| {
            let id = id(flag.name);
            let value = match flag.takes {
                FlagValue::Text(_) | FlagValue::Hyphened(_) => Some(json!(matches.get_one::<String>(id)?)),
                FlagValue::Number(_) => Some(json!(matches.get_one::<u64>(id)?)),
                FlagValue::Seconds(_) => Some(json!(matches.get_one::<Duration>(id)?.as_secs())),
                FlagValue::Nothing => matches.get_flag(id).then_some(Some(Value::Bool(true)))?,
                FlagValue::StandardInput(_) => matches.get_flag(id).then_some(None)?,
            };
            Some((flag, value))
        };
        self.0 = L::flags().filter_map(typed).collect();
        Ok(())
    }
}

impl<L: FlagDescription> FlagArgs<L> {
    /// Writes what was typed into a request. A value on the way to a field becomes an object.
    pub fn write_into(&self, document: &mut Map<String, Value>) -> anyhow::Result<()> {
        for (flag, value) in &self.0 {
            let value = match value {
                Some(value) => value.clone(),
                None => json!(standard_input()?.trim()),
            };
            write(document, flag.field, value);
        }
        Ok(())
    }
}

/// Standard input to its end.
pub fn standard_input() -> anyhow::Result<String> {
    let mut text = String::new();
    std::io::stdin().read_to_string(&mut text).context("read standard input")?;
    Ok(text)
}

/// The object below another; what is no object becomes an empty one.
pub fn object_in<'a>(object: &'a mut Map<String, Value>, key: &str) -> &'a mut Map<String, Value> {
    let slot = object.entry(key.to_owned()).or_insert(Value::Null);
    if !slot.is_object() {
        *slot = json!({});
    }
    slot.as_object_mut().expect("made an object above")
}

fn write(object: &mut Map<String, Value>, field: &str, value: Value) {
    match field.split_once('.') {
        None => drop(object.insert(field.to_owned(), value)),
        Some((first, rest)) => write(object_in(object, first), rest, value),
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct TypedFlags {
        #[command(flatten)]
        addresses: FlagArgs<OfAddresses>,
    }

    fn written(typed: &[&str]) -> Value {
        let mut document = Map::new();
        TypedFlags::parse_from([&["set"], typed].concat()).addresses.write_into(&mut document).unwrap();
        Value::Object(document)
    }

    #[test]
    fn flags_of_addresses_become_the_json_of_a_recipient() {
        let typed = [
            "--email=ann@example.org",
            "--sms=+49 151 1",
            "--ntfy-topic=ann",
            "--webhook=https://hooks.example.org",
            "--slack-channel=C1",
            "--telegram",
            "-1001",
            "--live",
        ];
        assert_eq!(
            written(&typed)["addresses"],
            json!({
                "email": "ann@example.org", "sms": "+49 151 1", "push": { "topic": "ann" },
                "webhook": { "url": "https://hooks.example.org" }, "slack": { "channel": "C1" }, "telegram": "-1001",
                "live": true,
            })
        );
        assert_eq!(written(&[]), json!({}));
    }

    #[test]
    fn secret_from_standard_input_needs_its_webhook_and_one_flag_alone_takes_a_hyphen() {
        let refused = |typed: &[&str]| TypedFlags::try_parse_from([&["set"], typed].concat()).is_err();
        assert!(refused(&["--webhook-secret-stdin"]));
        assert!(refused(&["--sms", "-1001"]));
        assert!(!refused(&["--telegram", "-1001"]));
    }

    #[test]
    fn field_below_what_is_no_object_is_written_into_a_new_one() {
        let mut document = Map::from_iter([("retry".to_owned(), json!(3)), ("name".to_owned(), json!("x"))]);
        write(&mut document, "retry.max_attempts", json!(2));
        assert_eq!(Value::Object(document), json!({ "retry": { "max_attempts": 2 }, "name": "x" }));
    }
}
