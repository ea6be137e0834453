//! Looks at the services that people can connect: does the provider answer, does it know this client, and what has to be
//! registered there? No code and no token is spent.

use url::{Host, Url};

use super::Finding;
use crate::config::Config;
use crate::vault::oauth::{Probe, Provider, probe, redirect_uri};

pub async fn all(config: &Config) -> Vec<Finding> {
    let redirect = redirect_uri(&config.server.public_url());
    let looks = config.oauth.iter().map(|(name, provider)| one(name, provider, &redirect));
    futures::future::join_all(looks).await
}

async fn one(service: &str, provider: &Provider, redirect: &str) -> Finding {
    let name = format!("oauth {service}");
    let register = format!("register {redirect} there as the redirect URI of `{}`", provider.client_id);
    let (token_url, client) = (&provider.token_url, &provider.client_id);
    match probe(provider).await {
        Probe::Known if [&provider.authorize_url, token_url].iter().any(|url| is_open_to_all(url)) => {
            Finding::odd(&name, "http:// to another machine: whoever is on the way reads secrets and tokens")
                .hint("use https:// addresses (RFC 6749, sections 3.1 and 3.2)")
        }
        Probe::Known => Finding::fine(&name, format!("{token_url} knows the client `{client}`")).hint(register),
        Probe::Refused(why) => Finding::wrong(&name, format!("{token_url} refuses the client `{client}`: {why}"))
            .hint("are client_id, client_secret and client_auth as the provider has them?"),
        Probe::Unclear(why) => {
            Finding::odd(&name, format!("{token_url} is not understood: {why}")).hint("is token_url right?")
        }
        Probe::Away(why) => Finding::wrong(&name, format!("{token_url}: {why}"))
            .hint("is token_url right, and may this machine reach it?"),
    }
}

/// Whether secrets would go over a network in the clear.
fn is_open_to_all(url: &str) -> bool {
    let Ok(url) = Url::parse(url) else { return false };
    let is_here = match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        None => false,
    };
    url.scheme() == "http" && !is_here
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn http_is_good_on_this_machine_only() {
        for here in ["https://id.example.org/token", "http://127.0.0.1:9/t", "http://[::1]/t", "http://localhost/t"] {
            assert!(!is_open_to_all(here), "{here}");
        }
        for away in ["http://id.example.org/token", "http://10.0.0.7/t", "http://localhost.example.org/t"] {
            assert!(is_open_to_all(away), "{away}");
        }
    }
}
