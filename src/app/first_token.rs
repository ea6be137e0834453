//! The first admin token: made where there is no other way in, and shown once.

use crate::base::id::new_id;
use crate::base::token::{Permission, TokenKind, TokenText};
use crate::config::Config;
use crate::store::{Store, StoredToken};

/// Makes an admin token where there is no other way in.
pub(super) async fn first_admin_token(config: &Config, store: &Store) -> anyhow::Result<Option<TokenText>> {
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
