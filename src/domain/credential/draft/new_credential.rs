//! The body of a PUT as the reference shows it. The reader takes the fields that stand here, and no others.

use serde::Serialize;
use serde_json::Value;
use utoipa::ToSchema;

use crate::domain::credential::{Inject, OAuth};

/// A secret document, where it may go, and how.
#[derive(Serialize, ToSchema)]
#[serde(deny_unknown_fields)]
#[schema(example = json!({
    "document": {"access_token": "…"}, "hosts": ["api.example.org"], "inject": {"as": "bearer", "from": "/access_token"}
}))]
pub struct NewCredential {
    /// Anything, up to 64 KiB of JSON. Left out, the stored one is kept. No answer ever shows it.
    #[schema(required = false, write_only)]
    pub document: Option<Value>,
    /// Where it may be sent: `api.example.org`, `*.example.org`; with `:8443` to that port only. None: it is not used.
    #[schema(required = false, max_items = 50)]
    pub hosts: Vec<String>,
    /// Left out: it can't be put into requests.
    #[schema(required = false)]
    pub inject: Option<Inject>,
    /// Where the access token in the document is renewed.
    #[schema(required = false)]
    pub oauth: Option<OAuth>,
}
