//! Looks at the master keys: whether secrets can be sealed and opened, which keys are still needed, and which can go.

use std::collections::BTreeSet;
use std::path::Path;

use super::{Finding, place};
use crate::app::foreign_keys;
use crate::config::Config;
use crate::engine::maintenance::sealer::chain::keys_used;
use crate::ports::vault::rotation::{RotationCounts, RotationKeys, locked_out, survey};
use crate::ports::vault::{KEY_FILE, Vault, WithoutKeys};

const NAME: &str = "keys";

/// A key file is read and never made here.
pub async fn all(config: &Config, data_dir: &Path) -> Vec<Finding> {
    let on_sqlite = config.database.url.expose().starts_with("sqlite:");
    let file = data_dir.join(KEY_FILE);
    let configured = config.vault.master_keys.len();
    let without = match on_sqlite {
        true if configured == 0 && !file.exists() => {
            return vec![Finding::ok(NAME, format!("{} will be made at the first start", file.display()))];
        }
        true => WithoutKeys::KeyFile(data_dir),
        false => WithoutKeys::Refuse,
    };
    let vault = match Vault::open(&config.vault, without) {
        Err(error) => return vec![Finding::failed(NAME, &error)],
        Ok((vault, _)) => vault,
    };
    let mut findings = vec![match configured {
        0 => Finding::ok(NAME, format!("{} can be read; keep a copy of it", file.display())),
        _ => Finding::ok(NAME, format!("{configured} configured, `{}` encrypts", vault.first_key())),
    }];
    match stored(config, data_dir, &vault).await {
        Ok(Some(StoredKeys { sealed, tagged, locked_out })) => {
            findings.extend(key_findings(&vault.key_ids(), &sealed, |id| tagged.contains(id)));
            findings
                .extend(locked_out.map(|needed| foreign_key_finding(&needed, &vault, config.vault.accept_lost_keys)));
        }
        Ok(None) => {}
        Err(why) => findings.push(
            Finding::warning(NAME, format!("what is sealed under which key can't be counted: {why}"))
                .hint("keep every key in vault.master_keys until this says which are still needed"),
        ),
    }
    findings
}

/// Stored data that needs keys.
struct StoredKeys {
    /// Counts of sealed secrets by key.
    sealed: RotationKeys,
    /// The keys of the audit record.
    tagged: BTreeSet<String>,
    /// The keys that are needed, where none of the configured ones opens anything.
    locked_out: Option<BTreeSet<String>>,
}

/// The refusal that `serve` has as well.
fn foreign_key_finding(needed: &BTreeSet<String>, vault: &Vault, accepted: bool) -> Finding {
    let why = foreign_keys(needed, vault);
    match accepted {
        true => Finding::warning(NAME, why).hint("give these secrets anew, then take vault.accept_lost_keys out"),
        false => Finding::error(NAME, why)
            .hint("`serve` does not start so; put the keys into vault.master_keys, or the key file back"),
    }
}

/// Reads the stored data that needs keys.
async fn stored(config: &Config, data_dir: &Path, vault: &Vault) -> Result<Option<StoredKeys>, String> {
    let looked = place::query_store(config, data_dir, async |store| {
        tokio::try_join!(survey(store), keys_used(store, vault), locked_out(store, vault))
    });
    Ok(looked.await?.map(|(sealed, tagged, locked_out)| StoredKeys { sealed, tagged, locked_out }))
}

/// A finding for each key but the first, and for each that is missing.
fn key_findings(configured: &[&str], sealed: &RotationKeys, tagged: impl Fn(&str) -> bool) -> Vec<Finding> {
    let mut findings = vec![];
    for id in configured.iter().skip(1) {
        let name = format!("key {id}");
        findings.push(match sealed.get(*id) {
            Some(counts) => Finding::warning(&name, format!("is still needed by {}", counts_text(counts)))
                .hint("reveille credential rotate-key, beside the running service"),
            None if tagged(id) => Finding::ok(
                &name,
                "opens nothing any more; it stays for `reveille audit verify`: part of the audit record was sealed with it",
            ),
            None => Finding::ok(
                &name,
                "is needed by nothing that is stored; take it out when no webhook run that began before waits any more",
            ),
        });
    }
    let missing = sealed.iter().filter(|(id, _)| !configured.contains(&id.as_str()));
    findings.extend(missing.map(|(id, counts)| {
        let what = counts_text(counts);
        Finding::error(&format!("key {id}"), format!("is not configured, and needed by {what}"))
            .hint("put it behind the others in vault.master_keys; without it those secrets are lost")
    }));
    findings
}

/// `2 credentials, 1 task`.
fn counts_text(counts: &RotationCounts) -> String {
    let kinds = [
        (counts.credentials, "credential", "credentials"),
        (counts.recipients, "recipient", "recipients"),
        (counts.tasks, "task", "tasks"),
        (counts.messages, "message", "messages"),
    ];
    let some = kinds.into_iter().filter(|(count, ..)| *count > 0);
    let word = |(count, one, many)| format!("{count} {}", if count == 1 { one } else { many });
    some.map(word).collect::<Vec<_>>().join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_key_but_the_first_is_needed_kept_or_can_go_and_a_missing_one_is_wrong() {
        let counts = |credentials, tasks| RotationCounts { credentials, tasks, ..RotationCounts::default() };
        let sealed = RotationKeys::from([
            ("gone".into(), counts(1, 0)),
            ("new".into(), counts(5, 0)),
            ("old".into(), counts(2, 1)),
        ]);
        let found: Vec<_> = key_findings(&["new", "old", "older", "oldest"], &sealed, |id| id == "older")
            .into_iter()
            .map(|finding| (finding.name, serde_json::to_value(finding.verdict).unwrap(), finding.message))
            .collect();
        let expected = [
            ("key old", "odd", "is still needed by 2 credentials, 1 task"),
            (
                "key older",
                "fine",
                "opens nothing any more; it stays for `reveille audit verify`: part of the audit record was sealed with it",
            ),
            (
                "key oldest",
                "fine",
                "is needed by nothing that is stored; take it out when no webhook run that began before waits any more",
            ),
            ("key gone", "wrong", "is not configured, and needed by 1 credential"),
        ];
        let expected = expected.map(|(name, verdict, message)| (name.into(), verdict.into(), message.into()));
        assert_eq!(found, expected);
    }
}
