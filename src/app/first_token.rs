//! The first admin token: made where there is no other way in, and shown once, with a link that signs a browser in.

use std::net::SocketAddr;

use crate::app::GeneratedSecrets;
use crate::base::id::new_id;
use crate::base::secret::Secret;
use crate::base::token::{Permission, TokenKind, TokenText};
use crate::config::Config;
use crate::http::api::tokens::login_links;
use crate::store::{Store, StoredToken};

/// Makes an admin token where there is no other way in, and a link to the dashboard of a service that listens there.
pub(super) async fn make_first_token(
    config: &Config,
    store: &Store,
    address: SocketAddr,
    made: &mut GeneratedSecrets,
) -> anyhow::Result<()> {
    let Some(token) = first_admin_token(config, store).await? else { return Ok(()) };
    match login_links::make(store, &token.hash(), &place(config, address)).await {
        Ok(link) => made.login_link = Some(Secret::new(link.url)),
        // the token is told all the same: it is stored
        Err(error) => tracing::warn!(%error, "no link to the dashboard could be made; `reveille ui` makes one"),
    }
    made.admin_token = Some(token);
    Ok(())
}

async fn first_admin_token(config: &Config, store: &Store) -> anyhow::Result<Option<TokenText>> {
    if config.server.admin_token.is_some() || store.has_admin_token().await? {
        return Ok(None);
    }
    let text = TokenText::new(TokenKind::Admin);
    let now = store.clock().now();
    let token = StoredToken {
        id: new_id(now),
        tenant_id: None,
        name: "first admin token".into(),
        hash: text.hash().as_bytes().to_vec(),
        scopes: vec![Permission::All.as_str().into()],
        created_at: now,
        expires_at: None,
        revoked_at: None,
        root: None,
    };
    store.create_token(&token, None).await?;
    Ok(Some(text))
}

/// Where a browser finds the service. All addresses of a machine are none to go to.
fn place(config: &Config, address: SocketAddr) -> String {
    match &config.server.public_url {
        Some(url) => url.clone(),
        None if address.ip().is_unspecified() => format!("http://localhost:{}", address.port()),
        None => format!("http://{address}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn browser_finds_the_service_at_its_public_address_or_where_it_listens() {
        let of = |public_url: Option<&str>, listens: &str| {
            let mut config = Config::default();
            config.server.public_url = public_url.map(str::to_owned);
            place(&config, listens.parse().unwrap())
        };
        assert_eq!(of(Some("https://wake.example.org"), "0.0.0.0:7700"), "https://wake.example.org");
        assert_eq!(of(None, "127.0.0.1:7701"), "http://127.0.0.1:7701");
        assert_eq!(of(None, "[::1]:7701"), "http://[::1]:7701");
        assert_eq!(of(None, "0.0.0.0:7700"), "http://localhost:7700");
        assert_eq!(of(None, "[::]:7700"), "http://localhost:7700");
    }
}
