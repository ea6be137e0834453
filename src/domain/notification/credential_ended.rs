//! The message to the owner of a credential that its other side has ended: one message for one document, whichever
//! comes to it first, the renewal that was refused or a task that is paused for it.
//!
//! One key and one order of channels, because a message is told from another by both. The document tells one end
//! from the next: it is written anew by connecting the account, and not by changes around it.

use crate::domain::credential::{Credential, CredentialIssueKind};
use crate::domain::notification::credential_notice::credential_ended;
use crate::domain::notification::new_delivery::channels;
use crate::domain::notification::{MessageKind, NewDelivery, Recipient, SubjectRef, dedupe};
use crate::domain::task::Output;

/// The message; `None` where the owner has no address. `generation` is the document's, `why` a sentence's end without
/// its full stop, that holds no secret.
pub fn ended(
    credential: &Credential,
    generation: i64,
    recipient: Option<&Recipient>,
    why: Option<&str>,
) -> Option<NewDelivery> {
    let order = channels(&Output::default(), recipient);
    let (subject, text) = credential_ended(Recipient::language_of(recipient), &credential.reference(), why);
    let subject_ref = SubjectRef::Credential {
        credential: credential.reference(),
        issue: CredentialIssueKind::NeedsConsent,
        task_id: None,
        credential_id: Some(credential.id),
    };
    let key = dedupe::credential_ended(credential.id, generation);
    let new = NewDelivery::new(&credential.tenant_id, &order, MessageKind::Notice, key)?;
    Some(NewDelivery { subject_ref: Some(subject_ref), subject: Some(subject), text: Some(text), ..new })
}
