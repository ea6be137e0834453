//! `action.config` of a webhook task: as it is written, with the secret in the clear, and as it is stored, with the
//! secret sealed for its tenant. No answer shows either.

use std::time::Duration;

use chrono::TimeDelta;
use http::{HeaderMap, HeaderValue};
use serde_json::{Map, Value, json};
use zeroize::Zeroizing;

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, did_you_mean, escape, unknown_fields};
use crate::base::secret::Secret;
use crate::domain::credential::{Reference, UnsettableHeader, settable_header};
use crate::domain::notification::recipient::signing_keys;
use crate::domain::run::RunError;
use crate::domain::task::Action;
use crate::ports::egress::Egress;
use crate::ports::vault::{SealedPlace, Vault};

const FIELDS: [&str; 7] =
    ["url", "secret", "secret_set", "credential", "timeout_seconds", "completion_timeout_seconds", "headers"];
/// Where the sealed secret lies; what begins so is shown to nobody: see [`Action::public`].
const SEALED: &str = "sealed_secret";
/// Time limits of the POST, in seconds.
const TIMEOUTS: std::ops::RangeInclusive<u64> = 1..=300;
const DEFAULT_TIMEOUT: u64 = 30;
const DEFAULT_COMPLETION: u64 = 3_600;
const HEADERS: usize = 30;
/// The longest that a run may wait.
const LONGEST_WAIT: TimeDelta = TimeDelta::days(30);
const SECRET_FORM: &str =
    "`whsec_` and 24 to 64 random bytes in base64, as `echo whsec_$(openssl rand -base64 32)` prints";

/// As it is stored.
pub struct Settings {
    pub url: String,
    pub sealed_secret: String,
    pub timeout: Duration,
    pub completion_timeout: Duration,
    pub headers: HeaderMap,
    /// Credential of the POST, besides its signature.
    pub credential: Option<Reference>,
}

impl Settings {
    /// Reads the settings of a stored task.
    pub fn stored(config: &Map<String, Value>) -> Result<Settings, RunError> {
        let text = |key: &str| config.get(key).and_then(Value::as_str).map(str::to_owned);
        let missing = |key: &str| RunError::fail("invalid_action", format!("action.config.{key} is missing"));
        let seconds = |key: &str, usual| Duration::from_secs(config.get(key).and_then(Value::as_u64).unwrap_or(usual));
        let mut faults = ValidationErrors::new();
        let headers = headers(config.get("headers"), &mut faults);
        let credential = credential(config.get("credential"), &mut faults);
        Ok(Settings {
            credential,
            url: text("url").ok_or_else(|| missing("url"))?,
            sealed_secret: text(SEALED).ok_or_else(|| missing("secret"))?,
            timeout: seconds("timeout_seconds", DEFAULT_TIMEOUT),
            completion_timeout: seconds("completion_timeout_seconds", DEFAULT_COMPLETION),
            headers: faults
                .into_result(headers)
                .map_err(|faults| RunError::fail("invalid_action", faults.to_string()))?,
        })
    }
}

/// Adds what is wrong with settings as they are written.
pub fn check(config: &Map<String, Value>, egress: &Egress, faults: &mut ValidationErrors) {
    for key in unknown_fields(config, &FIELDS) {
        let known: Vec<&str> = FIELDS.into_iter().filter(|field| *field != "secret_set").collect();
        let hint = did_you_mean(key, known.iter().copied());
        faults.add(vault_place(key), format!("unknown key `{key}`{hint}; known: {}", known.join(", ")));
    }
    match config.get("url") {
        Some(Value::String(url)) => {
            if let Err(error) = egress.check(url) {
                faults.add(vault_place("url"), error.to_string());
            }
        }
        Some(_) => faults.add(vault_place("url"), "must be a text"),
        None => faults.add(vault_place("url"), "is missing: where your runtime takes runs"),
    }
    match config.get("secret") {
        None | Some(Value::Null) => {}
        Some(Value::String(secret)) => {
            if let Err(why) = signing_keys(&Secret::new(secret.as_str())) {
                faults.add(vault_place("secret"), why);
            }
        }
        Some(_) => faults.add(vault_place("secret"), format!("expected {SECRET_FORM}")),
    }
    let mut number = |key: &str, range: std::ops::RangeInclusive<u64>| {
        let written = config.get(key).filter(|value| !value.is_null());
        if written.is_some_and(|value| value.as_u64().is_none_or(|number| !range.contains(&number))) {
            let message = format!("must be a whole number from {} to {}", range.start(), range.end());
            faults.add(vault_place(key), message);
        }
    };
    number("timeout_seconds", TIMEOUTS);
    number("completion_timeout_seconds", 1..=LONGEST_WAIT.num_seconds().unsigned_abs());
    headers(config.get("headers"), faults);
    credential(config.get("credential"), faults);
}

