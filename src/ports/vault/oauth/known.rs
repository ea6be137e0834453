//! A provider as it is asked: as the operator has written it, or with what was discovered in the place of what is
//! missing.

use crate::domain::credential::OAuth;
use crate::domain::credential::draft::SCOPES;
use crate::ports::vault::oauth::challenge::is_scope;
use crate::ports::vault::oauth::client::OAuthClient;
use crate::ports::vault::oauth::metadata::{DiscoveredServer, DiscoveryError, OFFLINE};
use crate::ports::vault::oauth::provider::OAuthProvider;

/// Most scopes that are asked for where the operator names none: their bytes together, with a blank behind each.
const SCOPE_BYTES: usize = 2_048;

/// A provider with all its addresses.
#[derive(Debug, Clone)]
pub struct KnownProvider {
    /// The operator's section, whole.
    pub provider: OAuthProvider,
    /// The authorization server, where it was discovered.
    pub server: Option<DiscoveredServer>,
    /// The operator names the scopes: no others are asked for.
    names_scopes: bool,
}

impl KnownProvider {
    /// One that brings its addresses.
    pub fn written(provider: &OAuthProvider) -> KnownProvider {
        KnownProvider { provider: provider.clone(), server: None, names_scopes: !provider.scopes.is_empty() }
    }

    /// One whose server was discovered.
    ///
    /// # Errors
    /// More scopes would be asked for than fit into a link.
    pub fn discovered(provider: &OAuthProvider, server: DiscoveredServer) -> Result<KnownProvider, DiscoveryError> {
        let (mut provider, names_scopes) = (provider.clone(), !provider.scopes.is_empty());
        provider.authorize_url.clone_from(&server.authorize_url);
        provider.token_url.clone_from(&server.token_url);
        provider.resource = Some(server.resource.clone());
        if !names_scopes {
            if bytes_of(&server.scopes) > SCOPE_BYTES {
                let why = format!(
                    "its metadata has more than {SCOPE_BYTES} bytes of scopes: name the wanted ones in `scopes`"
                );
                return Err(DiscoveryError::Refused(why));
            }
            provider.scopes.clone_from(&server.scopes);
            if server.is_made_offline {
                // OpenID Connect Core, section 11: without it the scope is ignored
                provider.authorize_parameters.entry("prompt".into()).or_insert_with(|| "consent".into());
            }
        }
        Ok(KnownProvider { provider, server: Some(server), names_scopes })
    }

    /// Asks for the scopes of an account that is connected as well: those that its resource has missed, and those that
    /// it was granted. None of them is asked for where the operator names the scopes, or where another server gave the
    /// account; nor is one for which there is no room.
    pub fn ask_for_scopes_of(&mut self, account: &OAuth) {
        let Some(server) = self.server.as_ref().filter(|_| !self.names_scopes) else { return };
        if account.issuer.as_ref() == Some(&server.issuer) {
            add(&mut self.provider.scopes, account.missed_scopes.iter().chain(&account.scopes).map(String::as_str));
        }
    }

    /// The scopes with which an account is kept, for its next link. `told`: those that the server says it has granted;
    /// where it says nothing it has granted all that were asked for (RFC 6749, section 5.1).
    pub fn granted(&self, told: Option<&str>) -> Vec<String> {
        let mut granted = Vec::new();
        if self.server.is_none() || self.names_scopes {
            return granted;
        }
        // whether this one can be had is the server's to say each time
        let is_kept = |scope: &&str| is_scope(scope) && *scope != OFFLINE;
        match told {
            Some(told) => add(&mut granted, told.split(' ').filter(is_kept)),
            None => add(&mut granted, self.provider.scopes.iter().map(String::as_str).filter(is_kept)),
        }
        granted
    }
}

/// Adds scopes, each once, as far as there is room for them.
fn add<'a>(scopes: &mut Vec<String>, more: impl Iterator<Item = &'a str>) {
    let mut bytes = bytes_of(scopes);
    for scope in more {
        let with_it = bytes + scope.len() + 1;
        if with_it <= SCOPE_BYTES && scopes.len() < SCOPES && !scopes.iter().any(|known| known == scope) {
            scopes.push(scope.to_owned());
            bytes = with_it;
        }
    }
}

/// The bytes of scopes, with a blank behind each.
fn bytes_of(scopes: &[String]) -> usize {
    scopes.iter().map(|scope| scope.len() + 1).sum()
}

