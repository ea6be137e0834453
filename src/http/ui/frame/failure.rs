//! A page in the place of one that can't be shown.

use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use serde_json::{Value, json};

use crate::http::error::ApiError;
use crate::http::in_process::CallError;
use crate::http::ui::frame::render::{render, secured};

/// A page, or a page that says why there is none.
pub type UiResult = Result<Response, UiError>;

/// Why a page can't be shown, or a form was not taken.
#[derive(Debug, Clone, PartialEq)]
pub struct UiError {
    /// The status of the answer.
    pub status: StatusCode,
    /// In a few words.
    title: String,
    /// The detail, and each fault.
    sentences: Vec<String>,
}

impl UiError {
    /// An error of the reader's, in these words.
    pub fn new(status: StatusCode, title: &str, sentence: &str) -> UiError {
        UiError { status, title: title.to_owned(), sentences: vec![sentence.to_owned()] }
    }

    /// There is no such thing, or it is another tenant's.
    pub fn not_found() -> UiError {
        let sentence = "It may have been deleted, or its address was mistyped.";
        UiError::new(StatusCode::NOT_FOUND, "There is no such page", sentence)
    }

    /// A fault of ours: it is logged, and not told.
    pub fn internal(log: &str) -> UiError {
        tracing::error!(log, "a page of the dashboard can't be shown");
        let sentence = "The service has logged what went wrong. Try it again in a moment.";
        UiError::new(StatusCode::INTERNAL_SERVER_ERROR, "This can’t be shown now", sentence)
    }

    /// All in one line, for a part of a page.
    pub fn sentence(&self) -> String {
        std::iter::once(&self.title).chain(&self.sentences).cloned().collect::<Vec<_>>().join(": ")
    }

    fn of_problem(status: u16, problem: &Value) -> UiError {
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let faults = problem["errors"].as_array().into_iter().flatten();
        let faults = faults.map(|fault| format!("{} {}", text(&fault["pointer"]), text(&fault["message"])));
        let sentences = std::iter::once(text(&problem["detail"])).chain(faults).filter(|text| !text.is_empty());
        let title = Some(text(&problem["title"])).filter(|title| !title.is_empty());
        UiError {
            status: StatusCode::from_u16(status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR),
            title: title.unwrap_or_else(|| "This can’t be done".to_owned()),
            sentences: sentences.collect(),
        }
    }
}

impl From<CallError> for UiError {
    fn from(error: CallError) -> UiError {
        match error.status {
            404 => UiError::not_found(),
            status => UiError::of_problem(status, &error.problem),
        }
    }
}

impl From<ApiError> for UiError {
    fn from(error: ApiError) -> UiError {
        let problem = error.into_problem();
        UiError::of_problem(problem.status, &serde_json::to_value(&problem).unwrap_or_default())
    }
}

impl From<minijinja::Error> for UiError {
    fn from(error: minijinja::Error) -> UiError {
        UiError::internal(&format!("{error:#}"))
    }
}

impl IntoResponse for UiError {
    fn into_response(self) -> Response {
        let page = json!({ "title": self.title, "sentences": self.sentences });
        let text = render("failure.html", &json!({ "title": self.title }), &page);
        let text = text.unwrap_or_else(|_| self.title.clone());
        secured((self.status, text).into_response())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn problem_is_told_with_each_of_its_faults_and_foreign_things_are_not_there() {
        let errors = json!([{ "pointer": "/name", "message": "is missing" }]);
        let problem = json!({ "title": "The request is not valid", "detail": "1 fault; see errors", "errors": errors });
        let error = UiError::from(CallError { status: 422, problem });
        assert_eq!(error.sentence(), "The request is not valid: 1 fault; see errors: /name is missing");
        let foreign = CallError { status: 404, problem: json!({ "detail": "no such task of tenant b" }) };
        assert!(!UiError::from(foreign).sentence().contains("tenant b"));
    }
}
