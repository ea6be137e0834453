//! `[[tools]]`: tools that are declared in the configuration, each one HTTP request.
//!
//! The operator writes the request, a model its arguments: they are put into path, query, headers and body, never into
//! scheme, host or the credential's name. Keeps nothing.

mod check;
mod variables;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::future::BoxFuture;
use http::{HeaderMap, HeaderName, HeaderValue, Method, header};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value, json};

use crate::base::compute::{IN_PLACE, steps_to_write};
use crate::base::template::{Template, TemplateError, Tree, UrlTemplate, Values};
use crate::domain::approval::{Category, Consequence};
use crate::domain::credential::Reference;
use crate::ports::egress::EgressRequest;
use crate::ports::tool::exchange::{answer, credential_state, fetch};
use crate::ports::tool::output::DefaultLevel;
use crate::ports::tool::policy::{ToolPolicy, ToolRetry};
use crate::ports::tool::{Definition, Tool, ToolContext, ToolError, ToolOutput, ToolSource, ToolStatus};
use crate::ports::vault::credentials::Credentials;

pub use crate::ports::tool::http::check::read;
pub use crate::ports::tool::http::variables::fill_variables;
pub(super) use crate::ports::tool::http::variables::filled;

/// The name under which templates find the arguments.
const ARGUMENTS: &str = "args";

/// One entry of `[[tools]]`.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct HttpToolDefinition {
    /// Name for the model: letters, digits, `_` and `-`, at most 64.
    pub name: String,
    /// Its effect and when to use it, for the model.
    pub description: String,
    /// Kind of effect on the world.
    pub category: Category,
    /// Weight of a mistake.
    pub consequence: Consequence,
    /// A person is asked in any case.
    #[serde(default)]
    pub requires_confirmation: bool,
    /// For one call, 1 to 300; absent: as `[react]` says.
    #[serde(default)]
    pub timeout_seconds: Option<u64>,
    /// Version of the definition.
    #[serde(default = "first_version")]
    pub version: String,
    /// Where it is in its life: `active`, `deprecated` or `removed`.
    #[serde(default)]
    pub status: ToolStatus,
    /// JSON Schema of the arguments, of the type `object`.
    #[serde(default = "no_parameters")]
    pub parameters: Value,
    /// How long an approved call may still be stopped, in seconds.
    #[serde(default)]
    pub undo_seconds: Option<u64>,
    /// Sentence about a call for the person who decides; `{name}` stands for the argument of that name.
    #[serde(default)]
    pub summary: Option<String>,
    /// How calls that failed are repeated.
    #[serde(default)]
    pub retry: ToolRetry,
    /// Whether results are kept for an hour; for tools that only read.
    #[serde(default)]
    pub cache: bool,
    /// How much of a result the model is shown where its call does not say; for tools that only read. Absent: all of
    /// it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub output_level: Option<DefaultLevel>,
    /// The request that a call makes.
    pub http: ToolCallRequest,
}

/// The request of a declared tool. `{{ args.name }}` stands for an argument.
#[derive(Debug, Clone, PartialEq, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct ToolCallRequest {
    /// `GET`, `HEAD`, `POST`, `PUT`, `PATCH`, `DELETE`.
    pub method: String,
    /// Scheme, host and port written out.
    pub url: String,
    /// One whose argument is not given is left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub headers: BTreeMap<String, String>,
    /// One whose argument is not given is left out.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub query: BTreeMap<String, String>,
    /// Sent as JSON; a text is sent as it is. A field of an object whose argument is not given is left out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Value>,
    /// The tenant's credential of this name: `service`, or `service/account`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credential: Option<String>,
}

fn first_version() -> String {
    "1.0.0".into()
}

fn no_parameters() -> Value {
    json!({ "type": "object", "properties": {}, "additionalProperties": false })
}

