//! Looks for secrets in texts: short ones in place, long ones aside.

use std::sync::Arc;

use crate::base::redact::Redactor;
use crate::base::secret::REDACTED;
use crate::ports::vault::credentials::reading_turn::ReadingTurn;
use crate::ports::vault::credentials::secret_document::READ_IN_PLACE;

/// The secrets that are known, and where long texts are read.
pub struct SecretReader {
    pub(super) redactor: Arc<Redactor>,
    pub(super) turn: ReadingTurn,
}

impl SecretReader {
    /// A reader that finds nothing.
    pub fn of_nothing() -> SecretReader {
        SecretReader { redactor: Arc::new(Redactor::new([])), turn: ReadingTurn::default() }
    }

    /// Whether there is something in a text that is known, or may be.
    pub async fn finds(&self, text: &str) -> bool {
        if text.len() <= READ_IN_PLACE {
            let mut reading = self.redactor.in_place();
            let is_found = reading.contains_secret(text.as_bytes());
            if !reading.is_exhausted() {
                return is_found;
            }
        }
        let text = text.to_owned();
        self.read_off_thread(move |redactor| redactor.contains_secret(text.as_bytes())).await.unwrap_or(true)
    }

    /// A text without what is known; nothing is shown of one that can't be read.
    pub async fn text(&self, text: String) -> String {
        if text.len() <= READ_IN_PLACE {
            let mut reading = self.redactor.in_place();
            let clean = reading.text(&text).into_owned();
            if !reading.is_exhausted() {
                return clean;
            }
        }
        let read = self.read_off_thread(move |redactor| redactor.text(&text).into_owned()).await;
        read.unwrap_or_else(|| REDACTED.to_owned())
    }

    /// Reads on a thread that keeps nothing else waiting, in the tenant's turn where the tenant is known. `None`: it
    /// could not be read.
    pub async fn read_off_thread<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Redactor) -> T + Send + 'static,
    ) -> Option<T> {
        let redactor = self.redactor.clone();
        self.turn.run(move || read(&redactor)).await
    }
}
