//! A built-in tool that makes one HTTP request, with a credential of the user's where one is named.

use std::collections::BTreeMap;

use futures::future::BoxFuture;
use serde::Deserialize;
use serde_json::Value;

use crate::base::compute::steps_to_write;
use crate::domain::credential::Reference;
use crate::ports::egress::EgressRequest;
use crate::ports::tool::builtin::read;
use crate::ports::tool::exchange::{answer, check_headers, credential_state, fetch, reference};
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolSource};
use crate::ports::vault::credentials::Credentials;

/// The arguments that such tools know; the schema of each says which of them it takes.
#[derive(Deserialize)]
pub struct Arguments {
    pub url: String,
    #[serde(default)]
    pub method: Option<String>,
    #[serde(default)]
    pub headers: BTreeMap<String, String>,
    #[serde(default)]
    pub body: Option<Value>,
    #[serde(default)]
    pub credential: Option<String>,
}

/// A tool that makes one request; each definition has a way of its own to make it.
pub struct HttpTool {
    pub definition: Definition,
    pub credentials: Credentials,
    /// The request of a call.
    pub request: fn(Arguments, &ToolContext) -> Result<EgressRequest, ToolError>,
    /// A person is asked where the call chooses a credential that the task does not name.
    pub asks_for_credential: bool,
}

impl Tool for HttpTool {
    fn definition(&self) -> &Definition {
        &self.definition
    }

    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        check_headers(arguments)
    }

    fn credential_chosen(&self, arguments: &Value) -> Option<Reference> {
        let named = arguments.get("credential").filter(|_| self.asks_for_credential)?;
        Reference::parse(named.as_str()?).ok()
    }

    fn source(&self) -> ToolSource {
        ToolSource::Builtin
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let (steps, make, of_call) = (steps_to_write(&arguments), self.request, context.clone());
            let build = move || -> Result<(EgressRequest, Option<Reference>), ToolError> {
                let arguments: Arguments = read(arguments)?;
                let credential = reference(arguments.credential.as_deref())?;
                Ok((make(arguments, &of_call)?, credential))
            };
            let built = context.compute.run_if_costly(context.tenant.as_str(), steps, build).await?;
            let (request, credential) = built?;
            let name = &self.definition.name;
            let response = fetch(&self.credentials, request, credential.as_ref(), name, context).await?;
            answer(response, context).await
        })
    }

    fn credential_state<'a>(&'a self, context: &'a ToolContext, arguments: &'a Value) -> BoxFuture<'a, Option<String>> {
        Box::pin(async move {
            let credential = reference(arguments.get("credential").and_then(Value::as_str)).ok()?;
            credential_state(&self.credentials, credential.as_ref(), context).await
        })
    }
}
