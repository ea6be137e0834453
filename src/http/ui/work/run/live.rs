//! The live stream of a run, for the script of its page.

use axum::extract::Path;
use axum::http::HeaderMap;

use crate::http::ui::frame::{UiResult, Visit};

/// The stream of the API as it is. It ends with the run, and where the reader's token is no longer good.
pub async fn follow_run(visit: Visit, Path(id): Path<String>, headers: HeaderMap) -> UiResult {
    visit.stream(&["v1", "runs", &id, "stream"], &headers).await
}
