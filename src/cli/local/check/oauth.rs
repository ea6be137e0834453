//! Looks at the services that people can connect: does the provider answer, does it know this client, and what has to
//! be registered there? No code and no token is spent, and nobody is asked before the configuration as a whole was
//! found good.

use super::Finding;
use crate::config::Config;
use crate::ports::vault::oauth::{OAuthProvider, Probe, probe, redirect_uri};

pub async fn all(config: &Config) -> Vec<Finding> {
    let redirect = redirect_uri(&config.server.public_url());
    let looks = config.oauth.iter().map(|(name, provider)| one(name, provider, &redirect));
    futures::future::join_all(looks).await
}

async fn one(service: &str, provider: &OAuthProvider, redirect: &str) -> Finding {
    let name = format!("oauth {service}");
    let register = format!("register {redirect} there as the redirect URI of `{}`", provider.client_id);
    let (token_url, client) = (&provider.token_url, &provider.client_id);
    match probe(provider).await {
        Probe::Known => Finding::ok(&name, format!("{token_url} knows the client `{client}`")).hint(register),
        Probe::Refused(why) => Finding::error(&name, format!("{token_url} refuses the client `{client}`: {why}"))
            .hint("are client_id, client_secret and client_auth as the provider has them?"),
        Probe::Unclear(why) => {
            Finding::warning(&name, format!("{token_url} is not understood: {why}")).hint("is token_url right?")
        }
        Probe::Away(why) => Finding::error(&name, format!("{token_url}: {why}"))
            .hint("is token_url right, and may this machine reach it?"),
    }
}
