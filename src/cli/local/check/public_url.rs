//! Looks at where the links in messages lead: does this service answer there, and can others open it?

use std::time::Duration;

use reqwest::StatusCode;
use serde_json::Value;
use url::{Host, Url};

use super::{Finding, channels};
use crate::config::Config;
use crate::ports::egress;

/// How long the address may take to answer.
const PATIENCE: Duration = Duration::from_secs(10);
const NAME: &str = "public_url";

pub async fn check(config: &Config) -> Finding {
    let address = config.server.public_url();
    let people_are_told = channels::sends_links(&config.channels);
    let Ok(url) = Url::parse(&address) else {
        return Finding::error(NAME, format!("`{address}` is no address"))
            .hint("set server.public_url to where people reach this service, such as https://reveille.example.org");
    };
    match (is_this_machine(&url), people_are_told) {
        (true, true) => {
            Finding::warning(NAME, format!("links in messages lead to {address}, which opens on this machine only"))
                .hint("set server.public_url to where people reach this service, such as https://reveille.example.org")
        }
        (true, false) => Finding::ok(NAME, format!("links lead to {address}, which opens on this machine only")),
        (false, _) => ask(&url).await,
    }
}

/// A name or number that leads nowhere but here, and addresses to listen on that are no address to go to.
fn is_this_machine(url: &Url) -> bool {
    match url.host() {
        Some(Host::Domain(name)) => name == "localhost" || name.ends_with(".localhost"),
        Some(Host::Ipv4(ip)) => ip.is_loopback() || ip.is_unspecified(),
        Some(Host::Ipv6(ip)) => {
            ip.is_loopback()
                || ip.is_unspecified()
                || ip.to_ipv4_mapped().is_some_and(|ip| ip.is_loopback() || ip.is_unspecified())
        }
        None => false,
    }
}

async fn ask(url: &Url) -> Finding {
    let health = format!("{}/healthz", url.as_str().trim_end_matches('/'));
    let answer = match egress::operator_client(PATIENCE).get(&health).send().await {
        Ok(answer) => answer,
        Err(error) => {
            let cause = std::iter::successors(std::error::Error::source(&error), |cause| cause.source()).last();
            let why = cause.map_or_else(|| error.to_string(), |cause| cause.to_string());
            return Finding::warning(NAME, format!("{url} does not answer: {why}"))
                .hint("look again while the service runs; links in messages lead there");
        }
    };
    let status = answer.status();
    let body: Option<Value> = answer.json().await.ok();
    judge(url, status, body.as_ref())
}

/// Judges an answer to `GET /healthz` of the public address.
fn judge(url: &Url, status: StatusCode, body: Option<&Value>) -> Finding {
    let ours = body.is_some_and(|body| body["status"] == "ok");
    match status.as_u16() {
        200 if ours && url.scheme() == "http" => {
            Finding::warning(NAME, format!("{url} answers, and links go there in clear: who sees one can decide by it"))
                .hint("put TLS in front and set server.public_url to https://…")
        }
        200 if ours => Finding::ok(NAME, format!("{url} answers")),
        502..=504 => Finding::warning(NAME, format!("{url} answers {status}"))
            .hint("look again while the service runs; links in messages lead there"),
        _ => Finding::error(NAME, format!("{url} answers {status} to /healthz, as something other than Reveille does"))
            .hint("links in messages lead there: does the proxy pass every path on to server.listen?"),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::CheckVerdict;
    use super::*;

    fn url(text: &str) -> Url {
        Url::parse(text).unwrap()
    }

    #[test]
    fn address_of_this_machine_is_known_in_every_spelling() {
        for here in
            ["http://localhost:7700", "http://a.localhost", "http://127.1", "http://[::1]:1", "http://0.0.0.0:7700"]
        {
            assert!(is_this_machine(&url(here)), "{here}");
        }
        for there in
            ["https://reveille.example.org", "http://10.0.0.1", "http://[fd00::1]", "http://localhost.example.org"]
        {
            assert!(!is_this_machine(&url(there)), "{there}");
        }
    }

    #[test]
    fn every_answer_has_its_meaning() {
        let ok = json!({ "status": "ok" });
        let verdict = |address: &str, status: u16, body: Option<&Value>| {
            judge(&url(address), StatusCode::from_u16(status).unwrap(), body).verdict
        };
        assert_eq!(verdict("https://wake.example.org", 200, Some(&ok)), CheckVerdict::Fine);
        assert_eq!(verdict("http://wake.example.org", 200, Some(&ok)), CheckVerdict::Odd);
        assert_eq!(verdict("https://wake.example.org", 502, None), CheckVerdict::Odd);
        assert_eq!(verdict("https://wake.example.org", 200, None), CheckVerdict::Wrong);
        assert_eq!(verdict("https://wake.example.org", 404, Some(&ok)), CheckVerdict::Wrong);
    }
}
