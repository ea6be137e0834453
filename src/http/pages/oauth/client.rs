//! This service as a client of OAuth 2: the document whose address is the client's id (OAuth Client ID Metadata
//! Document).

use axum::extract::State;

use crate::http::HttpState;
use crate::http::request::Json;
use crate::ports::vault::oauth::{ClientDocument, client_document};

/// Show this service as a client of OAuth
///
/// For authorization servers that take the address of this document as the id of a client. It holds no secret.
#[utoipa::path(get, path = "/oauth/client", tag = "credentials", responses((status = 200, body = ClientDocument)))]
pub async fn show_client_document(State(state): State<HttpState>) -> Json<ClientDocument> {
    Json(client_document(&state.settings.public_url()))
}