impl OAuthProvider {
    /// Has this service show itself as this client.
    pub fn show_as(&mut self, client: &OAuthClient) {
        self.client_id.clone_from(&client.id);
        self.client_secret.clone_from(&client.secret);
        self.client_auth = client.auth;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(scopes: Vec<String>, is_made_offline: bool) -> DiscoveredServer {
        DiscoveredServer {
            issuer: "https://id.example.org".into(),
            names_itself: false,
            authorize_url: "https://id.example.org/authorize".into(),
            token_url: "https://id.example.org/token".into(),
            registration_url: None,
            takes_client_documents: false,
            auth_methods: None,
            resource: "https://mcp.example.org/".into(),
            scopes,
            is_made_offline,
        }
    }

    #[test]
    fn discovered_addresses_and_scopes_fill_what_the_operator_left_out() {
        let section =
            OAuthProvider { resource: Some("https://mcp.example.org/mcp".into()), ..OAuthProvider::default() };
        let found = server(vec!["a".into(), "offline_access".into()], true);
        let known = KnownProvider::discovered(&section, found.clone()).unwrap().provider;
        assert_eq!(known.token_url, "https://id.example.org/token");
        assert_eq!(known.resource.as_deref(), Some("https://mcp.example.org/"));
        assert_eq!(known.scopes, ["a", "offline_access"]);
        assert_eq!(known.authorize_parameters["prompt"], "consent");
        let own = OAuthProvider { scopes: vec!["b".into()], ..section };
        let known = KnownProvider::discovered(&own, found).unwrap().provider;
        assert_eq!((known.scopes, known.authorize_parameters.len()), (vec!["b".to_owned()], 0));
    }

    /// An account from this server with these scopes.
    fn account(issuer: &str, scopes: &[&str], missed: &[&str]) -> OAuth {
        let owned = |scopes: &[&str]| scopes.iter().map(|&scope| scope.to_owned()).collect();
        let (scopes, missed_scopes) = (owned(scopes), owned(missed));
        OAuth { issuer: Some(issuer.into()), scopes, missed_scopes, ..OAuth::default() }
    }

    /// The scopes of a link for this account.
    fn asked(section: &OAuthProvider, server: DiscoveredServer, account: &OAuth) -> Vec<String> {
        let mut known = KnownProvider::discovered(section, server).unwrap();
        known.ask_for_scopes_of(account);
        known.provider.scopes
    }

    #[test]
    fn scopes_of_an_account_are_asked_for_besides_unless_the_operator_names_all_or_another_server_gave_it() {
        let (section, own) = (OAuthProvider::default(), account("https://id.example.org", &["a", "b"], &["c", "a"]));
        let found = || server(vec!["a".into()], false);
        assert_eq!(asked(&section, found(), &own), ["a", "c", "b"]);
        assert_eq!(asked(&section, found(), &account("https://other.example", &["b"], &["c"])), ["a"]);
        assert_eq!(asked(&section, found(), &OAuth { issuer: None, ..own.clone() }), ["a"]);
        let named = OAuthProvider { scopes: vec!["n".into()], ..section.clone() };
        assert_eq!(asked(&named, found(), &own), ["n"]);
        let mut written = KnownProvider::written(&section);
        written.ask_for_scopes_of(&OAuth { issuer: None, ..own });
        assert!(written.provider.scopes.is_empty());
    }

    #[test]
    fn scopes_of_an_account_for_which_there_is_no_room_are_left_out() {
        let section = OAuthProvider::default();
        let long = "x".repeat(SCOPE_BYTES - "a ".len() - 1);
        let found = || server(vec!["a".into()], false);
        let fits = account("https://id.example.org", &[], &[&long]);
        assert_eq!(asked(&section, found(), &fits), ["a", &long]);
        let beyond = format!("{long}x");
        let too_long = account("https://id.example.org", &["b"], &[&beyond]);
        assert_eq!(asked(&section, found(), &too_long), ["a", "b"]);
    }

    #[test]
    fn account_is_kept_with_the_scopes_that_were_granted_or_else_asked_for() {
        let found = server(vec!["a".into(), "offline_access".into()], true);
        let known = KnownProvider::discovered(&OAuthProvider::default(), found.clone()).unwrap();
        assert_eq!(known.granted(None), ["a"]);
        assert_eq!(known.granted(Some("b  b n\u{e4}h offline_access")), ["b"]);
        let many: Vec<String> = (0..SCOPES + 1).map(|n| n.to_string()).collect();
        assert_eq!(known.granted(Some(&many.join(" "))), many[..SCOPES]);
        let named = OAuthProvider { scopes: vec!["n".into()], ..OAuthProvider::default() };
        assert!(KnownProvider::discovered(&named, found).unwrap().granted(Some("a")).is_empty());
        assert!(KnownProvider::written(&OAuthProvider::default()).granted(Some("a")).is_empty());
    }

    #[test]
    fn scopes_are_asked_for_up_to_their_most_and_the_operator_names_them_beyond_it() {
        let section = OAuthProvider::default();
        let of_bytes = |bytes: usize| server(vec!["x".repeat(bytes - 1)], false);
        assert!(KnownProvider::discovered(&section, of_bytes(SCOPE_BYTES)).is_ok());
        let told = KnownProvider::discovered(&section, of_bytes(SCOPE_BYTES + 1)).unwrap_err().to_string();
        assert!(told.ends_with("name the wanted ones in `scopes`"), "{told}");
        let own = OAuthProvider { scopes: vec!["b".into()], ..section };
        assert!(KnownProvider::discovered(&own, of_bytes(SCOPE_BYTES + 1)).is_ok());
    }
}
