//! Why a task fires, or did not: in the words of the API, with the instant that people most likely ask about.

use chrono::SecondsFormat;
use serde_json::{Value, json};

use crate::http::in_process::CallError;
use crate::http::ui::frame::{UiError, Visit};

/// Characters of an instant as a form has it: `2026-12-24T15:00`.
const MINUTES: usize = 16;
/// Statuses of the API for an instant that can't be read.
const UNREADABLE: [u16; 2] = [400, 422];

/// Why the task fires or does not: `{sentences, needs, next, if_resumed, instant, is_asked, at, problem}`. `instant` is
/// the one that was asked about, on the task's clock or with an offset; else the last one at which its schedule had it
/// fire. `at` is what the field for another one shows.
///
/// # Errors
/// The task can't be explained.
pub async fn explanation(visit: &Visit, id: &str, asked: Option<&str>) -> Result<Value, UiError> {
    let now = visit.now.to_rfc3339_opts(SecondsFormat::Secs, true);
    let present = explained(visit, id, &now).await?;
    let last_due = present["instant"]["before"]["at"].as_str();
    let (instant, problem) = match asked.or(last_due) {
        Some(at) => match explained(visit, id, at).await {
            Ok(mut told) => (told["instant"].take(), None),
            Err(refused) if UNREADABLE.contains(&refused.status) => {
                (Value::Null, Some(UiError::from(refused).sentence()))
            }
            Err(error) => return Err(error.into()),
        },
        None => (Value::Null, None),
    };
    // nobody asks why a new task did not fire before it was there
    let is_of_no_interest = asked.is_none() && instant["outcome"] == "before_creation";
    let instant = if is_of_no_interest { Value::Null } else { instant };
    let at = instant["local"].as_str().or(asked).unwrap_or_default();
    let field: String = at.chars().take(MINUTES).collect();
    Ok(json!({
        "sentences": present["sentences"],
        "needs": present["needs"],
        "next": present["next"],
        "if_resumed": present["if_resumed"],
        "instant": instant,
        "is_asked": asked.is_some(),
        "at": field,
        "problem": problem,
    }))
}

async fn explained(visit: &Visit, id: &str, at: &str) -> Result<Value, CallError> {
    visit.get(&["v1", "tasks", id, "explain"], &[("at", at.to_owned())]).await
}
