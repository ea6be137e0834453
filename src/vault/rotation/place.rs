//! Where sealed texts lie within the documents of recipients and tasks, and which place each was sealed for. Pure.
//!
//! A recipient's secret at `/addresses/push/0/sealed_auth` is sealed for the account `push/0` and the field `auth`; a
//! task's at `/action/config/sealed_secret` for the account that is its executor and the field `secret`.

use std::collections::BTreeSet;

use serde_json::{Map, Value};

use crate::vault::{Context, Vault, VaultError};

/// What the names of sealed fields begin with.
const SEALED: &str = "sealed_";

/// A recipient's document with every secret under the first master key; `None`: each is already.
pub fn rewrap_recipient(vault: &Vault, tenant: &str, body: &Value) -> Result<Option<Value>, VaultError> {
    rewrap(body, "/addresses", &|path, field, sealed| {
        let account = path.join("/");
        vault.rewrap(&Context { tenant, service: "recipient", account: &account, field }, sealed)
    })
}

/// The same for the spec of a task.
pub fn rewrap_task(vault: &Vault, tenant: &str, spec: &Value) -> Result<Option<Value>, VaultError> {
    let executor = spec.get("executor").and_then(Value::as_str).unwrap_or_default();
    rewrap(spec, "/action/config", &|path, field, sealed| match path {
        [] => vault.rewrap(&Context { tenant, service: "task", account: executor, field }, sealed),
        // what merely has such a name is the task's own
        _ => Ok(None),
    })
}

/// The master keys that a recipient's secrets are under.
pub fn keys_of_recipient(body: &Value) -> BTreeSet<&str> {
    let mut keys = BTreeSet::new();
    let mut rest: Vec<&Value> = body.get("addresses").into_iter().collect();
    while let Some(value) = rest.pop() {
        match value {
            Value::Array(items) => rest.extend(items),
            Value::Object(fields) => {
                keys.extend(keys_of(fields));
                rest.extend(fields.values());
            }
            _ => {}
        }
    }
    keys
}

/// The master keys that a task's secrets are under.
pub fn keys_of_task(spec: &Value) -> BTreeSet<&str> {
    spec.pointer("/action/config")
        .and_then(Value::as_object)
        .map(|config| keys_of(config).collect())
        .unwrap_or_default()
}

fn keys_of(fields: &Map<String, Value>) -> impl Iterator<Item = &str> {
    let sealed = fields.iter().filter(|(name, _)| name.starts_with(SEALED));
    sealed.filter_map(|(_, value)| Vault::key_of(value.as_str()?))
}

/// Wraps one sealed text anew, by its path within the part, and its field.
type Rewrap<'a> = dyn Fn(&[String], &str, &str) -> Result<Option<String>, VaultError> + 'a;

fn rewrap(document: &Value, part: &str, each: &Rewrap) -> Result<Option<Value>, VaultError> {
    let mut changed = document.clone();
    let Some(value) = changed.pointer_mut(part) else { return Ok(None) };
    let did = walk(value, &mut vec![], each)?;
    Ok(did.then_some(changed))
}

fn walk(value: &mut Value, path: &mut Vec<String>, each: &Rewrap) -> Result<bool, VaultError> {
    let mut did = false;
    match value {
        Value::Array(items) => {
            for (index, item) in items.iter_mut().enumerate() {
                did |= below(index.to_string(), item, path, each)?;
            }
        }
        Value::Object(fields) => {
            for (name, value) in fields.iter_mut() {
                let sealed = name.strip_prefix(SEALED).zip(value.as_str().filter(|text| Vault::key_of(text).is_some()));
                match sealed {
                    None => did |= below(name.clone(), value, path, each)?,
                    Some((field, sealed)) => {
                        if let Some(rewrapped) = each(path, field, sealed)? {
                            *value = Value::String(rewrapped);
                            did = true;
                        }
                    }
                }
            }
        }
        _ => {}
    }
    Ok(did)
}

