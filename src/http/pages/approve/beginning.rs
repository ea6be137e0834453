//! How the run began that a question belongs to: what made it fire, and who asked for it.

use crate::base::id::Scope;
use crate::domain::actor::Actor;
use crate::domain::approval::Approval;
use crate::domain::run::{Run, RunOrigin};
use crate::http::HttpState;
use crate::store::StoreError;

/// By whom the run was asked for by hand, by the name of their token.
pub async fn requester(state: &HttpState, scope: &Scope, first: &Approval) -> Result<Option<String>, StoreError> {
    let Some(by) = state.store.requester_of(scope, first.run_id).await? else { return Ok(None) };
    let name = match Actor::parse(&by) {
        Actor::Token(id) => state.store.get_token(id).await?.map_or_else(|| id.to_string(), |token| token.name),
        Actor::Admin => "admin".into(),
        Actor::Recipient(_) | Actor::Embedder | Actor::Caller(_) | Actor::Service => by,
    };
    Ok(Some(name))
}

/// The cause of a run, as the name of a phrase.
pub fn of(run: &Run, is_requester_known: bool) -> &'static str {
    match run.trigger_type.as_str() {
        _ if run.origin == RunOrigin::Request && is_requester_known => "run_hand_by",
        _ if run.origin == RunOrigin::Request => "run_hand",
        "schedule" => "run_schedule",
        "event" => "run_event",
        "condition" => "run_condition",
        _ => "run_other",
    }
}
