//! The words of a question, a reminder or a code at the moment it is sent: the open calls, the link, the digits; and
//! where the whole of any other message can be read.
//!
//! The link to a question is made here, each time anew and the same for one delivery. Its hash is stored before
//! anything is sent, so that a link that has arrived always opens; the link itself is in the message alone, never in
//! the database, never in a log.

use crate::base::id::Scope;
use crate::base::secret::{REDACTED, Secret};
use crate::base::token::TokenHash;
use crate::domain::approval::link;
use crate::domain::notification::question::still_open;
use crate::domain::notification::verification::{self};
use crate::domain::notification::{
    ApprovalQuestion, Delivery, DeliveryClaim, Mark, MessageKind, Proof, Recipient, SubjectRef,
};
use crate::ports::channel::full_message_url;
use crate::ports::vault::Vault;
use crate::store::{ApprovalFilter, ApprovalLink, Store, StoreError};

/// Most questions of one batch.
const BATCH: i64 = 500;

/// Why a message is not sent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum UnsentReason {
    /// It is a question and names none.
    #[error("it names no batch of questions")]
    Nameless,
    /// People were quicker, and nothing is wrong.
    #[error("nothing of what it asks is open any more")]
    Settled,
    /// It is a digest without messages.
    #[error("nothing of what was held is left to be told")]
    NothingHeld,
}

impl UnsentReason {
    /// The mark of such a message: no other channel tells it either.
    pub fn mark(self, claim: &DeliveryClaim) -> Mark {
        match self != UnsentReason::NothingHeld && claim.may_have_been_sent() {
            true => Mark::Unknown { error: format!("not sent again: {self}"), fall_back: None },
            false => Mark::Failed { error: format!("not sent: {self}"), fall_back: None },
        }
    }
}

/// Makes links to questions and to messages. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Links {
    pub vault: Vault,
    /// Where people reach this service.
    pub public_url: String,
}

impl Links {
    /// The question, its link good from now on, or why nothing is to be sent.
    pub async fn question(
        &self,
        store: &Store,
        delivery: &Delivery,
    ) -> Result<Result<ApprovalQuestion, UnsentReason>, StoreError> {
        let Some(SubjectRef::Questions { batch_id }) = delivery.subject_ref else {
            return Ok(Err(UnsentReason::Nameless));
        };
        let filter = ApprovalFilter {
            tenant: Some(delivery.tenant_id.clone()),
            batch_id: Some(batch_id),
            limit: BATCH,
            ..ApprovalFilter::default()
        };
        let mut batch = store.list_approvals(&Scope::Every, &filter).await?;
        batch.reverse();
        let last = batch.iter().map(|item| item.expires_at).max();
        let items = still_open(batch, store.clock().now());
        let (Some(last), false) = (last, items.is_empty()) else { return Ok(Err(UnsentReason::Settled)) };
        let token = self.vault.tag(link::PURPOSE, &link::subject(batch_id, &delivery.recipient, delivery.id));
        let remembered = ApprovalLink {
            batch_id,
            tenant_id: delivery.tenant_id.clone(),
            recipient: delivery.recipient.clone(),
            channel: delivery.channel.clone(),
            expires_at: last + link::SHOWS_FOR,
        };
        store.remember_link(TokenHash::of(&token).as_bytes(), &remembered).await?;
        Ok(Ok(ApprovalQuestion { items, link: Secret::new(link::address(&self.public_url, &token)) }))
    }

    /// Where all of a message can be read that may have to be cut; a question has a link of its own, a code needs none.
    pub fn full_text_link(&self, delivery: &Delivery) -> Option<Secret> {
        let tells = !delivery.kind.asks() && delivery.kind != MessageKind::Code;
        tells.then(|| full_message_url::full_text_url(&self.vault, &self.public_url, delivery))
    }

    /// The code that this delivery carries to the recipient's present address; `None` where it carries none.
    pub fn code(&self, delivery: &Delivery, recipient: &Recipient) -> Option<Secret> {
        let proof = Proof::of(&delivery.recipient, delivery.subject_ref.as_ref(), &recipient.addresses)?;
        Some(proof.code(&self.vault.tag(verification::PURPOSE, &proof.subject())))
    }
}

/// The mark without these secrets: a server that refuses a message may quote from it.
pub fn redact_mark(mut mark: Mark, secrets: &[&str]) -> Mark {
    let hide = |text: &mut String| secrets.iter().for_each(|secret| *text = text.replace(secret, REDACTED));
    match &mut mark {
        Mark::Retry { error, .. } | Mark::Failed { error, .. } | Mark::Unknown { error, .. } => hide(error),
        Mark::Wait { error, .. } => error.iter_mut().for_each(hide),
        Mark::Hold { .. } => {}
        Mark::Delivered { provider_id } | Mark::Sent { provider_id } => provider_id.iter_mut().for_each(hide),
    }
    mark
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn question_that_may_have_been_read_is_not_called_unsent() {
        let delivery = Delivery::sample(MessageKind::Ask);
        let first = DeliveryClaim { delivery: delivery.clone(), lease_token: 3, interrupted: false };
        let error = |begin: &str| format!("{begin}: nothing of what it asks is open any more");
        let unsent = Mark::Failed { error: error("not sent"), fall_back: None };
        let in_doubt = Mark::Unknown { error: error("not sent again"), fall_back: None };
        let doubtful = DeliveryClaim { delivery: Delivery { maybe_delivered: true, ..delivery }, ..first.clone() };
        let died = DeliveryClaim { interrupted: true, ..first.clone() };
        for (claim, mark) in [(first, unsent), (doubtful.clone(), in_doubt.clone()), (died, in_doubt)] {
            assert_eq!(UnsentReason::Settled.mark(&claim), mark);
        }
        let empty = "not sent: nothing of what was held is left to be told".to_owned();
        assert_eq!(UnsentReason::NothingHeld.mark(&doubtful), Mark::Failed { error: empty, fall_back: None });
    }

    #[test]
    fn link_quoted_by_a_server_is_not_recorded() {
        let secrets = ["https://wake.example.org/approvals/5ec4e7", "5ec4e7"];
        let hidden = |text: &str| redact_mark(Mark::Unknown { error: text.into(), fall_back: None }, &secrets);
        let error = |text: &str| Mark::Unknown { error: text.into(), fall_back: None };
        assert_eq!(hidden("554 no https://wake.example.org/approvals/5ec4e7 here"), error("554 no [redacted] here"));
        assert_eq!(hidden("554 spam: /approvals/5ec4e7"), error("554 spam: /approvals/[redacted]"));
        let taken = Mark::Delivered { provider_id: Some("queued 5ec4e7".into()) };
        assert_eq!(redact_mark(taken, &secrets), Mark::Delivered { provider_id: Some("queued [redacted]".into()) });
    }
}
