//! Flags for the fields of a request, command by command: a refusal names the flag, not the field.

use std::sync::LazyLock;

use crate::base::field::Flag;
use crate::domain::notification::Addresses;
use crate::domain::task::Spec;

/// Fields of a request, each with what is typed for it, and behind it for all that lies in it. The first that fits
/// counts. `*` stands for any plain name, in the field and in the flag.
pub type FieldFlags = &'static [(&'static str, &'static str)];

/// A task by its flags.
pub static TASK: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let mut typed = vec![("tenant_id", "--tenant")];
    typed.extend(Spec::FLAGS.iter().copied().flatten().map(|flag| (flag.field, flag.name)));
    typed.extend([
        ("trigger.poll.http.url", "--poll-url"),
        ("trigger.poll", "--poll"),
        ("trigger.timeout", "--poll-timeout"),
        ("trigger.exclude", "--exclude"),
        ("output.channel", "--channel"),
        ("output", "--channel"),
        ("action.config", "--config"),
        ("metadata", "--metadata"),
        ("trigger.*", "--*"),
        ("action.*", "--*"),
        ("retry.*", "--*"),
        ("*", "--*"),
    ]);
    typed
});
pub const TASK_IN_FILE: FieldFlags = &[("tenant_id", "--tenant")];
pub const TASK_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("q", "--query"), ("*", "--*")];
pub const TASK_RUN: FieldFlags = &[("input", "--input")];
pub const TASK_BACKFILL: FieldFlags = &[("from", "--from"), ("to", "--to")];
pub const TASK_EXPLAIN: FieldFlags = &[("at", "--at")];
pub const CONDITION_IN_FILE: FieldFlags = &[("tenant_id", "--tenant"), ("previous", "--previous")];
pub const SCHEDULE_PREVIEW: FieldFlags = &[("cron", "CRON"), ("exclude", "--exclude"), ("*", "--*")];
pub const PIPELINE_DRY_RUN: FieldFlags = &[
    ("tenant_id", "--tenant"),
    ("config", "--file"),
    ("event", "--event"),
    ("live", "--live"),
    ("value", "--sample value"),
    ("previous", "--sample previous"),
    ("input", "--sample input"),
    ("state", "--sample state"),
    ("mocks", "--sample mocks"),
];
pub const CHAT: FieldFlags =
    &[("message", "MESSAGE"), ("tenant_id", "--tenant"), ("conversation_id", "--conversation")];
pub const RUN_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("task_id", "--task"), ("q", "--query"), ("*", "--*")];
pub const RUN_ANSWER: FieldFlags = &[
    ("input_id", "--input"),
    ("fields.*", "--set *"),
    ("fields", "--set"),
    ("message", "MESSAGE"),
    ("action", "--decline"),
];
pub const RUN_COMPLETE: FieldFlags = &[("output", "--output"), ("error", "--error")];
pub const APPROVAL_LIST: FieldFlags =
    &[("tenant_id", "--tenant"), ("task_id", "--task"), ("run_id", "--run"), ("batch_id", "--batch"), ("*", "--*")];
/// Flags of a decision about an approval.
pub const DECISION: FieldFlags = &[
    ("grant.days", "--days"),
    ("grant.uses", "--uses"),
    ("grant.args", "--arg"),
    ("grant", "--always"),
    ("modifications", "--set"),
    ("comment", "--comment"),
    ("digest", "--digest"),
];
pub const DECISION_IN_FILE: FieldFlags =
    &[("modifications", "--file"), ("comment", "--comment"), ("digest", "--digest")];
