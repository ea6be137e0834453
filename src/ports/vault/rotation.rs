//! Putting everything that is sealed under the first master key, while the service runs.
//!
//! It goes row by row, and each row by itself: what has been done stays done, whenever it ends, and whoever begins anew
//! goes on with the rows that are left. Only data keys are wrapped anew; no secret is opened. A row that cannot be
//! (its key is not configured, or it is damaged) is counted, told, and left as it is.

mod lost;
mod texts;

use std::collections::BTreeMap;
use std::time::Duration;

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use crate::base::clock::Clock;
use crate::ports::vault::{Vault, VaultError};
use crate::store::{SealedRow, Store, StoreError, StoredCredential};

pub use crate::ports::vault::rotation::lost::locked_out;

/// Rows read at once.
const BATCH: i64 = 200;
/// How long one call goes on: the answer has to be in time for whoever asked over HTTP.
const BUDGET: Duration = Duration::from_secs(15);
/// How many rows that could not be rewrapped are named.
const NAMED: usize = 20;

/// Where it has come to: what a next call goes on from.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "in", content = "after", rename_all = "snake_case")]
pub enum Cursor {
    /// Nothing is done yet.
    #[default]
    Start,
    /// Credentials up to this id are done.
    Credentials(Uuid),
    /// Recipients up to this id are done.
    Recipients(String),
    /// Tasks up to this id are done.
    Tasks(Option<Uuid>),
    /// Messages up to this id are done.
    Messages(Option<Uuid>),
}

/// Rows of each kind.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, utoipa::ToSchema)]
pub struct RotationCounts {
    /// Sealed documents of credentials.
    pub credentials: u64,
    /// Recipients with secrets among their addresses.
    pub recipients: u64,
    /// Tasks with a secret in their action.
    pub tasks: u64,
    /// Messages to open sessions, which are kept for an hour.
    pub messages: u64,
}

/// Result of one call, in counts.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RotationResult {
    /// Secrets that were put under the first key.
    pub rewrapped: RotationCounts,
    /// Rows that could not be, the first of them by name, and why.
    pub failed: RotationCounts,
    /// Secrets that could not be.
    pub failures: Vec<RotationFailure>,
    /// Where to go on; `None`: it is done.
    pub next: Option<Cursor>,
}

/// A row that could not be rewrapped.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, utoipa::ToSchema)]
pub struct RotationFailure {
    /// Such as `credential google/work`, `task 0193…`.
    pub subject: String,
    /// The tenant that owns the secret.
    pub tenant_id: String,
    /// The reason, in a sentence.
    pub reason: String,
}

/// Counts of sealed secrets under each master key, by its id.
pub type RotationKeys = BTreeMap<String, RotationCounts>;

/// One kind of row, as a page of it was read.
enum RotationPage {
    Credentials(Vec<StoredCredential>),
    Recipients(Vec<SealedRow<String>>),
    Tasks(Vec<SealedRow<Uuid>>),
    /// Id, tenant, sealed text.
    Messages(Vec<(Uuid, String, String)>),
}

/// Puts what is left under the first key, from `from` on, for as long as the budget lasts.
///
/// # Errors
/// The store's; what was done until then is done.
pub async fn rotate(store: &Store, vault: &Vault, clock: &Clock, from: Cursor) -> Result<RotationResult, StoreError> {
    let begun = clock.elapsed();
    let mut rotated = RotationResult::default();
    let mut cursor = from;
    loop {
        let page = read(store, vault, &cursor).await?;
        let next = page.next();
        rewrap_page(store, vault, page, &mut rotated).await?;
        match next {
            None => return Ok(rotated),
            Some(next) if clock.elapsed().saturating_sub(begun) >= BUDGET => {
                return Ok(RotationResult { next: Some(next), ..rotated });
            }
            Some(next) => cursor = next,
        }
    }
}

/// Counts what is sealed under which key. Reads and changes nothing.
///
/// # Errors
/// The store's.
pub async fn survey(store: &Store) -> Result<RotationKeys, StoreError> {
    let mut keys = RotationKeys::new();
    for (id, count) in store.keys_of_credentials().await? {
        keys.entry(id).or_default().credentials = count.unsigned_abs();
    }
    let mut cursor = Cursor::Recipients(String::new());
    loop {
        let page = match &cursor {
            Cursor::Recipients(after) => RotationPage::Recipients(store.sealed_recipients(after, BATCH).await?),
            Cursor::Tasks(after) => RotationPage::Tasks(store.sealed_tasks(*after, BATCH).await?),
            Cursor::Messages(after) => RotationPage::Messages(store.sealed_live_messages(*after, BATCH).await?),
            Cursor::Start | Cursor::Credentials(_) => return Ok(keys),
        };
        match &page {
            RotationPage::Recipients(rows) => {
                for key in rows.iter().filter_map(|row| row.body.as_ref()).flat_map(texts::keys_of_recipient) {
                    keys.entry(key.to_owned()).or_default().recipients += 1;
                }
            }
            RotationPage::Tasks(rows) => {
                for key in rows.iter().filter_map(|row| row.body.as_ref()).flat_map(texts::keys_of_task) {
                    keys.entry(key.to_owned()).or_default().tasks += 1;
                }
            }
            RotationPage::Messages(rows) => {
                for key in rows.iter().filter_map(|(_, _, sealed)| Vault::key_of(sealed)) {
                    keys.entry(key.to_owned()).or_default().messages += 1;
                }
            }
            RotationPage::Credentials(_) => {}
        }
        match page.next() {
            Some(next) => cursor = next,
            None => return Ok(keys),
        }
    }
}

