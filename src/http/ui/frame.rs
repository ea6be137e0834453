//! The frame of all pages: the reader, their requests to the API, lists, forms and templates.

pub(in crate::http::ui) mod assets;
pub(in crate::http::ui) mod failure;
pub(in crate::http::ui) mod filters;
pub(in crate::http::ui) mod form;
pub(in crate::http::ui) mod instant;
pub(in crate::http::ui) mod list;
pub(in crate::http::ui) mod login;
pub(in crate::http::ui) mod meter;
pub(in crate::http::ui) mod names;
pub(in crate::http::ui) mod navigation;
pub(in crate::http::ui) mod refusal;
pub(in crate::http::ui) mod removal;
pub(in crate::http::ui) mod render;
pub(in crate::http::ui) mod session;
pub(in crate::http::ui) mod templates;
pub(in crate::http::ui) mod text;
pub(in crate::http::ui) mod visit;

use axum::Router;

use crate::http::HttpState;

pub(in crate::http::ui) use failure::{UiError, UiResult};
pub(in crate::http::ui) use form::UiForm;
pub(in crate::http::ui) use list::UiList;
pub(in crate::http::ui) use visit::Visit;

/// The way in and out, and the files of the pages.
pub(in crate::http::ui) fn routes() -> Router<HttpState> {
    assets::routes().merge(login::routes())
}
