//! Why a request to an MCP server over HTTP has failed, where the library has no word for it.

use rmcp::transport::streamable_http_client::StreamableHttpError;

use crate::ports::vault::credentials::FetchError;

/// An error of the client.
#[derive(Debug, thiserror::Error)]
pub enum McpHttpError {
    /// There was no answer, or the credential was not used or refused.
    #[error(transparent)]
    Fetch(#[from] FetchError),
    /// Redirects are not followed: the address of a server is the operator's to write.
    #[error("redirected to another address")]
    Redirected,
}

/// A result as the library knows it.
pub type McpHttpResult<T> = Result<T, StreamableHttpError<McpHttpError>>;

/// The error of a request without an answer, as the library knows it.
pub fn failed(error: impl Into<FetchError>) -> StreamableHttpError<McpHttpError> {
    StreamableHttpError::Client(McpHttpError::Fetch(error.into()))
}