/// A declared tool that was read and checked.
#[derive(Clone)]
pub struct PreparedTool {
    definition: Definition,
    method: Method,
    url: UrlTemplate,
    headers: Vec<(HeaderName, Template)>,
    query: Vec<(String, Template)>,
    body: Option<BodyTemplate>,
    credential: Option<Reference>,
}

#[derive(Clone)]
enum BodyTemplate {
    /// Field by field, so that one can be left out.
    Fields(Vec<(String, Tree)>),
    Whole(Tree),
}

impl PreparedTool {
    /// The tool, with the way out that it sends its requests by.
    pub fn with(self, credentials: &Credentials) -> Arc<dyn Tool> {
        Arc::new(DeclaredHttpTool { prepared: Arc::new(self), credentials: credentials.clone() })
    }

    /// The steps that [`PreparedTool::request`] takes at most.
    fn steps(&self, arguments: &Value) -> u64 {
        let through = steps_to_write(arguments);
        if through > IN_PLACE {
            return through;
        }
        let mut values = Values::default();
        values.set(ARGUMENTS, arguments);
        let texts = self.headers.iter().map(|(_, text)| text).chain(self.query.iter().map(|(_, text)| text));
        let texts: u64 = texts.map(|text| text.steps(&values)).sum();
        let body = match &self.body {
            None => 0,
            Some(BodyTemplate::Whole(tree)) => tree.steps(&values),
            Some(BodyTemplate::Fields(fields)) => fields.iter().map(|(_, tree)| tree.steps(&values)).sum(),
        };
        through + texts + body + self.url.steps(&values)
    }

    fn request(&self, arguments: &Value, context: &ToolContext) -> Result<EgressRequest, ToolError> {
        let mut values = Values::default();
        values.set(ARGUMENTS, arguments);
        let mut url: url::Url = self
            .url
            .url(&values)
            .map_err(unfilled)?
            .parse()
            .map_err(|error| ToolError::arguments(format!("the URL: {error}")))?;
        for (name, template) in &self.query {
            if let Some(text) = if_given(template.text(&values))? {
                url.query_pairs_mut().append_pair(name, &text);
            }
        }
        let (kind, body) = match self.body(&values)? {
            None => (None, Bytes::new()),
            Some(Value::String(text)) => (Some("text/plain; charset=utf-8"), Bytes::from(text)),
            Some(value) => (Some("application/json"), Bytes::from(value.to_string())),
        };
        let headers = self.headers(&values, kind, context)?;
        let timeout = context.time_limit;
        // what was approved is sent to the address that was shown, and nowhere else
        let follow_redirects = matches!(self.method, Method::GET | Method::HEAD);
        Ok(EgressRequest { headers, body, timeout, follow_redirects, ..EgressRequest::new(self.method.clone(), url) })
    }

    fn headers(
        &self,
        values: &Values,
        kind: Option<&'static str>,
        context: &ToolContext,
    ) -> Result<HeaderMap, ToolError> {
        let mut headers = HeaderMap::new();
        for (name, template) in &self.headers {
            if let Some(text) = if_given(template.text(values))? {
                let fault = |_| ToolError::arguments(format!("the header `{name}` can't carry its value"));
                headers.insert(name, HeaderValue::from_str(&text).map_err(fault)?);
            }
        }
        if let Some(kind) = kind {
            headers.entry(header::CONTENT_TYPE).or_insert(HeaderValue::from_static(kind));
        }
        if !matches!(self.method, Method::GET | Method::HEAD)
            && let Ok(key) = HeaderValue::from_str(&context.idempotency_key)
        {
            headers.insert("idempotency-key", key);
        }
        Ok(headers)
    }

    fn body(&self, values: &Values) -> Result<Option<Value>, ToolError> {
        Ok(match &self.body {
            None => None,
            Some(BodyTemplate::Whole(tree)) => Some(tree.value(values).map_err(unfilled)?),
            Some(BodyTemplate::Fields(fields)) => {
                let mut body = Map::new();
                for (key, tree) in fields {
                    if let Some(value) = if_given(tree.value(values))? {
                        body.insert(key.clone(), value);
                    }
                }
                Some(Value::Object(body))
            }
        })
    }
}

