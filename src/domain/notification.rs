//! Telling people: who is reached where (`recipient`, `address`), one message on its way (`delivery`), what is reported
//! of it later (`report`), what it is about (`subject_ref`), and its words
//! (`message_context`, `rendered_message`, `question`, `credential_notice`).
//!
//! Data and transitions only: nothing here sends, stores or waits. A delivery stores references; its words are made
//! when it is sent, and a secret is never part of it.

pub mod address;
pub mod credential_ended;
pub mod credential_notice;
pub mod dedupe;
pub mod delivery;
pub mod digest;
pub mod kind;
pub mod language;
pub mod message_context;
pub mod new_delivery;
pub mod notices;
pub mod question;
pub mod quiet;
pub mod recipient;
pub mod rendered_message;
pub mod report;
pub mod run_notification;
pub mod subject_ref;
pub mod text;
pub mod verification;

pub use address::AddressKind;
pub use credential_notice::CredentialContext;
pub use delivery::{Delivery, DeliveryClaim, DeliveryEvent, DeliveryState, Mark};
pub use digest::DigestItem;
pub use kind::{HoldReason, MessageKind, NoticeKind};
pub use language::MessageLanguage;
pub use message_context::{MessageContext, Purpose, RunContext, WholeMessageLink};
pub use new_delivery::NewDelivery;
pub use question::{ApprovalQuestion, QuestionContext};
pub use quiet::{BreaksThrough, Day, DigestTimes, InterruptionBudget, QuietHours, QuietRules, WallTime};
pub use recipient::{Addresses, PushAddress, Recipient, RecipientDraft, SlackAddress, WebhookAddress};
pub use rendered_message::{References, RenderedMessage};
pub use report::{DeliveryReport, ReportedFate};
pub use run_notification::{Alert, AlertState, NotifiedOutcome, RunEnd, RunNotification};
pub use subject_ref::SubjectRef;
pub use text::Link;
pub use verification::Proof;
