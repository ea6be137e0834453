//! Where sealed texts lie within the documents of recipients and tasks. Pure; which place each was sealed for is said
//! by [`SealedPlace`], to who seals it as well.

use std::collections::BTreeSet;

use serde_json::{Map, Value};
use uuid::Uuid;

use crate::ports::vault::{SealedPlace, Vault, VaultError};

/// Prefix of the names of sealed fields.
const SEALED: &str = "sealed_";

/// A recipient's document with every secret under the first master key; `None`: each is already.
pub fn rewrap_recipient(vault: &Vault, tenant: &str, body: &Value) -> Result<Option<Value>, VaultError> {
    rewrap(vault, body, recipients(tenant, body))
}

/// As above, for the spec of a task.
pub fn rewrap_task(vault: &Vault, tenant: &str, spec: &Value) -> Result<Option<Value>, VaultError> {
    rewrap(vault, spec, tasks(tenant, spec))
}

/// Whether a configured key opens any secret of a recipient.
pub fn opens_recipient(vault: &Vault, tenant: &str, body: &Value) -> bool {
    opens(vault, body, recipients(tenant, body))
}

/// As above, for the spec of a task.
pub fn opens_task(vault: &Vault, tenant: &str, spec: &Value) -> bool {
    opens(vault, spec, tasks(tenant, spec))
}

fn opens(vault: &Vault, document: &Value, texts: Texts) -> bool {
    let text = |pointer: &str| document.pointer(pointer).and_then(Value::as_str);
    texts.iter().any(|(pointer, place)| text(pointer).is_some_and(|text| vault.can_open(&place.context(), text)))
}

/// Those of a task.
fn tasks<'a>(tenant: &'a str, spec: &'a Value) -> Texts<'a> {
    let executor = spec.get("executor").and_then(Value::as_str).unwrap_or_default();
    let config = spec.pointer("/action/config").and_then(Value::as_object);
    // what merely has such a name further down is the task's own
    let fields = config.into_iter().flatten().filter(|(_, value)| is_sealed(value));
    let texts = fields.filter_map(|(name, _)| Some((name, name.strip_prefix(SEALED)?))).map(|(name, field)| {
        let name = name.replace('~', "~0").replace('/', "~1");
        (format!("/action/config/{name}"), SealedPlace::task(tenant, executor, field))
    });
    texts.collect()
}

/// Rewraps the text of a message to open sessions.
pub fn rewrap_message(vault: &Vault, tenant: &str, id: Uuid, sealed: &str) -> Result<Option<String>, VaultError> {
    vault.rewrap(&SealedPlace::live(tenant, id).context(), sealed)
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

fn is_sealed(value: &Value) -> bool {
    value.as_str().is_some_and(|text| Vault::key_of(text).is_some())
}

/// Each sealed text by its JSON pointer, and its place.
type Texts<'a> = Vec<(String, SealedPlace<'a>)>;

/// Those of a recipient.
fn recipients<'a>(tenant: &'a str, body: &Value) -> Texts<'a> {
    let one = |pointer: &str, place| body.pointer(pointer).is_some_and(is_sealed).then(|| (pointer.to_owned(), place));
    let single = [
        one("/addresses/webhook/sealed_secret", SealedPlace::webhook(tenant)),
        one("/addresses/slack/sealed_url", SealedPlace::slack(tenant)),
    ];
    let push = body.pointer("/addresses/push").and_then(Value::as_array).into_iter().flatten().enumerate();
    let push = push.filter_map(|(n, address)| {
        one(&format!("/addresses/push/{n}/sealed_auth"), SealedPlace::push(tenant, address["endpoint"].as_str()?))
    });
    single.into_iter().flatten().chain(push).collect()
}