pub const GRANT_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("task_id", "--task"), ("*", "--*")];
pub const OVERRIDE: FieldFlags = &[
    ("tenant_id", "--tenant"),
    ("task_id", "--task"),
    ("expires_at", "--for"),
    ("tool", "TOOL"),
    ("gate", "GATE"),
    ("*", "--*"),
];
/// A fact, and which facts are meant.
pub const FACT: FieldFlags = &[("text", "TEXT"), ("collection", "--collection"), ("tenant_id", "--tenant")];
pub const FACT_CORRECTION: FieldFlags = &[("*", "--*")];
pub const FACT_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("collection", "--collection"), ("q", "--query")];
pub const AGENT_LIST: FieldFlags = &[("tenant_id", "--tenant")];
pub const SUSPENDED_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("*", "--*")];
pub const TOOL_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("task_id", "--task"), ("agent", "--agent")];
pub const TOOL_SHOW: FieldFlags = &[("tenant_id", "--tenant")];
pub const TOOL_ACCEPT: FieldFlags = &[("definition", "--definition")];
pub const TOOL_CALL: FieldFlags = &[("arguments", "--args"), ("tenant_id", "--tenant"), ("version", "NAME")];
pub const AUDIT_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("subject_id", "--subject"), ("*", "--*")];
/// An event, or which events are meant.
pub const EVENT: FieldFlags = &[("tenant_id", "--tenant"), ("data", "--data"), ("cursor", "--after"), ("*", "--*")];
pub const EVENT_IN_FILE: FieldFlags = &[("tenant_id", "--tenant"), ("tenantid", "--tenant")];
pub const DEAD_LETTERS: FieldFlags = &[("tenant_id", "--tenant"), ("*", "--*")];
pub const DELIVERY_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("run_id", "--run"), ("*", "--*")];
/// A recipient by its flags; those of an address are of its kind.
pub static RECIPIENT: LazyLock<Vec<(&'static str, &'static str)>> = LazyLock::new(|| {
    let of_kind = |(kind, flags): &(&'static str, &'static [Flag])| {
        let fields = flags.iter().map(|flag| (flag.field, flag.name));
        fields.chain(flags.first().map(|flag| (*kind, flag.name))).collect::<Vec<_>>()
    };
    let mut typed = vec![("tenant_id", "TENANT")];
    typed.extend(Addresses::FLAGS.iter().flat_map(of_kind));
    typed.extend([
        ("fallback", "--fallback"),
        ("quiet_hours", "--quiet-hours"),
        ("digest.at", "--digest-at"),
        ("digest", "--digest-at"),
        ("budget.per_day", "--interruptions-per-day"),
        ("budget", "--interruptions-per-day"),
        ("*", "--*"),
    ]);
    typed
});
pub const RECIPIENT_IN_FILE: FieldFlags = &[("tenant_id", "TENANT")];
pub const RECIPIENT_LIST: FieldFlags = &[("limit", "--limit")];
pub const VERIFY: FieldFlags = &[("tenant_id", "TENANT"), ("channel", "--channel"), ("code", "--code")];
pub const NOTIFY: FieldFlags = &[("tenant_id", "--tenant"), ("channel", "--channel")];
pub const CREDENTIAL: FieldFlags = &[
    ("tenant_id", "--tenant"),
    ("service", "REFERENCE"),
    ("account_name", "REFERENCE"),
    ("hosts", "--host"),
    ("inject.from", "--from"),
    ("inject.template", "--template"),
    ("inject", "--inject"),
    ("oauth", "--oauth-file"),
];
pub const CREDENTIAL_LIST: FieldFlags = &[("tenant_id", "--tenant"), ("*", "--*")];
pub const TOKEN: FieldFlags =
    &[("tenant_id", "--tenant"), ("name", "--name"), ("scopes", "--scope"), ("expires_at", "--expires-at")];
pub const BUDGET: FieldFlags = &[("tenant_id", "TENANT"), ("task_id", "--task")];
pub const QUOTA: FieldFlags = &[("tenant_id", "TENANT")];
pub const USAGE: FieldFlags = &[("tenant_id", "--tenant"), ("task_id", "--task"), ("*", "--*")];

