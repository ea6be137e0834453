//! Faults that the API finds in a form, as the form shows them.

use axum::http::StatusCode;
use serde_json::{Value, json};

use crate::http::in_process::CallError;
use crate::http::ui::frame::failure::UiError;

/// In the place of a detail that only counts the faults.
const CORRECT: &str = "Nothing was done. Correct what is listed here, and send it again.";

/// The status of the page that shows the form again, and for the form `{problem, faults}`: a sentence and a list of
/// `{pointer, message}`.
///
/// # Errors
/// It is nothing that another text in the form would change.
pub fn shown_in_form(error: CallError) -> Result<(StatusCode, Value), UiError> {
    if !matches!(error.status, 400 | 409 | 413 | 422) {
        return Err(error.into());
    }
    let status = StatusCode::from_u16(error.status).unwrap_or(StatusCode::UNPROCESSABLE_ENTITY);
    let has_faults = error.problem["errors"].as_array().is_some_and(|faults| !faults.is_empty());
    let problem = if has_faults { CORRECT } else { error.problem["detail"].as_str().unwrap_or(CORRECT) };
    Ok((status, json!({ "problem": problem, "faults": error.problem["errors"] })))
}

/// The refusal of a text before the API is asked, as [`shown_in_form`] has it.
pub fn fault(pointer: &str, message: &str) -> (StatusCode, Value) {
    let faults = json!([{ "pointer": pointer, "message": message }]);
    (StatusCode::UNPROCESSABLE_ENTITY, json!({ "problem": CORRECT, "faults": faults }))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_are_listed_and_a_conflict_is_told_by_its_sentence() {
        let refused = |status, problem| shown_in_form(CallError { status, problem });
        let errors = json!([{ "pointer": "/text", "message": "must be a sentence" }]);
        let (status, shown) = refused(422, json!({ "detail": "1 fault; see errors", "errors": errors })).unwrap();
        assert_eq!((status.as_u16(), &shown["problem"], &shown["faults"]), (422, &json!(CORRECT), &errors));
        let (status, shown) = refused(409, json!({ "detail": "the fact 7 says the same" })).unwrap();
        assert_eq!((status.as_u16(), &shown["problem"]), (409, &json!("the fact 7 says the same")));
        assert_eq!(refused(403, json!({})).unwrap_err().status, StatusCode::FORBIDDEN);
    }
}