/// Nothing where an argument is not given.
fn if_given<T>(filled: Result<T, TemplateError>) -> Result<Option<T>, ToolError> {
    match filled {
        Ok(value) => Ok(Some(value)),
        Err(TemplateError::Missing(_)) => Ok(None),
        Err(error) => Err(unfilled(error)),
    }
}

fn unfilled(error: TemplateError) -> ToolError {
    ToolError::arguments(match error {
        TemplateError::Missing(_) => "an argument is missing that the address needs".to_owned(),
        TemplateError::Failed(why) => why,
    })
}

/// A request as a person is shown it: of headers the names alone, and of the credential its name.
fn shown(request: &EgressRequest, credential: Option<&Reference>) -> Value {
    let headers: Vec<&str> = request.headers.keys().map(HeaderName::as_str).collect();
    let body = (!request.body.is_empty()).then(|| String::from_utf8_lossy(&request.body));
    json!({
        "method": request.method.as_str(), "address": request.url.as_str(), "headers": headers, "body": body,
        "credential": credential.map(Reference::to_string),
    })
}

struct DeclaredHttpTool {
    prepared: Arc<PreparedTool>,
    credentials: Credentials,
}

impl DeclaredHttpTool {
    /// The request of a call. One that takes long to fill is filled on a computing thread, in its tenant's turn.
    async fn request(&self, arguments: Value, context: &ToolContext) -> Result<EgressRequest, ToolError> {
        let steps = self.prepared.steps(&arguments);
        let (prepared, of_call) = (Arc::clone(&self.prepared), context.clone());
        let fill = move || prepared.request(&arguments, &of_call);
        context.compute.run_if_costly(context.tenant.as_str(), steps, fill).await?
    }
}

impl Tool for DeclaredHttpTool {
    fn definition(&self) -> &Definition {
        &self.prepared.definition
    }

    fn source(&self) -> ToolSource {
        ToolSource::Declared
    }

    fn call<'a>(&'a self, context: &'a ToolContext, arguments: Value) -> BoxFuture<'a, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let PreparedTool { definition, credential, .. } = &*self.prepared;
            let request = self.request(arguments, context).await?;
            let response = fetch(&self.credentials, request, credential.as_ref(), &definition.name, context).await?;
            answer(response, context).await
        })
    }

    fn credential_state<'a>(
        &'a self,
        context: &'a ToolContext,
        _arguments: &'a Value,
    ) -> BoxFuture<'a, Option<String>> {
        Box::pin(credential_state(&self.credentials, self.prepared.credential.as_ref(), context))
    }

    fn shown_request<'a>(&'a self, context: &'a ToolContext, arguments: &'a Value) -> BoxFuture<'a, Option<Value>> {
        Box::pin(async move {
            let request = self.request(arguments.clone(), context).await.ok()?;
            Some(shown(&request, self.prepared.credential.as_ref()))
        })
    }
}

impl HttpToolDefinition {
    /// How its calls are treated.
    pub fn policy(&self) -> ToolPolicy {
        ToolPolicy { retry: self.retry.clone(), cache: self.cache, output_level: self.output_level }
    }

    fn definition(&self) -> Definition {
        Definition {
            name: self.name.clone(),
            description: self.description.clone(),
            parameters: self.parameters.clone(),
            category: self.category,
            consequence: self.consequence,
            requires_confirmation: self.requires_confirmation,
            timeout: self.timeout_seconds.map(Duration::from_secs),
            version: self.version.clone(),
            status: self.status,
            // RFC 9110, section 9.2.2
            idempotent: matches!(self.http.method.as_str(), "GET" | "HEAD" | "PUT" | "DELETE"),
            summary: self.summary.clone(),
            undo_seconds: self.undo_seconds,
            // it is a matter of its policy
            output_level: None,
            request: serde_json::to_value(&self.http).ok(),
        }
    }
}
