//! The hooks that are configured: from whom, signed how, for which tenant.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::base::id::Tenant;
use crate::base::invalid::{ValidationErrors, escape};
use crate::base::secret::Secret;
use crate::http::hooks::signature::{self, Preset};

/// The header of a shared token, where none is named.
pub(super) const TOKEN_HEADER: &str = "x-hook-token";

/// `[hooks.<source>]`, by source.
pub type Settings = BTreeMap<String, Hook>;

/// `[hooks.<source>]`
#[derive(Debug, Clone, Default, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Hook {
    /// Signature scheme of the sender.
    pub preset: Preset,
    /// Secrets that sign requests; several while they are rotated. None: only a bearer token is let in.
    pub secrets: Vec<Secret>,
    /// Tenant of the events.
    pub tenant_id: Option<String>,
    /// Where the event's type is: `header:<name>`, `body:<JSON pointer>`, or the type itself. Absent: as the preset has
    /// it.
    #[serde(rename = "type")]
    pub kind: Option<String>,
    /// `token`: the header that carries it.
    pub header: Option<String>,
}

/// Adds what is wrong; pointers begin with `/hooks`.
pub fn check(hooks: &Settings, faults: &mut ValidationErrors) {
    for (source, hook) in hooks {
        let place = format!("/hooks/{}", escape(source));
        for (index, secret) in hook.secrets.iter().enumerate() {
            if let Err(why) = signature::HookKey::of(hook.preset, secret) {
                faults.add(format!("{place}/secrets/{index}"), why);
            }
        }
        match &hook.tenant_id {
            Some(tenant) => {
                if let Err(why) = Tenant::new(tenant) {
                    faults.add(format!("{place}/tenant_id"), why);
                }
            }
            None if hook.secrets.is_empty() => {}
            None => {
                faults.add(format!("{place}/tenant_id"), "is missing: a signature does not say whose the events are")
            }
        }
        let is_name = |name: &str| http::HeaderName::from_bytes(name.as_bytes()).is_ok();
        if hook.header.as_deref().is_some_and(|name| !is_name(name)) {
            faults.add(format!("{place}/header"), "is no name of a header");
        }
        let right = match hook.kind.as_deref().and_then(|kind| kind.split_once(':')) {
            Some(("header", name)) => is_name(name),
            Some(("body", pointer)) => pointer.starts_with('/'),
            _ => hook.kind.as_deref() != Some(""),
        };
        if !right {
            let why = "must be `header:X-Event`, `body:/event/type`, or the type itself";
            faults.add(format!("{place}/type"), why);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn places(hook: Hook) -> Vec<String> {
        let mut faults = ValidationErrors::new();
        check(&Settings::from([("a/b".into(), hook)]), &mut faults);
        faults.0.into_iter().map(|fault| fault.pointer).collect()
    }

    #[test]
    fn hook_that_would_let_anybody_in_is_refused() {
        let hook = |preset, secret: &str| Hook {
            preset,
            secrets: vec![Secret::new(secret)],
            tenant_id: Some("ann".into()),
            ..Hook::default()
        };
        for preset in Preset::ALL {
            let short_key = (preset == Preset::Standard).then_some("whsec_c2hvcnQ=");
            for blank in ["", " ", "        ", "short", "whsec_"].into_iter().chain(short_key) {
                assert_eq!(places(hook(preset, blank)), ["/hooks/a~1b/secrets/0"], "{preset:?} {blank:?}");
            }
            let fine =
                if preset == Preset::Standard { "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" } else { "0123456789abcdef" };
            assert_eq!(places(hook(preset, fine)), [""; 0]);
        }
    }

    #[test]
    fn missing_or_unreadable_setting_is_told_with_its_place() {
        let secrets = vec![Secret::new("0123456789abcdef")];
        assert_eq!(places(Hook { preset: Preset::Github, secrets, ..Hook::default() }), ["/hooks/a~1b/tenant_id"]);
        let odd = Hook {
            tenant_id: Some("*".into()),
            header: Some("a b".into()),
            kind: Some("body:x".into()),
            ..Hook::default()
        };
        assert_eq!(places(odd), ["/hooks/a~1b/tenant_id", "/hooks/a~1b/header", "/hooks/a~1b/type"]);
        for kind in ["header:X-Event", "body:/a/b", "invoice", "a:b"] {
            assert_eq!(places(Hook { kind: Some(kind.into()), ..Hook::default() }), [""; 0], "{kind}");
        }
    }
}
