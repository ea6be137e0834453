//! Outgoing HTTP: the only place that makes clients.

use std::time::Duration;

/// A client for addresses from the operator's configuration: no proxies from the environment, no redirects.
#[allow(clippy::disallowed_methods)] // the owner
pub fn operator_client(timeout: Duration) -> reqwest::Client {
    reqwest::Client::builder()
        .no_proxy()
        .redirect(reqwest::redirect::Policy::none())
        .connect_timeout(Duration::from_secs(5))
        .timeout(timeout)
        .build()
        .expect("a client without files or environment always builds")
}
