//! Looks at the models: is somebody there, does the key fit, is the model known? Nothing is asked of a model itself.

use std::time::Duration;

use reqwest::{Response, StatusCode};
use serde_json::Value;

use super::Finding;
use crate::config::LoadedConfig;
use crate::ports::egress;
use crate::ports::llm::settings::ModelSettings;

/// How long an endpoint may take to list its models.
const PATIENCE: Duration = Duration::from_secs(10);

pub async fn all(loaded: &LoadedConfig) -> Vec<Finding> {
    let config = &loaded.config;
    if config.llm.models.is_empty() {
        let hint = "set [llm.models.main]; config/reveille.toml shows how";
        return vec![Finding::warning("model", "none is configured, so the orchestrator can't run tasks").hint(hint)];
    }
    let looks = config.llm.models.iter().map(|(name, settings)| one(name, settings));
    futures::future::join_all(looks).await
}

async fn one(name: &str, settings: &ModelSettings) -> Finding {
    let name = format!("model {name}");
    let Some(endpoint) = settings.endpoint() else {
        return Finding::ok(&name, format!("{} asks nobody", settings.provider));
    };
    match list(&endpoint, settings).await {
        Ok(answer) => judge(&name, &endpoint, settings, answer).await,
        Err(error) => {
            let cause = std::iter::successors(std::error::Error::source(&error), |cause| cause.source()).last();
            let why = cause.map_or_else(|| error.to_string(), |cause| cause.to_string());
            Finding::error(&name, format!("can't reach {endpoint}: {why}"))
                .hint("is base_url right, and may this machine reach it?")
        }
    }
}

async fn list(endpoint: &str, settings: &ModelSettings) -> reqwest::Result<Response> {
    let request = egress::operator_client(PATIENCE).get(format!("{endpoint}/models"));
    let request = match (settings.provider.as_str(), settings.keys().next()) {
        ("anthropic", Some(key)) => request.header("x-api-key", key.expose()),
        (_, Some(key)) => request.bearer_auth(key.expose()),
        _ => request,
    };
    request.header("anthropic-version", "2023-06-01").send().await
}

async fn judge(name: &str, endpoint: &str, settings: &ModelSettings, answer: Response) -> Finding {
    let model = &settings.model;
    match answer.status() {
        StatusCode::UNAUTHORIZED | StatusCode::FORBIDDEN => Finding::error(name, format!("{endpoint} refuses the key"))
            .hint("set api_key_env to the variable that holds it"),
        status if status.is_success() => match known_models(answer).await {
            Some(known) if !known.contains(model) => {
                Finding::warning(name, format!("{endpoint} answers, and does not list `{model}`"))
            }
            _ => Finding::ok(name, format!("{endpoint} answers; `{model}`")),
        },
        // not everyone who speaks this protocol lists models
        StatusCode::NOT_FOUND | StatusCode::METHOD_NOT_ALLOWED => {
            Finding::ok(name, format!("{endpoint} answers, and lists no models; `{model}`"))
        }
        status => Finding::error(name, format!("{endpoint} answers {status}")),
    }
}

/// The ids in `{"data": [{"id": …}]}`, where the list is whole.
async fn known_models(answer: Response) -> Option<Vec<String>> {
    let body: Value = answer.json().await.ok()?;
    let whole = body["has_more"] != true;
    let ids = body["data"].as_array().filter(|_| whole)?.iter();
    Some(ids.filter_map(|model| model["id"].as_str().map(str::to_owned)).collect())
}