fn rewrap(vault: &Vault, document: &Value, texts: Texts) -> Result<Option<Value>, VaultError> {
    let mut changed = document.clone();
    let mut did = false;
    for (pointer, place) in texts {
        let Some(text) = changed.pointer_mut(&pointer) else { continue };
        if let Some(rewrapped) = vault.rewrap(&place.context(), text.as_str().unwrap_or_default())? {
            *text = Value::String(rewrapped);
            did = true;
        }
    }
    Ok(did.then_some(changed))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::base::secret::Secret;
    use crate::ports::vault::fixture::{NEW, OLD, vault};

    fn sealed(place: SealedPlace) -> String {
        vault(&[OLD]).seal(&place.context(), &Secret::new("a secret")).unwrap()
    }

    /// Whether it opens there with the new key alone.
    fn opens(document: &Value, pointer: &str, place: SealedPlace) -> bool {
        let text = document.pointer(pointer).unwrap().as_str().unwrap();
        vault(&[NEW]).unseal(&place.context(), text).is_ok_and(|opened| opened.expose() == "a secret")
    }

    #[test]
    fn every_secret_of_a_recipient_is_put_under_the_first_key() {
        let endpoints = ["https://push.example.org/1", "https://push.example.org/2"];
        let browser =
            |endpoint| json!({ "endpoint": endpoint, "sealed_auth": sealed(SealedPlace::push("ann", endpoint)) });
        let body = json!({ "timezone": "UTC", "addresses": {
            "webhook": { "url": "https://x", "sealed_secret": sealed(SealedPlace::webhook("ann")) },
            "push": [browser(endpoints[0]), { "topic": "t" }, browser(endpoints[1])],
            "slack": { "sealed_url": sealed(SealedPlace::slack("ann")) },
        } });
        let both = vault(&[NEW, OLD]);
        let changed = rewrap_recipient(&both, "ann", &body).unwrap().unwrap();
        for (pointer, place) in [
            ("/addresses/webhook/sealed_secret", SealedPlace::webhook("ann")),
            ("/addresses/push/0/sealed_auth", SealedPlace::push("ann", endpoints[0])),
            ("/addresses/push/2/sealed_auth", SealedPlace::push("ann", endpoints[1])),
            ("/addresses/slack/sealed_url", SealedPlace::slack("ann")),
        ] {
            assert!(opens(&changed, pointer, place), "{pointer}");
        }
        assert_eq!((keys_of_recipient(&body), keys_of_recipient(&changed)), (["old"].into(), ["new"].into()));
        assert_eq!(changed.pointer("/addresses/push/1"), Some(&json!({ "topic": "t" })));
        assert_eq!(rewrap_recipient(&both, "ann", &changed), Ok(None));
        assert_eq!(rewrap_recipient(&both, "bob", &body), Err(VaultError::Refused));
        assert_eq!(rewrap_recipient(&vault(&[NEW]), "ann", &body), Err(VaultError::UnknownKey("old".into())));
    }

    #[test]
    fn rotation_rewraps_only_the_executor_secret_of_a_task() {
        let (secret, foreign) =
            (sealed(SealedPlace::task("ann", "webhook", "secret")), sealed(SealedPlace::webhook("ann")));
        let spec = json!({ "executor": "webhook", "action": { "config": {
            "url": "https://x", "sealed_secret": secret, "headers": { "sealed_x": foreign },
        } }, "metadata": { "sealed_secret": foreign } });
        let changed = rewrap_task(&vault(&[NEW, OLD]), "ann", &spec).unwrap().unwrap();
        assert!(opens(&changed, "/action/config/sealed_secret", SealedPlace::task("ann", "webhook", "secret")));
        for pointer in ["/metadata/sealed_secret", "/action/config/headers/sealed_x"] {
            assert_eq!(changed.pointer(pointer), Some(&json!(foreign)));
        }
        assert_eq!((keys_of_task(&spec), keys_of_task(&changed)), (["old"].into(), ["new"].into()));
        assert_eq!(rewrap_task(&vault(&[NEW]), "ann", &json!({ "action": {} })), Ok(None));
    }

    #[test]
    fn message_is_put_under_the_first_key_for_its_own_place() {
        let id = Uuid::from_u128(7);
        let text = sealed(SealedPlace::live("ann", id));
        let both = vault(&[NEW, OLD]);
        let changed = json!(rewrap_message(&both, "ann", id, &text).unwrap().unwrap());
        assert!(opens(&changed, "", SealedPlace::live("ann", id)));
        assert_eq!(rewrap_message(&both, "ann", Uuid::from_u128(8), &text), Err(VaultError::Refused));
        assert_eq!(rewrap_message(&both, "ann", id, changed.as_str().unwrap()), Ok(None));
    }
}