fn below(name: String, value: &mut Value, path: &mut Vec<String>, each: &Rewrap) -> Result<bool, VaultError> {
    path.push(name);
    let did = walk(value, path, each);
    path.pop();
    did
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::secret::Secret;
    use crate::vault::{KeySource, Settings, WithoutKeys};

    const OLD: &str = "old:AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";
    const NEW: &str = "new:HwECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=";

    fn vault(keys: &[&str]) -> Vault {
        let settings = Settings { master_keys: keys.iter().map(|key| KeySource::value(*key)).collect() };
        Vault::open(&settings, WithoutKeys::Refuse).unwrap().0
    }

    fn place<'a>(service: &'a str, account: &'a str, field: &'a str) -> Context<'a> {
        Context { tenant: "ann", service, account, field }
    }

    fn sealed(service: &str, account: &str, field: &str) -> String {
        vault(&[OLD]).seal(&place(service, account, field), &Secret::new(format!("{account} {field}"))).unwrap()
    }

    #[test]
    fn every_secret_of_a_recipient_is_put_under_the_first_key() {
        let body = json!({ "timezone": "UTC", "addresses": {
            "webhook": { "url": "https://x", "sealed_secret": sealed("recipient", "webhook", "secret") },
            "push": [{ "topic": "t" }, { "endpoint": "e", "sealed_auth": sealed("recipient", "push/1", "auth") }],
            "slack": { "sealed_url": sealed("recipient", "slack", "url") },
        } });
        let both = vault(&[NEW, OLD]);
        let changed = rewrap_recipient(&both, "ann", &body).unwrap().unwrap();
        let new = vault(&[NEW]);
        for (pointer, account, field) in [
            ("/addresses/webhook/sealed_secret", "webhook", "secret"),
            ("/addresses/push/1/sealed_auth", "push/1", "auth"),
            ("/addresses/slack/sealed_url", "slack", "url"),
        ] {
            let text = changed.pointer(pointer).unwrap().as_str().unwrap();
            let opened = new.unseal(&place("recipient", account, field), text).unwrap();
            assert_eq!(opened.expose(), format!("{account} {field}"));
        }
        assert_eq!((keys_of_recipient(&body), keys_of_recipient(&changed)), (["old"].into(), ["new"].into()));
        assert_eq!(changed.pointer("/addresses/push/0"), Some(&json!({ "topic": "t" })));
        assert_eq!(rewrap_recipient(&both, "ann", &changed), Ok(None));
        assert_eq!(rewrap_recipient(&both, "bob", &body), Err(VaultError::Refused));
        assert_eq!(rewrap_recipient(&new, "ann", &body), Err(VaultError::UnknownKey("old".into())));
    }

    #[test]
    fn of_a_task_only_the_secret_of_its_executor_is_touched() {
        let foreign = sealed("task", "webhook", "secret");
        let spec = json!({ "executor": "webhook", "action": { "config": {
            "url": "https://x", "sealed_secret": sealed("task", "webhook", "secret"), "headers": { "sealed_x": foreign },
        } }, "metadata": { "sealed_secret": foreign } });
        let changed = rewrap_task(&vault(&[NEW, OLD]), "ann", &spec).unwrap().unwrap();
        let text = changed.pointer("/action/config/sealed_secret").unwrap().as_str().unwrap();
        let opened = vault(&[NEW]).unseal(&place("task", "webhook", "secret"), text).unwrap();
        assert_eq!(opened.expose(), "webhook secret");
        for pointer in ["/metadata/sealed_secret", "/action/config/headers/sealed_x"] {
            assert_eq!(changed.pointer(pointer), Some(&json!(foreign)));
        }
        assert_eq!((keys_of_task(&spec), keys_of_task(&changed)), (["old"].into(), ["new"].into()));
        assert_eq!(rewrap_task(&vault(&[NEW]), "ann", &json!({ "action": {} })), Ok(None));
    }
}
