//! Ann, where nobody sits before the screen: she opens the link that arrived and presses the page's own button.
//!
//! She has nothing but the link: no token, no API. What she decides is what the page showed her.

use std::time::Duration;

use anyhow::Context;
use chrono::{DateTime, Utc};
use url::Url;

use crate::base::clock::machine_now;
use crate::cli::CliFailure;
use crate::ports::egress;

/// For one page.
const TIMEOUT: Duration = Duration::from_secs(10);
/// The text before the page's nonce, and after it.
const NONCE: (&str, &str) = ("name=\"nonce\" value=\"", "\"");

/// Approves all that the page behind `link` asks. Returns when the button was pressed: the run may be over before the
/// page answers.
pub async fn approve(link: &str) -> anyhow::Result<DateTime<Utc>> {
    let link = Url::parse(link).context("read the link")?;
    let http = egress::operator_client(TIMEOUT);
    let page = http.get(link.clone()).send().await.context("open the link")?;
    let page = page.error_for_status().context("open the link")?.text().await.context("read the page")?;
    let nonce = nonce(&page).ok_or_else(|| CliFailure::new("the page has no form"))?;
    let pressed = machine_now();
    let answer = http.post(link).form(&[("nonce", nonce), ("do", "approve:all")]).send().await.context("answer")?;
    match answer.status().is_redirection() {
        true => Ok(pressed),
        false => Err(CliFailure::new(format!("the page answered {} to an approval", answer.status())).into()),
    }
}

fn nonce(page: &str) -> Option<&str> {
    let (_, rest) = page.split_once(NONCE.0)?;
    rest.split_once(NONCE.1).map(|(nonce, _)| nonce)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nonce_is_read_from_the_form_and_nowhere_else() {
        let page = "<form method=\"post\"><input type=\"hidden\" name=\"nonce\" value=\"5ec4e7\">\n</form>";
        assert_eq!(nonce(page), Some("5ec4e7"));
        assert_eq!(nonce("<p>Approved.</p>"), None);
    }
}
