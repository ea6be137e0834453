//! Lists: fetched page by page, and printed as a table or as JSON.

use serde_json::{Value, json};

use super::client::ServiceArgs;
use super::screen::Screen;
use crate::cli::Client;

#[derive(Debug, clap::Args)]
pub struct ListOptions {
    /// How many at most
    #[arg(long, default_value_t = 50, value_name = "N")]
    limit: usize,
    #[command(flatten)]
    pub service: ServiceArgs,
}

impl ListOptions {
    /// Prints the items of a list: a row for each below the heading.
    pub async fn print<const N: usize>(
        &self,
        client: &Client,
        path: &[&str],
        filters: &[(&str, String)],
        (heading, row): ([&str; N], impl Fn(&Value) -> [String; N]),
        screen: &mut Screen,
    ) -> anyhow::Result<()> {
        let items = client.list(path, filters, self.limit).await?;
        if self.service.json {
            return Ok(screen.json(&json!({ "items": items }))?);
        }
        Ok(screen.table(&heading, items.iter().map(|item| row(item).into()).collect())?)
    }
}
