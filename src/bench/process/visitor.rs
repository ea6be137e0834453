//! A browser of somebody who is signed in to the dashboard.

use std::net::SocketAddr;
use std::time::Duration;

use anyhow::{Context, ensure};
use reqwest::{Client, StatusCode, header};
use url::form_urlencoded::Serializer;

use crate::bench::process::service::BenchTenant;
use crate::ports::egress;

/// The longest that a page may take.
const PATIENCE: Duration = Duration::from_secs(60);

/// The browser, with the cookie of its session.
pub struct PageVisitor {
    address: SocketAddr,
    cookie: String,
    http: Client,
}

impl PageVisitor {
    /// Signs in with the token of a caller of the API, as the form of the page does.
    ///
    /// # Errors
    /// The token is refused.
    pub async fn sign_in(caller: &BenchTenant) -> anyhow::Result<PageVisitor> {
        let (address, http) = (caller.address(), egress::operator_client(PATIENCE));
        let form = Serializer::new(String::new()).append_pair("token", caller.token()).finish();
        let sent = http
            .post(format!("http://{address}/ui/login"))
            .header("sec-fetch-site", "same-origin")
            .header(header::CONTENT_TYPE, "application/x-www-form-urlencoded")
            .body(form);
        let answer = sent.send().await?;
        ensure!(answer.status() == StatusCode::SEE_OTHER, "the dashboard answered {} to a token", answer.status());
        let cookie = answer.headers().get(header::SET_COOKIE).context("the dashboard sets no cookie")?;
        let cookie = cookie.to_str()?.split(';').next().unwrap_or_default().to_owned();
        Ok(PageVisitor { address, cookie, http })
    }

    /// Where the service listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The cookie as a request sends it.
    pub fn cookie(&self) -> &str {
        &self.cookie
    }

    /// Opens a page; answers its text.
    ///
    /// # Errors
    /// There is no such page.
    pub async fn open(&self, path: &str) -> anyhow::Result<String> {
        let request = self.http.get(format!("http://{}{path}", self.address)).header(header::COOKIE, &self.cookie);
        let answer = request.send().await?;
        let status = answer.status();
        let text = answer.text().await?;
        ensure!(status == StatusCode::OK, "the dashboard answered {status} to {path}: {text}");
        Ok(text)
    }
}