/// The flag for the field at `place` (`trigger.start_at`), and the place of the fault within it; the place itself where
/// no flag was typed.
pub fn flag_name(typed: FieldFlags, place: &str) -> String {
    let found = typed.iter().find_map(|(field, flag)| match field.split_once('*') {
        Some((before, _)) => {
            let name = place.strip_prefix(before)?;
            let (name, rest) = name.split_once('.').unwrap_or((name, ""));
            let plain = !name.is_empty() && name.chars().all(|c| c.is_ascii_lowercase() || c == '_');
            plain.then(|| (flag.replace('*', &name.replace('_', "-")), rest))
        }
        None => {
            let rest = place.strip_prefix(field)?;
            (rest.is_empty() || rest.starts_with('.')).then(|| ((*flag).to_owned(), rest.trim_start_matches('.')))
        }
    });
    let Some((flag, rest)) = found else { return place.to_owned() };
    // a flag that may be given again has a place for each; which one it is, the message says
    let (first, behind) = rest.split_once('.').unwrap_or((rest, ""));
    let rest = if first.bytes().all(|byte| byte.is_ascii_digit()) { behind } else { rest };
    if rest.is_empty() { flag } else { format!("{flag} {rest}") }
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn fields_are_named_by_what_was_typed_for_them() {
        let cases: [(FieldFlags, &str, &str); 17] = [
            (&TASK, "trigger.start_at", "--start-at"),
            (&TASK, "trigger.exclude.2", "--exclude"),
            (&TASK, "retry.backoff_seconds", "--backoff"),
            (&TASK, "trigger.poll.http.url", "--poll-url"),
            (&TASK, "action.config.steps.0.filter", "--config steps.0.filter"),
            (TASK_IN_FILE, "trigger.start_at", "trigger.start_at"),
            (DECISION, "modifications.amount", "--set amount"),
            (DECISION, "grant.args.1", "--arg"),
            (&RECIPIENT, "quiet_hours.0.from", "--quiet-hours from"),
            (&RECIPIENT, "addresses.sms", "--sms"),
            (&RECIPIENT, "addresses.slack.channel", "--slack-channel"),
            (&RECIPIENT, "addresses.push.topic", "--ntfy-topic"),
            (&TASK, "pause_after_failures", "--pause-after-failures"),
            (CREDENTIAL, "inject.name", "--inject name"),
            (CREDENTIAL, "hosts.0", "--host"),
            (CREDENTIAL, "document", "document"),
            (EVENT, "", ""),
        ];
        for (typed, place, named) in cases {
            assert_eq!(flag_name(typed, place), named, "{place}");
        }
    }

    #[test]
    fn every_name_is_one_that_can_be_typed() {
        let commands: [(&str, FieldFlags); 44] = [
            ("task create", &TASK),
            ("task create", TASK_IN_FILE),
            ("task list", TASK_LIST),
            ("task run", TASK_RUN),
            ("task backfill", TASK_BACKFILL),
            ("task explain", TASK_EXPLAIN),
            ("condition test", CONDITION_IN_FILE),
            ("schedule preview", SCHEDULE_PREVIEW),
            ("pipeline dry-run", PIPELINE_DRY_RUN),
            ("run list", RUN_LIST),
            ("run answer", RUN_ANSWER),
            ("run complete", RUN_COMPLETE),
            ("approval list", APPROVAL_LIST),
            ("approval approve", &[("grant.days", "--days"), ("grant.uses", "--uses"), ("grant", "--always")]),
            ("approval edit", &[("modifications", "--set"), ("comment", "--comment"), ("digest", "--digest")]),
            ("approval edit", DECISION_IN_FILE),
            ("grant list", GRANT_LIST),
            ("override set", OVERRIDE),
            ("override list", GRANT_LIST),
            ("fact add", FACT),
            ("fact correct", FACT_CORRECTION),
            ("fact list", FACT_LIST),
            ("agent list", AGENT_LIST),
            ("agent suspended", SUSPENDED_LIST),
            ("tool list", TOOL_LIST),
            ("tool show", TOOL_SHOW),
            ("tool accept", TOOL_ACCEPT),
            ("tool call", TOOL_CALL),
            ("audit list", AUDIT_LIST),
            ("event publish", &[("tenant_id", "--tenant"), ("data", "--data")]),
            ("event tail", &[("cursor", "--after")]),
            ("event publish", EVENT_IN_FILE),
            ("dead-letter list", DEAD_LETTERS),
            ("delivery list", DELIVERY_LIST),
            ("recipient set", &RECIPIENT),
            ("recipient set", RECIPIENT_IN_FILE),
            ("recipient list", RECIPIENT_LIST),
            ("recipient verify", VERIFY),
            ("notify test", NOTIFY),
            ("credential set", CREDENTIAL),
            ("credential list", CREDENTIAL_LIST),
            ("token create", TOKEN),
            ("budget set", BUDGET),
            ("quota set", QUOTA),
        ];
        let cli = crate::cli::Cli::command();
        for (typed, names) in commands {
            let command = typed.split(' ').fold(&cli, |command, word| command.find_subcommand(word).expect(word));
            for (_, named) in names.iter().filter(|(_, named)| !named.contains('*')) {
                let word = named.split(' ').next().unwrap();
                let known = |argument: &clap::Arg| match word.strip_prefix("--") {
                    Some(flag) => argument.get_long() == Some(flag),
                    None => argument.get_value_names().is_some_and(|names| names.iter().any(|name| name == word)),
                };
                assert!(command.get_arguments().any(known), "reveille {typed} has no {word}");
            }
        }
    }
}
