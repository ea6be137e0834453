//! To cancel a run, and to retry it.

use axum::extract::Path;
use serde_json::json;

use crate::http::ui::frame::{UiForm, UiResult};
use crate::http::ui::work::run::entry::text;

/// Cancels a run, and leads back to it.
pub async fn cancel_run(Path(id): Path<String>, form: UiForm) -> UiResult {
    let run = form.visit.post(&["v1", "runs", &id, "cancel"], json!({}), form.key()).await?;
    let word = if run["state"] == "cancelled" { "cancelled" } else { "cancelling" };
    Ok(form.done(&format!("/ui/runs/{}", text(&run["id"])), word))
}

/// Retries a run, and leads to the new one.
pub async fn retry_run(Path(id): Path<String>, form: UiForm) -> UiResult {
    let run = form.visit.post(&["v1", "runs", &id, "retry"], json!({}), form.key()).await?;
    Ok(form.done(&format!("/ui/runs/{}", text(&run["id"])), "run_again"))
}