async fn read(store: &Store, vault: &Vault, cursor: &Cursor) -> Result<RotationPage, StoreError> {
    Ok(match cursor {
        Cursor::Start => RotationPage::Credentials(store.credentials_not_under(vault.first_key(), None, BATCH).await?),
        Cursor::Credentials(after) => {
            RotationPage::Credentials(store.credentials_not_under(vault.first_key(), Some(*after), BATCH).await?)
        }
        Cursor::Recipients(after) => RotationPage::Recipients(store.sealed_recipients(after, BATCH).await?),
        Cursor::Tasks(after) => RotationPage::Tasks(store.sealed_tasks(*after, BATCH).await?),
        Cursor::Messages(after) => RotationPage::Messages(store.sealed_live_messages(*after, BATCH).await?),
    })
}

impl RotationPage {
    /// Behind it; credentials come first, then recipients, then tasks, then messages.
    fn next(&self) -> Option<Cursor> {
        let full = |rows: usize| rows as i64 == BATCH;
        match self {
            RotationPage::Credentials(rows) => Some(match rows.last().filter(|_| full(rows.len())) {
                Some(last) => Cursor::Credentials(last.credential.id),
                None => Cursor::Recipients(String::new()),
            }),
            RotationPage::Recipients(rows) => Some(match rows.last().filter(|_| full(rows.len())) {
                Some(last) => Cursor::Recipients(last.id.clone()),
                None => Cursor::Tasks(None),
            }),
            RotationPage::Tasks(rows) => Some(match rows.last().filter(|_| full(rows.len())) {
                Some(last) => Cursor::Tasks(Some(last.id)),
                None => Cursor::Messages(None),
            }),
            RotationPage::Messages(rows) => {
                rows.last().filter(|_| full(rows.len())).map(|(id, ..)| Cursor::Messages(Some(*id)))
            }
        }
    }
}

async fn rewrap_page(
    store: &Store,
    vault: &Vault,
    page: RotationPage,
    rotated: &mut RotationResult,
) -> Result<(), StoreError> {
    match page {
        RotationPage::Credentials(rows) => {
            for read in rows {
                let what = || format!("credential {}", read.credential.reference());
                match vault.rewrap_document(&read) {
                    Ok(Some(sealed)) => {
                        let done = store.rewrap_credential(&read, &sealed, vault.first_key()).await?;
                        rotated.rewrapped.credentials += u64::from(done);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        rotated.failed.credentials += 1;
                        rotated.name(what(), &read.credential.tenant_id, &why);
                    }
                }
            }
        }
        RotationPage::Recipients(rows) => {
            for read in rows {
                let Some(body) = &read.body else { continue };
                match texts::rewrap_recipient(vault, &read.tenant_id, body) {
                    Ok(Some(body)) => {
                        rotated.rewrapped.recipients += u64::from(store.rewrap_recipient(&read, &body).await?);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        rotated.failed.recipients += 1;
                        rotated.name(format!("recipient {}", read.id), &read.tenant_id, &why);
                    }
                }
            }
        }
        RotationPage::Tasks(rows) => {
            for read in rows {
                let Some(spec) = &read.body else { continue };
                match texts::rewrap_task(vault, &read.tenant_id, spec) {
                    Ok(Some(spec)) => rotated.rewrapped.tasks += u64::from(store.rewrap_task(&read, &spec).await?),
                    Ok(None) => {}
                    Err(why) => {
                        rotated.failed.tasks += 1;
                        rotated.name(format!("task {}", read.id), &read.tenant_id, &why);
                    }
                }
            }
        }
        RotationPage::Messages(rows) => {
            for (id, tenant, sealed) in rows {
                match texts::rewrap_message(vault, &tenant, id, &sealed) {
                    Ok(Some(sealed)) => {
                        rotated.rewrapped.messages += u64::from(store.rewrap_live_message(id, &sealed).await?);
                    }
                    Ok(None) => {}
                    Err(why) => {
                        rotated.failed.messages += 1;
                        rotated.name(format!("message {id}"), &tenant, &why);
                    }
                }
            }
        }
    }
    Ok(())
}

impl RotationResult {
    fn name(&mut self, what: String, tenant: &str, why: &VaultError) {
        if self.failures.len() < NAMED {
            self.failures.push(RotationFailure {
                subject: what,
                tenant_id: tenant.to_owned(),
                reason: why.to_string(),
            });
        }
    }
}

impl RotationCounts {
    /// The sum of all kinds.
    pub fn total(&self) -> u64 {
        self.credentials + self.recipients + self.tasks + self.messages
    }
}