fn credential(written: Option<&Value>, faults: &mut ValidationErrors) -> Option<Reference> {
    let read = match written {
        None | Some(Value::Null) => return None,
        Some(Value::String(name)) => Reference::parse(name),
        Some(_) => Err("must be the name of a credential: `service` or `service/account`".into()),
    };
    read.map_err(|why| faults.add(vault_place("credential"), why)).ok()
}

fn headers(written: Option<&Value>, faults: &mut ValidationErrors) -> HeaderMap {
    let mut headers = HeaderMap::new();
    let written = match written {
        None | Some(Value::Null) => return headers,
        Some(Value::Object(written)) if written.len() <= HEADERS => written,
        Some(_) => {
            faults.add(vault_place("headers"), format!("must be an object of at most {HEADERS} headers"));
            return headers;
        }
    };
    for (key, value) in written {
        let at = format!("{}/{}", vault_place("headers"), escape(key));
        let name = settable_header(key, |name| name == "content-type" || name.starts_with("webhook-"));
        let value = value.as_str().and_then(|value| HeaderValue::from_str(value).ok());
        match (name, value) {
            (Err(unsettable @ (UnsettableHeader::Secret | UnsettableHeader::Ours)), _) => {
                faults.add(at, unsettable.message());
            }
            (Ok(name), Some(value)) => {
                headers.insert(name, value);
            }
            _ => faults.add(at, "is no header with a value it can carry"),
        }
    }
    headers
}

/// Seals a secret that was written, or keeps the one that is stored.
pub fn seal(
    vault: &Vault,
    tenant: &Tenant,
    action: &mut Action,
    before: Option<&Action>,
) -> Result<(), ValidationErrors> {
    action.config.remove("secret_set");
    let written = action.config.remove("secret").and_then(|secret| secret.as_str().map(Secret::new));
    let sealed = match written {
        Some(secret) => {
            let refused = |_| {
                ValidationErrors::one(vault_place("secret"), "can't be sealed: the service's master key is not usable")
            };
            vault.seal(&place_of(tenant.as_str()).context(), &secret).map_err(refused)?
        }
        None => {
            let kept = before.and_then(|action| action.config.get(SEALED)).and_then(Value::as_str);
            kept.ok_or_else(|| ValidationErrors::one(vault_place("secret"), format!("is missing: {SECRET_FORM}")))?
                .to_owned()
        }
    };
    action.config.insert(SEALED.into(), json!(sealed));
    Ok(())
}

/// The signing keys behind a sealed secret.
pub fn unseal(vault: &Vault, tenant: &str, sealed: &str) -> Result<Vec<Zeroizing<Vec<u8>>>, String> {
    let secret = vault.unseal(&place_of(tenant).context(), sealed).map_err(|error| error.to_string())?;
    signing_keys(&secret)
}

fn place_of(tenant: &str) -> SealedPlace<'_> {
    SealedPlace::task(tenant, "webhook", "secret")
}

fn vault_place(key: &str) -> String {
    format!("/action/config/{}", escape(key))
}

#[cfg(test)]
mod tests {
    use serde_json::{Map, Value, json};

    use super::{FIELDS, HEADERS, headers};
    use crate::base::invalid::ValidationErrors;
    use crate::executor::schema::{WebhookConfig, fields_of};

    #[test]
    fn headers_of_a_webhook_are_taken_up_to_their_number_and_refused_one_beyond_it() {
        let taken = |count: usize| {
            let written: Map<String, Value> = (0..count).map(|n| (format!("x-{n}"), json!("v"))).collect();
            let mut faults = ValidationErrors::new();
            let taken = headers(Some(&Value::Object(written)), &mut faults).len();
            (taken, faults.0.into_iter().map(|fault| fault.pointer).collect::<Vec<_>>())
        };
        assert_eq!(taken(HEADERS), (HEADERS, vec![]));
        assert_eq!(taken(HEADERS + 1), (0, vec!["/action/config/headers".to_owned()]));
    }

    #[test]
    fn published_settings_are_those_that_are_read() {
        let mut read = FIELDS.to_vec();
        read.sort_unstable();
        assert_eq!(fields_of::<WebhookConfig>(), read);
    }
}
