//! Looks at what push needs: a login that is whole, and the key that browsers subscribe to.

use std::path::Path;

use super::{Finding, misconfigured};
use crate::app::keys_without_setting;
use crate::config::LoadedConfig;

const NAME: &str = "push";

pub fn check(loaded: &LoadedConfig, data_dir: &Path) -> Finding {
    let config = &loaded.config;
    let ntfy = match &config.channels.push.ntfy.url {
        Some(url) => format!("ntfy at {url}"),
        None => "ntfy where recipients name a server".into(),
    };
    let without = keys_without_setting(config, data_dir);
    match config.channels.push.check(without) {
        Err(faults) => misconfigured(NAME, loaded, faults),
        Ok(Some(public_key)) => Finding::ok(NAME, format!("{ntfy}; browsers subscribe to {public_key}")),
        Ok(None) if without == crate::ports::vault::WithoutKeys::Refuse => {
            Finding::ok(NAME, format!("{ntfy}; no Web Push, because channels.push.vapid.private_key is not set"))
        }
        Ok(None) => Finding::ok(NAME, format!("{ntfy}; the key of Web Push is made at the first start")),
    }
}
