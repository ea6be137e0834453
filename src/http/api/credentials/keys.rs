//! Changing the master key over HTTP, in pieces that are each answered in time.

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::Serialize;
use serde_json::json;

use crate::base::id::Scope;
use crate::base::token::Permission;
use crate::http::error::ApiError;
use crate::http::request::{Call, Json, JsonBody};
use crate::http::schema;
use crate::ports::vault::rotation::{
    Cursor, RotationCounts, RotationFailure, RotationKeys, RotationResult, rotate, survey,
};

/// Counts of secrets that a call has put under the first master key, and of those that stay.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct RotationView {
    /// The id of the first master key.
    #[schema(example = "k2")]
    pub key: String,
    /// Secrets that this call put under the first key.
    pub rewrapped: RotationCounts,
    /// Secrets that could not be rewrapped: their key is not configured, or they are damaged. Left as they are.
    pub failed: RotationCounts,
    /// Some of those.
    pub failures: Vec<RotationFailure>,
    /// To go on with; `null`: it is done.
    #[schema(required)]
    pub next_cursor: Option<String>,
    /// Every key, once it is done.
    pub keys: Vec<KeyView>,
}

/// A master key, and what is sealed under it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct KeyView {
    /// Id of the key.
    pub id: String,
    /// The key is in the configuration.
    pub configured: bool,
    /// It opens nothing any more. Tags that were made with it (the audit record, completion tokens) can still be
    /// verified only while it is configured; `reveille check` says whether the record is.
    pub unused: bool,
    /// Secrets that are sealed under it.
    pub sealed: RotationCounts,
}

/// Put every secret under the first master key
///
/// For an admin token. Only data keys are wrapped anew, no secret is opened, and everything stays readable all the
/// while. A call goes on for some seconds; where it has not come to the end, go on with `next_cursor`. The part that is
/// done stays done: broken off, it is simply begun again.
#[utoipa::path(post, path = "/v1/credentials/rotate-key", tag = "credentials",
    security(("bearer" = ["credentials:write"])), request_body = schema::RotateKey,
    responses((status = 200, body = RotationView)))]
pub async fn rotate_key(Call(state, caller): Call, body: JsonBody) -> Result<Json<RotationView>, ApiError> {
    caller.may(Permission::CredentialsWrite)?;
    if caller.scope != Scope::Every {
        return Err(ApiError::AdminOnly);
    }
    let schema::RotateKey { cursor } = body.read_or_empty().await?;
    let from = decode(cursor.as_deref())?;
    let rotated = rotate(&state.store, &state.vault, &state.clock, from).await?;
    let key = state.vault.first_key().to_owned();
    if rotated.rewrapped.total() > 0 || rotated.next.is_none() {
        let act = json!({
            "key": key, "rewrapped": rotated.rewrapped, "failed": rotated.failed, "done": rotated.next.is_none(),
        });
        state.store.note_rotation(&caller.name(), act).await?;
    }
    let keys = match rotated.next {
        Some(_) => vec![],
        None => views(&state.vault.key_ids(), &survey(&state.store).await?),
    };
    let RotationResult { rewrapped, failed, failures, next } = rotated;
    let next_cursor = next.map(|next| encode(&next)).transpose()?;
    Ok(Json(RotationView { key, rewrapped, failed, failures, next_cursor, keys }))
}

/// The configured keys in their order, then those that are missing.
fn views(configured: &[&str], sealed: &RotationKeys) -> Vec<KeyView> {
    let view = |id: &str, configured| {
        let sealed = sealed.get(id).copied().unwrap_or_default();
        KeyView { id: id.to_owned(), configured, unused: sealed.total() == 0, sealed }
    };
    let missing = sealed.keys().filter(|id| !configured.contains(&id.as_str()));
    configured.iter().map(|id| view(id, true)).chain(missing.map(|id| view(id, false))).collect()
}

fn decode(cursor: Option<&str>) -> Result<Cursor, ApiError> {
    let Some(cursor) = cursor else { return Ok(Cursor::Start) };
    let read = URL_SAFE_NO_PAD.decode(cursor).ok();
    read.and_then(|json| serde_json::from_slice(&json).ok())
        .ok_or_else(|| ApiError::invalid("/cursor", "must be the `next_cursor` of an answer"))
}

fn encode(cursor: &Cursor) -> Result<String, ApiError> {
    let json = serde_json::to_vec(cursor).map_err(|error| ApiError::Internal { log: error.to_string() })?;
    Ok(URL_SAFE_NO_PAD.encode(json))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cursor_reads_back_and_nonsense_has_its_place() {
        for at in [
            Cursor::Start,
            Cursor::Credentials(uuid::Uuid::max()),
            Cursor::Recipients("ann".into()),
            Cursor::Tasks(None),
            Cursor::Tasks(Some(uuid::Uuid::nil())),
            Cursor::Messages(Some(uuid::Uuid::max())),
        ] {
            assert_eq!(decode(Some(&encode(&at).unwrap())).unwrap(), at);
        }
        for nonsense in ["x", "7", "eyJ9"] {
            assert!(decode(Some(nonsense)).is_err(), "{nonsense}");
        }
    }

    #[test]
    fn keys_are_shown_in_their_order_and_those_that_are_missing_last() {
        let some = RotationCounts { credentials: 2, ..RotationCounts::default() };
        let sealed = RotationKeys::from([("gone".into(), some), ("new".into(), some)]);
        let shown: Vec<_> = views(&["new", "old"], &sealed)
            .into_iter()
            .map(|key| (key.id, key.configured, key.unused, key.sealed.total()))
            .collect();
        assert_eq!(
            shown,
            [("new".into(), true, false, 2), ("old".into(), true, true, 0), ("gone".into(), false, false, 2)]
        );
    }
}
