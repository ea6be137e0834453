//! Looks at the services that people can connect: does the provider answer, does it know this client, and what has to
//! be registered there? No code and no token is spent, and nobody is asked before the configuration as a whole was
//! found good.

use super::Finding;
use crate::config::Config;
use crate::ports::egress::Egress;
use crate::ports::vault::oauth::{
    ClientDocument, DiscoveryProbe, OAuthProvider, Probe, client_document, probe, probe_discovered,
};

pub async fn all(config: &Config) -> Vec<Finding> {
    let document = client_document(&config.server.public_url());
    // its faults are told with those of its section
    let egress = Egress::new(&config.egress).ok();
    let looks = config.oauth.iter().map(|(name, provider)| one(name, provider, egress.as_ref(), &document));
    futures::future::join_all(looks).await.into_iter().flatten().collect()
}

async fn one(
    service: &str,
    provider: &OAuthProvider,
    egress: Option<&Egress>,
    document: &ClientDocument,
) -> Option<Finding> {
    let name = format!("oauth {service}");
    if provider.is_discovered() {
        return Some(discovered(&name, provider, egress?, document).await);
    }
    Some(judged(&name, provider, &provider.token_url, document, probe(provider).await))
}

/// A service whose authorization server its resource names.
async fn discovered(name: &str, provider: &OAuthProvider, egress: &Egress, document: &ClientDocument) -> Finding {
    let resource = provider.resource.as_deref().unwrap_or_default();
    let found = |issuer: &str, how: String| Finding::ok(name, format!("{resource} names {issuer}, {how}"));
    match probe_discovered(egress, provider, document).await {
        Ok(DiscoveryProbe::Client { issuer, probe }) => judged(name, provider, &issuer, document, probe),
        Ok(DiscoveryProbe::Document { issuer, client_id }) => {
            found(&issuer, format!("which reads {client_id} to know this service")).hint("can it reach that address?")
        }
        Ok(DiscoveryProbe::Registration { issuer }) => {
            found(&issuer, "where this service registers itself when an account is connected".into())
        }
        Err(error) => {
            Finding::error(name, error.to_string()).hint("is resource the address of the server, its path included?")
        }
    }
}

/// The answer of a token endpoint at this place.
fn judged(name: &str, provider: &OAuthProvider, token_url: &str, document: &ClientDocument, probe: Probe) -> Finding {
    let (client, redirect) = (&provider.client_id, document.redirect_uris.join(", "));
    let register = format!("register {redirect} there as the redirect URI of `{client}`");
    match probe {
        Probe::Known => Finding::ok(name, format!("{token_url} knows the client `{client}`")).hint(register),
        Probe::Refused(why) => Finding::error(name, format!("{token_url} refuses the client `{client}`: {why}"))
            .hint("are client_id, client_secret and client_auth as the provider has them?"),
        Probe::Unclear(why) => {
            Finding::warning(name, format!("{token_url} is not understood: {why}")).hint("is token_url right?")
        }
        Probe::Away(why) => Finding::error(name, format!("{token_url}: {why}"))
            .hint("is token_url right, and may this machine reach it?"),
    }
}
